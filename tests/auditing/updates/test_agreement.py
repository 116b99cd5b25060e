"""Records that are named for an update, right and wrong ones, and what clients do to updates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from exhume import readers
from exhume.auditing.kinds.update_files import ClientUpdate, Truth, client_updates
from exhume.auditing.kinds.update_rows import with_search
from exhume.auditing.premise import (
    Agreement,
    agreement_of,
    agreements_of,
    check_named_records,
)
from exhume.core.contract import Gradient, Key, Records
from exhume.defences.release import ClipRelease, NoiseRelease, PruneRelease, QuantiseRelease
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.models.own_texts import TextModel
from exhume.settings import UpdateSettings
from exhume.train.local import LocalTraining, Steps
from exhume.victims.gradient import cut_batches, release_updates

NETS = {
    "mlp": MLP((1, 8, 8), (60,), 10, "relu"),
    "tanh": MLP((1, 8, 8), (30, 20), 10, "tanh"),
    "cnn": CNN((1, 8, 8), (6,), (3,), (2,), (20,)),
}
DEFENCES = {
    "none": (None, "exact"),
    "4-bit": (QuantiseRelease(4), "noisy"),
    "2-bit": (QuantiseRelease(2), "noisy"),
    "1-bit": (QuantiseRelease(1), "noisy"),
    "8-bit": (QuantiseRelease(8), "exact or noisy"),
    "noise-1": (NoiseRelease(1.0), "noisy"),
    "noise-0.01": (NoiseRelease(0.01), "exact or noisy"),
    "pruned": (PruneRelease(0.99), "exact"),
    "clipped": (ClipRelease(100.0), "scaled"),
}
SEEDS = [
    pytest.param(range(1), id="one"),
    pytest.param(range(1, 12), id="more", marks=pytest.mark.slow),
]


def case_of(net, records, *, key, steps=1, rate=0.1, defence=None, size=0):
    local = LocalTraining(net, steps, rate)
    sent = release_updates(local, net.initial(key), cut_batches(records, len(records)))[0]
    if defence is not None:
        sent = defence.protect(sent, key)
    assert isinstance(sent, Gradient)
    return ClientUpdate(
        "3", 1, sent, net, size or None, Steps(steps, rate), averaged=True, checked=()
    )


def word(found):
    words = [name for name in ("exact", "scaled", "noisy", "wrong") if getattr(found, name)]
    assert len(words) == found.known
    return words[0] if words else "unknown"


def drawn(count, key):
    digits = readers.load("digits")
    rows = torch.randperm(len(digits), generator=key.generator())[:count]
    return digits[rows]


@pytest.mark.parametrize("defence", DEFENCES)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("seeds", SEEDS)
def test_right_and_wrong_records(net, defence, seeds):
    """Whatever the client did: its records give the update; others do not, nor do all but one of its own."""
    network, (protect, expected) = NETS[net], DEFENCES[defence]
    for seed in seeds:
        key = Key.from_seed(seed)
        own, others = drawn(4, key.fold("own")), drawn(4, key.fold("others"))
        case = case_of(network, own, key=key, defence=protect)
        right = agreement_of(case, own)
        assert word(right) in expected, right
        assert right.sentence.startswith("The records named for client 3 give")
        some = [] if defence in ("noise-1", "1-bit") else [own[:3]]  # hidden, now and then
        for wrong in (others, *some):
            found = agreement_of(case, wrong)
            assert found.wrong, (seed, found)
            assert "client 3 do not give this update (" in found.sentence
            assert found.cause is None  # neither their order nor anything else is to blame


@pytest.mark.parametrize(("noise", "tells"), [(60.0, True), (3000.0, False)])
@pytest.mark.parametrize("named", ["own", "others"])
def test_noise_that_hides_one_client_hides_not_all_of_them(named, noise, tells, key):
    updates, private = [], {}
    for place in range(100):
        each = key.fold("client", place)
        case = case_of(NETS["mlp"], drawn(2, each.fold("own")), key=key.fold("start"), size=2)
        plain = case.gradient.values
        drawn_noise = torch.randn(plain.shape, generator=each.fold("noise").generator())
        values = plain + noise * plain.norm() * drawn_noise / plain.numel() ** 0.5
        sent = replace(case.gradient, values=values)
        updates.append(replace(case, client=f"c{place}", gradient=sent))
        private[f"c{place}"] = drawn(2, each.fold(named))
    strangers = drawn(40, key.fold("strangers"))
    hidden = [case for case in updates if not agreement_of(case, private[case.client]).known]
    assert len(hidden) > 80
    _, truth = check_named_records(updates, Truth(private, strangers))
    assert truth.premise.holds is (named == "own" or not tells)
    assert bool(truth.premise.why) is not truth.premise.holds


@pytest.mark.parametrize("net", NETS)
def test_local_steps(net, key):
    own, others = drawn(4, key.fold("own")), drawn(4, key.fold("others"))
    case = case_of(NETS[net], own, key=key, steps=5, rate=0.5, size=4)
    assert agreement_of(case, own).exact
    assert agreement_of(case, others).wrong
    assert not agreement_of(replace(case, batch_size=None), others).known  # parts of them, perhaps
    assert not agreement_of(replace(case, batch_size=2), own).known
    assert not agreement_of(replace(case, repeatable=False), others).known


@pytest.mark.parametrize("defence", ["none", "4-bit", "noise-0.01"])
@pytest.mark.parametrize("net", NETS)
def test_classes_may_have_other_numbers_here(net, defence, key):
    """A set with some of the classes counts only these; torchvision sorts them otherwise."""
    digits = readers.load("digits")
    own = digits[torch.tensor([3, 17, 40, 41])]  # classes 3, 7, 8, 4
    case = case_of(NETS[net], own, key=key, defence=DEFENCES[defence][0])
    others = drawn(4, key.fold("others"))
    few = replace(own, labels=torch.tensor([0, 2, 3, 1]), classes=("3", "4", "7", "8"))
    mixed = replace(own, labels=torch.tensor([5, 1, 0, 2]))
    for records in (few, mixed, replace(own, labels=own.labels + 100)):
        found = agreement_of(case, records)
        assert found.renumbered
        assert found.exact or found.noisy
        assert "if their classes are numbered otherwise" in found.sentence
        strange = replace(others, labels=records.labels, classes=records.classes)
        found = agreement_of(case, strange)
        assert found.wrong or not found.known
    assert agreement_of(case, others).wrong


def test_what_cannot_be_known(key):
    own = drawn(4, key)
    case = case_of(NETS["mlp"], own, key=key)
    assert not agreement_of(case, own[:0]).known
    none = case_of(MLP((1, 8, 8), (2,), 10), own, key=key)  # too few neurons to find labels
    assert not agreement_of(none, replace(own, labels=own.labels + 100)).known
    loud = case_of(NETS["mlp"], own, key=key, defence=NoiseRelease(1000.0))
    assert not agreement_of(loud, own).known  # the noise hides it
    assert Agreement("7").sentence.startswith("Whether the records named for client 7")
    several = agreements_of([case, replace(case, round=2)], {"3": own})
    assert [one.known for one in several] == [False]
    assert [one.exact for one in agreements_of([case], {"3": own})] == [True]


def test_figures(key):
    own = drawn(4, key)
    case = case_of(NETS["mlp"], own, key=key, defence=NoiseRelease(1.0))
    found = agreement_of(case, own)
    assert found.scale == pytest.approx(1, abs=0.1)
    assert found.noise == pytest.approx(1, abs=0.05)
    assert found.cosine == pytest.approx(0.5**0.5, abs=0.05)
    assert found.nonzero == 1
    assert "with noise of 1 times its size" in found.sentence
    pruned = agreement_of(case_of(NETS["mlp"], own, key=key, defence=PruneRelease(0.99)), own)
    assert pruned.nonzero == pytest.approx(0.01, abs=0.005)


SOURCE = """
import torch
from torch import nn

def made(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30), *middle, nn.ReLU(), nn.Linear(30, 10))
def plain(): return made()
def norm(): return made(nn.BatchNorm1d(30))
def drops(): return made(nn.Dropout(0.5))
"""


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("net", ["plain", "norm", "drops"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_modules_from_files(tmp_path, monkeypatch, net, reduction, kind, key):
    """Batch norm is recomputed; dropout cannot be, and is not held against the records."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets_agree.py").write_text(SOURCE)
    space: dict[str, object] = {}
    exec(SOURCE, space)
    module: nn.Module = space[net]()
    records, others = drawn(4, key.fold("own")), drawn(4, key.fold("others"))
    with torch.autocast("cpu", kind, enabled=kind != torch.float32):
        outputs = module.train()(records.inputs)
        F.cross_entropy(outputs, records.labels, reduction=reduction).backward()
    save_file({n: p.grad for n, p in module.named_parameters()}, tmp_path / "g.safetensors")
    settings = UpdateSettings(
        model=f"nets_agree.py:{net}",
        update="g.safetensors",
        shape=(1, 8, 8),
        reduction=reduction,
        data="",
        seed=0,
    )
    for size in (0, 4):
        (case,) = client_updates(replace(settings, batch_size=size), None)
        right, wrong = agreement_of(case, records), agreement_of(case, others)
        if net == "drops":
            assert not right.known
            assert not wrong.known
        else:
            assert right.exact or (kind == torch.bfloat16 and right.noisy), right
            assert wrong.wrong
    one = replace(case, batch_size=1)
    assert agreement_of(one, records[:1]).known == (net == "plain")


def test_texts(key):
    torch.manual_seed(0)
    embedding = nn.EmbeddingBag(50, 12, mode="mean")
    net = TextModel.of(nn.Sequential(embedding, nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3)), 6)
    start = net.layout.join({n: p.detach() for n, p in net.build().named_parameters()})
    generator = key.generator()
    tokens = torch.randint(50, (2, 4, 6), generator=generator)
    labels = torch.randint(3, (2, 4), generator=generator)
    own, others = (Records(tokens[i], labels[i], ("a", "b", "c")) for i in range(2))
    batch = Records(tokens[:1], labels[:1], own.classes)
    sent = LocalTraining(net).updates(start, batch, key)
    case = ClientUpdate(
        "c", 1, Gradient(sent, net.layout, start), net, 4, Steps(), averaged=True, checked=()
    )
    assert agreement_of(case, own).exact
    assert agreement_of(case, others).wrong


@pytest.mark.parametrize(("seconds", "restarts"), [(0.5, 1), (1.0, 1), (2.0, 2), (30.0, 4)])
def test_restarts_follow_the_steps_that_the_budget_buys(key, seconds, restarts):
    update = case_of(MLP((1, 8, 8), (5,), 10, "relu"), drawn(2, key), key=key)
    settings = UpdateSettings("m", made=1, batch_size=2, data="d", search_seconds=seconds, seed=0)
    given = with_search(settings, [update])
    assert given.restarts == restarts
    assert restarts == 1 or given.search_steps >= 400
