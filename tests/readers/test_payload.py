from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from exhume import readers
from exhume.core.contract import ExhumeError
from exhume.models.mlp import MLP
from exhume.readers.payload import (
    DeclaredTraining,
    check_payload,
    payload_from_named,
    payload_from_states,
)

SHAPE = (1, 6, 6)


def network(seed=0, *, norm=False):
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(12)] if norm else []
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 12), *middle, nn.ReLU(), nn.Linear(12, 4)
    ).double()


def file_of(tmp_path, module, *, reduction="mean", change=lambda named: named, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(8, *SHAPE, generator=generator, dtype=torch.float64)
    labels = torch.arange(8) % 4
    F.cross_entropy(module(inputs), labels, reduction=reduction).backward()
    named = {n: p.grad.clone() for n, p in module.named_parameters()}
    module.zero_grad()
    path = tmp_path / "update.safetensors"
    save_file(change(named), path)
    return path


def check(tmp_path, module, said, **options):
    return check_payload(
        payload_from_named(load_file(file_of(tmp_path, module, **options)), module),
        module,
        said,
        SHAPE,
    )


def test_an_honest_payload_passes(tmp_path):
    found = check(tmp_path, network(), DeclaredTraining("mean", batch_size=8))
    assert "taken at these weights" in found.checked
    assert not found.doubts
    assert not check(
        tmp_path, network(), DeclaredTraining("sum", batch_size=8), reduction="sum"
    ).doubts
    train = check(tmp_path, network(norm=True).train(), DeclaredTraining())
    assert "batch-norm mode" in train.checked
    assert not train.doubts
    assert not check(
        tmp_path, network(norm=True).eval(), DeclaredTraining(batch_norm="eval")
    ).doubts


def doubt(found, words):
    """One sentence of it has these words."""
    assert [sentence for sentence in found.doubts if words in sentence], found.doubts
    assert all("\n" not in sentence for sentence in found.doubts)


NETS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(54, 10)
    ),
}


@functools.cache
def load_digits():
    return readers.load("digits")


def digits_update(net, seed, size, *, steps=0, reduction="mean", kind=torch.float32):
    """Of a batch that was drawn at random: the module, its gradient by name, and the labels."""
    digits = load_digits()
    torch.manual_seed(seed)
    module = NETS[net]()
    optimiser = torch.optim.Adam(module.parameters(), 5e-3)
    for turn in range(steps + 1):
        rows = torch.randint(len(digits), (32 if turn < steps else size,))
        optimiser.zero_grad()
        outputs, labels = module(digits.inputs[rows]), digits.labels[rows]
        F.cross_entropy(outputs, labels, reduction=reduction).backward()
        if turn < steps:
            optimiser.step()
    named = {n: p.grad.to(kind).float() for n, p in module.named_parameters()}
    return module, named, labels


def doubts_about(module, named, **said):
    return check_payload(
        payload_from_named(named, module), module, DeclaredTraining(**said), (1, 8, 8)
    ).doubts


@pytest.mark.parametrize("steps", [0, 30])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("seeds", [range(24), pytest.param(range(24, 100), marks=pytest.mark.slow)])
def test_no_correct_update_is_doubted(net, steps, seeds):
    """Of every size and precision, and as a sum; 12% of a hundred such were refused before."""
    for seed in seeds:
        size = 1 + seed % 8
        kind = (torch.float32, torch.float16, torch.bfloat16)[seed % 3]
        reduction = "sum" if seed % 5 == 0 else "mean"
        module, named, _ = digits_update(
            net, 1000 + seed, size, steps=steps, reduction=reduction, kind=kind
        )
        assert doubts_about(module, named, batch_size=size, reduction=reduction) == ()


@pytest.mark.parametrize("net", NETS)
def test_a_wrong_batch_size_is_doubted_where_the_bias_can_tell(net):
    """Untrained, batches whose classes all differ: too few records nearly always, too many mostly."""
    fewer, more, tried = 0, 0, 0
    for seed in range(48):
        size = 3 + seed % 3
        module, named, labels = digits_update(net, seed, size)
        if len(set(labels.tolist())) == size:
            tried += 1
            fewer += bool(doubts_about(module, named, batch_size=size - 1))
            more += bool(doubts_about(module, named, batch_size=size + 1))
    assert tried > 15
    assert fewer > 0.9 * tried
    assert more > 0.5 * tried


def test_states_whose_weights_were_rounded_are_not_doubted():
    for seed in range(5):
        module, named, _ = digits_update("mlp", seed, 4, steps=50)
        before = module.state_dict()
        after = {n: t - 1e-4 * named[n] for n, t in before.items()}
        payload = payload_from_states(before, after, module, rate=1e-4)
        said = DeclaredTraining(batch_size=4, rate=1e-4)
        assert check_payload(payload, module, said, (1, 8, 8)).doubts == ()


def test_counts_are_checked_on_an_untrained_network(tmp_path):
    flat = network()
    with torch.no_grad():
        flat[3].weight.mul_(0.01)
        flat[3].bias.zero_()

    def bias(*values):
        return lambda named: named | {"3.bias": torch.tensor(values).double()}

    some = {"change": bias(0.25, 0.25, 0.25, -0.75)}  # all of one class
    found = check(tmp_path, flat, DeclaredTraining(batch_size=8), **some)
    assert "reduction and batch size" in found.checked
    assert not found.doubts
    odd = check(
        tmp_path, flat, DeclaredTraining(batch_size=7), change=bias(0.25, 0.25, 0.25, -0.65)
    )
    doubt(odd, "does not sum to zero")
    many = check(tmp_path, flat, DeclaredTraining(batch_size=3))  # two of each class
    assert not many.doubts  # the bias has no gradient: it cannot tell
    four = check(tmp_path, flat, DeclaredTraining(batch_size=3), change=bias(-0.1, -0.1, -0.1, 0.3))
    assert not four.doubts
    few = check(tmp_path, flat, DeclaredTraining(batch_size=2), change=bias(-0.1, -0.1, -0.1, 0.3))
    doubt(few, "3.bias has a gradient of at least 3 records, 2 are said")
    sum_said = check(tmp_path, flat, DeclaredTraining("sum", batch_size=8), **some)
    doubt(sum_said, "said to be a sum, but 3.bias counts whole records only as a mean")


def test_wrong_reduction(tmp_path):
    def lopsided(named):
        return named | {"3.bias": torch.tensor([3.0, -1.0, -1.0, -1.0]).double()}

    found = check(tmp_path, network(), DeclaredTraining("mean"), reduction="sum", change=lopsided)
    doubt(found, "said to be a mean, but 3.bias has a gradient larger than a mean's can be")


def test_wrong_loss(tmp_path):
    def shifted(named):
        return named | {"3.bias": named["3.bias"].abs() + 0.01}

    found = check(tmp_path, network(), DeclaredTraining(), change=shifted)
    doubt(found, "does not sum to zero: the loss is not a cross-entropy")


@pytest.mark.parametrize(("was", "said"), [("train", "eval"), ("eval", "train")])
def test_wrong_batch_norm_mode(tmp_path, was, said):
    module = network(norm=True).train(was == "train")
    found = check(tmp_path, module, DeclaredTraining(batch_norm=said))
    doubt(found, f"in {said} mode, but the gradient of 1.weight is that of {was} mode")


def test_nothing_but_zeros_is_refused(tmp_path):
    with pytest.raises(
        ExhumeError, match="every value is zero, so that there is nothing to attack"
    ):
        check(
            tmp_path,
            network(),
            DeclaredTraining(),
            change=lambda n: {k: torch.zeros_like(v) for k, v in n.items()},
        )


def test_missing_and_nan_and_other_models(tmp_path):
    module = network()
    with pytest.raises(ExhumeError, match="1.weight holds NaN"):
        check(
            tmp_path,
            module,
            DeclaredTraining(),
            change=lambda n: n | {"1.weight": n["1.weight"] * torch.nan},
        )
    with pytest.raises(ExhumeError, match=r"has 1.bias \(3,\), the model wants 1.bias \(12,\)"):
        check(
            tmp_path,
            module,
            DeclaredTraining(),
            change=lambda n: n | {"1.bias": n["1.bias"][:3].clone()},
        )
    path = file_of(tmp_path, module)
    other = MLP(SHAPE, (12,), 4).build()
    with pytest.raises(ExhumeError, match="it comes from another model"):
        check_payload(payload_from_named(load_file(path), module), other, DeclaredTraining(), SHAPE)
    other = network(seed=5)
    found = check_payload(
        payload_from_named(load_file(path), other), other, DeclaredTraining(), SHAPE
    )
    doubt(found, "it was not taken at these weights")


def test_settings_that_cannot_be():
    with pytest.raises(ExhumeError, match="'max' is not one of mean, sum"):
        DeclaredTraining("max")
    with pytest.raises(ExhumeError, match="'test' is not one of train, eval"):
        DeclaredTraining(batch_norm="test")


def test_state_dict_difference():
    before, after = network(0), network(1)
    payload = payload_from_states(
        before.state_dict(), after.state_dict(), before, rate=0.5, steps=2
    )
    expected = before[1].weight - after[1].weight  # 0.5 · 2 = 1
    torch.testing.assert_close(
        payload.layout.split(payload.values)["1.weight"][0], expected.detach()
    )
    with pytest.raises(ExhumeError, match="rate, steps: must be positive"):
        payload_from_states(before.state_dict(), after.state_dict(), before, rate=0.0)
    with pytest.raises(ExhumeError, match=r"the state before lacks 1.weight \(12, 36\)"):
        payload_from_states({}, after.state_dict(), before, rate=1.0)
