"""What could stop trained weights from leaking: each a training that is safer, or weights that say less."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from exhume.auditing.case import Fix, Safer
from exhume.auditing.kinds.training_game import split_roles, start_of
from exhume.choices import recipe_for
from exhume.core.contract import ExhumeError, Key, Progress
from exhume.defences.rounding import Rounding
from exhume.report.folder import RunFolder
from exhume.train.dp import noise_for_epsilon
from exhume.train.functional import accuracy, own_gradients
from exhume.train.recipe import FullBatch

if TYPE_CHECKING:
    from exhume.auditing.kinds.training import TrainingCase

_EPSILONS = (1e2, 1e4, 10.0)  # of private training; the first is tried first
_SAMPLE = 64  # records whose gradients choose the clip
_ONLY, _KEPT = ("closed-form",), "accuracy"


def fixes_of(case: TrainingCase) -> list[Fix]:
    """Rounding trains nothing anew; what is private has shadow models of its own."""
    sizes = case.settings.data
    shadows = case.per_model * sizes.shadows
    words = "weights released as 8-bit integers"

    def rounded(folder: RunFolder, progress: Progress) -> Safer:
        return _rounded(case, folder, progress)

    fixes = [
        Fix("int8", words, "none", _KEPT, case.fitting, rounded, _ONLY, short="8-bit integers")
    ]
    if not case.settings.victim.start:  # a base that others have, too, is no secret
        words = "initial weights that stay secret"
        promise = "none; an adversary who guesses the start is not ruled out"

        def secret(folder: RunFolder, progress: Progress) -> Safer:
            hidden = replace(case, hides_start=True, game=None)
            return _safer(case, hidden.made(folder, progress))

        fixes.append(
            Fix(
                *("secret-start", words, promise, _KEPT, shadows, secret, _ONLY),
                short="secret start",
                secret=True,
            )
        )
    if isinstance(case.recipe, FullBatch) and not case.recipe.privacy.noise:
        clip, steps = _clip(case), case.recipe.descent.steps
        seconds = 6 * case.per_model * (sizes.targets + sizes.shadows)
        fixes += [_private(case, clip, epsilon, steps, seconds) for epsilon in _EPSILONS]
    elif not isinstance(case.recipe, FullBatch):
        words, promise = "private training", "epsilon, by its noise"
        fixes.append(Fix("private", words, promise, _KEPT, 0.0, _not_here, _ONLY, short=words))
    return fixes


def _not_here(_folder: RunFolder, _progress: Progress) -> Safer:
    raise ExhumeError(
        "here it is there for gradient descent on all records or on Poisson samples (optimiser gd, dp_clip, "
        "dp_noise, dp_sampling); for Adam and batches train with Opacus in a train function, whose guarantee "
        "exhume reads"
    )


def _safer(case: TrainingCase, guarded: TrainingCase, kept: float | None = None) -> Safer:
    """kept: accuracy under the fix; None: as the game says."""
    after, before = (one.played.accuracy for one in (guarded, case))
    return Safer(guarded, after if kept is None else kept, before)


def _private(case: TrainingCase, clip: float, epsilon: float, steps: int, seconds: float) -> Fix:
    noise = float(f"{noise_for_epsilon(epsilon, steps):.2g}")
    settings = case.settings.with_values("victim", dp_clip=clip, dp_noise=noise)

    def apply(folder: RunFolder, progress: Progress) -> Safer:
        recipe = recipe_for(settings, case.records)
        guarded = replace(case, settings=settings, recipe=recipe, game=None)
        return _safer(case, guarded.made(folder, progress))

    return Fix(
        f"private-{epsilon:g}",
        f"private training, noise multiplier {noise:g}, clip {clip:g} (epsilon {epsilon:g})",
        f"epsilon about {epsilon:g} at delta 1e-5",
        _KEPT,
        seconds,
        apply,
        ("noise-aware",),
        short=f"private, epsilon {epsilon:g}",
    )


def _clip(case: TrainingCase) -> float:
    """The median norm of some records' gradients at the start, to two digits."""
    architecture = case.recipe.architecture
    start = start_of(case.settings, case.recipe, Key.from_seed(case.settings.seed))
    some = case.records[:_SAMPLE]
    each = own_gradients(architecture, start.expand(len(some), -1), some.one_each())
    return float(f"{float(each.norm(dim=1).median()):.2g}")


def _rounded(case: TrainingCase, folder: RunFolder, progress: Progress) -> Safer:
    guarded = replace(case, rounding=Rounding("int8"), game=None).made(folder, progress)
    test, kept = split_roles(case.settings, case.records).test, None
    if len(test):
        released = guarded.played.victim[0].parameters[:50]
        kept = float(accuracy(case.recipe.architecture, released, test).mean())
    return _safer(case, guarded, kept)
