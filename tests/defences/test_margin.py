"""Noise on the margin: the laws of a defence of training, and that it does what it says."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from exhume.core.contract import ExhumeError, NotApplicable, Recipe, Records, TrainingDefence
from exhume.defences.margin import NoisyMargin, ProtectedDescent
from exhume.models.heads import margins
from exhume.models.homogeneous import HomogeneousMLP
from exhume.models.mlp import MLP
from exhume.store.shards import FolderStore, NullStore
from exhume.train.margin import MarginDescent, train_to_margin
from exhume.train.recipe import FullBatch
from exhume.victims.margin import release_margin

SHAPE = (3, 5, 5)
RECIPE = MarginDescent(
    HomogeneousMLP(SHAPE, (30, 20), 3, first_scale=1e-3), growing_steps=0.01, stop_loss=1e-3
)
WEAK, STRONG = NoisyMargin(0.1, share=0.5), NoisyMargin(2.0)
DEFENCES = {
    "all": NoisyMargin(1.0),
    "white": NoisyMargin(1.0, colour="white"),
    "half": NoisyMargin(1.0, share=0.5),
    "random": NoisyMargin(1.0, share=0.5, whom="random"),
    "copies": NoisyMargin(1.0, copies=3),
}


@pytest.fixture(params=DEFENCES)
def defence(request):
    return DEFENCES[request.param]


@pytest.fixture
def records(make_records, key):
    made = make_records(12, SHAPE, 3, key)
    return Records(made.inputs - made.inputs.mean(0), made.labels, made.classes)


@pytest.fixture
def initial(key):
    return RECIPE.architecture.initial(key)


def fit(recipe, initial, records, key):
    first, last = records[slice(0, 11)], records[slice(11, 12)]
    extra = Records(last.inputs[None], last.labels[None], last.classes)
    return recipe.fit(initial, first, extra, key)


def test_strength_zero_is_the_identity(initial, records, key):
    for none in (NoisyMargin(), NoisyMargin(0.0, share=0.3, copies=4)):
        assert none.strength == 0
        assert none.harden(RECIPE) is RECIPE
    assert torch.equal(
        fit(NoisyMargin().harden(RECIPE), initial, records, key),
        fit(RECIPE, initial, records, key),
    )


def test_it_changes_the_weights_and_is_reproducible(defence, initial, records, key):
    hardened = defence.harden(RECIPE)
    assert isinstance(hardened, Recipe)
    once = fit(hardened, initial, records, key)
    assert torch.equal(once, fit(hardened, initial, records, key))
    assert not torch.equal(once, fit(RECIPE, initial, records, key))
    assert not torch.equal(once, fit(hardened, initial, records, key.fold("another")))


def test_it_is_a_frozen_value_that_keeps_the_recipe():
    assert isinstance(WEAK, TrainingDefence)
    assert dataclasses.is_dataclass(WEAK)
    assert WEAK.__dataclass_params__.frozen
    assert 0 < WEAK.strength < STRONG.strength
    hardened = WEAK.harden(RECIPE)
    assert hardened.architecture == RECIPE.architecture
    assert hardened.plain == RECIPE
    assert str(hardened).startswith(str(RECIPE))
    assert "0.1 times its norm on the 50% of records nearest to the margin" in str(hardened)
    assert str(DEFENCES["copies"]).endswith("on all records, 3 copies of each")
    for heading in ("Sees:", "Assumes:", "Guarantees:", "Reference:"):
        assert heading in (NoisyMargin.__doc__ or "")


def test_those_on_the_margin_are_protected(initial, records, key):
    hardened = NoisyMargin(1.0, share=0.25).harden(RECIPE)
    chosen = hardened.protected(initial, records, key=key)
    trained = train_to_margin(RECIPE, initial, records)
    network = RECIPE.architecture.matrices(trained.parameters)
    outputs = network.forward(records.inputs.flatten(1))[1]
    found = margins("multiclass", outputs, records.labels)
    assert int(chosen.sum()) == 3
    assert float(found[chosen].max()) < float(found[~chosen].min())
    random = NoisyMargin(1.0, share=0.25, whom="random").harden(RECIPE)
    draws = {tuple(random.protected(initial, records, key=key.fold(i)).tolist()) for i in range(5)}
    assert len(draws) > 1
    assert all(sum(draw) == 3 for draw in draws)


def seen_by(hardened, initial, records, key, monkeypatch):
    """What the last training sees."""
    seen = []

    def watched(recipe, start, given, **kwargs):
        seen.append(given)
        return train_to_margin(recipe, start, given, **kwargs)

    monkeypatch.setattr("exhume.defences.margin.train_to_margin", watched)
    hardened.train(initial, records, key=key)
    return seen[-1]


def test_the_noise_is_as_long_as_it_says(defence, initial, records, key, monkeypatch):
    hardened = defence.harden(RECIPE)
    chosen = hardened.protected(initial, records, key=key)
    given = seen_by(hardened, initial, records, key, monkeypatch)
    kept = int((~chosen).sum())
    assert torch.equal(given.inputs[:kept], records.inputs[~chosen])
    private = records.inputs[chosen].repeat(defence.copies, 1, 1, 1).flatten(1)
    safer = given.inputs[kept:].flatten(1)
    torch.testing.assert_close(safer.norm(dim=1), private.norm(dim=1))
    # noise at right angles of the same length leaves a cosine of 1 / sqrt(2)
    cosines = torch.nn.functional.cosine_similarity(safer, private)
    assert float(cosines.mean()) == pytest.approx(0.5**0.5, abs=0.1)
    assert given.labels[kept:].tolist() == records.labels[chosen].repeat(defence.copies).tolist()


def test_noise_of_a_records_spectrum_has_it(initial, records, key, monkeypatch):
    given = seen_by(NoisyMargin(1.0).harden(RECIPE), initial, records, key, monkeypatch)
    unit = torch.nn.functional.normalize
    safer, plain = given.inputs.double(), records.inputs.double()
    spectrum = torch.fft.rfft2(plain).abs()[..., 1:2]
    # with noise alone (strength without end) only the phases differ
    alone = seen_by(NoisyMargin(1e6).harden(RECIPE), initial, records, key, monkeypatch)
    drawn = torch.fft.rfft2(alone.inputs.double()).abs()[..., 1:2]
    torch.testing.assert_close(
        unit(drawn.flatten(1), dim=1), unit(spectrum.flatten(1), dim=1), rtol=1e-3, atol=1e-3
    )
    apart = torch.nn.functional.cosine_similarity(alone.inputs.flatten(1), plain.flatten(1))
    assert float(apart.abs().mean()) < 0.5
    assert not torch.equal(safer, plain)


def test_vectors_get_noise_too(key):
    recipe = MarginDescent(HomogeneousMLP((6,), (8,), 2), stop_loss=0.1, epochs=200)
    inputs = torch.randn(6, 6, generator=key.generator())
    records = Records(inputs, torch.arange(6) % 2, ("a", "b"))
    hardened = NoisyMargin(0.5).harden(recipe)
    trained = hardened.train(recipe.architecture.initial(key), records, key=key)
    assert bool(torch.isfinite(trained.parameters).all())


def test_the_victim_releases_what_was_trained_so(make_records, key, tmp_path):
    made = make_records(12, SHAPE, 3, key)
    hardened = NoisyMargin(1.0, share=0.5).harden(RECIPE)
    assert isinstance(hardened, ProtectedDescent)
    store = FolderStore(tmp_path / "store")
    victim = release_margin(hardened, made, key=key, store=store)
    again = release_margin(hardened, made, key=key, store=store)
    fresh = release_margin(hardened, made, key=key, store=NullStore())
    plain = release_margin(RECIPE, made, key=key, store=NullStore())
    assert torch.equal(victim.release.parameters, again.release.parameters)
    assert torch.equal(victim.release.parameters, fresh.release.parameters)
    assert victim.report["residual_at_truth"] > plain.report["residual_at_truth"]
    assert torch.equal(victim.secret.open().inputs, made.inputs)  # scored against the true records


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strength": -1.0}, "strength: must be finite and at least 0, got -1.0"),
        ({"strength": float("inf")}, "strength: must be finite"),
        ({"share": 0.0}, r"share: must lie in \(0, 1\], got 0.0"),
        ({"copies": 0}, "copies: must be at least 1, got 0"),
    ],
)
def test_nonsense_is_refused(values, message):
    with pytest.raises(ExhumeError, match=message):
        NoisyMargin(**values)


def test_other_recipes_are_refused():
    with pytest.raises(NotApplicable, match="not yet for: full-batch gradient descent") as refused:
        NoisyMargin(1.0).harden(FullBatch(MLP((4,), (3,), 2)))
    assert refused.value.ever
