"""What the claims about training images from weights turn on: their metrics and bars."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from exhume.studies import study_named
from exhume.studies.margin import figures, ordinary

LEVEL = 0.01


def back(share):
    """(100,) 1 where an image came back: the first so many."""
    return (torch.arange(100) < share).double()


def test_multiclass(claims_turn, claimed):
    right = {"i.good": 60.0, "i.records": 100.0, "i.decoy_rate": 0.02, "i.good_eq6": 10.0}
    right |= {"binary.good": 20.0, "ii.good": 70.0}
    right |= {f"{name}.gain_low": 1.0 for name in ("i", "classes", "decay")}
    right |= {f"{name}.gain_high": 9.0 for name in ("i", "classes", "decay")}
    claims_turn(
        lambda metrics: claimed("margin-multiclass", metrics),
        right,
        ("bar", {"i.good": 59.0}),
        ("threshold", {"i.decoy_rate": 0.03}),
        ("against-eq6", {"i.gain_low": 0.0}),
        ("classes", {"classes.gain_low": 0.0}),
        ("decay", {"decay.gain_low": 0.0}),
    )


def test_classes(claims_turn, claimed):
    """Intervals of counts: of 4 and 10 images at two of a class, of 10 and 10 at a fixed number."""
    right = {}
    for end, few, many in (("each2", (0.2, 0.5), (0.3, 0.6)), ("total10", (0.1, 0.2), (0.3, 0.6))):
        for victim, (low, high) in {f"c2.{end}": few, f"c5.{end}": many}.items():
            right |= {f"{victim}.good": 1.0, f"{victim}.good_share_low": low}
            right |= {f"{victim}.good_share_high": high}
    setting = study_named("margin-classes").scales["smoke"]
    claims_turn(
        lambda metrics: claimed(
            "margin-classes", metrics | {"compared": figures.compared_classes(setting, metrics)}
        ),
        right,
        ("per-class", {"c5.each2.good_share_low": 0.2}),
        ("fixed-total", {"c2.total10.good_share_high": 0.3}),
    )


def test_weight_decay(claims_turn, claimed, key):
    """The better of two decays counts; that images come back in spite of errors is asked apart."""
    setting = study_named("margin-weight-decay").scales["cpu"]
    names = ["standard", "small", *(f"decay{decay:g}" for decay in setting.decays)]
    right = {}
    for name in names:
        right |= {f"c2.{name}.good": 30.0, f"c2.{name}.good_first_layer": 20.0}
        right |= {f"c2.{name}.on_margin": 40.0}
    right |= {"c2.decay0.01.good": 60.0, "c2.decay0.01.on_margin": 41.0}
    right["c2.decay0.1.good_first_layer"] = 21.0

    def decide(metrics):
        good = {f"c2.{name}": back(metrics[f"c2.{name}.good"]) for name in names}
        said = {"by_classes": [figures.compared_decays(setting, 2, metrics, good, key)]}
        claims = claimed("margin-weight-decay", metrics | said | {"erring": "", "most": 1})
        claims.pop("with-errors")
        return {name.removeprefix("c2."): claim for name, claim in claims.items()}

    claims_turn(
        decide,
        right,
        ("decay-leaks", {"c2.standard.good": 60.0}),
        ("above-small", {"c2.small.good": 59.0}),
        ("first-layer-alone", {"c2.small.good_first_layer": 21.0}),
        ("margin", {"c2.standard.on_margin": 41.0}),
    )
    erring = {f"c{c}.decay{d:g}.train_errors": 0.0 for c in (2, 10) for d in setting.decays}
    claims_turn(
        lambda metrics: claimed(
            "margin-weight-decay",
            metrics | {"by_classes": []} | figures.with_errors(setting, metrics),
        ),
        erring | {"c10.decay0.14.train_errors": 1.0, "c10.decay0.14.good": 1.0},
        ("with-errors", {"c10.decay0.14.good": 0.0}),
        ("with-errors", {"c10.decay0.14.train_errors": 0.0}),
    )


def test_large(claims_turn, claimed, key):
    numbers = {"records": 100.0, "decoy_rate": 0.02, "above_bar": 24.0, "good": 60.0}
    numbers |= {"good_low": 55.0, "good_high": 65.0}
    claims_turn(
        lambda metrics: claimed(
            "margin-large", metrics | {"victims": [{"name": "v", "bar": 24}], "longer": []}
        ),
        {f"v.{name}": value for name, value in numbers.items()},
        ("v", {"v.above_bar": 23.0}),
        ("v", {"v.decoy_rate": 0.021}),
    )

    def beside(metrics):
        """Eq. (6) for as many steps as were set beforehand, and for four times as many."""

        def attacked(attack, label, key):
            count = metrics[f"eq6 for {attack.descent.steps} steps"]
            members = SimpleNamespace(good=back(count))
            scores = dict.fromkeys(figures._LARGE_KEPT, 0.0)
            return None, SimpleNamespace(members=members, metrics=scores)

        recipe = SimpleNamespace(head="multiclass")
        game = SimpleNamespace(name="v", recipe=recipe, key=key, attacked=attacked)
        victim = figures._Victim("digits", 10, 10, 80, eq6=15)
        longer = figures._beside(game, victim, back(metrics["ours"]))[1]
        return claimed("margin-large", {"victims": [], "longer": longer})

    claims_turn(
        beside,
        {"ours": 60, "eq6 for 15 steps": 30, "eq6 for 60 steps": 30},
        ("v.eq6", {"eq6 for 15 steps": 60}),
        ("v.eq6x4", {"eq6 for 60 steps": 59}),
    )


def test_ordinary(claims_turn, claimed):
    setting = study_named("margin-ordinary").scales["cpu"]
    bars = {"relu": 90.0, "gelu": 40.0, "minibatch": 60.0, "unbalanced": 80.0}
    right = {f"{name}.decoy_rate": 0.02 for name in setting.arms}
    for name, bar in bars.items():
        right |= {f"{name}.good": bar, f"{name}.records": 100.0}
    right |= {"head.identified": 0.8, "head.records": 200.0, "cnn.p": LEVEL}
    right |= {"cnn.identified": 0.3, "cnn.records": 100.0, "cnn.chance": 0.01}
    claims_turn(
        lambda metrics: claimed("margin-ordinary", metrics | ordinary.decoys(setting, metrics)),
        right,
        *((name, {f"{name}.good": bar - 1}) for name, bar in bars.items()),
        ("head", {"head.identified": 0.79}),
        ("cnn", {"cnn.p": LEVEL + 0.001}),
        ("decoys", {"small.silu.decoy_rate": 0.021}),
    )
