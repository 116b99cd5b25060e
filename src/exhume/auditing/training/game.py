"""Weights trained the user's way, against an adversary who knows every record but one (Balle22)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from exhume import data
from exhume.attacks.baseline import MeanRecord, holdings, snap_to_holdings
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.noise_aware import NoiseAware
from exhume.attacks.informed.residual import Residual
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.auditing.at_risk import factors_of_own
from exhume.auditing.findings import Findings, Named, inapplicable, status_of
from exhume.choices import as_known, device_named, moved, recipe_for, sizes_for
from exhume.contract import (
    Attack,
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
    Weights,
    silent,
)
from exhume.score.targets import TargetScores, score_targets
from exhume.settings import Settings
from exhume.store import NullStore
from exhume.train.dp import epsilon
from exhume.train.functional import accuracy
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch
from exhume.victims.informed import Victim, first_of, release_one_each
from exhume.victims.release_file import release_of_file

__all__ = [
    "CLOSED_FORM",
    "CORRECTED",
    "DEVIATIONS",
    "NOISE_AWARE",
    "THROUGH_TRAINING",
    "Game",
    "audit_corrected",
    "audit_exact",
    "audit_informed",
    "audit_private",
    "check_apart",
    "dealt",
    "informed_game",
    "start_of",
]

_WEIGHTS = "the released weights"
CLOSED_FORM = Named("closed-form", "Closed-form per-label reconstructor", "Balle22", _WEIGHTS)
CORRECTED = Named("corrected", "Closed form, corrected by a network", "Balle22", _WEIGHTS)
NOISE_AWARE = Named("noise-aware", "Noise-aware reconstructor", "Balle22", _WEIGHTS)
THROUGH_TRAINING = Named(
    "through-training", "Differentiating through training", "Balle22", _WEIGHTS
)

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
    recipe: Recipe
    knowledge: Knowledge
    key: Key
    rows: Tensor  # (t,) the targets' places in the data


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
        initial = start_of(settings, recipe, key)
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
        **({"start": Path(settings.victim.start).name} if settings.victim.start else {}),
        "training": str(recipe),
        "records": len(parts.fixed) + 1,
        "released_models": len(parts.target),
        **private,
        **_repeats(recipe, initial, parts.fixed, key),
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
    sizes = sizes_for(len(records), settings)
    rows = data.places(len(records), sizes, key.fold("split"))[1]  # the targets'
    return Game(victim, facts, recipe, knowledge, key, rows)


def start_of(settings: Settings, recipe: Recipe, key: Key) -> Tensor:
    """(p,) where training starts: a draw, or the base that is fine-tuned."""
    if not settings.victim.start:
        return recipe.architecture.initial(key.fold("victim"))
    found = release_of_file(Path(settings.victim.start), recipe.architecture)
    return found.release.parameters[0]


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
        return _refused(CLOSED_FORM, game, why)
    findings = _scored(CLOSED_FORM, game, prepared, settings.data.targets, progress)
    public = game.knowledge.public
    if public is not None:
        findings.metrics.update(_accuracy("shadow_accuracy", game.recipe, prepared.sample, public))
    return findings


def audit_corrected(
    game: Game, settings: Settings, *, store: Store, progress: Progress = silent
) -> Findings:
    """All targets, by the closed form and a network that takes its errors away."""
    attack = Residual(chunk=settings.machine.chunk)
    return _tried(CORRECTED, attack, game, settings, store=store, progress=progress)


def audit_private(
    game: Game, settings: Settings, *, store: Store, progress: Progress = silent
) -> Findings:
    """All targets of private training, by shadow models with and without its noise."""
    attack = NoiseAware(chunk=settings.machine.chunk)
    return _tried(NOISE_AWARE, attack, game, settings, store=store, progress=progress)


def _tried(
    named: Named,
    attack: Attack,
    game: Game,
    settings: Settings,
    *,
    store: Store,
    progress: Progress,
) -> Findings:
    try:
        prepared = attack.prepare(
            game.knowledge, key=game.key.fold("attack"), store=store, progress=progress
        )
    except NotApplicable as why:
        return _refused(named, game, why)
    return _scored(named, game, prepared, settings.data.targets, progress)


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
        return _refused(THROUGH_TRAINING, game, why)
    findings = _scored(THROUGH_TRAINING, game, prepared, settings.attack.exact, progress)
    findings.section["knows"] = list(needed.known())
    return findings


def _scored(
    named: Named, game: Game, prepared: Prepared, targets: int, progress: Progress
) -> Findings:
    """Run a prepared attack on the first targets and compare it with the truth and with the baselines."""
    release, secret = first_of(game.victim, targets)
    found = prepared.run(release)
    if found.status.outcome is Outcome.NOT_APPLICABLE:
        why = NotApplicable(found.status.reason, ever=found.status.ever)
        return _refused(named, game, why)
    progress(f"scoring {named.id}", 0, 1)
    mean = MeanRecord().prepare(game.knowledge, key=game.key, store=NullStore()).run(release)
    others = {_MEAN: mean, _SNAPPED: snap_to_holdings(found, game.knowledge)}
    pool = holdings(game.knowledge)
    scores = score_targets(secret, found, pool, game.key.fold("score"), baselines=others)
    progress(f"scoring {named.id}", 1, 1)
    section = _section(named, game.knowledge, found, scores)
    evidence = {**scores.evidence, **_factors(game, release, scores), "rows": game.rows[:targets]}
    return Findings(section, evidence, game.facts, scores.verdict)


def _factors(game: Game, release: Weights, scores: TargetScores) -> dict[str, Tensor]:
    """What each released model makes of its own target."""
    fixed, truth = game.knowledge.fixed, scores.evidence
    assert fixed is not None  # the game is about what the adversary lacks of it
    own = Records(truth["targets"], truth["labels"], fixed.classes)
    return factors_of_own(game.recipe.architecture, release.parameters, own, fixed)


def check_apart(out: Path, source: str) -> None:
    """A run folder inside the data would become data at the next run."""
    try:
        inside = Path(source).is_dir() and out.resolve().is_relative_to(Path(source).resolve())
    except (OSError, ValueError):  # a name that no file can have is refused where it is read
        return
    if inside:
        raise ExhumeError(f"--out: {out} lies inside the data, {source}; choose another place")


def _privacy(recipe: Recipe) -> dict[str, float]:
    """What private training guarantees; asked before any training, since it may need a package."""
    if not isinstance(recipe, FullBatch) or not recipe.privacy.noise:
        return {}
    return {
        "epsilon": epsilon(
            recipe.privacy.noise,
            recipe.descent.steps,
            delta=_DELTA,
            sampling=recipe.privacy.sampling,
        ),
        "delta": _DELTA,
    }


def _repeats(recipe: Recipe, initial: Tensor, fixed: Records, key: Key) -> dict[str, str | float]:
    """Of the user's own training: whether it ends with the same bits when it is done again."""
    if not isinstance(recipe, OwnTraining):
        return {}
    same = recipe.repeats(initial, fixed, key.fold("repeats"))
    return {"deterministic": "yes" if same else "no: the adversary's shadows differ by chance, too"}


def _accuracy(name: str, recipe: Recipe, parameters: Tensor, records: Records) -> dict[str, float]:
    if not len(records):
        return {}
    return {name: float(accuracy(recipe.architecture, parameters[:50], records).mean())}


# What goes into the run folder

_DELTA = 1e-5  # at which epsilon is stated (Balle22)
_MEAN = "mean record"
_SNAPPED = "held record nearest to the reconstruction"


def _section(
    named: Named,
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
        "paper": named.paper,
        "sees": named.sees,
        "knows": list(knowledge.known()),
        "status": status_of(found),
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


def _refused(named: Named, game: Game, why: NotApplicable) -> Findings:
    return inapplicable(named, game.knowledge.known(), game.facts, why)
