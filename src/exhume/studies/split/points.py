"""Ensembler24, Figs 2 and 3: how much comes back, by where the network is cut.

VGG-16 and ResNet-18 are trained once, without a defence, and cut at every pair of first and second points.
Every cut is met with several shadows of the paper's attacker; every first point also with shadows of the
head's own form, with matched moments and with a known head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from exhume.attacks.split.inversion import ShadowInversion
from exhume.core.contract import Attack, Key
from exhume.core.results import Chart, Point
from exhume.models.split.cut import Split, cut, device_of
from exhume.models.split.inverter import OwnForm
from exhume.models.split.networks import VGG16
from exhume.models.split.pipeline import Pipeline, SplitClient
from exhume.readers import Sizes
from exhume.score.features import InputScores
from exhume.score.intervals import clustered
from exhume.studies.arms import pictured
from exhume.studies.claims import flattened
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.split.game import (
    PAPER,
    ClientSetting,
    Row,
    SplitGame,
    bound_of,
    inversion,
)
from exhume.train.single import Schedule, train_split

_NAMES = {"vgg16": "VGG-16", "resnet18": "ResNet-18"}
_SHOWN = 16
_DRAWS = 2000  # of an interval
_ALONE = ("matched", "head_known")  # columns of one shadow, or of none


_VGG16 = tuple(f"conv{h}" for h in range(1, 13))

_Cuts = tuple[tuple[str, ...], tuple[str, ...]]
"""Of a network: last layers of the head, last layers of the body."""


@dataclass(frozen=True)
class _Setting:
    client: ClientSetting
    attack: ShadowInversion
    vgg16: _Cuts
    resnet18: _Cuts = (("conv1", "block1", "block2"), ("block3", "block4", "pool"))
    match: float = 10.0
    shadows: int = 1  # of each cell


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        ClientSetting(Sizes(80, 12, 60, 30, 40), 2, Schedule(1, 40, 0.05)),
        inversion(4, 1, 30),
        vgg16=(("conv1", "conv7"), ("conv8", "pool")),
        resnet18=(("conv1", "block2"), ("block3", "pool")),
        shadows=2,
    ),
    "cpu": _Setting(
        ClientSetting(Sizes(4_000, 200, 1_000, 500, 1_000), 8, Schedule(8, 32, 0.05)),
        inversion(32, 4, 16),
        vgg16=(_VGG16[:7], ("conv8", "conv10", "pool")),
        shadows=3,
    ),
    "paper": _Setting(
        PAPER, inversion(64, 50, 128), vgg16=(_VGG16[:7], (*_VGG16[7:], "pool")), shadows=3
    ),
}


@dataclass(frozen=True, eq=False)
class _Grid:
    """What came back from one network."""

    name: str
    shown: str
    firsts: tuple[str, ...]
    seconds: tuple[str, ...]
    rows: Mapping[str, Row]  # by first point, and second point or attacker; the mean image
    shadows: Mapping[str, Tensor]  # SSIM of each shadow of these rows, (s, t)
    accuracy: float

    def ssim(self, firsts: Sequence[str], columns: Sequence[str]) -> Tensor:
        """(s, t) of every shadow and image of several rows."""
        return torch.cat(
            [self.shadows[f"{first}.{column}"] for first in firsts for column in columns]
        )

    def pictures(self) -> dict[str, InputScores]:
        """Pictures of every first point: the shadow's, those of the own form, of the head known."""
        kinds = {self.seconds[-1]: "shadow", "own_form": "own form", "head_known": "head known"}
        return {
            f"{first}, {who}": self.rows[f"{first}.{column}"].scores
            for first in self.firsts
            for column, who in kinds.items()
        }


@dataclass(frozen=True)
class _Cell:
    network: str
    first: str
    column: str  # the second point, or an attacker
    shadow: int = 0

    def __str__(self) -> str:
        return f"{self.network} {self.first} {self.column} {self.shadow + 1}"


def _run(run: Run[_Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("split-points")
    trained = run.arms("training the networks", _train, {name: name for name in _NAMES})
    cuts = {"vgg16": setting.vgg16, "resnet18": setting.resnet18}
    cells = [
        _Cell(name, first, column, shadow)
        for name, (firsts, seconds) in cuts.items()
        for first in firsts
        for column in (*seconds, "own_form", "matched", "head_known")
        for shadow in range(1 if column in _ALONE else setting.shadows)
    ]
    made = run.tensors("attacking", _run_attacker, {str(cell): cell for cell in cells})
    grids = [
        _Grid(
            name,
            _NAMES[name],
            *cuts[name],
            *_rows(run, name, cells, made),
            trained[name]["accuracy"],
        )
        for name in cuts
    ]
    metrics = {f"{grid.name}.accuracy": grid.accuracy for grid in grids}
    for grid in grids:
        metrics |= flattened({f"{grid.name}.{n}": row.metrics for n, row in grid.rows.items()})
    drawn = {grid.shown: grid.pictures() for grid in grids}
    pictures, labels = pictured(drawn, "Ensembler24", "what the client sends")
    return Outcome(
        said={"grids": [trends(grid, key.fold("claims")) for grid in grids]},
        metrics=metrics,
        attacks=pictures,
        classes=labels,
        charts=[chart for grid in grids for chart in _charts(grid, key.fold("charts"))],
    )


@lru_cache(maxsize=2)  # in each process
def _game(run: Run[_Setting], name: str) -> tuple[SplitGame, Split]:
    """Records and the network, trained now or before."""
    setting, key = run.setting, run.key.fold("split-points")
    game = SplitGame.of(run, setting.client, key, {})
    records = game.parts.fixed
    if name == "vgg16":
        vgg = VGG16(records.shape, len(records.classes), setting.client.width)
        game = replace(game, job=replace(game.job, network=vgg))
    return game, train_split(game.job, **run.part(name).working(key.fold(name)))


def _train(run: Run[Any], name: str) -> dict[str, float]:
    game, trained = _game(run, name)
    return {"accuracy": game.accuracy(_alone(trained, game.parts.fixed.shape))}


def _run_attacker(run: Run[Any], cell: _Cell) -> dict[str, Tensor]:
    """One attacker with one shadow against one cut."""
    game, trained = _game(run, cell.network)
    seconds = getattr(run.setting, cell.network)[1]
    second = cell.column if cell.column in seconds else seconds[-1]
    attack: ShadowInversion = run.setting.attack
    chosen: dict[str, Attack] = {
        "own_form": replace(
            attack, head=OwnForm(game.job.network, cell.first, second), upright=True
        ),
        "matched": replace(attack, match=run.setting.match, upright=True),
        "head_known": bound_of(attack),
    }
    pipeline = _alone(cut(chained(trained), cell.first, second), game.parts.fixed.shape)
    again = f" {cell.shadow}" if cell.shadow else ""
    label = f"{cell.network} {cell.first} {cell.column}{again}"
    return game.meet(pipeline, chosen.get(cell.column, attack), label).kept(_SHOWN)


def _rows(
    run: Run[_Setting], name: str, cells: Sequence[_Cell], made: Mapping[str, Mapping[str, Tensor]]
) -> tuple[dict[str, Row], dict[str, Tensor]]:
    """By first point, and second point or attacker: the mean over shadows, and the SSIM of each of them.

    Besides, the mean image.
    """
    game, _ = _game(run, name)
    rows, shadows = {"mean_image": game.mean_image()}, dict[str, Tensor]()
    for cell in (one for one in cells if one.network == name and not one.shadow):
        same = [replace(cell, shadow=i) for i in range(run.setting.shadows)]
        several = [made[str(one)] for one in same if str(one) in made]
        each = {
            measure.removeprefix("each."): torch.stack([one[measure] for one in several]).mean(0)
            for measure in several[0]
            if measure.startswith("each.")
        }
        means = [float(one["each.ssim"].mean()) for one in several]
        apart = {"ssim_least": min(means), "ssim_most": max(means)} if len(means) > 1 else {}
        scores = InputScores(each, game.parts.target.inputs[:_SHOWN], several[0]["images"])
        rows[f"{cell.first}.{cell.column}"] = Row(scores, apart)
        shadows[f"{cell.first}.{cell.column}"] = torch.stack([one["each.ssim"] for one in several])
    return rows, shadows


def chained(parts: Split) -> nn.Sequential:
    """A network that was cut, in one piece again."""
    layers = [
        named for part in (parts.head, parts.body, parts.tail) for named in part.named_children()
    ]
    return nn.Sequential(OrderedDict(layers))


def _alone(parts: Split, shape: tuple[int, ...]) -> Pipeline:
    """One body, no noise."""
    quiet = torch.zeros(parts.feature_shape(shape), device=device_of(parts.head))
    return Pipeline(SplitClient(parts.head, quiet, (0,), parts.tail), (parts.body,), parts.first)


def slope(values: Tensor) -> Tensor:
    """(t, k) to the least-squares change for one step, of every row (t,)."""
    steps = torch.arange(values.shape[1], dtype=values.dtype)
    steps = steps - steps.mean()
    return values @ steps / steps.square().sum()


@dataclass(frozen=True)
class _Trend:
    """Mean SSIM at each split point, and the interval of its change for one step (shadows and images)."""

    means: Mapping[str, float]
    low: float
    high: float

    @staticmethod
    def of(values: Mapping[str, Tensor], key: Key) -> _Trend:
        """values: (s, t) by point, of the same images and of shadows of its own."""
        means = {point: float(each.mean()) for point, each in values.items()}
        generator = key.generator()
        images = next(iter(values.values())).shape[1]
        picked = torch.randint(images, (_DRAWS, images), generator=generator)
        drawn = []
        for each in values.values():
            which = torch.randint(len(each), (_DRAWS, len(each)), generator=generator)
            drawn.append(each.double()[which].mean(1).gather(1, picked).mean(1))
        slopes = slope(torch.stack(drawn, 1))
        tails = torch.tensor([0.025, 0.975], dtype=slopes.dtype)
        low, high = torch.quantile(slopes, tails).tolist()
        return _Trend(means, low, high)

    def __str__(self) -> str:
        means = ", ".join(f"{point} {mean:.3f}" for point, mean in self.means.items())
        return f"{means}, {self.low:+.4f} to {self.high:+.4f} a step"


def trends(grid: _Grid, key: Key) -> dict[str, object]:
    """What the claims about one network ask for: how SSIM moves with either split point."""
    name, firsts, seconds = grid.name, grid.firsts, grid.seconds
    values = {
        "first": {f: grid.ssim([f], seconds) for f in firsts},
        "second": {s: grid.ssim(firsts, [s]) for s in seconds},
        "bound": {f: grid.ssim([f], ["head_known"]) for f in firsts},
    }
    found = {end: _Trend.of(cells, key.fold(name, end)) for end, cells in values.items()}
    mean_image = grid.rows["mean_image"].mean("ssim")
    return {"net": name, "shown": grid.shown, "mean_image": mean_image, **found}


def _charts(grid: _Grid, key: Key) -> list[Chart]:
    def points(label: str, columns: Sequence[str]) -> list[Point]:
        return [_point(f, grid.ssim([f], columns), key.fold(label, f)) for f in grid.firsts]

    null = grid.rows["mean_image"].mean("ssim")
    by_first = {
        "shadow (mean over second points)": points("shadow", grid.seconds),
        "shadow of the own form": points("own form", ["own_form"]),
        "shadow, moments matched": points("matched", ["matched"]),
        "head known (bound)": points("bound", ["head_known"]),
        "mean image": [Point(first, null) for first in grid.firsts],
    }
    by_second = {
        f"first point {f}": [_point(s, grid.ssim([f], [s]), key.fold(f, s)) for s in grid.seconds]
        for f in grid.firsts[:5]
    }
    return [
        Chart(f"{grid.shown}: first split point", "last layer of the head", "SSIM", by_first),
        Chart(f"{grid.shown}: second split point", "last layer of the body", "SSIM", by_second),
    ]


def _point(x: str, values: Tensor, key: Key) -> Point:
    """The mean of (s, t) values with its interval, at x."""
    return Point(x, float(values.mean()), *clustered(values[None], key))


STUDY = Study(
    "split-points", _SCALES, _run, spreads=True, on_device=True, threads={"smoke": 1, "cpu": 1}
)
