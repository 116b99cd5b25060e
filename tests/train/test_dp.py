"""Private training against per-record gradients by autograd; accounting against two accountants."""

from __future__ import annotations

import math
import sys

import dp_accounting
import pytest
import torch
import torch.nn.functional as F
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.activations import ACTIVATIONS
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.store.shards import NullStore
from exhume.train.dp import NoiseStream, Privacy, SampleStream, epsilon, noise_for_epsilon
from exhume.train.fleet import train_fleet
from exhume.train.functional import SideBySide
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch, follow
from exhume.train.stacked import Stack, StepPlan


def records(count, shape, classes, key):
    generator = key.generator()
    inputs = torch.rand(count, *shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (count,), generator=generator)
    return Records(inputs, labels, tuple(map(str, range(classes))))


def naive(architecture, descent, start, inputs, labels, privacy, noise, drawn=None):
    """One record at a time, one model, plain loops; drawn: (T, n) who enters which step."""
    model = architecture.build().double()
    flat, velocity = start.clone(), torch.zeros_like(start)
    for step in range(descent.steps):
        torch.nn.utils.vector_to_parameters(flat, model.parameters())
        total = torch.zeros_like(flat)
        for place, (one, label) in enumerate(zip(inputs, labels, strict=True)):
            if drawn is not None and not drawn[step, place]:
                continue
            loss = F.cross_entropy(model(one[None]), label[None])
            parts = torch.autograd.grad(loss, list(model.parameters()))
            gradient = torch.cat([part.flatten() for part in parts])
            total += gradient * min(1.0, privacy.clip / max(float(gradient.norm()), 1e-300))
        if privacy.noise:
            total += privacy.noise * privacy.clip * noise.draw(flat)[0]
        velocity = descent.momentum * velocity + total / (privacy.sampling * len(labels))
        velocity += descent.weight_decay * flat
        flat = flat - descent.rate * velocity
    return flat


def compare(engine, architecture, key, n, models, extras, privacy):
    descent = Descent(steps=3, rate=0.3, momentum=0.8, weight_decay=0.05)
    shape, classes = architecture.input_shape, architecture.outputs
    fixed = records(n, shape, classes, key.fold("fixed"))
    flat = records(models * extras, shape, classes, key.fold("extra"))
    extra = Records(
        flat.inputs.reshape(models, extras, *shape),
        flat.labels.reshape(models, extras),
        flat.classes,
    )
    start, size = architecture.initial(key).double(), architecture.layout.size
    streams = {"noise": NoiseStream(key, 0, models, size)}
    if privacy.samples:
        streams["sampler"] = SampleStream(key, 0, models, privacy.sampling)
    made = engine.of(architecture, fixed, extra)
    begin = start.expand(models, -1)
    found = follow(made, descent, begin, StepPlan(privacy=privacy, **streams))
    for i in range(models):
        inputs = torch.cat([fixed.inputs, extra.inputs[i]])
        labels = torch.cat([fixed.labels, extra.labels[i]])
        alone = NoiseStream(key, i, 1, size)
        drawn = None
        if privacy.samples:
            sampler = SampleStream(key, i, 1, privacy.sampling)
            drawn = torch.cat([sampler.draw(n, extras) for _ in range(descent.steps)])
        expected = naive(architecture, descent, start, inputs, labels, privacy, alone, drawn)
        torch.testing.assert_close(found[i], expected, rtol=1e-9, atol=1e-11)


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 6),
    d=st.integers(1, 5),
    hidden=st.lists(st.integers(1, 4), max_size=2),
    models=st.integers(1, 3),
    extras=st.integers(0, 2),
    name=st.sampled_from(sorted(ACTIVATIONS)),
    clip=st.sampled_from([0.05, 0.7, 100.0]),
    noise=st.sampled_from([0.0, 0.5]),
    rate=st.sampled_from([1.0, 0.4]),
)
def test_by_hand_equals_per_record_gradients(n, d, hidden, models, extras, name, clip, noise, rate):
    mlp = MLP((d,), tuple(hidden), 3, activation=name)
    compare(Stack, mlp, Key.from_seed(3), n, models, extras, Privacy(clip, noise, rate))


@pytest.mark.parametrize(("noise", "rate"), [(0.0, 1.0), (0.5, 1.0), (0.5, 0.3)])
@pytest.mark.parametrize(
    "architecture",
    [CNN((1, 6, 6), (2, 3), (3, 2), (1, 1), (4,), 3), MLP((5,), (4,), 3)],
    ids=["cnn", "mlp"],
)
def test_the_general_path_equals_per_record_gradients(architecture, noise, rate, key):
    compare(SideBySide, architecture, key, 10, 2, 1, Privacy(0.5, noise, rate))


def small(make_records, key):
    mlp = MLP((6,), (5,), 3)
    fixed = make_records(12, (6,), 3, key.fold("fixed"))
    extra = make_records(7, (6,), 3, key.fold("extra")).one_each()
    return mlp, mlp.initial(key), fixed, extra


def test_noise_does_not_depend_on_the_chunk(make_records, key):
    mlp, start, fixed, extra = small(make_records, key)
    recipe = FullBatch(mlp, Descent(steps=5), Privacy(1.0, 2.0))

    def fleet(chunk):
        job = train_fleet(
            recipe, start, fixed, extra, key=key, store=NullStore(), chunk=chunk, stage="s"
        )
        return torch.cat(list(job))

    torch.testing.assert_close(fleet(2), fleet(7), rtol=1e-4, atol=1e-5)
    other = recipe.fit(start, fixed, extra, key.fold("other"))
    assert float((fleet(7) - other).abs().max()) > 0.1
    assert float((fleet(7)[0] - fleet(7)[1]).abs().max()) > 0.1


@pytest.mark.parametrize("architecture", ["mlp", "cnn"])
def test_a_clip_no_gradient_reaches_is_plain_training(make_records, key, architecture):
    chosen = MLP((1, 6, 6), (5,), 3) if architecture == "mlp" else CNN((1, 6, 6), (2,), (3,), (1,))
    fixed = make_records(9, (1, 6, 6), 3, key)
    plain = FullBatch(chosen, Descent(steps=4))
    start = chosen.initial(key)
    found = plain.fit(start, fixed, fixed.none_for(2), key)
    clipped = FullBatch(chosen, Descent(steps=4), Privacy(clip=1e9))
    again = clipped.fit(start, fixed, fixed.none_for(2), key)
    if architecture == "mlp":
        assert torch.equal(found, again)
    torch.testing.assert_close(found, again)
    assert torch.equal(
        found,
        FullBatch(chosen, Descent(steps=4), Privacy()).fit(start, fixed, fixed.none_for(2), key),
    )


def test_noise_has_the_declared_size(key):
    """With no records' gradients to speak of (a tiny clip), a step moves by rate·sigma·C / N."""
    mlp = MLP((40,), (50,), 3)
    fixed = Records(torch.rand(4, 40), torch.arange(4) % 3, ("a", "b", "c"))
    recipe = FullBatch(mlp, Descent(steps=1, rate=1.0), Privacy(clip=1e-3, noise=1e3))
    start = mlp.initial(key)
    moved = recipe.fit(start, fixed, fixed.none_for(3), key) - start
    assert float(moved.std()) == pytest.approx(1e-3 * 1e3 / 4, rel=0.05)


def composed(accountant, event, steps):
    return accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps)).get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("noise", "steps"),
    [(40.0, 100), (2.0, 10), pytest.param(5.0, 100, marks=pytest.mark.slow)],
)
def test_epsilon_by_three_accountants(noise, steps):
    exact = epsilon(noise, steps)
    event = dp_accounting.GaussianDpEvent(noise)
    assert composed(PLDAccountant(), event, steps) == pytest.approx(exact, rel=1e-3)
    assert exact < composed(RdpAccountant(), event, steps) < 1.2 * exact


def test_epsilon_of_one_gaussian_step_solves_its_equation():
    """delta = Phi(1/(2s) - eps·s) - e^eps·Phi(-1/(2s) - eps·s) (Balle and Wang 2018)."""
    noise, delta = 1.5, 1e-5
    eps = epsilon(noise, 1, delta=delta)
    phi = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0).cdf
    a, b = (torch.tensor(sign / (2 * noise) - eps * noise).double() for sign in (1, -1))
    assert float(phi(a) - math.exp(eps) * phi(b)) == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize("target", [1.0, 10.0, 1e6])
def test_noise_for_epsilon_is_its_inverse(target):
    assert epsilon(noise_for_epsilon(target, 100), 100) == pytest.approx(target, rel=1e-6)


def test_no_noise_no_guarantee():
    assert epsilon(0.0, 100) == math.inf
    assert epsilon(1.0, 0) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Privacy(clip=0.0), "clip: 0.0 given, a norm above 0"),
        (lambda: Privacy(clip=math.nan), "clip: nan given"),
        (lambda: Privacy(1.0, -1.0), "noise: -1.0 given, a number from 0"),
        (lambda: Privacy(noise=1.0), "noise: 1.0 given without a clip"),
        (lambda: epsilon(1.0, 10, delta=0.0), "delta: 0.0 given, needed between 0 and 1"),
        (lambda: noise_for_epsilon(0.0, 10), "epsilon: 0.0 given, a finite number above 0"),
    ],
)
def test_impossible_settings_are_named(call, message):
    with pytest.raises(ExhumeError, match=message):
        call()


def test_a_missing_accountant_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ExhumeError, match=r"pip install 'exhume\[dp\]'"):
        epsilon(1.0, 10)


# Poisson sampling


def test_blocks_of_records_are_drawn_in_their_order(key):
    """More records than one block holds: the draws still belong to the same ones."""
    mlp = MLP((3,), (2,), 2)
    compare(Stack, mlp, key, 600, 2, 1, Privacy(0.3, 0.1, 0.05))


def test_side_by_side_or_one_at_a_time_the_same_are_drawn(make_records, key):
    mlp, start, fixed, extra = small(make_records, key)
    recipe = FullBatch(mlp, Descent(steps=5), Privacy(1.0, 0.5, 0.3))
    whole = recipe.fit(start, fixed, extra, key)
    for place in range(len(extra)):
        alone = recipe.fit(start, fixed, extra[place : place + 1], key, place)
        torch.testing.assert_close(whole[place], alone[0], rtol=0, atol=1e-6)


def test_draws_are_poisson_and_do_not_depend_on_the_extra_records(key):
    recipe = FullBatch(MLP((3,), (2,), 2), Descent(steps=200), Privacy(1.0, 1.0, 0.2))
    drawn = recipe.drawn(50, 3, key)
    assert drawn.shape == (3, 200, 50)
    assert abs(float(drawn.double().mean()) - 0.2) < 0.01  # 30,000 draws
    sizes = drawn.sum(2).double()
    assert abs(float(sizes.var()) - 50 * 0.2 * 0.8) < 1.5  # of a binomial; fixed batches have 0
    stream = SampleStream(key, 0, 3, 0.2)
    steps = [stream.draw(50, 4) for _ in range(200)]
    assert torch.equal(torch.stack(steps, 1)[:, :, :50], drawn)
    own = torch.stack(steps, 1)[:, :, 50:].flatten(0, 1)
    assert abs(float(own.double().mean()) - 0.2) < 0.03
    assert not torch.equal(drawn[0], drawn[1])
    later = recipe.drawn(50, 1, key, first=2)
    assert torch.equal(later[0], drawn[2])
    assert (
        FullBatch(MLP((3,), (2,), 2), Descent(steps=2), Privacy(1.0, 1.0)).drawn(5, 1, key) is None
    )


def test_accounting_of_samples():
    by_grid = epsilon(1.5, 20, sampling=0.1)
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.5))
    assert by_grid == pytest.approx(composed(PLDAccountant(), event, 20), rel=1e-2)
    assert by_grid < composed(RdpAccountant(), event, 20) < 1.3 * by_grid
    assert by_grid < epsilon(1.5, 20) / 3
    little = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(0.1))
    orders = RdpAccountant(list(range(2, 129)))
    assert epsilon(0.1, 10, sampling=0.1) == pytest.approx(composed(orders, little, 10))


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan])
def test_rates_that_are_none(rate):
    with pytest.raises(ExhumeError, match="sampling: .* given, a probability above 0 and up to 1"):
        Privacy(1.0, 1.0, rate)


def test_samples_need_a_clip():
    with pytest.raises(ExhumeError, match=r"sampling: 0.5 given without a clip"):
        Privacy(sampling=0.5)
    assert str(Privacy(1.0, 2.0, 0.5)) == "clip 1, noise multiplier 2, sampling rate 0.5"
