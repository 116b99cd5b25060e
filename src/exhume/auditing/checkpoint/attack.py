"""The audit of a user's own checkpoint: training images from the weights alone (Buzaglo23).

The attack sees the tensors, the activation and the released preprocessing. The training records are opened
afterwards, to score; without them there is a page of reconstructions and no verdict.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.hidden_span import HiddenSpan
from exhume.attacks.margin.strongest import Strongest
from exhume.auditing.at_risk import AT_RISK, factors_of_one, write_risk
from exhume.auditing.checkpoint.fit import fit_of
from exhume.auditing.checkpoint.scoring_records import Given, mean_given, records_given
from exhume.auditing.checkpoint.settings import WeightsSettings, shape_of, take_up
from exhume.auditing.findings import Audit, pages_of
from exhume.auditing.fine_tuned import against_of
from exhume.auditing.training.game import check_apart
from exhume.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    silent,
)
from exhume.models.heads import Head, check_head
from exhume.report.folder import RunFolder, environment
from exhume.report.margin import inapplicable_section, margin_section, unscored_section
from exhume.score.margin import score_margin
from exhume.score.margin_verdict import judge_margin, unscored
from exhume.score.verdict import Verdict, not_audited
from exhume.victims.checkpoint import Checkpoint, read_checkpoint, secret_of

__all__ = [
    "WEIGHTS_DEVIATIONS",
    "Opened",
    "WeightsSettings",
    "attack_checkpoint",
    "audit_weights",
    "opened",
]


@dataclass(frozen=True)
class _Named:
    """An attack in the run folder and on the page, and what its confidence is."""

    id: str
    name: str
    confidence: str


_FIRST = _Named(
    "first-layer",
    "Training images from the first layer",
    "Confidence is the cosine with the nearest candidate of another restart; with one restart, the share "
    "of the weights that a candidate explains.",
)
_HIDDEN = _Named(
    "hidden-span",
    "Training images from the span of hidden activations",
    "Confidence is minus the share of a candidate's hidden activations outside the second layer's span.",
)
_TUNED = (
    "the attack explains all weights by training records, and those of a fine-tuned network are mostly its "
    "base's; audit an adapter or difference of few steps as [update], the way of fine-tuning as [victim] "
    "with start"
)
WEIGHTS_DEVIATIONS = (
    "Where weight decay has removed the second layer's start, records are sought one by one in its span; "
    "else only the first layer is explained. Buzaglo23 explains all layers.",
    "The number of training records is read off the first layer's spectrum.",
    "Images are matched at full resolution, not at half.",
)


def audit_weights(
    settings: WeightsSettings, out: Path, *, progress: Progress = silent, redact: bool = False
) -> Audit:
    """Attack one checkpoint; write the run folder; say the verdict. The same call resumes a stopped run."""
    started = time.perf_counter()
    released = opened(settings, progress=progress)
    for source in filter(None, (settings.trained_on, settings.decoys)):
        check_apart(out, source)
    folder = RunFolder.create(out)
    take_up(folder, settings, released.checkpoint)
    folder.write_json("environment.json", environment())
    judged = attack_checkpoint(settings, released, folder, progress)
    result = {
        "schema": 1,
        "kind": "audit",
        "title": "Training images from released weights alone",
        "data": settings.trained_on or "not given",
        "seed": settings.seed,
        "verdict": asdict(judged.verdict),
        "attacks": [judged.section],
        "victim": judged.victim,
        "classes": released.classes,
        "deviations": list(WEIGHTS_DEVIATIONS),
        "wall_seconds": time.perf_counter() - started,
    }
    folder.write_json("result.json", result)
    report, redacted = pages_of(folder, redact=redact, progress=progress)
    return Audit(judged.verdict, judged.metrics, folder.path, report, redacted)


@dataclass(frozen=True, eq=False)
class Opened:
    """A checkpoint as the attack takes it, or why it cannot; and what the owner gave to score with."""

    checkpoint: Checkpoint | None
    why: NotApplicable | None
    centre: Tensor | None
    given: Given | None

    @property
    def classes(self) -> list[str]:
        return list(self.given.trained.classes) if self.given else []


def opened(settings: WeightsSettings, *, progress: Progress = silent) -> Opened:
    """Read everything that the settings name; nothing in the files is run."""
    if not settings.file.exists():
        raise ExhumeError(f"checkpoint: there is no file {settings.file}")
    given, key = None, Key.from_seed(settings.seed)
    if settings.trained_on:
        given = records_given(
            settings.trained_on, settings.rows, settings.decoys, key, progress=progress
        )
    shape = shape_of(settings, given)
    centre = mean_given(settings.mean, shape)
    tuned = against_of(settings)
    try:
        checkpoint = read_checkpoint(
            settings.file,
            activation=settings.activation,
            shape=shape,
            trust=settings.trust,
            against=tuned[1] if tuned else None,
        )
    except NotApplicable as why:
        return Opened(None, why, centre, given)
    return Opened(checkpoint, None, centre, given)


@dataclass(frozen=True, eq=False)
class _Judged:
    verdict: Verdict
    section: dict[str, Any]
    victim: dict[str, str | float]
    metrics: dict[str, float]


def attack_checkpoint(
    settings: WeightsSettings,
    released: Opened,
    folder: RunFolder,
    progress: Progress = silent,
    *,
    at_risk: str = AT_RISK,
) -> _Judged:
    """One checkpoint, attacked and scored; its evidence is written into the folder."""
    if released.checkpoint is None:
        assert released.why is not None  # one or the other
        judged = _inapplicable(released.why)
    else:
        key = Key.from_seed(settings.seed)
        judged = _attacked(
            settings,
            released.checkpoint,
            released.centre,
            released.given,
            folder=folder,
            key=key,
            at_risk=at_risk,
            progress=progress,
        )
    name: dict[str, str | float] = {"checkpoint": settings.file.name}
    if settings.base:
        name["base"] = Path(settings.base).name
    return replace(judged, victim={**name, **judged.victim})


def _attacked(
    settings: WeightsSettings,
    checkpoint: Checkpoint,
    centre: Tensor | None,
    given: Given | None,
    *,
    folder: RunFolder,
    key: Key,
    at_risk: str,
    progress: Progress,
) -> _Judged:
    mlp = checkpoint.architecture
    head = _head(settings.head, mlp.outputs)
    knowledge = Knowledge(architecture=mlp, centre=centre)
    prepared = _attack(settings, head).prepare(
        knowledge, key=key.fold("attack"), store=folder.store(), progress=progress
    )
    chosen = prepared.choice(checkpoint.release)
    named = _HIDDEN if isinstance(chosen.config, HiddenSpan) else _FIRST
    found = chosen.run(checkpoint.release)
    victim: dict[str, str | float] = {
        "architecture": str(mlp),
        "head": head,
        "read_as": " ".join(checkpoint.inferred),
        "records_by_the_spectrum": found.observed["records"],
    }
    zero = torch.full(mlp.input_shape, 0.5) if centre is None else centre
    if given is None:
        section = unscored_section(
            folder,
            id=named.id,
            name=named.name,
            knows=knowledge.known(),
            found=found,
            centre=zero,
            confidence=named.confidence,
        )
        numbers = section["metrics"]
        verdict = unscored(int(numbers["distinct"]), int(numbers["agreed"]))
        return _Judged(verdict, section, victim, numbers)
    progress("scoring", 0, 1)
    scores = score_margin(secret_of(given.trained), found, given.decoys, zero)
    fit = fit_of(checkpoint, given.trained, zero, head)
    beside = {"rows": given.rows}
    if fit.margins is not None and head == "multiclass":
        weights = checkpoint.release.parameters[0]
        beside |= factors_of_one(mlp, weights, given.trained, zero)
    section = margin_section(
        folder,
        id=named.id,
        name=named.name,
        knows=knowledge.known(),
        found=found,
        scores=scores,
        decoys=given.decoys,
        margins=fit.margins,
        beside=beside,
        notes=(*given.notes, *fit.notes),
    )
    everything = {**scores.evidence, **beside}
    if fit.margins is not None:
        everything["margins"] = fit.margins
    write_risk(folder, section, everything, at_risk)
    progress("scoring", 1, 1)
    judged = judge_margin(scores)
    section["metrics"] |= judged.metrics
    metrics = {
        **scores.metrics,
        "success": judged.metrics["above_bar_share"],
        "detectable_rate": judged.metrics["detectable_rate"],
    }
    verdict = judged.verdict
    if settings.base and verdict.word == "no leak found":
        verdict = not_audited(_TUNED)  # silence of an attack whose premise does not hold
    return _Judged(verdict, section, victim | fit.facts, metrics)


def _attack(settings: WeightsSettings, head: Head) -> Strongest:
    steps, restarts = settings.steps, settings.restarts
    first = FirstLayer(head=head, restarts=restarts, descent=Descent(steps=steps))
    hidden = HiddenSpan(
        head=head, restarts=restarts, descent=replace(HiddenSpan.descent, steps=steps)
    )
    return Strongest(first, hidden)


def _head(given: str, outputs: int) -> Head:
    heads: dict[str, Head] = {
        "multiclass": "multiclass",
        "binary": "binary",
        "regression": "regression",
        "": "multiclass" if outputs > 1 else "binary",
    }
    check_head(heads[given], outputs)
    return heads[given]


def _inapplicable(why: NotApplicable) -> _Judged:
    return _Judged(not_audited(why.why), inapplicable_section(_FIRST.id, _FIRST.name, why), {}, {})
