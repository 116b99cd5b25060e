from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume import readers
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.learner import Pairs, Training, fit
from exhume.attacks.informed.reconn import (
    ErrorCalibration,
    RecoNN,
    fit_features,
    fit_reconstructor,
    split_shadows,
)
from exhume.attacks.informed.shadows import Shadows, train_shadows
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Knowledge,
    NotApplicable,
    Outcome,
    Records,
    Shard,
    Weights,
)
from exhume.models.mlp import MLP
from exhume.models.reconstructors import Deconv, Dense
from exhume.readers import Sizes
from exhume.store.shards import FolderStore, NullStore
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each

ATTACK = RecoNN(Dense((64, 64)), Training(batch=32, epochs=12), chunk=32)


def every(rows):
    return torch.arange(len(rows))


class Remembering:
    """A store in memory that counts, and may die while it saves."""

    def __init__(self, dies_at: int = -1) -> None:
        self.kept, self.saves, self.dies_at = {}, 0, dies_at

    def load(self, address):
        return self.kept.get(address)

    def save(self, address, tensors):
        self.kept[address] = Shard({n: t.detach().clone() for n, t in tensors.items()})
        self.saves += 1
        if self.saves == self.dies_at:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def game():
    from exhume.core.contract import Key

    key = Key.from_seed(0)
    parts = readers.split(readers.load("digits"), Sizes(100, 20, 300, 100, 0), key)
    recipe = FullBatch(MLP((1, 8, 8), (8,), 10), Descent(steps=40))
    initial = recipe.architecture.initial(key)
    release, secret = release_one_each(
        recipe, initial, parts.fixed, parts.target, key=key, store=NullStore(), chunk=32
    )
    known = {"recipe": recipe, "initial": initial}
    here = Knowledge(fixed=parts.fixed, shadow=parts.shadow, **known)
    elsewhere = Knowledge(fixed=parts.public, shadow=parts.shadow[:60], **known)
    shadows = train_shadows(here, "it", fewest=2, chunk=32, key=key, store=NullStore())
    fitted = fit_reconstructor(ATTACK, shadows, key=key, store=NullStore())
    return here, elsewhere, release, secret, shadows, fitted


def same_networks(a, b) -> bool:
    pairs = zip(a.network.state_dict().values(), b.network.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_shadow_shards_are_shared_with_the_closed_form(game, key):
    here, *_ = game
    store = Remembering()
    ClosedForm(chunk=32).prepare(here, key=key, store=store)
    trained = store.saves
    train_shadows(here, "it", fewest=2, chunk=32, key=key, store=store)
    assert store.saves == trained == 10


def test_it_tells_its_own_error_without_the_truth(game):
    _, _, release, secret, _, fitted = game
    found = fitted.run(release)
    difference = found.candidates[:, 0] - secret.open().inputs
    error = float(difference.abs().mean() + difference.square().mean())
    assert found.observed["mae_plus_mse_on_shadows"] == pytest.approx(error, rel=0.3)
    assert found.cost.models == 301


def test_it_expects_the_error_of_what_looked_alike():
    drawn = torch.cat([torch.zeros(8, 1, 2), torch.ones(8, 1, 2)])
    truth = drawn + torch.cat([torch.full((8, 1, 2), 0.1), torch.full((8, 1, 2), 0.5)])
    calibration = ErrorCalibration.of(drawn, truth)
    found = torch.tensor([[[0.1, 0.0]], [[0.9, 0.8]]])
    assert calibration.expected(found).tolist() == pytest.approx([0.01, 0.25])


def test_its_confidence_knows_the_shadows_kept_aside_only(game, key):
    release, shadows, fitted = game[2], game[4], game[5]
    aside = split_shadows(300, 0.1, key)
    rows = torch.cat([aside.choose, aside.report])
    again = fitted.run(Weights(shadows.parameters[rows], release.layout)).candidates[:, 0]
    torch.testing.assert_close(fitted.calibration.drawn, again)
    errors = (again - shadows.records.inputs[rows]).square().flatten(1).mean(1)
    torch.testing.assert_close(fitted.calibration.errors, errors)
    confidence = fitted.run(release).confidence
    assert -float(confidence.mean()) == pytest.approx(float(errors.mean()), rel=0.5)


def test_scaler_and_span_know_the_training_shadows_only(game, key):
    shadows, parts = game[4], split_shadows(300, 0.1, key)
    assert sorted(torch.cat([parts.train, parts.choose, parts.report]).tolist()) == list(range(300))
    assert len(parts.choose) == len(parts.report) == 15
    spoiled = shadows.parameters.clone()
    held = torch.cat([parts.choose, parts.report])
    spoiled[held] += 100
    fitted = [
        fit_reconstructor(
            replace(ATTACK, span=True, training=Training(epochs=0)),
            Shadows(p, shadows.base, shadows.records, shadows.layout, 0.0),
            key=key,
            store=NullStore(),
        ).features
        for p in (shadows.parameters, spoiled)
    ]
    assert torch.equal(fitted[0].centre, fitted[1].centre)
    assert torch.equal(fitted[0].basis, fitted[1].basis)
    train = fitted[0].standardised(shadows.parameters[parts.train])
    torch.testing.assert_close(train.mean(0), torch.zeros(train.shape[1]), rtol=0, atol=1e-3)
    torch.testing.assert_close(train.std(0), torch.ones(train.shape[1]), rtol=0, atol=1e-3)


def test_the_span_keeps_inner_products(key):
    rows = torch.randn(6, 40, generator=key.generator())
    whole = fit_features("parameters", rows, torch.zeros(40), every(rows), span=False)
    inside = fit_features("parameters", rows, torch.zeros(40), every(rows), span=True)
    assert inside.size == 5  # centred
    x, y = whole.apply(rows), inside.apply(rows)
    torch.testing.assert_close(y @ y.T, x @ x.T * 5 / 40, rtol=1e-3, atol=1e-4)


def test_delta_is_the_direction_of_the_change(key):
    base, change = (
        torch.randn(12, generator=key.generator()),
        torch.randn(9, 12, generator=key.fold("c").generator()),
    )
    features = fit_features("delta", base + change, base, every(change), span=False)
    near, far = features.apply(base + change), features.apply(base + 5 * change)
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-3)


def test_a_parameter_that_never_moves_is_not_read(key):
    rows = torch.randn(6, 4, generator=key.generator())
    rows[:, 2] = 0.3
    features = fit_features("parameters", rows, rows[0], every(rows), span=False)
    assert features.columns.tolist() == [0, 1, 3]
    with pytest.raises(NotApplicable, match="no parameter differs between the shadow models"):
        fit_features("parameters", rows[:1].expand(3, -1), rows[0], torch.arange(3), span=False)


@pytest.mark.parametrize("optimiser", ["rmsprop", "adam"])
def test_a_killed_training_ends_with_the_same_bits(key, optimiser):
    def train(store):
        x = torch.randn(80, 6, generator=key.generator())
        records = torch.sigmoid(x[:, :4].reshape(-1, 1, 2, 2))
        attack = Training(optimiser=optimiser, batch=16, epochs=9, checkpoint=2)
        network = Dense((12,)).build(6, (1, 2, 2), key)
        pairs = Pairs(x, records)
        rows = torch.arange(80)
        return fit(network, attack, pairs[rows[:60]], pairs[rows[60:]], key=key, store=store)

    whole = train(NullStore())
    store = Remembering(dies_at=2)
    with pytest.raises(KeyboardInterrupt):
        train(store)
    again = train(store)
    assert store.saves == 5  # two before, then after epochs 6, 8 and 9
    assert same_networks(whole, again)
    assert torch.equal(whole.errors, again.errors)
    assert same_networks(whole, train(store))
    assert store.saves == 5
    assert len(store.kept) == 1


def test_a_killed_adversarial_training_ends_with_the_same_bits(key, make_records, tmp_path):
    records = make_records(10, (3, 24, 24), 2, key).inputs
    training = Training("adam", 1e-3, batch=4, epochs=3, adversarial=1.0, checkpoint=1)

    def train(store):
        network = Deconv((4, 4)).build(5, (3, 24, 24), key)
        pairs = Pairs(records[:, 0, 0, :5] - 0.5, records)
        rows = torch.arange(10)
        return fit(network, training, pairs[rows[:8]], pairs[rows[8:]], key=key, store=store)

    dying = Remembering(dies_at=1)
    with pytest.raises(KeyboardInterrupt):
        train(dying)
    assert any(name.startswith("critic_optimiser.") for name in next(iter(dying.kept.values())))
    folder = FolderStore(tmp_path)
    for name, tensors in dying.kept.items():
        folder.save(name, tensors)
    assert same_networks(train(NullStore()), train(folder))


def test_the_epoch_is_that_of_the_least_held_out_error(key):
    x = torch.randn(30, 5, generator=key.generator())
    z = torch.rand(30, 1, generator=key.fold("z").generator())  # unrelated: it can only overfit
    rows = torch.arange(30)
    training = Training(batch=8, epochs=40, rate=1e-2)
    pairs = Pairs(x, z)
    chosen = fit(
        Dense((30,)).build(5, (1,), key),
        training,
        pairs[rows[:20]],
        pairs[rows[20:]],
        key=key,
        store=NullStore(),
    )
    assert chosen.epoch < 40
    assert chosen.errors[chosen.epoch] == chosen.errors.min()
    difference = chosen.network(x[20:]) - z[20:]
    error = float(difference.abs().mean() + difference.square().mean())
    assert error == pytest.approx(float(chosen.errors.min()), rel=1e-6)
    seen = []
    stopped = fit(
        Dense((30,)).build(5, (1,), key),
        replace(training, patience=3),
        pairs[rows[:20]],
        pairs[rows[20:]],
        key=key,
        store=NullStore(),
        progress=lambda *call: seen.append(call[1:]),
    )
    assert len(stopped.errors) - 1 == stopped.epoch + 3 < 40
    assert seen[0] == (0, 40)
    assert seen[-1] == (40, 40)


def test_divergence_is_said(key):
    pairs = Pairs(torch.randn(8, 3, generator=key.generator()), torch.rand(8, 2))
    with pytest.raises(ExhumeError, match=r"diverged in epoch \d+ \(rate 1e\+30\)"):
        fit(
            Dense((4, 4), "linear").build(3, (2,), key),
            Training(rate=1e30, epochs=5),
            pairs,
            pairs,
            key=key,
            store=NullStore(),
        )


def test_fine_tuning_for_another_fixed_set(game, key):
    _, elsewhere, *_, fitted = game

    def tuned(epochs):
        return fitted.fine_tune(elsewhere, epochs=epochs, key=key, store=NullStore())

    zero, few = tuned(0), tuned(10)
    assert same_networks(zero, fitted)
    assert torch.equal(zero.features.base, few.features.base)
    assert not torch.equal(zero.features.base, fitted.features.base)
    scratch = replace(ATTACK, training=replace(ATTACK.training, epochs=10))
    scratch = scratch.prepare(elsewhere, key=key, store=NullStore())
    error = {n: f.observed["mae_plus_mse_on_shadows"] for n, f in [("t", few), ("s", scratch)]}
    assert error["t"] < error["s"]
    other = replace(elsewhere, recipe=FullBatch(MLP((1, 8, 8), (9,), 10), Descent(steps=1)))
    other = replace(other, initial=other.recipe.architecture.initial(key))
    with pytest.raises(NotApplicable, match="models of 685 parameters, .* trained on 610"):
        fitted.fine_tune(other, epochs=1, key=key, store=NullStore())


def test_the_published_convolutional_form():
    attack = RecoNN.convolutional(span=False)
    t = attack.training
    assert (t.optimiser, t.rate, t.weight_decay, t.batch, t.epochs) == (
        "adam",
        1e-4,
        1e-4,
        128,
        1000,
    )
    assert t.perceptual == t.adversarial == 1
    assert attack.network == Deconv((64, 32))


@pytest.mark.slow
@pytest.mark.network
def test_the_convolutional_form_learns(key, make_records):
    flat = make_records(60, (3, 1, 1), 2, key)  # one colour each: nothing but colour to be learned
    records = Records(flat.inputs.expand(-1, 3, 32, 32).clone(), flat.labels, flat.classes)
    recipe = FullBatch(MLP((3, 32, 32), (3,), 2), Descent(steps=5))
    known = Knowledge(
        recipe=recipe,
        initial=recipe.architecture.initial(key),
        fixed=records[:8],
        shadow=records[8:],
    )
    published = RecoNN.convolutional()

    def error(epochs, adversarial):
        training = replace(
            published.training, epochs=epochs, batch=16, rate=1e-3, adversarial=adversarial
        )
        fitted = replace(published, training=training).prepare(known, key=key, store=NullStore())
        assert fitted.features.size < 52
        return fitted.observed["mae_plus_mse_on_shadows"]

    start = error(0, 1.0)
    assert error(10, 1.0) < start  # the discriminator asks for more than a small pixel error
    assert error(10, 0.0) < 0.9 * start


def test_the_perceptual_term_is_part_of_the_loss(key, make_records, monkeypatch):
    from exhume.attacks.informed import learner

    class Blue(torch.nn.Module):
        def forward(self, left, right):
            return (1 - left[:, 2]).flatten(1).mean(1)  # all blue is perfect

    monkeypatch.setattr(learner, "perceptual", lambda net, *, progress: Blue())
    records = make_records(8, (3, 8, 8), 2, key).inputs
    pairs = Pairs(records[:, 0, 0], records)

    def blue(weight):
        step = learner.Learner(
            Deconv((4, 4)).build(8, (3, 8, 8), key),
            Training(rate=1e-2, perceptual=weight),
            (3, 8, 8),
            key,
            lambda *call: None,
        )
        for _ in range(30):
            step.step(pairs.features, pairs.records)
        return float(step.network(pairs.features)[:, 2].detach().mean())

    assert blue(50.0) > 0.9 > blue(0.0) + 0.1


def test_what_does_not_fit_is_said(game, key):
    here, _, release, _, shadows, fitted = game
    gradient = Gradient(release.parameters, release.layout, release.parameters[0])
    assert fitted.run(gradient).status.outcome is Outcome.NOT_APPLICABLE
    with pytest.raises(ExhumeError, match="release: 3 parameters, the shadow models have 610"):
        fitted.run(Weights(torch.zeros(1, 3), release.layout))
    with pytest.raises(NotApplicable, match="RecoNN needs to know: initial, fixed, shadow"):
        ATTACK.prepare(Knowledge(recipe=here.recipe), key=key, store=NullStore())
    with pytest.raises(NotApplicable, match="7 records given, at least 8 needed"):
        ATTACK.prepare(replace(here, shadow=here.shadow[:7]), key=key, store=NullStore())
    wide = Records(shadows.records.inputs * 2, shadows.records.labels, shadows.records.classes)
    with pytest.raises(NotApplicable, match='values from 0 to 2; .* choose "linear"'):
        fit_reconstructor(ATTACK, replace(shadows, records=wide), key=key, store=NullStore())
    with pytest.raises(ExhumeError, match="inputs: 'x' is not one of parameters, delta"):
        RecoNN(inputs="x")
    with pytest.raises(ExhumeError, match="held_out: 1.0 given"):
        RecoNN(held_out=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimiser": "sgd"}, "optimiser: 'sgd' is not one of rmsprop, adam"),
        ({"weight_decay": 0.1}, "weight_decay: 0.1 is for adam only"),
        ({"batch": 0}, "batch: 0 given, at least 1 needed"),
        ({"checkpoint": 0}, "checkpoint: 0 given, at least 1 needed"),
        ({"epochs": -1}, "epochs: -1 given, at least 0 needed"),
        ({"adversarial": -1.0}, "adversarial: -1.0 given, at least 0 needed"),
        ({"rate": 0.0}, "rate: 0.0 given, it must be positive"),
        ({"decay": 1.0}, "decay: 1.0 given, legal is"),
    ],
)
def test_illegal_training(settings, message):
    with pytest.raises(ExhumeError, match=message):
        Training(**settings)
