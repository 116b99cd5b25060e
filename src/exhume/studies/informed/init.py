"""Balle22, Fig. 10: one known initialisation writes membership into the loss; fresh ones hide it.

For every target, models are trained with and without it. In the shared arm all start from the same
weights, up to a declared jitter: the paper's training is non-deterministic, which gives its distributions
their width; ours is deterministic, and without jitter any gap at all would look like perfect separation. In
the fresh arm every model draws its own start.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exhume import data
from exhume.attacks.informed.membership import membership_scores
from exhume.choices import resolve, sizes_for
from exhume.contract import Key, Progress, Records
from exhume.data import Split
from exhume.models.mlp import MLP
from exhume.report.folder import RunFolder
from exhume.score.membership import gap_over_spread, mean_auc
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned
from exhume.train.fleet import train_fleet
from exhume.train.recipe import FullBatch
from exhume.train.stacked import Descent

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Setting:
    fixed: tuple[int, ...]  # sizes of D-; the claims are about the first
    targets: int
    models: int  # with each target, and as many without any; the paper: 1,000
    rates: tuple[float, ...]  # one for each size: the paper's, the notebook's
    jitters: tuple[float, ...] = (1e-5, 1e-4, 1e-3)
    """Standard deviations added to every initial weight in the shared arm; the claims are about the first."""


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting((200,), targets=5, models=6, rates=(0.2,)),
    "cpu": _Setting((10_000, 1000), targets=50, models=10, rates=(0.2, 0.1)),
    "paper": _Setting((10_000, 1000), targets=50, models=1000, rates=(0.2, 0.1)),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    records = data.load("mnist", progress=progress)
    metrics: dict[str, float] = {}
    for index, (fixed, rate) in enumerate(zip(setting.fixed, setting.rates, strict=True)):
        sizes = DataSettings("mnist", fixed, setting.targets, shadows=1, public=1, test=1)
        settings = resolve(Settings(seed, sizes, VictimSettings(rate=rate)), records)
        if not index:
            settings = pinned(settings, folder)
        named = _both_arms(setting, settings, records, folder, progress)
        prefix = "" if not index else f"d{fixed}."
        metrics |= {f"{prefix}{name}": value for name, value in named.items()}
    return Outcome(
        claims=_claims(metrics),
        metrics=metrics,
        deviations=[
            f"{setting.models} models with and without each of {setting.targets} targets; the paper "
            "shows one target and 1,000 models.",
            f"Shared arm: N(0, {setting.jitters[0]:g}²) is added to every initial weight, in place of "
            "the non-deterministic reductions of the paper's GPUs; larger jitters beside it.",
            "The models without a target are the same for all targets.",
        ],
    )


def _both_arms(
    setting: _Setting, settings: Settings, records: Records, folder: RunFolder, progress: Progress
) -> dict[str, float]:
    key = Key.from_seed(settings.seed).fold("init", settings.data.fixed)
    parts = data.split(records, sizes_for(len(records), settings), key.fold("split"))
    recipe = FullBatch(
        MLP(records.shape, settings.victim.hidden, len(records.classes)),
        Descent(rate=settings.victim.rate),
    )
    found: dict[str, float] = {}
    for arm, jitters in {"shared": setting.jitters, "fresh": (0.0,)}.items():
        for jitter in jitters:
            start = _Start(arm, jitter)
            members, others = _scores(
                setting, recipe, parts, key.fold(arm), start, folder, progress
            )
            name = arm if jitter == jitters[0] else f"{arm}.jitter_{jitter:g}"
            found[f"auc_{name}"] = mean_auc(members, others)
            found[f"gap_over_spread_{name}"] = float(gap_over_spread(members, others).median())
    return found


def _scores(  # noqa: PLR0917
    setting: _Setting,
    recipe: FullBatch,
    parts: Split,
    key: Key,
    start: _Start,
    folder: RunFolder,
    progress: Progress,
) -> tuple[Tensor, Tensor]:
    """Minus the loss on each target: of models with it (m, t), of models without any (m, t)."""
    mlp, m, t = recipe.architecture, setting.models, setting.targets
    assert isinstance(mlp, MLP)
    targets = parts.target
    with_one = targets[torch.arange(t).repeat_interleave(m)].one_each()
    jobs = {"with": with_one, "without": targets.none_for(m)}
    scores = {}
    for name, extra in jobs.items():
        fleet = train_fleet(
            recipe,
            start.draw(mlp, len(extra), key.fold(name)),
            parts.fixed,
            extra,
            key=key.fold("train", name),
            store=folder.store(),
            chunk=16,
            stage=f"|D-| = {len(parts.fixed)}, {start}, {name} the target",
            progress=progress,
        )
        scores[name] = torch.cat([membership_scores(mlp, chunk, targets) for chunk in fleet])
    own = scores["with"].view(t, m, t).diagonal(dim1=0, dim2=2)  # (m, t): each target's own models
    return own, scores["without"]


@dataclass(frozen=True)
class _Start:
    """Where the models of an arm begin."""

    arm: str
    jitter: float

    def draw(self, mlp: MLP, count: int, key: Key) -> Tensor:
        """(count, p) initial weights."""
        if self.arm == "fresh":
            return torch.stack([mlp.initial(key.fold(i)) for i in range(count)])
        shared = mlp.initial(Key.from_seed(0).fold("the shared start"))
        noise = torch.randn(count, mlp.layout.size, generator=key.generator())
        return shared + self.jitter * noise

    def __str__(self) -> str:
        return "fresh starts" if self.arm == "fresh" else f"one start, jitter {self.jitter:g}"


def _claims(metrics: dict[str, float]) -> list[Claim]:
    return [
        Claim(
            "shared",
            "With one initialisation, losses with and without the record separate",
            "perfectly separable",
            f"AUC {metrics['auc_shared']:.3f}",
            metrics["auc_shared"] >= 0.95,
        ),
        Claim(
            "fresh",
            "With a fresh initialisation per model they overlap",
            "nearly perfect overlap",
            f"AUC {metrics['auc_fresh']:.3f}",
            metrics["auc_fresh"] <= 0.65,
        ),
    ]


STUDY = Study(
    name="informed-init",
    title="Membership by loss: one initialisation against fresh ones (Fig. 10)",
    paper="Balle22",
    run=_run,
)
