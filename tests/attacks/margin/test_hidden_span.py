"""Planted truth: tiny networks trained with weight decay, whose records come back one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.hidden_span import HiddenSpan, _Problem
from exhume.attacks.margin.pool import distinct
from exhume.attacks.margin.strongest import Strongest
from exhume.contract import Gradient, Knowledge, NotApplicable, Outcome, Records, Weights
from exhume.models.homogeneous import HomogeneousMLP
from exhume.models.matrices import Matrices
from exhume.store import FolderStore, NullStore
from exhume.train.margin import MarginDescent
from exhume.victims.margin import release_margin

SHAPE = (1, 6, 6)
TINY = HiddenSpan(
    restarts=4, starts=12.0, widen=1.0, largest=0.3, descent=Descent(steps=150, rate=0.5)
)
SHORT = FirstLayer(restarts=1, descent=Descent(steps=20))


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


@pytest.mark.parametrize("found", [False, True])
def test_the_distance_and_its_gradient(found, key):
    generator = key.generator()
    first, bias = (torch.randn(*s, generator=generator).double() for s in ((12, 4), (12,)))
    rows = torch.linalg.qr(torch.randn(12, 5, generator=generator).double())[0].T
    known = torch.linalg.qr(torch.randn(12, 2, generator=generator).double())[0].T
    inputs = torch.randn(3, 4, generator=generator).double().requires_grad_()
    hidden = torch.relu(inputs @ first.T + bias)
    eye = torch.eye(12, dtype=torch.float64)
    outside, new = hidden @ (eye - rows.T @ rows), hidden
    if found:
        new = hidden @ (eye - known.T @ known)
    naive = outside.square().sum(1) / new.square().sum(1)
    (slope,) = torch.autograd.grad(naive.sum(), inputs)
    network = Matrices(first, bias, ())
    value, gradient = _Problem(network, rows, known if found else None).at(inputs.detach())
    torch.testing.assert_close(value, naive.detach())
    torch.testing.assert_close(gradient, slope)


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
