"""Balle22, Fig. 13: which CIFAR-10 records are easiest and hardest to reconstruct, and why.

The paper shows six of each and says: easy are simple images with a constant background, hard are complex
backgrounds and colours. Here numbers for these words are set against the error of every target. An
image far from the mean has more to get wrong, so the error relative to the mean record's is shown too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.baseline import MeanRecord
from exhume.core.contract import Key
from exhume.core.results import Chart
from exhume.score.intervals import rank_correlation
from exhume.score.measures import STATISTICS
from exhume.settings import DataSettings, VictimSettings
from exhume.studies.arms import BALLE22, BALLE22_CNN, ERROR, Bench
from exhume.studies.claims import spread
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.informed.sweeps import binned

_BINS = 6


@dataclass(frozen=True)
class _Setting:
    data: DataSettings
    victim: VictimSettings


_VICTIM = replace(BALLE22, rate=0.01)  # the paper's rate for CIFAR-10
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(DataSettings("cifar10", 20, 40, 80, 1, 1), replace(_VICTIM, steps=50)),
    "cpu": _Setting(DataSettings("cifar10", 25, 300, 1000, 200, 1000), BALLE22_CNN),
    "paper": _Setting(DataSettings("cifar10", 5000, 999, 53_000, 1, 1000), BALLE22_CNN),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("gallery")
    bench = Bench.of(run, setting.data, setting.victim)
    game = bench.game()
    found, mean = bench.audited(game), bench.play(game, MeanRecord()).errors
    error, images = found.evidence["mse"], found.evidence["targets"]
    busy = {name: measure(images) for name, measure in STATISTICS.items()}
    links = {
        name: tuple(rank_correlation(values, of, key.fold(name)) for of in (error, error / mean))
        for name, values in busy.items()
    }
    distance = rank_correlation(mean, error, key.fold("distance"))
    metrics = dict(found.metrics) | distance.metrics("distance_from_mean")
    metrics |= spread("mse", error, key)
    named = {name: _named(name) for name in busy}
    for name, (plain, relative) in links.items():
        metrics |= plain.metrics(_named(name))
        metrics |= relative.metrics(f"{_named(name)}.relative")
        metrics |= _extremes(_named(name), busy[name], error)
    return Outcome(
        metrics=metrics,
        attacks=[found],
        classes=list(bench.records.classes),
        charts=[_against(name, values, error, key) for name, values in busy.items()],
        said={"relative": named, "plain": named | {"distance from the mean": "distance_from_mean"}},
    )


def _named(statistic: str) -> str:
    return statistic.replace(" ", "_")


def _extremes(name: str, values: Tensor, error: Tensor) -> dict[str, float]:
    """Mean of a statistic over the tenth of the targets with the smallest and the largest error."""
    order, tenth = torch.argsort(error), max(1, len(error) // 10)
    return {
        f"{name}.easiest": float(values[order[:tenth]].mean()),
        f"{name}.hardest": float(values[order[-tenth:]].mean()),
    }


def _against(name: str, values: Tensor, error: Tensor, key: Key) -> Chart:
    bins = {"closed form": binned(values, error, _BINS, key.fold("bins", name))}
    axis = f"{name} of the target (bins of equal size)"
    return Chart(f"Error against {name}", axis, ERROR, bins)


STUDY = Study("informed-gallery", _SCALES, _run, on_device=True)
