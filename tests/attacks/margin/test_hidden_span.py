"""Planted truth: tiny networks trained with weight decay, whose records come back one by one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.functional import normalize

from exhume.attacks.margin.descent import RowSpan, SearchDescent
from exhume.attacks.margin.hidden_span import HiddenSpan, Strongest, _Problem, met, second_layer
from exhume.attacks.margin.reading import RowSpace, scale_of
from exhume.attacks.margin.restarts import distinct
from exhume.attacks.margin.stationarity import FirstLayer
from exhume.core.contract import Gradient, Key, Knowledge, NotApplicable, Outcome, Records, Weights
from exhume.models.activations import ACTIVATIONS
from exhume.models.matrices import Matrices
from exhume.models.mlp import MLP, HomogeneousMLP
from exhume.store.shards import FolderStore, NullStore
from exhume.train.margin import MarginDescent
from exhume.victims.margin import release_margin

SHAPE = (1, 6, 6)
TINY = HiddenSpan(
    restarts=4, starts=12.0, widen=1.0, largest=0.3, descent=SearchDescent(steps=150, rate=0.2)
)
SHORT = FirstLayer(restarts=1, descent=SearchDescent(steps=20))


def victim(decay, head="multiclass"):
    key = Key.from_seed(0)
    classes = 4 if head == "multiclass" else 2
    pictures = torch.rand(8, *SHAPE, generator=key.fold("pictures").generator())
    records = Records(pictures, torch.arange(8) % classes, tuple("abcd"[:classes]))
    mlp = HomogeneousMLP(SHAPE, (200, 60), 4 if head == "multiclass" else 1)
    recipe = MarginDescent(
        mlp, head, weight_decay=decay, epochs=3000 if decay else 300, stop_loss=0.0
    )
    return mlp, release_margin(recipe, records, key=key, store=NullStore())


@pytest.fixture(scope="module")
def decayed():
    return victim(0.01)


class Ends(NullStore):
    """Where the starts of each restart ended."""

    def __init__(self):
        self.inputs = []

    def save(self, name, tensors):
        self.inputs.append(tensors["inputs"].clone())


@pytest.fixture(scope="module")
def tiny(decayed):
    """What `TINY` finds in that network, and where its starts ended."""
    mlp, made = decayed
    knowledge, ends = Knowledge(architecture=mlp, centre=made.centre), Ends()
    prepared = TINY.prepare(knowledge, key=Key.from_seed(0), store=ends)
    return prepared.run(made.release), ends.inputs


def run_on(mlp, made, attack, store=None):
    """What an attack finds in a network whose data's centre is known."""
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    prepared = attack.prepare(knowledge, key=Key.from_seed(0), store=store or NullStore())
    return prepared.run(made.release)


def likeness(found, made, pictures=None):
    """(n,) of each training record, or other picture: its largest correlation with a candidate, centred."""
    pictures = made.secret.open().inputs if pictures is None else pictures
    truth = (pictures - made.centre).flatten(1)
    candidates = (found.candidates[0] - made.centre).flatten(1)
    truth, candidates = truth - truth.mean(1, True), candidates - candidates.mean(1, True)
    return (normalize(truth, dim=1) @ normalize(candidates, dim=1).T).max(1).values


@pytest.mark.parametrize("head", ["multiclass", pytest.param("binary", marks=pytest.mark.slow)])
def test_planted_records_come_back_with_their_labels(head, decayed, key):
    mlp, made = decayed if head == "multiclass" else victim(0.01, head)
    found = run_on(mlp, made, replace(TINY, head=head, starts=24.0))
    assert found.status.outcome == Outcome.CONVERGED
    others = torch.rand(50, *SHAPE, generator=key.fold("others").generator())
    assert float(likeness(found, made).median()) > 0.88
    assert float(likeness(found, made, others).max()) < 0.8
    assert found.observed["records"] == 8
    truth = (made.secret.open().inputs - made.centre).flatten(1)
    first = (found.candidates[0, 0] - made.centre).flatten()
    nearest = int((normalize(truth, dim=1) @ first).argmax())
    assert int(found.labels[0, 0]) == int(made.secret.open().labels[nearest])


def test_a_second_layer_that_keeps_its_start_is_refused():
    found = run_on(*victim(0.0), TINY)
    assert found.status.outcome == Outcome.NOT_APPLICABLE
    assert "fc2.weight: " in found.status.reason
    assert "keeps its random start" in found.status.reason


def test_it_needs_two_hidden_layers(key):
    mlp = HomogeneousMLP(SHAPE, (5,), 3)
    with pytest.raises(NotApplicable, match="fc2: .* needs a second hidden layer"):
        TINY.prepare(Knowledge(architecture=mlp), key=key, store=NullStore())


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("found", [False, True])
def test_the_distance_and_its_gradient(activation, found, key):
    generator = key.generator()
    first, bias = (torch.randn(*s, generator=generator).double() for s in ((12, 4), (12,)))
    rows = torch.linalg.qr(torch.randn(12, 5, generator=generator).double())[0].T
    known = torch.linalg.qr(torch.randn(12, 2, generator=generator).double())[0].T
    weights = torch.linspace(0.01, 0.9, 5, dtype=torch.float64)
    inputs = torch.randn(3, 4, generator=generator).double().requires_grad_()
    act = ACTIVATIONS[activation]
    hidden = act.apply(inputs @ first.T + bias)
    eye = torch.eye(12, dtype=torch.float64)
    new = hidden @ (eye - known.T @ known) if found else hidden
    far = (hidden @ (eye - rows.T @ rows)).square().sum(1)
    naive = (far + (hidden @ rows.T).square() @ weights) / new.square().sum(1)
    (slope,) = torch.autograd.grad(naive.sum(), inputs)
    network = Matrices(first, bias, (), act=act)
    problem = _Problem(
        network, RowSpace(rows, 1 - weights.sqrt(), weights), known if found else None
    )
    value, gradient = problem.at(inputs.detach())
    torch.testing.assert_close(value, naive.detach())
    torch.testing.assert_close(gradient, slope)


def test_directions_are_weighted_by_the_noise_that_is_there(key):
    """A planted second layer: strong directions, a falling tail, and a floor."""
    left, right = (
        torch.linalg.qr(torch.randn(40, 40, generator=key.fold(side).generator()).double())[0]
        for side in "lr"
    )
    values = torch.cat([torch.ones(5), 10 ** -torch.arange(1.0, 9.0), torch.full((27,), 1e-9)])
    second = left @ torch.diag(values.double()) @ right.T
    span = RowSpan(
        torch.eye(4, 9),
        torch.ones(4),
        Matrices(torch.zeros(40, 4).double(), second[0], (second,)),
        0.0,
    )
    rows = second_layer(span, widen=1.5)
    kept = 1 - rows.outside(right.T).norm(dim=1)
    assert float(kept[:5].min()) > 0.999
    assert bool((kept.diff() < 1e-6).all())  # falls with the singular values
    # 1e-8 is ten times the noise, whose edge is 2.5 times its median: 1 - 2.5 / sqrt(10² + 2.5²)
    assert abs(float(kept[12]) - 0.757) < 0.01
    assert float(kept[20:].max()) < 0.01


def test_too_few_neurons_are_named(key):
    second = torch.randn(10, 10, generator=key.generator())
    network = Matrices(torch.zeros(10, 6), second[0], (second,))
    with pytest.raises(NotApplicable, match="10 directions of 10 leave fewer equations than the 6"):
        second_layer(RowSpan(torch.eye(6, 9), torch.ones(6), network, 0.0), widen=1.5)


def test_records_behind_an_ordinary_network_come_back(key):
    """Biases everywhere, leaky ReLU, momentum, mini-batches; the inputs' scale is in the weights."""
    pictures = torch.rand(8, *SHAPE, generator=key.fold("pictures").generator())
    records = Records(pictures, torch.arange(8) % 4, tuple("abcd"))
    mlp = MLP(SHAPE, (200, 60), 4, "leaky-relu", "torch")
    recipe = MarginDescent(
        mlp,
        rate=0.05,
        weight_decay=0.02,
        stop_loss=0.0,
        epochs=600,
        momentum=0.9,
        batch=4,
        schedule="cosine",
    )
    made = release_margin(recipe, records, key=key, store=NullStore())
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    prepared = TINY.prepare(knowledge, key=key, store=NullStore())
    found = prepared.run(made.release)
    others = torch.rand(50, *SHAPE, generator=key.fold("others").generator())
    assert float(likeness(found, made).median()) > 0.85
    assert float(likeness(found, made, others).max()) < 0.8
    span = prepared.reader.span(made.release.parameters[0], None)
    length = float((pictures - made.centre).flatten(1).norm(dim=1).mean())
    assert 1 / 3 < scale_of(span, (36,), 0.22) / length < 3
    assert scale_of(span, SHAPE, 0.22) == pytest.approx(0.22 * 6)


def test_what_is_found_is_out_of_reach_afterwards(decayed, tiny):
    """A second round of starts does not end where the first did; without the first, it would."""
    _, made = decayed
    truth = normalize((made.secret.open().inputs - made.centre).flatten(1), dim=1)
    nearest = [(normalize(inputs, dim=1) @ truth.T).max(1) for inputs in tiny[1][:2]]
    first, second = (set(near.indices[near.values > 0.95].tolist()) for near in nearest)
    assert len(first) >= 3
    assert len(second & first) < len(first) / 2


def test_a_killed_attack_goes_on_and_ends_with_the_same_bits(decayed, tiny, key, tmp_path):
    mlp, made = decayed
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    whole, _ = tiny
    store = FolderStore(tmp_path / "store")

    def stop(stage, done, total):
        if stage.startswith("restart 2") and done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TINY.prepare(knowledge, key=key, store=store, progress=stop).run(made.release)
    again = run_on(mlp, made, TINY, store)
    assert torch.equal(again.candidates, whole.candidates)
    assert torch.equal(again.confidence, whole.confidence)


def test_divergence_is_a_status_and_leaves_what_was_before(decayed):
    wild = replace(TINY, restarts=1, descent=SearchDescent(steps=20, rate=float("inf")))
    found = run_on(*decayed, wild)
    assert found.status.outcome == Outcome.STOPPED_EARLY
    assert bool(torch.isfinite(found.candidates).all())


def test_the_strongest_attack_is_the_one_that_the_weights_allow(decayed, tiny, key):
    mlp, made = decayed
    _, kept = victim(0.0)
    strongest, alone = Strongest(SHORT, TINY), tiny[0].candidates
    assert torch.equal(run_on(mlp, kept, strongest).candidates, run_on(mlp, kept, SHORT).candidates)
    both = Weights(
        torch.cat([made.release.parameters, kept.release.parameters]), made.release.layout
    )
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    prepared = strongest.prepare(knowledge, key=key, store=NullStore())
    assert torch.equal(prepared.run(made.release).candidates, alone)
    assert torch.equal(prepared.run(both).candidates[:1, : alone.shape[1]], alone)


def test_where_starts_do_not_meet_both_attacks_are_pooled(decayed, tiny):
    made, found = decayed[1], partial(run_on, *decayed)
    lost = replace(TINY, restarts=1, starts=2.0, descent=SearchDescent(steps=1))
    alone, other, both = found(lost), found(SHORT), found(Strongest(SHORT, lost))
    assert met(alone, made.centre) == 0
    assert met(tiny[0], made.centre) >= 2
    assert both.candidates.shape[1] == alone.candidates.shape[1] + other.candidates.shape[1]
    assert torch.equal(both.candidates[0, 0], alone.candidates[0, 0])
    assert torch.equal(both.candidates[0, 1], other.candidates[0, 0])
    assert bool((both.confidence[0].diff() <= 0).all())


def test_behind_smooth_activations_both_attacks_are_run(key):
    """There starts meet nearer to the span than records are."""
    pictures = torch.rand(8, *SHAPE, generator=key.fold("pictures").generator())
    records = Records(pictures, torch.arange(8) % 4, tuple("abcd"))
    mlp = MLP(SHAPE, (200, 60), 4, "gelu", "torch")
    recipe = MarginDescent(
        mlp, rate=0.2, weight_decay=0.01, epochs=500, stop_loss=0.0, momentum=0.9
    )
    made = release_margin(recipe, records, key=key, store=NullStore())
    found = partial(run_on, mlp, made)
    short = replace(TINY, restarts=2, starts=4.0, descent=SearchDescent(steps=30, rate=0.2))
    many = sum(found(attack).candidates.shape[1] for attack in (short, SHORT))
    assert found(Strongest(SHORT, short)).candidates.shape[1] == many


def test_meeting_counts_only_far_below_random_inputs(decayed, tiny, key):
    """Starts that meet no nearer to the span than random inputs have found nothing."""
    mlp, made = decayed
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    prepared = TINY.prepare(knowledge, key=key, store=NullStore())
    found, _ = tiny
    apart = TINY.random_distance(prepared.reader, made.release.parameters[0], key)
    near = met(found, made.centre, 0.05 * apart)
    assert 2 <= near <= met(found, made.centre)
    assert met(found, made.centre, 0.0) == 0
    truth = (made.secret.open().inputs - made.centre).flatten(1)
    span = prepared.reader.span(made.release.parameters[0], None)
    problem = _Problem(span.network, second_layer(span, TINY.widen))
    assert float(problem.at(truth @ span.basis.T)[0].median()) < 0.05 * apart


def test_the_strongest_attack_refuses_what_the_others_refuse(key):
    one = HomogeneousMLP(SHAPE, (20,), 3)
    prepared = Strongest(SHORT, TINY).prepare(
        Knowledge(architecture=one), key=key, store=NullStore()
    )
    assert prepared.hidden is None
    flat = one.initial(key)
    assert prepared.choice(Weights(flat[None], one.layout)) is prepared.first
    found = prepared.run(Gradient(flat[None], one.layout, flat))
    assert found.status.outcome == Outcome.NOT_APPLICABLE


def test_distinct_keeps_the_surest_of_each_image_and_counts_the_rest():
    inputs = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.1], [0.1, 1.0]])
    kept, sizes = distinct(inputs, torch.tensor([0.1, 0.4, 0.3, 0.2]), 0.9)
    assert kept.tolist() == [1, 2]
    assert sizes.tolist() == [2, 2]
