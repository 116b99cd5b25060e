"""The audit, top to bottom: data, victim, release, attack, reconstruction, score, run folder, report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from exhume import data
from exhume.attacks.baseline import MeanRecord, holdings, snap_to_holdings
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.noise_aware import NoiseAware
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.auditing.private import Limits, limits_section, measure_limits
from exhume.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Prepared,
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
from exhume.score.verdict import Verdict, broken, gravest, not_audited
from exhume.settings import Settings, to_toml
from exhume.store import NullStore
from exhume.train.dp import epsilon
from exhume.train.functional import accuracy
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.victims.informed import Victim, first_of, release_one_each

__all__ = [
    "Audit",
    "Findings",
    "Game",
    "audit",
    "audit_exact",
    "audit_informed",
    "audit_private",
    "check_apart",
    "dealt",
    "informed_game",
]


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
    metrics: Mapping[str, float]  # of the strongest attack on all targets
    folder: Path
    report: Path
    redacted: Path | None = None  # a version without records, where it was asked for
    alarm: str = ""  # in words, where an attack did better than the stated privacy allows


def audit(
    settings: Settings, out: Path, *, progress: Progress = silent, redact: bool = False
) -> Audit:
    """Attack models trained the user's way on the user's data; write the run folder; say the verdict.

    The same settings and folder resume a stopped run and end with the same bits.
    """
    started = time.perf_counter()
    records = data.load(settings.data.source, progress=progress)
    settings = resolve(settings, records)
    check_apart(out, settings.data.source)
    folder = RunFolder.create(out)
    settings = _taken_up(folder, settings)
    torch.set_num_threads(settings.machine.threads)
    folder.write_json("environment.json", environment())
    game = informed_game(settings, records, store=folder.store(), progress=progress)
    found = [audit_informed(game, settings, store=folder.store(), progress=progress)]
    if settings.victim.dp_noise:
        found.append(audit_private(game, settings, store=folder.store(), progress=progress))
    limits = _limits(game, settings, records, found, store=folder.store(), progress=progress)
    strongest = max(found, key=lambda findings: findings.metrics.get("success", -1.0))
    if settings.attack.exact:
        found.append(audit_exact(game, settings, store=folder.store(), progress=progress))
    for findings in found:
        if findings.evidence:
            name = f"{findings.section['id']}.safetensors"
            folder.write_tensors(name, findings.evidence)
            findings.section["evidence"] = name
    alarm = limits.alarm if limits else ""
    verdict = broken(alarm) if alarm else gravest([findings.verdict for findings in found])
    folder.write_json(
        "result.json",
        {
            "schema": 1,
            "kind": "audit",
            "title": "An informed adversary against a released classifier",
            "data": settings.data.source,
            "seed": settings.seed,
            "verdict": asdict(verdict),
            "attacks": [findings.section for findings in found],
            **({"limits": limits_section(limits)} if limits else {}),
            "victim": found[0].victim,
            "classes": list(records.classes),
            "deviations": list(DEVIATIONS),
            "wall_seconds": time.perf_counter() - started,
        },
    )
    progress("drawing the report", 0, 1)
    report = draw(folder.path)
    redacted = draw(folder.path, redact=True) if redact else None
    progress("drawing the report", 1, 1)
    return Audit(verdict, strongest.metrics, folder.path, report, redacted, alarm)


@dataclass(frozen=True)
class _Named:
    """How an attack is called in the run folder and on the page."""

    id: str
    name: str


_CLOSED_FORM = _Named("closed-form", "Closed-form per-label reconstructor")
_NOISE_AWARE = _Named("noise-aware", "Noise-aware reconstructor")
_THROUGH_TRAINING = _Named("through-training", "Differentiating through training")

DEVIATIONS = (
    "The reconstructor is a ridge regression per label in closed form instead of a neural network.",
    "The record's label is inferred from the release; Balle22 leaves it to the network.",
    "Initial weights are drawn from N(0, 1/fan_in) without truncation.",
)


@dataclass(frozen=True, eq=False)
class Game:
    """Balle22's game: one released model per target, an adversary who knows all the other records."""

    victim: Victim
    facts: dict[str, str | float]  # about the victim, for the report
    recipe: FullBatch | MiniBatch
    knowledge: Knowledge
    key: Key


def dealt(settings: Settings, records: Records) -> data.Split:
    """Who holds which records: the same settings deal the same way."""
    key = Key.from_seed(settings.seed).fold("split")
    parts = data.split(records, sizes_for(len(records), settings), key)
    return moved(parts, device_named(settings.machine.device))


def informed_game(
    settings: Settings,
    records: Records,
    *,
    store: Store,
    progress: Progress = silent,
    initial: Tensor | None = None,
) -> Game:
    """Deal out the records, train the victims, and write down what the adversary knows.

    initial: (p,) where training starts; None draws it.
    """
    key = Key.from_seed(settings.seed)
    parts = dealt(settings, records)
    recipe = recipe_for(settings, records)
    private = _privacy(recipe)
    if initial is None:
        initial = recipe.architecture.initial(key.fold("victim"))
    initial = initial.to(parts.fixed.inputs.device)
    victim = release_one_each(
        recipe,
        initial,
        parts.fixed,
        parts.target,
        key=key,
        store=store,
        chunk=settings.machine.chunk,
        progress=progress,
    )
    facts: dict[str, str | float] = {
        "architecture": str(recipe.architecture),
        "training": str(recipe),
        "records": len(parts.fixed) + 1,
        "released_models": len(parts.target),
        **private,
        **_accuracy("test_accuracy", recipe, victim[0].parameters, parts.test),
    }
    knowledge = Knowledge(
        architecture=recipe.architecture,
        recipe=as_known(recipe, settings),
        initial=initial,
        fixed=parts.fixed,
        shadow=parts.shadow,
        public=parts.public,
    )
    return Game(victim, facts, recipe, knowledge, key)


def audit_informed(
    game: Game, settings: Settings, *, store: Store, progress: Progress = silent
) -> Findings:
    """All targets, by the closed form fitted on shadow models."""
    attack = ClosedForm(chunk=settings.machine.chunk)
    try:
        prepared = attack.prepare(
            game.knowledge, key=game.key.fold("attack"), store=store, progress=progress
        )
    except NotApplicable as why:
        return _inapplicable(_CLOSED_FORM, game, why)
    findings = _scored(_CLOSED_FORM, game, prepared, settings.data.targets, progress)
    public = game.knowledge.public
    if public is not None:
        findings.metrics.update(_accuracy("shadow_accuracy", game.recipe, prepared.sample, public))
    return findings


def audit_private(
    game: Game, settings: Settings, *, store: Store, progress: Progress = silent
) -> Findings:
    """All targets of private training, by shadow models with and without its noise."""
    attack = NoiseAware(chunk=settings.machine.chunk)
    try:
        prepared = attack.prepare(
            game.knowledge, key=game.key.fold("attack"), store=store, progress=progress
        )
    except NotApplicable as why:
        return _inapplicable(_NOISE_AWARE, game, why)
    return _scored(_NOISE_AWARE, game, prepared, settings.data.targets, progress)


def _limits(
    game: Game,
    settings: Settings,
    records: Records,
    found: Sequence[Findings],
    *,
    store: Store,
    progress: Progress,
) -> Limits | None:
    """What the attacks reached beside what private training allows; None where it is not private."""
    recipe = game.recipe
    if not isinstance(recipe, FullBatch) or not recipe.privacy.noise:
        return None
    return measure_limits(
        recipe,
        game.victim[0],
        dealt(settings, records).target,
        game.knowledge,
        {f.section["name"]: f.evidence["reconstructions"] for f in found if f.evidence},
        key=game.key,
        chunk=settings.machine.chunk,
        store=store,
        progress=progress,
    )


def audit_exact(
    game: Game, settings: Settings, *, store: Store, progress: Progress = silent
) -> Findings:
    """The first few targets, by differentiating through training."""
    needed = replace(game.knowledge, shadow=None, public=None)
    try:
        prepared = ThroughTraining().prepare(
            needed, key=game.key.fold("through training"), store=store, progress=progress
        )
    except NotApplicable as why:
        return _inapplicable(_THROUGH_TRAINING, game, why)
    findings = _scored(_THROUGH_TRAINING, game, prepared, settings.attack.exact, progress)
    findings.section["knows"] = list(needed.known())
    return findings


def _scored(
    named: _Named, game: Game, prepared: Prepared, targets: int, progress: Progress
) -> Findings:
    """Run a prepared attack on the first targets and compare it with the truth and with the baselines."""
    release, secret = first_of(game.victim, targets)
    found = prepared.run(release)
    if found.status.outcome is Outcome.NOT_APPLICABLE:
        why = NotApplicable(found.status.reason, ever=found.status.ever)
        return _inapplicable(named, game, why)
    progress(f"scoring {named.id}", 0, 1)
    mean = MeanRecord().prepare(game.knowledge, key=game.key, store=NullStore()).run(release)
    others = {_MEAN: mean, _SNAPPED: snap_to_holdings(found, game.knowledge)}
    pool = holdings(game.knowledge)
    scores = score_targets(secret, found, pool, game.key.fold("score"), baselines=others)
    progress(f"scoring {named.id}", 1, 1)
    section = _section(named, game.knowledge, found, scores)
    return Findings(section, scores.evidence, game.facts, scores.verdict)


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


def check_apart(out: Path, source: str) -> None:
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
_MEAN = "mean record"
_SNAPPED = "held record nearest to the reconstruction"


def _section(
    named: _Named,
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
        "id": named.id,
        "name": named.name,
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


def _inapplicable(named: _Named, game: Game, why: NotApplicable) -> Findings:
    found = Reconstruction.none(0, (), why)
    section = {
        "id": named.id,
        "name": named.name,
        "paper": "Balle22",
        "sees": "the released weights",
        "knows": list(game.knowledge.known()),
        "status": _status(found),
        "metrics": {},
        "baselines": [],
        "cost": asdict(found.cost),
        "notes": [],
    }
    return Findings(section, {}, game.facts, not_audited(why.why))
