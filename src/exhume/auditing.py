"""The audit, top to bottom: data, victim, release, attack, reconstruction, score, run folder, report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from exhume import data
from exhume.attacks.baseline import MeanRecord, holdings, snap_to_holdings
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Recipe,
    Reconstruction,
    Records,
    Store,
    silent,
)
from exhume.plan import as_known, device_named, moved, recipe_for, resolve, sizes_for
from exhume.report.folder import RunFolder, environment
from exhume.report.page import draw
from exhume.score.targets import TargetScores, score_targets
from exhume.score.verdict import Verdict, not_audited
from exhume.settings import Settings, to_toml
from exhume.train.dp import epsilon
from exhume.train.functional import accuracy
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each

__all__ = ["Audit", "Findings", "audit", "audit_informed"]


@dataclass(frozen=True, eq=False)
class Findings:
    """One attack on one victim, scored."""

    section: dict[str, Any]  # the attack's part of result.json: numbers and words, no records
    evidence: dict[str, Tensor]  # records and per-record numbers, for the report
    victim: dict[str, str | float]
    verdict: Verdict

    @property
    def metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = self.section["metrics"]
        return metrics


@dataclass(frozen=True)
class Audit:
    """What an audit found and where it is written."""

    verdict: Verdict
    metrics: Mapping[str, float]
    folder: Path
    report: Path
    redacted: Path | None = None  # a version without records, where it was asked for


def audit(
    settings: Settings, out: Path, *, progress: Progress = silent, redact: bool = False
) -> Audit:
    """Attack models trained the user's way on the user's data; write the run folder; say the verdict.

    The same settings and folder resume a stopped run and end with the same bits.
    """
    started = time.perf_counter()
    records = data.load(settings.data.source, progress=progress)
    settings = resolve(settings, records)
    _check_apart(out, settings.data.source)
    folder = RunFolder.create(out)
    settings = _taken_up(folder, settings)
    torch.set_num_threads(settings.machine.threads)
    folder.write_json("environment.json", environment())
    findings = audit_informed(settings, records, store=folder.store(), progress=progress)
    name = f"{findings.section['id']}.safetensors"
    if findings.evidence:
        folder.write_tensors(name, findings.evidence)
        findings.section["evidence"] = name
    folder.write_json(
        "result.json",
        {
            "schema": 1,
            "kind": "audit",
            "title": "An informed adversary against a released classifier",
            "data": settings.data.source,
            "seed": settings.seed,
            "verdict": asdict(findings.verdict),
            "attacks": [findings.section],
            "victim": findings.victim,
            "classes": list(records.classes),
            "deviations": list(DEVIATIONS),
            "wall_seconds": time.perf_counter() - started,
        },
    )
    progress("drawing the report", 0, 1)
    report = draw(folder.path)
    redacted = draw(folder.path, redact=True) if redact else None
    progress("drawing the report", 1, 1)
    return Audit(findings.verdict, findings.metrics, folder.path, report, redacted)


DEVIATIONS = (
    "The reconstructor is a ridge regression per label in closed form instead of a neural network.",
    "The record's label is inferred from the release; Balle22 leaves it to the network.",
    "Initial weights are drawn from N(0, 1/fan_in) without truncation.",
)


def audit_informed(
    settings: Settings, records: Records, *, store: Store, progress: Progress = silent
) -> Findings:
    """Balle22's game: one released model per target, an adversary who knows all the other records."""
    key = Key.from_seed(settings.seed)
    device = device_named(settings.machine.device)
    parts = moved(data.split(records, sizes_for(len(records), settings), key.fold("split")), device)
    recipe = recipe_for(settings, records)
    known_recipe = as_known(recipe, settings)
    private = _privacy(recipe)
    initial = recipe.architecture.initial(key.fold("victim")).to(device)
    chunk = settings.machine.chunk

    release, secret = release_one_each(
        recipe,
        initial,
        parts.fixed,
        parts.target,
        key=key,
        store=store,
        chunk=chunk,
        progress=progress,
    )
    victim: dict[str, str | float] = {
        "architecture": str(recipe.architecture),
        "training": str(recipe),
        "records": len(parts.fixed) + 1,
        "released_models": len(parts.target),
        **private,
        **_accuracy("test_accuracy", recipe, release.parameters, parts.test),
    }
    knowledge = Knowledge(
        architecture=recipe.architecture,
        recipe=known_recipe,
        initial=initial,
        fixed=parts.fixed,
        shadow=parts.shadow,
        public=parts.public,
    )
    attack = ClosedForm(chunk=chunk)
    try:
        prepared = attack.prepare(knowledge, key=key.fold("attack"), store=store, progress=progress)
        found = prepared.run(release)
        mean = MeanRecord().prepare(knowledge, key=key, store=store).run(release)
    except NotApplicable as why:
        return _inapplicable(knowledge, victim, why)
    if found.status.outcome is Outcome.NOT_APPLICABLE:
        return _inapplicable(
            knowledge, victim, NotApplicable(found.status.reason, ever=found.status.ever)
        )
    shadow_accuracy = _accuracy("shadow_accuracy", recipe, prepared.sample, parts.public)

    progress("scoring", 0, 1)
    pool = holdings(knowledge)
    others = {_MEAN: mean, _SNAPPED: snap_to_holdings(found, knowledge)}
    scores = score_targets(secret, found, pool, key.fold("score"), baselines=others)
    progress("scoring", 1, 1)
    section = _section(knowledge, found, scores)
    section["metrics"].update(shadow_accuracy)
    return Findings(section, scores.evidence, victim, scores.verdict)


def _taken_up(folder: RunFolder, settings: Settings) -> Settings:
    """The settings of the run already in this folder, if it is the same run; else these, written down."""
    if folder.config.exists():
        earlier = Settings.from_toml(folder.config)
        if replace(settings, machine=earlier.machine) == earlier:
            return earlier  # its chunk and threads decide the bits
        if folder.has_work():
            raise ExhumeError(
                f"{folder.path} holds a run with other settings (see its config.toml): "
                "choose another --out, or delete it"
            )
    folder.write_config(to_toml(settings))
    return settings


def _check_apart(out: Path, source: str) -> None:
    """A run folder inside the data would become data at the next run."""
    place = Path(source).resolve()
    if place.is_dir() and out.resolve().is_relative_to(place):
        raise ExhumeError(f"--out: {out} lies inside the data, {source}; choose another place")


def _privacy(recipe: Recipe) -> dict[str, float]:
    """What private training guarantees; asked before any training, since it may need a package."""
    if not isinstance(recipe, FullBatch) or not recipe.privacy.noise:
        return {}
    return {
        "epsilon": epsilon(recipe.privacy.noise, recipe.descent.steps, delta=_DELTA),
        "delta": _DELTA,
    }


def _accuracy(name: str, recipe: Recipe, parameters: Tensor, records: Records) -> dict[str, float]:
    if not len(records):
        return {}
    return {name: float(accuracy(recipe.architecture, parameters[:50], records).mean())}


# What goes into the run folder

_DELTA = 1e-5  # at which epsilon is stated (Balle22)
_ID, _NAME = "closed-form", "Closed-form per-label reconstructor"
_MEAN = "mean record"
_SNAPPED = "held record nearest to the reconstruction"


def _section(
    knowledge: Knowledge,
    found: Reconstruction,
    scores: TargetScores,
) -> dict[str, Any]:
    measured = {name: errors.means() for name, errors in scores.baselines.items()}
    measured["nearest-neighbour oracle (knows the truth)"] = scores.oracle.means()
    notes = [f"The adversary held {scores.metrics['pool']:,.0f} records of its own."]
    if scores.metrics["duplicates"]:
        notes.append(
            f"{scores.metrics['duplicates']:.0f} targets have a near-duplicate among the adversary's "
            "records. Nothing can be learned from attacking these; the rates leave them out."
        )
    return {
        "id": _ID,
        "name": _NAME,
        "paper": "Balle22",
        "sees": "the released weights",
        "knows": list(knowledge.known()),
        "status": _status(found),
        "metrics": {
            **scores.metrics,
            **found.observed,
            "mean_record_mse": measured[_MEAN]["mse"],
            "nearest_mse": measured[_SNAPPED]["mse"],
        },
        "baselines": [{"name": name, **values} for name, values in measured.items()],
        "cost": asdict(found.cost),
        "notes": notes,
    }


def _status(found: Reconstruction) -> dict[str, Any]:
    status = found.status
    return {"outcome": status.outcome.value, "reason": status.reason, "ever": status.ever}


def _inapplicable(knowledge: Knowledge, victim: dict[str, Any], why: NotApplicable) -> Findings:
    found = Reconstruction.none(0, (), why)
    section = {
        "id": _ID,
        "name": _NAME,
        "paper": "Balle22",
        "sees": "the released weights",
        "knows": list(knowledge.known()),
        "status": _status(found),
        "metrics": {},
        "baselines": [],
        "cost": asdict(found.cost),
        "notes": [],
    }
    return Findings(section, {}, victim, not_audited(why.why))
