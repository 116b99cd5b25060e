"""Weights trained the user's way, against an adversary who knows every record but one (Balle22)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from exhume import readers
from exhume.auditing.cost import seconds_per_model
from exhume.choices import as_known, device_named, moved, recipe_for, sizes_for
from exhume.core.contract import Key, Knowledge, Progress, Recipe, Records, Store, Weights, silent
from exhume.core.results import Facts
from exhume.defences.rounding import Rounding
from exhume.readers.adapters import release_of_file
from exhume.settings import Settings
from exhume.train.dp import epsilon
from exhume.train.functional import accuracy
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch
from exhume.victims.informed import Victim, release_one_each

_STRANGERS = 800  # at least, if there are so many
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
    doubt: str = ""  # why silence of any attack would say nothing

    @property
    def accuracy(self) -> float | None:
        """Of the released models; None: no record was left to measure it with."""
        share = self.facts.get("test_accuracy")
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
        **_accuracy("test_accuracy", recipe, victim[0].parameters, parts.test),
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
    return Game(victim, facts, recipe, knowledge, key, rows, strangers, doubt)


def rounded(game: Game, rounding: Rounding) -> Game:
    """With released weights that are rounded, by an adversary who knows it."""
    weights, secret = game.victim
    protected = rounding.protect(weights, game.key)
    assert isinstance(protected, Weights)  # a defence keeps the kind of release
    assert game.knowledge.recipe is not None  # an informed adversary has it
    knowledge = replace(game.knowledge, recipe=rounding.harden(game.knowledge.recipe))
    return replace(game, victim=(protected, secret), knowledge=knowledge)


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
    found = release_of_file(Path(settings.victim.start), recipe.architecture)
    return found.release.parameters[0]


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
