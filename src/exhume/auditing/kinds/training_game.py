"""Weights trained the user's way, against an adversary who knows every record but one (Balle22)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from exhume import readers
from exhume.auditing.plan import seconds_per_model
from exhume.choices import Trains, as_known, device_named, moved, recipe_for, sizes_for
from exhume.core.contract import Key, Knowledge, Progress, Recipe, Records, Store, Weights, silent
from exhume.core.evidence import Premise
from exhume.core.results import Facts
from exhume.defences.rounding import Rounding
from exhume.readers.adapters import weights_in
from exhume.settings import Settings
from exhume.train.dp import epsilon
from exhume.train.functional import accuracy, logits
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch
from exhume.victims.informed import Victim, first_of, release_one_each

_STRANGERS = 800  # at least, if there are so many
_RETRAINED = 4  # targets that are trained on once more
_ROUNDING = 1e-5  # of the weights' size: spread of training that repeats itself
_SPREADS = 3.0
_DELTA = 1e-5  # at which epsilon is stated (Balle22)


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
    initial: Tensor  # (p,) where training started
    doubt: str = ""  # why silence of any attack would say nothing
    rounding: Rounding | None = None  # of the weights before they are released

    @cached_property
    def premise(self) -> Premise:
        """Whether training on a target once more ends where the release did, up to training's own spread."""
        known, (release, secret) = self.knowledge, first_of(self.victim, _RETRAINED)
        recipe = self.recipe if self.rounding is None else self.rounding.harden(self.recipe)
        assert known.fixed is not None  # the game is about what the adversary lacks of it
        start, fixed, copies = self.initial, known.fixed, known.copies or 1
        targets, key = secret.open(), self.key.fold("premise")
        once, twice = (
            recipe.fit(start, fixed, targets.one_each(copies), key.fold(turn)) for turn in range(2)
        )
        others = Records.joined([self.strangers, fixed])[: len(targets)].one_each(copies)
        swapped = recipe.fit(start, fixed, others, key.fold(0))
        spread = (once - twice).norm(dim=1).clamp_min(_ROUNDING * float(once.norm(dim=1).max()))
        value, stranger = (
            float(((ended - release.parameters).norm(dim=1) / spread).median())
            for ended in (once, swapped)
        )
        holds = value <= _SPREADS
        sentence = "Training on the true record again gives the released weights"
        sentence += (
            ", up to training's own spread."
            if holds
            else f" only up to {value:.2g} times its spread."
        )
        why = "" if holds else f"{sentence[0].lower()}{sentence[1:].rstrip('.')}"
        what = "distance of weights trained again from those released, in spreads of training"
        return Premise(what, value, _SPREADS, holds, stranger, sentence, why)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the released models; None: no record was left to measure it with."""
        share = self.facts.get("test_accuracy", self.facts.get("test_variance_explained"))
        return None if share is None else float(share)


def split_roles(settings: Settings, records: Records) -> readers.RecordsByRole:
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
    copies: int = 1,
) -> Game:
    """Deal out the records, train the victims, and write down what the adversary knows.

    initial: (p,) where training starts; None draws it. copies: times that each target is trained on.
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
        copies=copies,
        progress=progress,
    )
    facts: Facts = {
        "architecture": str(recipe.architecture),
        **({"start": Path(settings.victim.start).name} if settings.victim.start else {}),
        "training": str(recipe),
        "records": len(parts.fixed) + copies,
        "released_models": len(parts.target),
        **private,
        **_repeats(recipe, initial, parts.fixed, key),
        **_accuracy(recipe, victim[0].parameters, parts.test),
    }
    knowledge = Knowledge(
        architecture=recipe.architecture,
        recipe=as_known(recipe, settings),
        initial=initial,
        fixed=parts.fixed,
        shadow=parts.shadow,
        public=parts.public,
        copies=copies if copies > 1 else None,
    )
    sizes = sizes_for(len(records), settings)
    rows = readers.places(len(records), sizes, key.fold("split"))[1]  # the targets'
    doubt = _outside(recipe, initial, parts.fixed, key)
    strangers = _strangers(settings, records)
    return Game(victim, facts, recipe, knowledge, key, rows, strangers, initial, doubt)


def rounded(game: Game, rounding: Rounding) -> Game:
    """With released weights that are rounded, by an adversary who knows it."""
    weights, secret = game.victim
    protected = rounding.protect(weights, game.key)
    assert isinstance(protected, Weights)  # a defence keeps the kind of release
    assert game.knowledge.recipe is not None  # an informed adversary has it
    knowledge = replace(game.knowledge, recipe=rounding.harden(game.knowledge.recipe))
    return replace(game, victim=(protected, secret), knowledge=knowledge, rounding=rounding)


def without_start(game: Game) -> Game:
    """With an adversary who guesses where training started."""
    guess = game.recipe.architecture.initial(game.key.fold("a start of the adversary's own"))
    assert game.knowledge.initial is not None  # an informed adversary has one
    known = replace(game.knowledge, initial=guess.to(game.knowledge.initial))
    return replace(game, knowledge=known)


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
    return weights_in(Path(settings.victim.start), recipe.architecture)


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
    """Whether the user's own training ends with the same bits when it is done again."""
    if not isinstance(recipe, OwnTraining):
        return {}
    same = recipe.repeats(initial, fixed, key.fold("repeats"))
    return {"deterministic": "yes" if same else "no: the adversary's shadows differ by chance, too"}


def _accuracy(recipe: Trains, parameters: Tensor, records: Records) -> dict[str, float]:
    """How good the released models are; of a regression the share of the target's variance."""
    if not len(records):
        return {}
    network, some = recipe.architecture, parameters[:50]
    if not recipe.objective.of_numbers:
        return {"test_accuracy": float(accuracy(network, some, records).mean())}
    wanted = records.inputs[:, -1]
    answers = logits(network, some, recipe.objective.seen(records.inputs))[:, :, 0]
    lost = (answers - wanted).square().mean(1) / wanted.var(unbiased=False).clamp_min(1e-12)
    return {"test_variance_explained": float(1 - lost.mean())}


def model_seconds(settings: Settings, records: Records, store: Store) -> float:
    """Estimated, of training one model."""
    recipe, key = recipe_for(settings, records), Key.from_seed(settings.seed)
    return seconds_per_model(
        recipe,
        split_roles(settings, records).fixed,
        threads=settings.machine.threads,
        initial=start_of(settings, recipe, key),
        key=key,
        store=store,
    )
