"""What the study of split points says: claims, charts, pictures, deviations from the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from exhume.contract import Key
from exhume.data import Sizes
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.features import InputScores
from exhume.score.intervals import bootstrap
from exhume.studies.split.ensembler_rows import Row
from exhume.studies.split.pictures import picture_section
from exhume.studies.study import Claim

__all__ = ["Grid", "charts", "claims", "deviations", "sections"]

_NAMES = {"vgg16": "VGG-16", "resnet18": "ResNet-18"}
_UNRECOGNISED = {"vgg16": "not recognised after h = 6", "resnet18": "not recognised after h = 2"}
_LITTLE = 0.01  # SSIM for one step of a split point: less than that is none


@dataclass(frozen=True, eq=False)
class Grid:
    """Of one network: rows by first point, and second point or attacker."""

    firsts: tuple[str, ...]
    seconds: tuple[str, ...]
    cells: Mapping[tuple[str, str], Row]
    null: InputScores

    def ssim(self, first: str, *columns: str) -> Tensor:
        """(t,) of every image, the mean over columns."""
        return torch.stack([self.cells[first, c].scores.each["ssim"] for c in columns]).mean(0)

    def by_first(self, *columns: str) -> Tensor:
        """(t, firsts)"""
        return torch.stack([self.ssim(first, *columns) for first in self.firsts], 1)

    def by_second(self) -> Tensor:
        """(t, seconds), the mean over first points."""
        columns = [
            torch.stack([self.ssim(f, second) for f in self.firsts]).mean(0)
            for second in self.seconds
        ]
        return torch.stack(columns, 1)


def slope(values: Tensor) -> Tensor:
    """(t, k) to the least-squares change for one step, of every image (t,)."""
    steps = torch.arange(values.shape[1], dtype=values.dtype)
    steps = steps - steps.mean()
    return values @ steps / steps.square().sum()


def claims(grids: Mapping[str, Grid], key: Key) -> list[Claim]:
    told = []
    for name, grid in grids.items():
        first, second = grid.by_first(*grid.seconds), grid.by_second()
        bound = grid.by_first("head_known")
        falls = bootstrap(slope(first), key.fold(name, "first"))
        moves = bootstrap(slope(second), key.fold(name, "second"))
        limit = bootstrap(slope(bound), key.fold(name, "bound"))
        null = float(grid.null.each["ssim"].mean())
        told += [
            Claim(
                f"{name}-first",
                f"{_NAMES[name]}: SSIM falls with the first split's depth",
                _UNRECOGNISED[name],
                f"{_row(grid.firsts, first)}, {_per_step(falls)}; mean image {null:.3f}",
                falls[1] < 0,
            ),
            Claim(
                f"{name}-second",
                f"{_NAMES[name]}: it does not move with the second's (less than {_LITTLE} a step)",
                "changes nothing",
                f"{_row(grid.seconds, second)}, {_per_step(moves)}",
                max(-moves[0], moves[1]) < _LITTLE,
            ),
            Claim(
                f"{name}-bound",
                f"{_NAMES[name]}: with the head known it falls with the first split's depth",
                "not tried",
                f"{_row(grid.firsts, bound)}, {_per_step(limit)}",
                limit[1] < 0,
            ),
        ]
    return told


def _row(points: Sequence[str], values: Tensor) -> str:
    means = values.mean(0).tolist()
    return ", ".join(f"{p} {mean:.3f}" for p, mean in zip(points, means, strict=True))


def _per_step(interval: tuple[float, float]) -> str:
    return f"{interval[0]:+.4f} to {interval[1]:+.4f} a step"


def charts(grids: Mapping[str, Grid], key: Key) -> list[Chart]:
    drawn = []
    for name, grid in grids.items():

        def points(label: str, columns: tuple[str, ...], grid: Grid = grid) -> list[Point]:
            return [
                _point(first, grid.ssim(first, *columns), key.fold(label, first))
                for first in grid.firsts
            ]

        null = float(grid.null.each["ssim"].mean())
        drawn += [
            Chart(
                f"{_NAMES[name]}: first split point",
                "last layer of the head",
                "SSIM",
                {
                    "shadow (mean over second points)": points("shadow", grid.seconds),
                    "shadow, moments matched": points("matched", ("matched",)),
                    "head known (bound)": points("bound", ("head_known",)),
                    "mean image": [Point(first, null) for first in grid.firsts],
                },
            ),
            Chart(
                f"{_NAMES[name]}: second split point",
                "last layer of the body",
                "SSIM",
                {
                    f"first point {first}": [
                        _point(second, grid.ssim(first, second), key.fold(first, second))
                        for second in grid.seconds
                    ]
                    for first in grid.firsts[:5]
                },
            ),
        ]
    return drawn


def _point(x: str, values: Tensor, key: Key) -> Point:
    low, high = bootstrap(values, key)
    return Point(x, float(values.mean()), low, high)


def sections(
    folder: RunFolder, grids: Mapping[str, Grid], classes: list[str]
) -> list[dict[str, Any]]:
    """Pictures of both networks: of every first point the shadow's, with moments matched, the head known."""
    made = []
    for name, grid in grids.items():
        kinds = {grid.seconds[-1]: "shadow", "matched": "matched", "head_known": "head known"}
        rows = {
            f"{first}, {who}": grid.cells[first, column].scores
            for first in grid.firsts
            for column, who in kinds.items()
        }
        made.append(picture_section(folder, _NAMES[name], rows, classes))
    return made


def deviations(sizes: Sizes, width: int) -> list[str]:
    return [
        f"Networks of width {width} trained on {sizes.fixed:,} images of CIFAR-10; the attacker holds "
        f"{sizes.shadow:,} others, has seen the features of {sizes.public:,}, and attacks {sizes.target:,}.",
        "The network is trained once and cut afterwards: without a defence the cut does not matter to it.",
        "The paper shows pictures; SSIM is ours. The shadow's head has three convolutions at every depth.",
        "Intervals are over images; one shadow was trained for each cell.",
        "Matched moments and the known head are not in the paper.",
    ]
