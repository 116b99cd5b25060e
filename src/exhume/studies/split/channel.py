"""A channel of few bits between client and server: what it costs, and what attackers still get."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from exhume.bounds.channel import naming
from exhume.bounds.prior import Certificate, certify
from exhume.core.contract import Key
from exhume.core.results import Chart
from exhume.models.split.networks import ThinClient
from exhume.readers import Sizes
from exhume.score.features import InputScores
from exhume.studies.claims import line, paired, spread
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.split.channel_arms import (
    NAMED,
    SHOWN,
    Effort,
    Setting,
    arms,
    class_mean,
    make,
    start,
)
from exhume.studies.split.game import Row
from exhume.studies.split.pictures import pictured
from exhume.train.single import Schedule

__all__ = ["STUDY"]


_SCALES: dict[Scale, Setting] = {
    "smoke": Setting(
        Sizes(120, 12, 60, 30, 40),
        ThinClient(channels=(4, 4, 8), wide=16),
        Schedule(1, 40, 0.05),
        Schedule(1, 40, 0.05),
        Effort(4, Schedule(1, 30, 3e-3, "adam", 0.0), 2),
        bits=(4, 24),
        cuts=("conv3", "conv2"),
        others=(24,),
        numbers=6,
        named=(20, 50),
        requests=60,
    ),
    "cpu": Setting(
        Sizes(45_000, 200, 5_000, 1_000, 5_000),
        ThinClient(channels=(24, 48, 96), wide=200),
        Schedule(4, 100, 0.1),
        Schedule(3, 100, 0.1),
        Effort(32, Schedule(6, 50, 3e-3, "adam", 0.0), 2),
        bits=(4, 8, 12, 24),
        cuts=("conv3", "conv2"),
        others=(12, 24),
        numbers=10,
        named=(3_000, 50_000),
        requests=4_000,
    ),
    "paper": Setting(
        Sizes(40_000, 1_000, 9_000, 2_000, 8_000),
        ThinClient(channels=(32, 64, 128), wide=272),
        Schedule(60, 128, 0.1),
        Schedule(40, 128, 0.1),
        Effort(64, Schedule(30, 128, 3e-3, "adam", 0.0), 3),
        bits=(4, 8, 12, 24),
        cuts=("conv3", "conv2", "conv1"),
        others=(4, 8, 12, 24),
        numbers=10,
        named=(3_000, 50_000),
        requests=20_000,
    ),
}


def _run(run: Run[Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("split-channel study")
    base = run.tensors("training the network", start, {"base": ""})["base"]
    made = run.tensors("channels and attackers", make, arms(setting))
    null = class_mean(run)
    metrics = {"base.accuracy": float(base["accuracy"])} | _metrics(setting, made)
    metrics |= spread("class_mean.ssim", null.each["ssim"], key)
    for bits in setting.bits:
        for who in NAMED:
            name = f"bits{bits}.{who}.ssim"
            metrics |= spread(name, made[f"bits{bits}"][f"{who}.ssim"], key)
    pictures, labels = pictured({"Pictures": _rows(setting, made, null)})
    return Outcome(
        said=compared(setting, metrics, made, null, key.fold("claims")),
        metrics=metrics,
        attacks=pictures,
        classes=labels,
        charts=_charts(setting, metrics),
    )


def _metrics(setting: Setting, made: Mapping[str, Mapping[str, Tensor]]) -> dict[str, float]:
    metrics = {}
    for name, found in made.items():
        client, server = float(found["client"]), float(found["server"])
        metrics[f"{name}.accuracy"] = float(found["accuracy"])
        metrics[f"{name}.share"] = client / (client + server)
        metrics[f"{name}.bytes_up"] = float(found["bytes_up"])
    metrics["client.share"] = max(metrics[f"bits{bits}.share"] for bits in setting.bits)
    metrics["client.multiply_adds"] = float(made["free"]["client"])
    metrics["server.multiply_adds"] = float(made["free"]["server"])
    for (bits, count), one in _certificates(setting, made).items():
        metrics |= one.metrics(f"bits{bits}.named.k{count}")
        metrics[f"bits{bits}.bound.k{count}"] = one.bound
    return metrics | {f"bits{b}.sigma": float(made[f"bits{b}"]["sigma"]) for b in setting.bits}


def _certificates(
    setting: Setting, made: Mapping[str, Mapping[str, Tensor]]
) -> dict[tuple[int, int], Certificate]:
    """Of every number of bits and of inputs: the best namer beside the bound."""
    games = [(bits, count) for bits in setting.bits for count in setting.named]
    return {
        (bits, count): certify(
            int(made[f"bits{bits}"][f"named.k{count}"]),
            setting.requests,
            kappa=1 / count,
            bound=naming(count, setting.numbers, float(made[f"bits{bits}"]["sigma"])),
            comparisons=len(games),
            of="the channel",
        )
        for bits, count in games
    }


def compared(
    setting: Setting,
    metrics: Mapping[str, float],
    made: Mapping[str, Mapping[str, Tensor]],
    null: InputScores,
    key: Key,
) -> dict[str, object]:
    """What the claims ask for: accuracy lost, certificates, and drawings beside the mean of the class."""
    certificates = _certificates(setting, made)
    few, many = min(setting.bits), max(setting.bits)
    drawn = made[f"bits{few}"]["lookalike.ssim"]
    looks = paired(drawn, null.each["ssim"], key.fold(f"bits{few}", "class_mean"), "SSIM")
    costs = {
        f"bits{b}.cost": metrics["free.accuracy"] - metrics[f"bits{b}.accuracy"]
        for b in setting.bits
    }
    return {
        **{"few": few, "many": many, "games": len(certificates), "looks": looks, **costs},
        **{f"{name}.points": 100 * cost for name, cost in costs.items()},
        "above": sum(one.alarm for one in certificates.values()),
        "nearest": max(certificates.values(), key=lambda one: one.rate / one.bound),
    }


def _rows(
    setting: Setting, made: Mapping[str, Mapping[str, Tensor]], null: InputScores
) -> dict[str, Row]:
    rows = {"mean of the class": Row(null)}
    for bits in setting.bits:
        for who, label in NAMED.items():
            found = made[f"bits{bits}"]
            each = {"ssim": found[f"{who}.ssim"], "mse": found[f"{who}.mse"]}
            scores = InputScores(each, null.targets[:SHOWN], found[f"{who}.images"])
            rows[f"{bits} bits, {label}"] = Row(scores)
    return rows


def _charts(setting: Setting, metrics: Mapping[str, float]) -> list[Chart]:
    def named(place: str, all_bits: tuple[int, ...]) -> dict[float, str]:
        prefix = "" if place == setting.cuts[0] else f"{place}."
        return {float(bits): f"{prefix}bits{bits}" for bits in all_bits}

    frontier = {}
    for place in setting.cuts:
        own = named(place, setting.bits if place == setting.cuts[0] else setting.others)
        share = metrics[f"{next(iter(own.values()))}.share"]
        frontier[f"after {place} (client {share:.1%})"] = line(own, "accuracy", metrics)
    main = named(setting.cuts[0], setting.bits)
    for name in ("free", "alone"):
        label = {"free": "without a channel", "alone": "client alone"}[name]
        frontier[label] = line(dict.fromkeys(main, name), "accuracy", metrics)
    naming_lines = {}
    for count in setting.named:
        naming_lines[f"best namer, 1 of {count:,}"] = line(main, f"named.k{count}", metrics)
        naming_lines[f"bound, 1 of {count:,}"] = line(main, f"bound.k{count}", metrics)
    looks = {label: line(main, f"{who}.ssim", metrics) for who, label in NAMED.items()}
    looks["mean of the class"] = line(dict.fromkeys(main, "class_mean"), "ssim", metrics)
    return [
        Chart("What a channel costs", "bits a request, at most", "accuracy", frontier),
        Chart("Naming the input", "bits a request, at most", "named rightly", naming_lines),
        Chart("Drawing the input", "bits a request, at most", "SSIM", looks),
    ]


STUDY = Study(
    "split-channel", _SCALES, _run, spreads=True, on_device=True, threads={"cpu": 1, "smoke": 1}
)
