"""Targets of several seeds taken together: means with intervals, as metrics and as points of a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.contract import Key
from exhume.report.charts import Point
from exhume.score.intervals import bootstrap
from exhume.studies.arms import Arm

__all__ = ["Pooled", "binned", "point", "spread"]

_AVERAGED = ("label_accuracy", "success", "null_success", "oracle_mse")


@dataclass(frozen=True, eq=False)
class Pooled:
    """The same arm on several seeds."""

    arms: Sequence[Arm]

    @property
    def mse(self) -> Tensor:
        """(t,) over the targets of all seeds."""
        return torch.cat([arm.scores.attack.mse for arm in self.arms])

    def metrics(self, prefix: str, key: Key) -> dict[str, float]:
        """The error with its interval over all targets; the other scores are means over the seeds."""
        found = [arm.scores.metrics for arm in self.arms]
        return {
            **spread(f"{prefix}.mse", self.mse, key),
            f"{prefix}.targets": len(self.mse),
            **{
                f"{prefix}.{name}": sum(metrics[name] for metrics in found) / len(found)
                for name in _AVERAGED
                if all(name in metrics for metrics in found)
            },
        }


def spread(name: str, values: Tensor, key: Key) -> dict[str, float]:
    """Mean of (t,) values and its interval over targets, as three metrics; equal values have no width."""
    low = high = float(values[0])
    if bool((values != values[0]).any()):
        low, high = bootstrap(values, key.fold(name))
    return {name: float(values.mean()), f"{name}_low": low, f"{name}_high": high}


def point(x: float | str, name: str, metrics: Mapping[str, float]) -> Point:
    """What `spread` wrote, at x."""
    return Point(x, metrics[name], metrics[f"{name}_low"], metrics[f"{name}_high"])


def binned(values: Tensor, errors: Tensor, bins: int, key: Key) -> list[Point]:
    """Mean error of targets with about the same value: bins of equal size, each at its median."""
    points = []
    for index, rows in enumerate(torch.tensor_split(torch.argsort(values), bins)):
        low, high = bootstrap(errors[rows], key.fold(index))
        points.append(Point(float(values[rows].median()), float(errors[rows].mean()), low, high))
    return points
