"""What the claims about gradients turn on: their metrics and bars."""

from __future__ import annotations

from itertools import product

from exhume.score.batches import RECOVERED
from exhume.studies import study_named
from exhume.studies.gradient.tensor import _arms


def test_tensor(claims_turn, claimed):
    right = {
        "slope_m.tanh": -0.59,
        "slope_m.relu": -0.41,
        "slope_d.tanh": 0.64,
        "slope_d.relu": 0.36,
    }

    def decide(slopes):
        ends = {f"{n}.{end}": slope for n, slope in slopes.items() for end in ("low", "high")}
        return claimed("gradient-tensor", slopes | ends)

    claims_turn(
        decide,
        right,
        ("neurons.tanh", {"slope_m.tanh": -0.61}),
        ("neurons.relu", {"slope_m.relu": -0.39}),
        ("inputs.tanh", {"slope_d.tanh": 0.66}),
        ("inputs.relu", {"slope_d.relu": 0.34}),
    )


def test_batch(claims_turn, canned):
    right = {}
    for case in study_named("gradient-batch").scales["cpu"].cases:
        arm = {"cosines": [1.0, case.bar], "psnr": [30.0], "size": [case.batch], "seconds": [20.0]}
        right |= {f"{case.name}.{n}": v for n, v in (arm | {"truth": [0], "found": [0]}).items()}
    bars = {"tanh.b8": 0.9999, "relu.b8": 0.99, "relu.b32": 0.99, "tanh.b32": 0.99}
    bars |= {"cifar10.tanh.b16": 0.99, "cifar10.relu.b16": 0.99}
    claims_turn(
        lambda metrics: canned("gradient-batch", metrics, "cpu").claims,
        right,
        *((name, {f"{name}.cosines": [1.0, bar - 1e-4]}) for name, bar in bars.items()),
        ("tanh.b8", {"tanh.b8.seconds": [20.1]}),
    )


def test_start(claims_turn, canned):
    cosines = {"tensor": 0.5, "noise_start": 0.5, "tensor_start": 0.51, "fitted": 0.52}
    claims_turn(
        lambda metrics: canned("gradient-start", metrics).claims,
        {f"batch.{attack}": [cosine] * 2 for attack, cosine in cosines.items()},
        ("better-start", {"batch.noise_start": [0.51] * 2}),
        ("polish", {"batch.tensor": [0.51] * 2}),
        ("fit", {"batch.fitted": [0.5] * 2}),
    )


def test_query(claims_turn, canned):
    """Of six records all must come back, or the share's interval reaches below a half."""
    claims_turn(
        lambda metrics: canned("gradient-query", metrics).claims,
        {"tanh.steps0.recovered": 1.0, "tanh.steps5.recovered": 1.0},
        ("random.tanh", {"tanh.steps0.recovered": 5 / 6}),
        ("trained.tanh", {"tanh.steps5.recovered": 5 / 6}),
    )


def test_defences(claims_turn, canned):
    """15 of 20 are more than half for certain, 5 fewer; 14 and 6 are not."""
    names = study_named("gradient-defences").scales["cpu"].defences
    numbers = ("span.mean_cosine", "matching.mean_cosine", "span.recovered", "utility")
    right = {f"{name}.{number}": 0.5 for name, number in product(names, numbers)}
    claims_turn(
        lambda metrics: canned("gradient-defences", metrics, "cpu").claims,
        right | {"noise.1.span.recovered": 0.75, "prune.0.9.span.recovered": 0.25},
        ("noise", {"noise.1.span.recovered": 0.7}),
        ("pruning", {"prune.0.9.span.recovered": 0.3}),
    )


def test_noise(claims_turn, canned):
    arms = _arms(study_named("gradient-noise").scales["smoke"])
    names = {name.split(" ")[0] for name in arms}
    right = {f"{name}.{n}": 0.249 for name, n in product(names, ("error", "span_error"))}
    right |= {f"{name}.error": 0.24 for name in names if name.endswith("joint")}
    claims_turn(
        lambda metrics: canned("gradient-noise", metrics | {"last.error": 0.1}).claims,
        right,
        ("tensor.relu", {"relu.m16384.b2.last.error": 0.25}),
        ("tensor.tanh", {"tanh.m16384.b2.last.error": 0.25}),
        ("span.relu", {"relu.m4096.b2.last.span_error": 0.25}),
        ("span.tanh", {"tanh.m4096.b2.last.span_error": 0.25}),
        ("joint", {"relu.m4096.b2.last.c3.joint.error": 0.26}),
    )


def test_deep(claims_turn, canned):
    """At every depth."""
    depths, whats = (1, 2, 3), ("features", "records")
    claims_turn(
        lambda metrics: canned("gradient-deep", metrics, "cpu").claims,
        {f"depth{d}.{what}.min_cosine": RECOVERED for d, what in product(depths, whats)},
        ("features", {"depth2.features.min_cosine": RECOVERED - 0.001}),
        ("records", {"depth3.records.min_cosine": RECOVERED - 0.001}),
    )


def test_tokens(claims_turn, canned):
    """The order of averaged tokens is not asked for, nor whole sentences of a larger batch."""
    right = {}
    for pool, kind in product(("flatten", "mean", "attention"), ("trained", "public")):
        one, two = f"{pool}.{kind}.b1", f"{pool}.{kind}.b2"
        right |= {f"{one}.exact": float(pool != "mean"), f"{one}.exact_bags": float(pool == "mean")}
        right |= {f"{two}.exact": 0.0, f"{two}.bag_accuracy": 0.9}
    claims_turn(
        lambda metrics: canned("gradient-tokens", metrics).claims,
        right,
        ("one sentence", {"attention.public.b1.exact": 0.99}),
        ("one sentence", {"flatten.trained.b1.exact": 0.99}),
        ("averaged", {"mean.trained.b1.exact_bags": 0.99}),
        ("batch", {"mean.public.b2.bag_accuracy": 0.89}),
    )


def test_networks(claims_turn, claimed):
    bars = {
        "batch": ("mlp.b16.recovered", 0.95),
        "larger": ("mlp.b32.recovered", 0.5),
        "wide": ("mlp_wide.b32.recovered", 0.5),
        "fedavg": ("fedavg.mlp.rate0.01.recovered", 0.8),
        "images": ("convnet.b8.identified", 0.95),
        "resnet": ("resnet.b1.identified", 0.8),
        "transformer": ("vit.b1.recovered", 0.95),
        "gpt": ("gpt.b15.exact", 0.95),
        "bert": ("bert.b4.tokens_in_place", 0.8),
        "beyond": ("gpt.b32.tokens", 0.3),
    }
    claims_turn(
        lambda metrics: claimed("update-networks", metrics),
        dict(bars.values()),
        *((claim, {metric: bar - 0.01}) for claim, (metric, bar) in bars.items()),
    )
    assert set(claimed("update-networks", {"mlp.b16.recovered": 1.0})) == {
        "batch"
    }  # of what was run


def test_clients(claimed):
    """A row that was not run claims nothing."""
    least = {
        **dict.fromkeys(("augmented", "augmented.own", "private.noise_off"), ("leaks", 1)),
        **dict.fromkeys(("private.strong", "private.strong.own"), ("no_leak", 0.8)),
        **dict.fromkeys(("fedavg.mlp", "fedavg.own"), ("recovered", 0.8)),
        **dict.fromkeys(("bn_train.convnet.b4", "bn_train.own.b4"), ("identified", 0.75)),
        **dict.fromkeys(("lora.gpt", "lora.gpt.own"), ("exact", 0.9)),
        **dict.fromkeys(("lora.gpt.rank8", "lora.gpt.rank16"), ("reported", 1)),
        **{"private.noise_off.own": ("leaks", 1), "resnet.b2": ("ratio", 1)},
    }
    right = {f"{row}.{number}": bar for row, (number, bar) in least.items()}
    right |= {"augmented.said": 1.0, "fedavg.mlp.overrun": 2.0}
    claims = claimed("update-clients", right)
    assert all(stated[3] for stated in claims.values())
    assert len(claims) == len(right)
    for metric, bar in right.items():
        worse = bar + 0.1 if metric.endswith("overrun") else bar - 0.1
        changed = claimed("update-clients", right | {metric: worse}).values()
        assert [stated[3] for stated in changed].count(False) == 1, metric
    assert set(claimed("update-clients", {"augmented.leaks": 1.0})) == {"augmented"}
