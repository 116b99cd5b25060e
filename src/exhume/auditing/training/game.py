"""Weights trained the user's way, against an adversary who knows every record but one (Balle22)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from exhume import readers
from exhume.attacks.baseline import MeanRecord, holdings, snap_to_holdings
from exhume.attacks.informed.closed_form import ClosedForm, FittedClosedForm
from exhume.attacks.informed.noise_aware import NoiseAware
from exhume.attacks.informed.residual import Residual
from exhume.attacks.informed.through_any_training import ThroughAnyTraining, through_training_of
from exhume.auditing.at_risk import factors_of_own
from exhume.auditing.sections import targets_section
from exhume.choices import as_known, device_named, moved, recipe_for, sizes_for
from exhume.core.contract import (
    Attack,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Recipe,
    Reconstruction,
    Records,
    Store,
    Weights,
    silent,
)
from exhume.core.evidence import LineupRow
from exhume.core.results import AttackSpec, Facts, Findings, Section
from exhume.readers.adapters import release_of_file
from exhume.score.places import line_up, places_for
from exhume.score.targets import TargetScores, score_targets
from exhume.score.verdict import not_audited
from exhume.settings import Settings
from exhume.store.shards import NullStore
from exhume.train.dp import epsilon
from exhume.train.functional import accuracy
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch
from exhume.victims.informed import Victim, first_of, release_one_each

__all__ = [
    "CLOSED_FORM",
    "CORRECTED",
    "DEVIATIONS",
    "NOISE_AWARE",
    "THROUGH_TRAINING",
    "Game",
    "attack_first",
    "attack_targets",
    "informed_game",
    "lined_up",
    "split_roles",
    "start_of",
]

_WEIGHTS = "the released weights"
CLOSED_FORM = AttackSpec("closed-form", "Closed-form per-label reconstructor", "Balle22", _WEIGHTS)
CORRECTED = AttackSpec("corrected", "Closed form, corrected by a network", "Balle22", _WEIGHTS)
NOISE_AWARE = AttackSpec("noise-aware", "Noise-aware reconstructor", "Balle22", _WEIGHTS)
THROUGH_TRAINING = AttackSpec(
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
    facts: Facts  # about the victim, for the report
    recipe: Recipe
    knowledge: Knowledge
    key: Key
    rows: Tensor  # (t,) the targets' places in the data
    strangers: Records  # in nothing that is released or held
    doubt: str = ""  # why silence of any attack would say nothing
    pool: Records | None = None  # what it holds, where an attack uses less of it


def split_roles(settings: Settings, records: Records) -> readers.Split:
    """Who holds which records: the same settings deal the same way."""
    key = Key.from_seed(settings.seed).fold("split")
    parts = readers.split(records, sizes_for(len(records), settings), key)
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
    parts = split_roles(settings, records)
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
    facts: Facts = {
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
    rows = readers.places(len(records), sizes, key.fold("split"))[1]  # the targets'
    doubt = _outside(recipe, initial, parts.fixed, key)
    strangers = _strangers(settings, records)
    return Game(victim, facts, recipe, knowledge, key, rows, strangers, doubt)


def _strangers(settings: Settings, records: Records) -> Records:
    """Records that nobody holds or trains on: those the model is tested with, more where they are few."""
    sizes, key = sizes_for(len(records), settings), Key.from_seed(settings.seed).fold("split")
    spare = min(max(0, _STRANGERS - sizes.test), len(records) - sizes.total)
    places = readers.places(len(records), replace(sizes, test=sizes.test + spare), key)
    return records[places[-1]].to(device_named(settings.machine.device))


def _outside(recipe: Recipe, initial: Tensor, fixed: Records, key: Key) -> str:
    """Training of the owner's own may write into what no attack looks at."""
    if not isinstance(recipe, OwnTraining):
        return ""
    changed = recipe.changed_outside(initial, fixed, key.fold("outside"))
    if not changed:
        return ""
    return (
        f"training changes {', '.join(changed)}, which is released beside the parameters and which no attack "
        "looks into but for whole records"
    )


def start_of(settings: Settings, recipe: Recipe, key: Key) -> Tensor:
    """(p,) where training starts: a draw, or the base that is fine-tuned."""
    if not settings.victim.start:
        return recipe.architecture.initial(key.fold("victim"))
    found = release_of_file(Path(settings.victim.start), recipe.architecture)
    return found.release.parameters[0]


def attack_targets(
    spec: AttackSpec, game: Game, settings: Settings, *, store: Store, progress: Progress = silent
) -> Findings:
    """All targets, by an attack that is fitted on shadow models."""
    attack = _FITTED[spec.id](chunk=settings.machine.chunk)
    targets = min(settings.data.targets, len(game.rows))
    return play(spec, attack, game, targets, store=store, progress=progress)


def attack_first(game: Game, targets: int, *, store: Store, progress: Progress) -> Findings:
    """The first few targets, by differentiating through training. It needs no shadow models."""
    needed = replace(game.knowledge, shadow=None, public=None)
    needing = replace(game, knowledge=needed, pool=holdings(game.knowledge))
    attack: Attack = ThroughAnyTraining()  # where none applies, it says why
    with suppress(NotApplicable):
        attack = through_training_of(game.recipe)
    return play(THROUGH_TRAINING, attack, needing, targets, store=store, progress=progress)


def play(
    spec: AttackSpec,
    attack: Attack,
    game: Game,
    targets: int,
    *,
    store: Store,
    progress: Progress,
) -> Findings:
    """Prepare an attack, run it on the first targets, compare it with the truth and with baselines."""
    known = game.knowledge
    key = game.key.fold(_KEYS.get(spec.id, "attack"))
    release, secret = first_of(game.victim, targets)
    try:
        prepared = attack.prepare(known, key=key, store=store, progress=progress)
        found = prepared.run(release)
        if found.status.outcome is Outcome.NOT_APPLICABLE:
            raise NotApplicable(found.status.reason, ever=found.status.ever)
    except NotApplicable as why:
        section = Section.inapplicable(spec, why, known.known())
        return Findings(section, not_audited(why.why), facts=game.facts)
    progress(f"scoring {spec.id}", 0, 1)
    mean = MeanRecord().prepare(known, key=game.key, store=NullStore()).run(release)
    others = {_MEAN: mean, _SNAPPED: snap_to_holdings(found, known)}
    pool = holdings(known) if game.pool is None else game.pool
    scores = score_targets(secret, found, pool, game.key.fold("score"), baselines=others)
    lineup, ranks = _lined_up(game, found, scores, pool)
    progress(f"scoring {spec.id}", 1, 1)
    section = _section(spec, game, found, scores, lineup)
    if isinstance(prepared, FittedClosedForm) and known.public is not None:
        shadows = _accuracy("shadow_accuracy", game.recipe, prepared.sample, known.public)
        section.metrics.update(shadows)
    evidence = {**scores.evidence, **_factors(game, release, scores), "rows": game.rows[:targets]}
    evidence["rank"] = ranks
    whole = evidence if targets == len(game.rows) else {}
    return Findings(section, evidence=evidence, facts=game.facts, risk=whole)


def _lined_up(
    game: Game, found: Reconstruction, scores: TargetScores, pool: Records
) -> tuple[LineupRow, Tensor]:
    truth = scores.evidence
    targets = Records(truth["targets"], truth["labels"], game.strangers.classes)
    return lined_up(game, targets, [found.found(place) for place in range(len(targets))], pool)


def lined_up(
    game: Game, targets: Records, answers: Sequence[Tensor], pool: Records
) -> tuple[LineupRow, Tensor]:
    """Every target has a release of its own, so that other targets are strangers, too."""
    key = game.key.fold("line-up")
    places = places_for(targets, torch.arange(len(targets)), game.strangers, key, held=pool)
    return line_up(places, answers, key, tests=_TESTS)


def _factors(game: Game, release: Weights, scores: TargetScores) -> dict[str, Tensor]:
    """What each released model makes of its own target."""
    fixed, truth = game.knowledge.fixed, scores.evidence
    assert fixed is not None  # the game is about what the adversary lacks of it
    own = Records(truth["targets"], truth["labels"], fixed.classes)
    return factors_of_own(game.recipe.architecture, release.parameters, own, fixed)


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

_STRANGERS = 800  # at least, if there are so many
_TESTS = 4  # attacks on weights that are trained here, at most
_DELTA = 1e-5  # at which epsilon is stated (Balle22)
_MEAN = "mean record"
_SNAPPED = "held record nearest to the reconstruction"
_FITTED: dict[str, Callable[..., Attack]] = {
    CLOSED_FORM.id: ClosedForm,
    CORRECTED.id: Residual,
    NOISE_AWARE.id: NoiseAware,
}
_KEYS = {"through-training": "through training"}  # attacks with randomness of their own


def _section(
    spec: AttackSpec,
    game: Game,
    found: Reconstruction,
    scores: TargetScores,
    lineup: LineupRow,
) -> Section:
    notes = [f"The adversary held {scores.metrics['pool']:,.0f} records of its own."]
    if scores.metrics["duplicates"]:
        notes.append(
            f"{scores.metrics['duplicates']:.0f} targets have a near-duplicate among the adversary's "
            "records. Nothing can be learned from attacking these; the rates leave them out."
        )
    simpler = {
        "mean_record_mse": float(scores.baselines[_MEAN].mse.mean()),
        "nearest_mse": float(scores.baselines[_SNAPPED].mse.mean()),
    }
    return targets_section(
        spec,
        game.knowledge.known(),
        found,
        scores,
        metrics=simpler,
        notes=notes,
        lineup=lineup,
        doubt=game.doubt or _unfinished(spec, found),
    )


def _unfinished(spec: AttackSpec, found: Reconstruction) -> str:
    if found.status.converged:
        return ""
    return f"{spec.name} did not arrive: {found.status.reason or 'it stopped early'}"
