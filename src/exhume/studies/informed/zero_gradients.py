"""Balle22, Fig. 16: with ReLU most parameters receive no gradient from the record; is that why it hides?

The share of parameters whose gradient from the target is exactly zero, over training, by activation: for
the CNN of Table V on CIFAR-10, as the paper shows it, and for the MLP on MNIST, where black pixels give
zero gradients too and are counted apart. On the MLP the share is then set against the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume import data
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.auditing import dealt, informed_game
from exhume.choices import recipe_for, resolve
from exhume.contract import Key, Progress, Records
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.correlation import Correlation, rank_correlation
from exhume.score.intervals import bootstrap
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.arms import play
from exhume.studies.informed.pooled import Pooled, binned, point, spread
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.train.untouched import Untouched, untouched

__all__ = ["STUDY"]

MLP = ("relu", "floor", "elu", "leaky-relu", "tanh")  # "floor" is max(-0.5, x)
CNN = ("relu", "elu", "leaky-relu", "tanh")
TABLE_III = {"relu": 0.0182, "floor": 0.0096, "elu": 0.0089, "leaky-relu": 0.0092, "tanh": 0.0086}
_BINS = 5


@dataclass(frozen=True)
class _Setting:
    mlp: DataSettings
    cnn: DataSettings
    seeds: int  # of the MLP
    every: int  # steps between two looks
    rate: float = 0.1
    cnn_rate: float = 0.01
    cnn_steps: int = 100


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=50, targets=40, shadows=120, public=1, test=1),
        DataSettings("cifar10", fixed=10, targets=4, shadows=1, public=1, test=1),
        seeds=1,
        every=50,
        cnn_steps=2,
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=200, targets=150, shadows=600, public=1, test=1),
        DataSettings("cifar10", fixed=250, targets=100, shadows=1, public=1, test=1),
        seeds=2,
        every=10,
    ),
    "paper": _Setting(
        DataSettings("mnist", fixed=10_000, targets=999, shadows=58_000, public=1, test=1),
        DataSettings("cifar10", fixed=5000, targets=999, shadows=1, public=1, test=1),
        seeds=1,
        every=1,
        rate=0.2,
    ),
}


@dataclass(frozen=True, eq=False)
class _Attacked:
    """Targets of one activation, over all seeds, and what was seen of their gradients."""

    attack: Pooled
    looks: list[Untouched]
    black: Tensor  # (t,) share of black pixels

    def over(self, prefix: str) -> Tensor:
        """(looks, t)"""
        return torch.cat([look.over(prefix) for look in self.looks], dim=1)

    @property
    def off(self) -> Tensor:
        """(t,) share of the hidden neurons that are off on the target, mean over training."""
        return self.over("fc1.bias").mean(0)


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed).fold("zero gradients")
    digits = data.load("mnist", progress=progress)
    settings = resolve(Settings(seed, setting.mlp, VictimSettings(rate=setting.rate)), digits)
    settings = pinned(settings, folder)
    attacked = {name: _attacked(setting, settings, name, digits, folder, progress) for name in MLP}
    photos = data.load("cifar10", progress=progress)
    seen = {}
    for done, name in enumerate(CNN):
        progress("watching the CNN train", done, len(CNN))
        seen[name] = _watched_cnn(setting, settings, name, photos)
    progress("watching the CNN train", len(CNN), len(CNN))
    metrics = _metrics(attacked, seen, key)
    link = rank_correlation(attacked["relu"].off, attacked["relu"].attack.mse, key.fold("link"))
    metrics |= link.metrics("mlp.relu.off_and_error")
    return Outcome(
        claims=_claims(attacked, metrics, link, key),
        metrics=metrics,
        classes=list(digits.classes),
        deviations=[
            "The closed form attacks instead of the published network, on the MLP only.",
            "The CNN is trained without the target, and the gradients of all targets are taken along "
            f"that training: the target would be one record in {setting.cnn.fixed + 1:,}.",
            f"|D-| = {setting.mlp.fixed:,} (MNIST) and {setting.cnn.fixed:,} (CIFAR-10); a look every "
            f"{setting.every} steps.",
        ],
        charts=_charts(attacked, seen, metrics, key),
    )


def _attacked(  # noqa: PLR0917
    setting: _Setting,
    settings: Settings,
    name: str,
    records: Records,
    folder: RunFolder,
    progress: Progress,
) -> _Attacked:
    store, arms, looks = folder.store(), [], []
    attack = ClosedForm(chunk=settings.machine.chunk)
    for index in range(setting.seeds):

        def shown(stage: str, done: int, total: int, index: int = index) -> None:
            progress(f"{name}, seed {index + 1}: {stage}", done, total)

        own = settings.with_seed(settings.seed + index).with_values("victim", activation=name)
        game = informed_game(own, records, store=store, progress=shown)
        arms.append(play(game, attack, store=store, progress=shown))
        targets, knowledge = dealt(own, records).target.one_each(), game.knowledge
        assert knowledge.initial is not None
        assert knowledge.fixed is not None
        assert isinstance(game.recipe, FullBatch)
        assert isinstance(game.recipe.descent, Descent)
        looks.append(
            untouched(
                game.recipe.architecture,
                game.recipe.descent,
                knowledge.initial,
                knowledge.fixed,
                targets,
                seen=targets,
                every=setting.every,
            )
        )
    pixels = torch.cat([arm.scores.evidence["targets"] for arm in arms])
    return _Attacked(Pooled(arms), looks, (pixels == 0).flatten(1).double().mean(1))


def _watched_cnn(setting: _Setting, settings: Settings, name: str, records: Records) -> Untouched:
    victim = VictimSettings(
        network="cnn", activation=name, rate=setting.cnn_rate, steps=setting.cnn_steps
    )
    own = replace(settings, data=setting.cnn, victim=victim)
    recipe, parts = recipe_for(own, records), dealt(own, records)
    assert isinstance(recipe, FullBatch)
    assert isinstance(recipe.descent, Descent)
    return untouched(
        recipe.architecture,
        recipe.descent,
        recipe.architecture.initial(Key.from_seed(settings.seed).fold("victim")),
        parts.fixed,
        parts.fixed.none_for(1),
        seen=parts.target.one_each(),
        every=setting.every,
    )


def _metrics(
    attacked: Mapping[str, _Attacked], seen: Mapping[str, Untouched], key: Key
) -> dict[str, float]:
    """Shares are means over training and targets; their intervals are over targets."""
    metrics: dict[str, float] = {}
    for name, found in seen.items():
        for layer in ("conv", "conv1", "conv2", "fc1", "fc2"):
            metrics |= spread(f"cnn.{name}.{layer}", found.over(layer).mean(0), key)
        metrics[f"cnn.{name}.conv_most"] = float(found.over("conv").max())
    for name, arm in attacked.items():
        metrics |= arm.attack.metrics(f"mlp.{name}", key)
        layers = {"off": "fc1.bias", "fc1_weight": "fc1.weight", "fc2_weight": "fc2.weight"}
        for called, layer in layers.items():
            metrics |= spread(f"mlp.{name}.{called}", arm.over(layer).mean(0), key)
    metrics["mlp.black_pixels"] = float(attacked["relu"].black.mean())
    return metrics


def _charts(
    attacked: Mapping[str, _Attacked],
    seen: Mapping[str, Untouched],
    metrics: Mapping[str, float],
    key: Key,
) -> list[Chart]:
    def over_time(steps: tuple[int, ...], shares: Tensor, part: str) -> list[Point]:
        found = (spread(part, row, key.fold(i)) for i, row in enumerate(shares))
        return [point(step, part, each) for step, each in zip(steps, found, strict=True)]

    relu, share = seen["relu"], "share of zero gradients"
    layers = {
        f"{layer}, ReLU": over_time(relu.steps, relu.over(layer), layer)
        for layer in ("conv1", "conv2", "fc1", "fc2")
    }
    layers["paper: convolutions above"] = [Point(step, 0.8) for step in relu.steps]
    steps = attacked["relu"].looks[0].steps
    by_activation = {
        name: over_time(steps, arm.over("fc1.bias"), name) for name, arm in attacked.items()
    }
    errors = [point(name, f"mlp.{name}.mse", metrics) for name in MLP]
    published = [Point(name, TABLE_III[name]) for name in MLP]
    off, mse = attacked["relu"].off, attacked["relu"].attack.mse
    bins = binned(off, mse, _BINS, key.fold("bins"))
    error = "mean squared error"
    return [
        Chart("Zero gradients from the target, CNN on CIFAR-10", "step", share, layers),
        Chart("Hidden neurons off on the target, MLP on MNIST", "step", share, by_activation),
        Chart(
            "Error by activation, MLP on MNIST",
            "activation",
            error,
            {"ours": errors, "paper, |D-| = 10,000": published},
        ),
        Chart("Neurons off and error, ReLU", "share of neurons off", error, {"closed form": bins}),
    ]


def _claims(
    attacked: Mapping[str, _Attacked], metrics: Mapping[str, float], link: Correlation, key: Key
) -> list[Claim]:
    conv = {name: metrics[f"cnn.{name}.conv"] for name in CNN}
    most = {name: metrics[f"cnn.{name}.conv_most"] for name in CNN if name != "relu"}
    low, high = metrics["cnn.relu.conv_low"], metrics["cnn.relu.conv_high"]
    relu, elu, floor = (attacked[name].attack.mse for name in ("relu", "elu", "floor"))
    excess = {
        name: bootstrap(relu - attacked[name].attack.mse, key.fold("excess", name))
        for name in MLP
        if name != "relu"
    }
    least = min(excess, key=lambda name: excess[name][0])
    closed = bootstrap((relu - floor) - (floor - elu), key.fold("floor"))
    return [
        Claim(
            "convolutions",
            "With ReLU, most parameters of the convolutions receive no gradient from the target",
            "over 80%",
            f"{conv['relu']:.1%} ({low:.1%} to {high:.1%})",
            low > 0.8,
        ),
        Claim(
            "others",
            "Other activations leave no parameter without gradient",
            "non-zero gradients everywhere",
            "largest share of the convolutions over targets and steps: "
            + ", ".join(f"{name} {share:.2%}" for name, share in most.items()),
            max(most.values()) < 0.01,
        ),
        Claim(
            "outlier",
            "ReLU's error is larger than that of every other activation",
            "0.0182 against 0.0086 to 0.0096",
            f"{metrics['mlp.relu.mse']:.4f}; closest {least}: larger by {excess[least][0]:+.4f} to "
            f"{excess[least][1]:+.4f}",
            all(bounds[0] > 0 for bounds in excess.values()),
        ),
        Claim(
            "floor",
            "Zero gradients below -0.5 only, max(-0.5, x), is closer to ELU than to ReLU",
            "0.0096 beside ELU's 0.0089 and ReLU's 0.0182",
            f"{metrics['mlp.floor.mse']:.4f} beside {metrics['mlp.elu.mse']:.4f} and "
            f"{metrics['mlp.relu.mse']:.4f}",
            closed[0] > 0,
        ),
        Claim(
            "link",
            "The more neurons are off on a target, the larger its error (ReLU)",
            "conjectured",
            f"rank correlation {link}",
            link.low > 0,
        ),
    ]


STUDY = Study(
    name="informed-zero-gradients",
    title="Parameters that receive no gradient from the record (Fig. 16)",
    paper="Balle22",
    run=_run,
)
