"""Planted truth: tiny networks trained far beyond zero error, and what the attacks must and must not do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume import readers
from exhume.attacks.margin.descent import Prior, RestartRun, SearchDescent
from exhume.attacks.margin.reading import rank_of
from exhume.attacks.margin.restarts import agreed, pooled, to_images
from exhume.attacks.margin.stationarity import Equation6, FirstLayer
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Records,
    Secret,
    Weights,
)
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP, HomogeneousMLP
from exhume.store.shards import FolderStore, NullStore
from exhume.train.margin import MarginDescent
from exhume.train.optimisers import Adam
from exhume.train.recipe import FullBatch
from exhume.victims.margin import choose, release_margin

SHAPE = (1, 6, 6)
TINY = FirstLayer(restarts=2, contrast=0.28, largest=0.32, smooth=0.0)  # the pictures are noise


def victim(head="multiclass", decay=0.0):
    key = Key.from_seed(0)
    classes = 4 if head == "multiclass" else 2
    pictures = torch.rand(8, *SHAPE, generator=key.fold("pictures").generator())
    records = Records(pictures, torch.arange(8) % classes, tuple("abcd"[:classes]))
    mlp = HomogeneousMLP(SHAPE, (100, 60), 4 if head == "multiclass" else 1, first_scale=1e-4)
    growing_steps = 0.0 if decay or head == "regression" else 0.01
    epochs = 800 if decay else 100_000
    stop = 0.0 if decay else 1e-6
    recipe = MarginDescent(
        mlp, head, weight_decay=decay, growing_steps=growing_steps, epochs=epochs, stop_loss=stop
    )
    return mlp, release_margin(recipe, records, key=key, store=NullStore())


@pytest.fixture(scope="module")
def multiclass():
    return victim()


def likeness(found, made):
    """(n,) of each training record: its largest correlation with a candidate, centred."""
    truth = (made.secret.open().inputs - made.centre).flatten(1)
    candidates = (found.candidates[0] - made.centre).flatten(1)
    truth, candidates = truth - truth.mean(1, True), candidates - candidates.mean(1, True)
    unit = torch.nn.functional.normalize
    return (unit(truth, dim=1) @ unit(candidates, dim=1).T).max(1).values


@pytest.mark.parametrize("head", ["multiclass", "binary"])
def test_planted_records_come_back(head, multiclass, key):
    mlp, made = multiclass if head == "multiclass" else victim(head)
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    attack = replace(TINY, head=head)
    found = attack.prepare(knowledge, key=key, store=NullStore()).run(made.release)
    assert found.status.outcome == Outcome.CONVERGED
    assert found.candidates.shape == (1, 32, *SHAPE)  # rank 7, so 8 records, twice, two restarts
    assert float(likeness(found, made).median()) > 0.85
    assert (
        made.report["residual_at_truth"] < made.report["residual_at_truth_eq6"]
        or head != "multiclass"
    )


def test_later_restarts_begin_with_what_the_earlier_ones_agree_on(multiclass, key):
    mlp, made = multiclass
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    attack = replace(TINY, descent=SearchDescent(steps=0), restarts=3)

    def found(fresh):
        one = replace(attack, fresh=fresh).prepare(knowledge, key=key, store=NullStore())
        return one.run(made.release)

    def same_pairs(pool):  # with no step taken, a start that was agreed on is there three times
        flat = torch.nn.functional.normalize((pool.candidates[0] - made.centre).flatten(1), dim=1)
        return int((flat @ flat.T > 0.9999).sum()) - len(flat)

    assert same_pairs(found(fresh=3)) == 0
    assert same_pairs(found(fresh=2)) > 0


def test_regression_multipliers_have_any_sign(key):
    mlp, made = victim("regression", decay=0.01)
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    found = replace(TINY, head="regression").prepare(knowledge, key=key, store=NullStore())
    assert found.run(made.release).observed["residual"] < 0.5


def test_a_killed_attack_goes_on_and_ends_with_the_same_bits(multiclass, key, tmp_path):
    mlp, made = multiclass
    knowledge = Knowledge(architecture=mlp, centre=made.centre, labels=made.secret.open().labels)
    attack = replace(TINY, descent=SearchDescent(steps=60))
    whole = attack.prepare(knowledge, key=key, store=NullStore()).run(made.release)
    store = FolderStore(tmp_path / "store")
    stages = []

    def stop(stage, done, total):
        stages.append((stage, total))
        if stage.startswith("restart 2") and done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack.prepare(knowledge, key=key, store=store, progress=stop).run(made.release)
    later = []
    again = attack.prepare(
        knowledge, key=key, store=store, progress=lambda stage, *_: later.append(stage)
    ).run(made.release)
    assert set(later) == {"restart 2 of 2"}
    assert ("restart 1 of 2", attack.descent.steps) in stages
    assert torch.equal(again.candidates, whole.candidates)
    assert torch.equal(again.confidence, whole.confidence)


def test_labels_by_the_network_follow_the_mix_of_classes(key):
    pictures = torch.rand(12, *SHAPE, generator=key.fold("pictures").generator())
    mix = torch.tensor([0] * 9 + [1, 2, 3])
    mlp = HomogeneousMLP(SHAPE, (100, 60), 4, first_scale=1e-4)
    recipe = MarginDescent(mlp, growing_steps=0.01, stop_loss=1e-5)
    records = Records(pictures, mix, tuple("abcd"))
    made = release_margin(recipe, records, key=key, store=NullStore())
    attack = replace(TINY, restarts=1, descent=SearchDescent(steps=3))

    def of_the_first_class(labels):
        knowledge = Knowledge(architecture=mlp, centre=made.centre)
        prepared = replace(attack, labels=labels).prepare(knowledge, key=key, store=NullStore())
        return int((prepared.run(made.release).labels == 0).sum())

    assert of_the_first_class("even") == 6  # of 24
    assert of_the_first_class("own") > 6


@pytest.mark.parametrize(
    "activation", ["gelu", "tanh", pytest.param("silu", marks=pytest.mark.slow)]
)
def test_digits_behind_a_smooth_activation_come_back(activation, key):
    """One hidden layer, biases, weight decay: the first layer is a sum, whatever the activation."""
    train, others = choose(readers.load("digits"), 8, 1, 200, key)
    mlp = MLP((1, 8, 8), (100,), 8, activation, "torch")
    recipe = MarginDescent(
        mlp,
        rate=0.2,
        weight_decay=0.01,
        epochs=800,
        stop_loss=0.0,
        momentum=0.9,
        schedule="cosine",
    )
    made = release_margin(recipe, train, key=key, store=NullStore())
    attack = FirstLayer(restarts=2, contrast=0.3, largest=0.4)
    knowledge = Knowledge(architecture=mlp, centre=made.centre)
    found = attack.prepare(knowledge, key=key, store=NullStore()).run(made.release)
    assert found.observed["records"] == 8
    assert float(likeness(found, made).min()) > 0.85
    strangers = replace(made, secret=Secret(others))
    assert float(likeness(found, strangers).median()) < 0.7


@pytest.mark.parametrize(
    ("architecture", "layer", "ever"),
    [
        (MLP(SHAPE, (5,), 3, "identity"), "act1: a linear network's weights are one sum", False),
        (MLP(SHAPE, (), 3, "relu"), "fc1: without a hidden layer", False),
        (CNN(SHAPE, (2,), (3,), (1,), (4,), 3), "conv1", True),
    ],
)
def test_what_it_cannot_handle_is_named(architecture, layer, ever, key):
    with pytest.raises(NotApplicable, match=layer) as refused:
        TINY.prepare(Knowledge(architecture=architecture), key=key, store=NullStore())
    assert refused.value.ever is ever


def test_equation_6_needs_homogeneity(key):
    mlp = MLP(SHAPE, (5,), 3, "relu")
    TINY.prepare(Knowledge(architecture=mlp), key=key, store=NullStore())
    with pytest.raises(NotApplicable, match="fc2.bias: .* FirstLayer and HiddenSpan read"):
        Equation6().prepare(Knowledge(architecture=mlp), key=key, store=NullStore())
    smooth = MLP(SHAPE, (5,), 3, "gelu")
    with pytest.raises(NotApplicable, match="act1: eq. .6. needs .* this one has gelu"):
        Equation6().prepare(Knowledge(architecture=smooth), key=key, store=NullStore())


def test_other_refusals(key):
    mlp = HomogeneousMLP(SHAPE, (5,), 3)
    with pytest.raises(ExhumeError, match=r"centre: shape \(3,\) given"):
        TINY.prepare(Knowledge(architecture=mlp, centre=torch.zeros(3)), key=key, store=NullStore())
    prepared = TINY.prepare(Knowledge(architecture=mlp), key=key, store=NullStore())
    flat = mlp.initial(key)
    found = prepared.run(Gradient(flat[None], mlp.layout, flat))
    assert found.status.outcome == Outcome.NOT_APPLICABLE
    assert "not gradients" in found.status.reason
    with pytest.raises(ExhumeError, match="not finite"):
        prepared.run(Weights((flat * torch.nan)[None], mlp.layout))


def test_the_rank_ends_at_the_last_gap_above_the_floor():
    floor = torch.linspace(1.0, 0.5, 10)
    assert (
        rank_of(torch.cat([torch.tensor([9.0, 8.0, 3.0, 2.5]), floor])) == 4
    )  # two gaps: the last
    assert rank_of(torch.linspace(9.0, 5.0, 10)) == 10  # no gap: all
    rounding = torch.full((10,), 1e-8)
    assert rank_of(torch.cat([torch.tensor([9.0, 8.0, 1.0]), rounding])) == 3
    many = torch.cat([torch.tensor([9.0, 8.0]), torch.logspace(0, -3, 20)])
    assert rank_of(torch.cat([many, rounding])) == 22  # a cliff, though in the second half
    data, left = torch.logspace(0, -3, 12), torch.linspace(1.5e-6, 2e-7, 30)
    assert rank_of(torch.cat([data, left])) == 12  # what is left of the start straddles rounding


def test_data_that_run_into_the_floor_end_at_its_edge(key):
    """No gap between the weakest of 20 directions and the noise: those above its edge count."""
    generator = key.generator()
    noise = torch.randn(200, 600, generator=generator, dtype=torch.float64) / 600**0.5
    left = torch.linalg.qr(torch.randn(200, 20, generator=generator, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(600, 20, generator=generator, dtype=torch.float64))[0]
    strengths = torch.logspace(1, 0.25, 20, dtype=torch.float64)
    values = torch.linalg.svdvals(noise + left * strengths @ right.T)
    edge = 1 + (200 / 600) ** 0.5  # of the noise alone
    expected = int((values > 1.05 * edge).sum())
    assert 15 <= expected <= 20
    assert abs(rank_of(values, 200 / 600) - expected) <= 1
    assert not bool((values[:99] / values[1:100] >= 1.5).any())


def test_the_priors_gradient_is_its_derivative(key):
    inputs = torch.randn(2, 18, generator=key.generator(), dtype=torch.float64)
    prior, shape = Prior(box=0.7, tv=0.3), (2, 3, 3)
    _, gradient = prior.at(inputs, shape)
    for place in range(18):
        step = torch.zeros_like(inputs)
        step[0, place] = 1e-6
        up, down = prior.at(inputs + step, shape)[0], prior.at(inputs - step, shape)[0]
        assert float(gradient[0, place]) == pytest.approx((up - down) / 2e-6, abs=1e-5)
    assert not Prior()


def test_confidence_is_agreement_between_restarts(key):
    generator = key.generator()
    shared = torch.randn(3, 20, generator=generator)
    labels = torch.arange(7)
    runs = [
        RestartRun(
            torch.cat([torch.randn(4, 20, generator=generator), shared]),
            labels,
            torch.zeros(7),
            0.1,
        )
        for _ in range(2)
    ]
    _, confidence, own = pooled(runs)
    assert set(own[:6].tolist()) == {4, 5, 6}
    assert float(confidence[5]) > 0.99
    assert float(confidence[6]) < 0.95
    alone = RestartRun(shared, torch.arange(3), torch.tensor([0.1, 0.3, 0.2]), 0.1)
    assert pooled([alone])[2].tolist() == [1, 2, 0]
    inputs, common = agreed(runs)
    assert sorted(common.tolist()) == [4, 5, 6]  # each once
    torch.testing.assert_close(inputs[common.argsort()], shared)
    assert len(agreed([alone])[0]) == 0


def test_images_fill_the_range_and_vectors_are_left(key):
    flat = torch.randn(3, 8, generator=key.generator())
    images = to_images(flat, torch.full((2, 2, 2), 0.5))
    assert float(images.min()) == 0
    assert float(images.max()) == 1
    assert torch.equal(to_images(flat, torch.zeros(8)), flat)


def test_both_optimisers_lower_the_residual(multiclass, key):
    mlp, made = multiclass
    knowledge = Knowledge(architecture=mlp, centre=made.centre)

    def residual(descent):
        attack = replace(TINY, restarts=1, descent=descent)
        prepared = attack.prepare(knowledge, key=key, store=NullStore())
        return prepared.run(made.release).observed["residual"]

    start = residual(SearchDescent(steps=0))
    assert residual(SearchDescent(steps=60)) < 0.5 * start
    assert (
        residual(SearchDescent("momentum", steps=60, rate=1.0, multiplier_rate=1.0)) < 0.5 * start
    )


def test_eq6_lowers_the_residual(multiclass, key):
    """The published rates are for 1,000 candidates and wide layers; a tiny network has larger gradients."""
    mlp, made = multiclass
    knowledge = Knowledge(architecture=mlp, centre=made.centre)

    def residual(steps):
        descent = replace(Equation6().descent, steps=steps, rate=5e-5, multiplier_rate=0.01)
        attack = Equation6(16, descent=descent)
        found = attack.prepare(knowledge, key=key, store=NullStore()).run(made.release)
        assert found.status.outcome == Outcome.CONVERGED
        return found.observed["residual"]

    assert residual(200) < 0.9 * residual(0)


def test_divergence_is_a_status_and_leaves_what_was_before(multiclass, key):
    mlp, made = multiclass
    attack = Equation6(
        candidates=16, descent=SearchDescent("momentum", 50, 100.0, 1000.0, falling=False)
    )
    prepared = attack.prepare(Knowledge(architecture=mlp), key=key, store=NullStore())
    found = prepared.run(made.release)
    assert found.status.outcome == Outcome.STOPPED_EARLY
    assert "1 of 1 restarts diverged, the first at step" in found.status.reason
    assert bool(torch.isfinite(found.candidates).all())


def test_choosing_records_and_decoys(make_records, key):
    records = make_records(60, (1, 3, 3), 3, key)
    train, decoys = choose(records, 2, 4, 10, key)
    assert train.labels.bincount().tolist() == [4, 4]
    assert decoys.labels.bincount().tolist() == [5, 5]
    assert train.classes == records.classes[:2]
    apart = torch.cdist(train.inputs.flatten(1), decoys.inputs.flatten(1))
    assert float(apart.min()) > 0
    with pytest.raises(ExhumeError, match="20 records, 18 \\+ 5 decoys needed"):
        choose(records, 2, 18, 10, key)
    uneven, _ = choose(records, 2, (7, 1), 10, key)
    assert uneven.labels.bincount().tolist() == [7, 1]
    with pytest.raises(ExhumeError, match="each: 3 numbers given for 2 classes"):
        choose(records, 2, (7, 1, 1), 10, key)


def test_victims_of_adam(make_records, key, tmp_path):
    """Trained by the ordinary recipe, kept, and reported like the others."""
    records = make_records(12, (1, 3, 3), 2, key)
    recipe = FullBatch(MLP((1, 3, 3), (8, 8), 2, "tanh", "torch"), Adam(40, 0.01))
    store = FolderStore(tmp_path / "store")
    made = release_margin(recipe, records, key=key, store=store)
    assert made.report["epochs"] == 40
    centred = Records(records.inputs - made.centre, records.labels, records.classes)
    initial = recipe.architecture.initial(key.fold("victim"))
    alone = recipe.fit(initial, centred, centred.none_for(1), key)
    assert torch.equal(made.release.parameters, alone)
    again = release_margin(recipe, records, key=key, store=store)
    assert torch.equal(again.release.parameters, alone)
    convolutional = FullBatch(CNN((1, 6, 6), (2,), (3,), (1,), (4,), 2), Adam(1))
    with pytest.raises(ExhumeError, match="is not fully connected"):
        release_margin(convolutional, make_records(4, (1, 6, 6), 2, key), key=key, store=store)
