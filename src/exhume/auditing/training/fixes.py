"""What could stop weights that are trained here from leaking."""

from __future__ import annotations

from dataclasses import replace

from exhume.auditing.fixes import Fix, Tried
from exhume.auditing.training.game import (
    CLOSED_FORM,
    NOISE_AWARE,
    Game,
    attack_targets,
    informed_game,
    split_roles,
    start_of,
)
from exhume.auditing.training.release import TrainingRelease
from exhume.core.contract import ExhumeError, Key, Progress, Store, Weights
from exhume.core.results import AttackSpec
from exhume.defences.rounding import Rounding
from exhume.report.folder import RunFolder
from exhume.settings import Settings
from exhume.train.dp import noise_for_epsilon
from exhume.train.functional import accuracy, own_gradients
from exhume.train.recipe import FullBatch

__all__ = ["training_fixes"]

_EPSILONS = (1e2, 1e4, 10.0)  # the first is tried first
_SAMPLE = 64  # records whose gradients choose the clip


def training_fixes(release: TrainingRelease) -> list[Fix]:
    settings = release.settings
    sizes = settings.data
    again = release.per_model * (sizes.targets + sizes.shadows)
    fixes = [
        Fix(
            "int8",
            "weights released as 8-bit integers",
            "none",
            "accuracy",
            release.per_model * sizes.shadows,
            lambda folder, progress: _rounded(release, folder.store(), progress),
            short="8-bit integers",
        ),
    ]
    if not settings.victim.start:  # a base that others have, too, is no secret
        fixes.append(
            Fix(
                "secret-start",
                "initial weights that stay secret",
                "none; an adversary who guesses the start is not ruled out",
                "accuracy",
                release.per_model * sizes.shadows,
                lambda folder, progress: _secret_start(release, folder.store(), progress),
                short="secret start",
                secret=True,
            )
        )
    if isinstance(release.recipe, FullBatch) and not release.recipe.privacy.noise:
        clip = _clip(release)
        steps = release.recipe.descent.steps
        fixes += [_private(release, clip, epsilon, steps, 6 * again) for epsilon in _EPSILONS]
    return fixes


def _private(
    release: TrainingRelease, clip: float, epsilon: float, steps: int, seconds: float
) -> Fix:
    noise = float(f"{noise_for_epsilon(epsilon, steps):.2g}")
    settings = release.settings.with_values("victim", dp_clip=clip, dp_noise=noise)

    def run(folder: RunFolder, progress: Progress) -> Tried:
        game = informed_game(settings, release.records, store=folder.store(), progress=progress)
        return _measured(
            release, game, settings, NOISE_AWARE, store=folder.store(), progress=progress
        )

    return Fix(
        f"private-{epsilon:g}",
        f"private training, noise multiplier {noise:g}, clip {clip:g} (epsilon {epsilon:g})",
        f"epsilon about {epsilon:g} at delta 1e-5",
        "accuracy",
        seconds,
        run,
        short=f"private, epsilon {epsilon:g}",
    )


def _clip(release: TrainingRelease) -> float:
    """The median norm of some records' gradients at the start, to two digits."""
    architecture = release.recipe.architecture
    start = start_of(release.settings, release.recipe, Key.from_seed(release.settings.seed))
    some = release.records[:_SAMPLE]
    each = own_gradients(architecture, start.expand(len(some), -1), some.one_each())
    return float(f"{float(each.norm(dim=1).median()):.2g}")


def _secret_start(release: TrainingRelease, store: Store, progress: Progress) -> Tried:
    game = release.game(store, progress)
    guess = release.recipe.architecture.initial(game.key.fold("a start of the adversary's own"))
    assert game.knowledge.initial is not None  # an informed adversary has one
    unknowing = replace(game.knowledge, initial=guess.to(game.knowledge.initial))
    changed = replace(game, knowledge=unknowing)
    return _measured(
        release, changed, release.settings, CLOSED_FORM, store=store, progress=progress
    )


def _rounded(release: TrainingRelease, store: Store, progress: Progress) -> Tried:
    game, rounding = release.game(store, progress), Rounding("int8")
    weights, secret = game.victim
    protected = rounding.protect(weights, game.key)
    assert isinstance(protected, Weights)  # a defence keeps the kind of release
    assert game.knowledge.recipe is not None  # an informed adversary has it
    changed = replace(
        game,
        victim=(protected, secret),
        knowledge=replace(game.knowledge, recipe=rounding.harden(game.knowledge.recipe)),
    )
    test = split_roles(release.settings, release.records).test
    kept = None
    if len(test):
        right = accuracy(release.recipe.architecture, protected.parameters[:50], test)
        kept = float(right.mean())
    return _measured(
        release,
        changed,
        release.settings,
        CLOSED_FORM,
        store=store,
        progress=progress,
        kept=kept,
    )


def _measured(
    release: TrainingRelease,
    game: Game,
    settings: Settings,
    spec: AttackSpec,
    *,
    store: Store,
    progress: Progress,
    kept: float | None = None,
) -> Tried:
    """kept: accuracy under the fix; None: as the game says."""
    found = attack_targets(spec, game, settings, store=store, progress=progress)
    if found.section.leak is None:
        raise ExhumeError(found.verdict.sentence)
    before = release.game(store, progress).facts.get("test_accuracy")
    return Tried(
        [found],
        found.section.leak,
        _number(game.facts.get("test_accuracy")) if kept is None else kept,
        _number(before),
    )


def _number(value: str | float | None) -> float | None:
    return None if value is None else float(value)
