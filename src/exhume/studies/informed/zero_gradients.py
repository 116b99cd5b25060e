"""Balle22, Fig. 16: with ReLU most parameters receive no gradient from the record; is that why it hides?

The share of parameters whose gradient from the target is exactly zero, over training, by activation: for
the CNN of Table V on CIFAR-10, as the paper shows it, and for the MLP on MNIST, where black pixels give
zero gradients too and are counted apart. On the MLP the share is then set against the error. What share the
CNN has depends on its rate and its start: where all neurons before the logits die, nothing reaches the
convolutions. The ReLU network is therefore watched at several rates from several starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor

from exhume.auditing import Game
from exhume.core.contract import Architecture, Key, Records
from exhume.core.results import Chart, Point
from exhume.score.intervals import bootstrap, rank_correlation
from exhume.settings import DataSettings, VictimSettings
from exhume.studies.arms import BALLE22, BALLE22_CNN, ERROR, Bench
from exhume.studies.claims import Range, line, ranged, spread
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.informed.sweeps import DETAILS, Pooled, binned, sweep
from exhume.studies.informed.varied import PAPER
from exhume.train.functional import own_gradients
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch, descend

MLP = ("relu", "floor", "elu", "leaky-relu", "tanh")  # "floor" is max(-0.5, x)
CNN = ("relu", "elu", "leaky-relu", "tanh")
_OFF = "fc1.bias"  # its gradient is zero where the hidden neuron is off
_WATCHED = {"off": _OFF, "fc1_weight": "fc1.weight", "fc2_weight": "fc2.weight"}
_BINS = 5
_AT_ONCE = 64  # gradients held at once


@dataclass(frozen=True)
class _Setting:
    mlp: DataSettings  # fixed, target, shadow, public and test records
    cnn: DataSettings
    every: int  # steps between two looks
    mlp_victim: VictimSettings = BALLE22
    cnn_victim: VictimSettings = BALLE22_CNN
    seeds: int = 1  # of the MLP
    rates: tuple[float, ...] = ()  # of the ReLU network, beside its own
    starts: int = 1  # of it at each rate
    few: DataSettings | None = None  # of the network at these rates; None: as `cnn`


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", 50, 40, 120, 1, 1),
        DataSettings("cifar10", 10, 4, 1, 1, 1),
        every=50,
        cnn_victim=replace(BALLE22_CNN, steps=2),
        rates=(0.01, 0.5),
        starts=2,
    ),
    "cpu": _Setting(
        DataSettings("mnist", 200, 150, 600, 1, 1),
        DataSettings("cifar10", 5000, 100, 1, 1, 1),
        every=10,
        seeds=2,
        rates=(0.01, 0.03, 0.1, 0.2),
        starts=4,
        few=DataSettings("cifar10", 500, 60, 1, 1, 1),
    ),
    "paper": _Setting(
        DataSettings("mnist", 10_000, 999, 58_000, 1, 1),
        DataSettings("cifar10", 5000, 999, 1, 1, 1),
        every=1,
        mlp_victim=replace(BALLE22, rate=0.2),
        rates=(0.01, 0.03, 0.1, 0.2),
        starts=4,
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("zero gradients")
    attacked = sweep(
        Bench.of(run, setting.mlp, setting.mlp_victim),
        setting.seeds,
        {name: replace(setting.mlp_victim, activation=name) for name in MLP},
        look=_shares,
        intervals=lambda name: key.fold(f"mlp.{name}.mse"),
    )
    cnn = Bench.of(run, setting.cnn, setting.cnn_victim)
    seen = {}
    for done, name in enumerate(CNN):
        run.progress("watching the CNN train", done, len(CNN))
        seen[name] = _watched(cnn.of_victim(replace(setting.cnn_victim, activation=name)))
    run.progress("watching the CNN train", len(CNN), len(CNN))
    metrics = _metrics(attacked, seen, key) | _by_rate(cnn, setting)
    relu = attacked["relu"]
    link = rank_correlation(relu.seen[_OFF].mean(0), relu.errors, key.fold("link"))
    metrics |= link.metrics("mlp.relu.off_and_error")
    return Outcome(
        said={
            **judge(attacked, metrics, setting.rates, key),
            **{"link": link, "others": setting.cnn.fixed + 1},
            "fewer": (setting.few or setting.cnn).fixed,
        },
        metrics=metrics,
        charts=[*_charts(attacked, seen, key, setting), _rates_chart(setting, metrics)],
    )


def _shares(bench: Bench, _: Game) -> dict[str, Tensor]:
    """Shares of zero gradients in each target's own model, (looks, t), and of its black pixels, (t,)."""
    found = _watched(bench, with_target=True)
    black = (bench.parts.target.inputs == 0).flatten(1).double().mean(1)
    return {**{layer: found.over(layer) for layer in _WATCHED.values()}, "black": black}


@dataclass(frozen=True, eq=False)
class Untouched:
    steps: tuple[int, ...]  # before which training was looked at, the first is 0
    shares: dict[str, Tensor]  # (len(steps), t) by name of the parameters
    sizes: dict[str, int]  # how many parameters each name has

    def over(self, prefix: str) -> Tensor:
        """(len(steps), t): the share over all parameters whose name begins so."""
        names = [name for name in self.shares if name.startswith(prefix)]
        zeros = sum(self.shares[name] * self.sizes[name] for name in names)
        assert isinstance(zeros, Tensor)
        return zeros / sum(self.sizes[name] for name in names)


def zero_gradient_share(
    architecture: Architecture,
    descent: Descent,
    initial: Tensor,
    fixed: Records,
    extra: Records,
    *,
    seen: Records,
    every: int = 1,
) -> Untouched:
    """Train on `fixed` and `extra` (s, e, *shape); look at the gradients of `seen` (t, 1, *shape).

    Record i is looked at in model i; if there is one model, all are looked at in that one. A look before
    every so many steps.
    """
    layout, step, t = architecture.layout, 0, len(seen)
    looks: list[dict[str, Tensor]] = []

    def look(parameters: Tensor) -> None:
        nonlocal step
        if step % every == 0:
            looks.append(_zeros(architecture, parameters.expand(t, -1), seen))
        step += 1

    descend(architecture, descent, initial, fixed, extra, watch=look)
    shares = {name: torch.stack([found[name] for found in looks]) for name in layout.names}
    sizes = {
        name: torch.Size(shape).numel()
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    }
    return Untouched(tuple(range(0, descent.steps, every)), shares, sizes)


def _zeros(architecture: Architecture, parameters: Tensor, seen: Records) -> dict[str, Tensor]:
    """(t, p) models: share of zero gradients, (t,) by name."""
    found: dict[str, list[Tensor]] = {name: [] for name in architecture.layout.names}
    for start in range(0, len(seen), _AT_ONCE):
        cut = slice(start, start + _AT_ONCE)
        gradients = own_gradients(architecture, parameters[cut], seen[cut])
        for name, part in architecture.layout.split(gradients).items():
            found[name].append((part == 0).flatten(1).double().mean(1))
    return {name: torch.cat(parts) for name, parts in found.items()}


def _watched(bench: Bench, *, with_target: bool = False) -> Untouched:
    """Zero gradients from every target, along a training of its own or along one without any."""
    recipe, parts = bench.recipe, bench.parts
    assert isinstance(recipe, FullBatch)
    assert isinstance(recipe.descent, Descent)
    targets = parts.target.one_each()
    return zero_gradient_share(
        recipe.architecture,
        recipe.descent,
        bench.initial,
        parts.fixed,
        targets if with_target else parts.fixed.none_for(1),
        seen=targets,
        every=bench.run.setting.every,
    )


def _by_rate(cnn: Bench, setting: _Setting) -> dict[str, float]:
    """Mean over starts, and their range, of the ReLU network at each rate.

    conv: the share of the convolutions' parameters without gradient, over the second half of training;
    dead: the share of targets for which every neuron before the logits is off at the end.
    """
    metrics: dict[str, float] = {}
    for done, rate in enumerate(setting.rates):
        cnn.run.progress("watching the CNN at other rates", done, len(setting.rates))
        victim = replace(setting.cnn_victim, activation="relu", rate=rate)
        benches = cnn.of_victim(victim).rechunked(setting.few).seeds(setting.starts)
        seen = [_watched(bench) for bench in benches]
        shares = [float(_late(one.over("conv")).mean()) for one in seen]
        dead = [float((one.over("fc1.bias")[-1] == 1).double().mean()) for one in seen]
        metrics |= {
            f"cnn.relu.rate_{rate:g}.conv": fmean(shares),
            f"cnn.relu.rate_{rate:g}.conv_low": min(shares),
            f"cnn.relu.rate_{rate:g}.conv_high": max(shares),
            f"cnn.relu.rate_{rate:g}.dead": fmean(dead),
        }
    cnn.run.progress("watching the CNN at other rates", len(setting.rates), len(setting.rates))
    return metrics


def _late(shares: Tensor) -> Tensor:
    return shares[len(shares) // 2 :]


def _rates_chart(setting: _Setting, metrics: Mapping[str, float]) -> Chart:
    arms = {rate: f"cnn.relu.rate_{rate:g}" for rate in setting.rates}
    series = {
        "convolutions' parameters without gradient (range over starts)": line(
            arms, "conv", metrics
        ),
        "targets for which the hidden layer is dead": line(arms, "dead", metrics),
        "paper: convolutions above": [Point(rate, 0.8) for rate in setting.rates],
    }
    return Chart("Dead neurons and zero gradients, ReLU CNN", "rate", "share", series, "log")


def _metrics(
    attacked: Mapping[str, Pooled], seen: Mapping[str, Untouched], key: Key
) -> dict[str, float]:
    """Shares are means over training and targets; their intervals are over targets."""
    metrics: dict[str, float] = {}
    for name, found in seen.items():
        for layer in ("conv", "conv1", "conv2", "fc1", "fc2"):
            metrics |= spread(f"cnn.{name}.{layer}", found.over(layer).mean(0), key)
        metrics[f"cnn.{name}.conv_most"] = float(found.over("conv").max())
    for name in MLP:
        arm = attacked[name]
        metrics |= arm.metrics(f"mlp.{name}", without={*DETAILS, "test_accuracy"})
        for called, layer in _WATCHED.items():
            metrics |= spread(f"mlp.{name}.{called}", arm.seen[layer].mean(0), key)
    metrics["mlp.black_pixels"] = float(attacked["relu"].seen["black"].mean())
    return metrics


def _charts(
    attacked: Mapping[str, Pooled], seen: Mapping[str, Untouched], key: Key, setting: _Setting
) -> list[Chart]:
    def over_time(shares: Tensor, part: str) -> list[Point]:
        found = [spread(part, row, key.fold(i)).values() for i, row in enumerate(shares)]
        return [Point(i * setting.every, *each) for i, each in enumerate(found)]

    cnn, share, relu = seen["relu"], "share of zero gradients", attacked["relu"]
    layers = {
        f"{layer}, ReLU": over_time(cnn.over(layer), layer)
        for layer in ("conv1", "conv2", "fc1", "fc2")
    }
    layers["paper: convolutions above"] = [Point(step, 0.8) for step in cnn.steps]
    by_activation = {name: over_time(attacked[name].seen[_OFF], name) for name in MLP}
    errors = {
        "ours": [attacked[name].point(name) for name in MLP],
        "paper, |D-| = 10,000": [Point(name, PAPER[name]) for name in MLP],
    }
    off = relu.seen[_OFF].mean(0)
    bins = {"closed form": binned(off, relu.errors, _BINS, key.fold("bins"))}
    return [
        Chart("Zero gradients from the target, CNN on CIFAR-10", "step", share, layers),
        Chart("Hidden neurons off on the target, MLP on MNIST", "step", share, by_activation),
        Chart("Error by activation, MLP on MNIST", "activation", ERROR, errors),
        Chart("Neurons off and error, ReLU", "share of neurons off", ERROR, bins),
    ]


def judge(
    attacked: Mapping[str, Pooled], metrics: Mapping[str, float], rates: Sequence[float], key: Key
) -> dict[str, object]:
    """What the claims ask for besides metrics: errors compared target by target, and the rates' course."""
    relu, elu, floor = (attacked[name].errors for name in ("relu", "elu", "floor"))
    low, high, least = min(
        (*bootstrap(relu - attacked[name].errors, key.fold("excess", name)), name)
        for name in MLP
        if name != "relu"
    )
    arms = {f"{rate:g}": f"cnn.relu.rate_{rate:g}" for rate in rates}
    shares = [metrics[f"{arm}.conv"] for arm in arms.values()]
    return {
        **{"closest": least, "excess": Range(low, high)},
        "floor": bootstrap((relu - floor) - (floor - elu), key.fold("floor")),
        "by_rate": "; ".join(
            f"rate {rate}: {ranged(f'{arm}.conv', metrics, '.0%')} over starts, dead for "
            f"{metrics[f'{arm}.dead']:.0%} of the targets"
            for rate, arm in arms.items()
        ),
        "steps": min(more - less for less, more in pairwise(shares)),
        "rise": shares[-1] - shares[0],
    }


STUDY = Study("informed-zero-gradients", _SCALES, _run, on_device=True)
