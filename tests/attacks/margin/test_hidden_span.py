"""Planted truth: tiny networks trained with weight decay, whose records come back one by one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.nn.functional import normalize

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.hidden_span import HiddenSpan, _Problem, second_layer
from exhume.attacks.margin.pool import distinct
from exhume.attacks.margin.reading import scale_of
from exhume.attacks.margin.residual import Span
from exhume.attacks.margin.rows import Rows
from exhume.attacks.margin.strongest import Strongest, met
from exhume.contract import Gradient, Knowledge, NotApplicable, Outcome, Records, Weights
from exhume.models.activations import ACTIVATIONS
from exhume.models.homogeneous import HomogeneousMLP
from exhume.models.matrices import Matrices
from exhume.models.mlp import MLP
from exhume.store import FolderStore, NullStore
from exhume.train.margin import MarginDescent
from exhume.victims.margin import release_margin

SHAPE = (1, 6, 6)
TINY = HiddenSpan(
    restarts=4, starts=12.0, widen=1.0, largest=0.3, descent=Descent(steps=150, rate=0.2)
)
SHORT = FirstLayer(restarts=1, descent=Descent(steps=20))


@cache
def victim(key, *, decay, head="multiclass"):
    classes = 4 if head == "multiclass" else 2
    pictures = torch.rand(8, *SHAPE, generator=key.fold("pictures").generator())
    records = Records(pictures, torch.arange(8) % classes, tuple("abcd"[:classes]))
    mlp = HomogeneousMLP(SHAPE, (200, 60), 4 if head == "multiclass" else 1)
    recipe = MarginDescent(
        mlp, head, weight_decay=decay, epochs=3000 if decay else 300, stop_loss=0.0
    )
    return mlp, release_margin(recipe, records, key=key, store=NullStore())


def likeness(found, made, pictures=None):
    """(n,) of each training record, or other picture: its largest correlation with a candidate, centred."""
    pictures = made.secret.open().inputs if pictures is None else pictures
    truth = (pictures - made.centre).flatten(1)
    candidates = (found.candidates[0] - made.centre).flatten(1)
    truth, candidates = truth - truth.mean(1, True), candidates - candidates.mean(1, True)
    return (normalize(truth, dim=1) @ normalize(candidates, dim=1).T).max(1).values


@pytest.mark.parametrize("head", ["multiclass", "binary"])
def test_planted_records_come_back_with_their_labels(head, key):
    mlp, made = victim(key, decay=0.01, head=head)
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    attack = replace(TINY, head=head, starts=24.0)
    found = attack.prepare(knowledge, key=key, store=NullStore()).run(made.release)
    assert found.status.outcome == Outcome.CONVERGED
    others = torch.rand(50, *SHAPE, generator=key.fold("others").generator())
    assert float(likeness(found, made).median()) > 0.88
    assert float(likeness(found, made, others).max()) < 0.8
    assert found.observed["records"] == 8
    truth = (made.secret.open().inputs - made.centre).flatten(1)
    first = (found.candidates[0, 0] - made.centre).flatten()
    nearest = int((normalize(truth, dim=1) @ first).argmax())
    assert int(found.labels[0, 0]) == int(made.secret.open().labels[nearest])


def test_a_second_layer_that_keeps_its_start_is_refused(key):
    mlp, made = victim(key, decay=0.0)
    prepared = TINY.prepare(Knowledge(architecture=mlp), key=key, store=NullStore())
    found = prepared.run(made.release)
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
    problem = _Problem(network, Rows(rows, 1 - weights.sqrt(), weights), known if found else None)
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
    span = Span(
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
        second_layer(Span(torch.eye(6, 9), torch.ones(6), network, 0.0), widen=1.5)


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


def test_what_is_found_is_out_of_reach_afterwards(key):
    """A second round of starts does not end where the first did; without the first, it would."""
    mlp, made = victim(key, decay=0.01)
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    truth = normalize((made.secret.open().inputs - made.centre).flatten(1), dim=1)
    ends = []

    class Spy(NullStore):
        def save(self, name, tensors):
            near = normalize(tensors["inputs"], dim=1) @ truth.T
            ends.append({int(i) for i in near.max(1).indices[near.max(1).values > 0.95]})

    TINY.prepare(knowledge, key=key, store=Spy()).run(made.release)
    first, second, *_ = ends
    assert len(first) >= 3
    assert len(second & first) < len(first) / 2


def test_a_killed_attack_goes_on_and_ends_with_the_same_bits(key, tmp_path):
    mlp, made = victim(key, decay=0.01)
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    whole = TINY.prepare(knowledge, key=key, store=NullStore()).run(made.release)
    store = FolderStore(tmp_path / "store")

    def stop(stage, done, total):
        if stage.startswith("restart 2") and done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TINY.prepare(knowledge, key=key, store=store, progress=stop).run(made.release)
    again = TINY.prepare(knowledge, key=key, store=store).run(made.release)
    assert torch.equal(again.candidates, whole.candidates)
    assert torch.equal(again.confidence, whole.confidence)


def test_divergence_is_a_status_and_leaves_what_was_before(key):
    mlp, made = victim(key, decay=0.01)
    wild = replace(TINY, restarts=1, descent=Descent(steps=20, rate=float("inf")))
    found = wild.prepare(Knowledge(architecture=mlp), key=key, store=NullStore()).run(made.release)
    assert found.status.outcome == Outcome.STOPPED_EARLY
    assert bool(torch.isfinite(found.candidates).all())


def test_the_strongest_attack_is_the_one_that_the_weights_allow(key):
    mlp, decayed = victim(key, decay=0.01)
    _, kept = victim(key, decay=0.0)
    knowledge = Knowledge(architecture=mlp, centre=decayed.centre)

    def found(attack, made):
        return attack.prepare(knowledge, key=key, store=NullStore()).run(made.release).candidates

    strongest = Strongest(SHORT, TINY)
    assert torch.equal(found(strongest, decayed), found(TINY, decayed))
    assert torch.equal(found(strongest, kept), found(SHORT, kept))
    both = Weights(
        torch.cat([decayed.release.parameters, kept.release.parameters]), decayed.release.layout
    )
    pair = strongest.prepare(knowledge, key=key, store=NullStore()).run(both)
    alone = found(TINY, decayed)
    assert torch.equal(pair.candidates[:1, : alone.shape[1]], alone)


def test_where_starts_do_not_meet_both_attacks_are_pooled(key):
    mlp, made = victim(key, decay=0.01)
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    lost = replace(TINY, restarts=1, starts=2.0, descent=Descent(steps=1))

    def found(attack):
        return attack.prepare(knowledge, key=key, store=NullStore()).run(made.release)

    alone, other, both = found(lost), found(SHORT), found(Strongest(SHORT, lost))
    assert met(alone, made.centre) == 0
    assert met(found(TINY), made.centre) >= 2
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
        mlp, rate=0.2, weight_decay=0.01, epochs=1500, stop_loss=0.0, momentum=0.9
    )
    made = release_margin(recipe, records, key=key, store=NullStore())
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    short = replace(TINY, restarts=2, descent=Descent(steps=60, rate=0.2))

    def found(attack):
        return attack.prepare(knowledge, key=key, store=NullStore()).run(made.release)

    many = sum(found(attack).candidates.shape[1] for attack in (short, SHORT))
    assert found(Strongest(SHORT, short)).candidates.shape[1] == many


def test_meeting_counts_only_far_below_random_inputs(key):
    """Starts that meet no nearer to the span than random inputs have found nothing."""
    mlp, made = victim(key, decay=0.01)
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    prepared = TINY.prepare(knowledge, key=key, store=NullStore())
    found = prepared.run(made.release)
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
