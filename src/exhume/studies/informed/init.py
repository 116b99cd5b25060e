"""Balle22, Fig. 10: one known initialisation writes membership into the loss; fresh ones hide it.

For every target, models are trained with and without it. In the shared arm all start from the same
weights, up to a declared jitter: the paper's training is non-deterministic, which gives its distributions
their width; ours is deterministic, and without jitter any gap at all would look like perfect separation. In
the fresh arm every model draws its own start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume import readers
from exhume.choices import moved
from exhume.core.contract import Key, Records
from exhume.core.results import Chart, Point
from exhume.models.glm import losses
from exhume.models.mlp import MLP
from exhume.readers import Sizes
from exhume.score.intervals import gap_over_spread, mean_auc
from exhume.studies.arms import BALLE22
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.train.fleet import train_fleet
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.train.stacked import logits

BINS = 30  # of a histogram of losses


@dataclass(frozen=True)
class _Setting:
    fixed: tuple[int, ...]  # sizes of D-; the claims are about the first
    targets: int
    models: int  # with each target, and as many without any; the paper: 1,000
    rates: tuple[float, ...]  # one for each size: the paper's, the notebook's
    jitters: tuple[float, ...] = (1e-5, 1e-4, 1e-3)
    """Standard deviations added to every initial weight in the shared arm; the claims are about the first."""
    source: str = "mnist"


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting((200,), targets=5, models=6, rates=(0.2,)),
    "cpu": _Setting((10_000, 1000), targets=50, models=10, rates=(0.2, 0.1)),
    "long": _Setting((10_000,), targets=1, models=1000, rates=(0.2,), jitters=(1e-5,)),
    "paper": _Setting((10_000, 1000), targets=1, models=1000, rates=(0.2, 0.1)),
}


@dataclass(frozen=True)
class _Models:
    """The models of one arm: what they train on, at which rate, and where they begin."""

    fixed: int
    rate: float
    start: str  # shared, up to a jitter, or fresh for every model
    jitter: float = 0.0

    def initial(self, mlp: MLP, count: int, key: Key) -> Tensor:
        """(count, p) initial weights."""
        if self.start == "fresh":
            return torch.stack([mlp.initial(key.fold(i)) for i in range(count)])
        shared = mlp.initial(Key.from_seed(0).fold("the shared start"))
        noise = torch.randn(count, mlp.layout.size, generator=key.generator())
        return shared + self.jitter * noise

    def __str__(self) -> str:
        start = "fresh starts" if self.start == "fresh" else f"one start, jitter {self.jitter:g}"
        return f"|D-| = {self.fixed}, {start}"


def _run(run: Run[_Setting]) -> Outcome:
    setting = run.setting
    first, *larger = setting.jitters
    jobs: dict[str, _Models] = {}  # by their metrics' name, which the score's completes
    for size in zip(setting.fixed, setting.rates, strict=True):
        prefix = f"d{size[0]}." if jobs else ""
        jobs[f"{prefix}{{}}_shared"] = _Models(*size, "shared", first)
        for jitter in larger:
            jobs[f"{prefix}{{}}_shared.jitter_{jitter:g}"] = _Models(*size, "shared", jitter)
        jobs[f"{prefix}{{}}_fresh"] = _Models(*size, "fresh")
    arms = run.arms("starts", _separated, jobs)
    metrics = {_called(name, score): v for name, arm in arms.items() for score, v in arm.items()}
    return Outcome(metrics, said={"jitter": first}, charts=_histograms(metrics))


def _called(arm: str, score: str) -> str:
    """`auc_shared`; a bin of a histogram comes last: `with_shared.3`."""
    name, dot, index = score.partition(".")
    return f"{arm.format(name)}{dot}{index}"


def _separated(run: Run[_Setting], models: _Models) -> dict[str, float]:
    """How well the loss on a target separates models with it from models without any."""
    records, key = run.records(run.setting.source), run.key.fold("init", models.fixed)
    m, t = run.setting.models, run.setting.targets
    sizes = Sizes(models.fixed, t, shadow=1, public=1, test=1)
    parts = moved(readers.split(records, sizes, key.fold("split")), run.device)
    mlp = MLP(records.shape, BALLE22.hidden, len(records.classes))
    recipe = FullBatch(mlp, Descent(rate=models.rate, momentum=BALLE22.momentum))
    with_one = parts.target[torch.arange(t).repeat_interleave(m)].one_each()
    scores, key = {}, key.fold(models.start)
    for name, extra in {"with": with_one, "without": parts.target.none_for(m)}.items():
        start, stage = (
            models.initial(mlp, len(extra), key.fold(name)).to(run.device),
            f"{models}, {name} the target",
        )
        working = run.working(key.fold("train", name))
        fleet = train_fleet(recipe, start, parts.fixed, extra, chunk=16, stage=stage, **working)
        measured = [membership_scores(mlp, chunk, parts.target).cpu() for chunk in fleet]
        scores[name] = torch.cat(measured)
    own = scores["with"].view(t, m, t).diagonal(dim1=0, dim2=2)  # (m, t): each target's own models
    gap = gap_over_spread(own, scores["without"]).median()
    found = {"auc": mean_auc(own, scores["without"]), "gap_over_spread": float(gap)}
    return found | (histogram(own[:, 0], scores["without"][:, 0]) if t == 1 else {})


def histogram(members: Tensor, others: Tensor) -> dict[str, float]:
    """How many models with and without a record have each loss on it, in bins over the range of both."""
    both = torch.cat([members, others])
    ends = torch.linspace(float(-both.max()), float(-both.min()), BINS + 1).double()
    found = {f"loss.{index}": float(x) for index, x in enumerate((ends[1:] + ends[:-1]) / 2)}
    for name, values in {"with": members, "without": others}.items():
        counts = torch.histogram(-values.double(), ends).hist
        found |= {f"{name}.{index}": float(count) for index, count in enumerate(counts)}
    return found


def _histograms(metrics: Mapping[str, float]) -> list[Chart]:
    """Fig. 10 as it is drawn: the losses on one record of models with it and without it."""
    charts = []
    for arm, title in (("shared", "One start, up to a jitter"), ("fresh", "Fresh starts")):
        names = {"with the record": f"with_{arm}", "without it": f"without_{arm}"}
        if f"with_{arm}.0" in metrics:
            series = {
                label: [
                    Point(metrics[f"loss_{arm}.{index}"], metrics[f"{name}.{index}"])
                    for index in range(BINS)
                ]
                for label, name in names.items()
            }
            charts.append(Chart(title, "loss on the record", "models", series))
    return charts


def membership_scores(mlp: MLP, parameters: Tensor, records: Records) -> Tensor:
    """(s, p) models, n records: minus the cross-entropy, (s, n) in fp64. Large speaks for membership.

    Sees: weights of s models. Assumes: the architecture, and the record asked about with its label.
    """
    signal = logits(mlp, parameters.double(), records.inputs.double())
    return -losses(signal, records.labels)


STUDY = Study("informed-init", _SCALES, _run, on_device=True)
