"""The fixes that apply to weights that are trained here, and to clients' updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from exhume.auditing.acts import Act, TrainingAct, UpdateAct
from exhume.auditing.findings import Findings
from exhume.auditing.fixes import Fix, Tried
from exhume.auditing.split.release import SplitAct
from exhume.auditing.training.game import (
    Game,
    audit_informed,
    audit_private,
    dealt,
    informed_game,
    start_of,
)
from exhume.auditing.updates.attack import attack_updates
from exhume.auditing.updates.reading import Case
from exhume.contract import (
    ExhumeError,
    Gradient,
    Key,
    Progress,
    ReleaseDefence,
    Store,
    Weights,
)
from exhume.defences.release import NoiseRelease, PruneRelease, QuantiseRelease
from exhume.defences.rounding import Rounding
from exhume.report.folder import RunFolder
from exhume.score.verdict import gravest
from exhume.settings import Settings
from exhume.train.dp import noise_for_epsilon
from exhume.train.functional import accuracy, own_gradients
from exhume.train.recipe import FullBatch

__all__ = ["fixes_for"]

_EPSILONS = (1e2, 1e4, 10.0)  # the first is tried first
_SAMPLE = 64  # records whose gradients choose the clip


def fixes_for(acts: Sequence[Act], found: Sequence[Findings]) -> list[Fix]:
    """Of everything that leaks."""
    leaking = {
        one.section["release"] for one in found if one.counts and one.verdict.word == "leaks"
    }
    return [
        replace(fix, release=act.title) for act in acts if act.title in leaking for fix in _of(act)
    ]


def _of(act: Act) -> list[Fix]:
    """Of a file as it is there are none: nothing can be trained again."""
    if isinstance(act, TrainingAct):
        return _of_training(act)
    if isinstance(act, UpdateAct):
        return _of_updates(act) if act.truth is not None else []
    return act.fixes() if isinstance(act, SplitAct) else []


# Weights


def _of_training(act: TrainingAct) -> list[Fix]:
    settings = act.settings
    sizes = settings.data
    again = act.per_model * (sizes.targets + sizes.shadows)
    fixes = [
        Fix(
            "int8",
            "weights released as 8-bit integers",
            "none",
            "accuracy",
            act.per_model * sizes.shadows,
            lambda folder, progress: _rounded(act, folder.store(), progress),
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
                act.per_model * sizes.shadows,
                lambda folder, progress: _secret_start(act, folder.store(), progress),
                short="secret start",
            )
        )
    if isinstance(act.recipe, FullBatch) and not act.recipe.privacy.noise:
        clip = _clip(act)
        steps = act.recipe.descent.steps
        fixes += [_private(act, clip, epsilon, steps, 6 * again) for epsilon in _EPSILONS]
    return fixes


def _private(act: TrainingAct, clip: float, epsilon: float, steps: int, seconds: float) -> Fix:
    noise = float(f"{noise_for_epsilon(epsilon, steps):.2g}")
    settings = act.settings.with_values("victim", dp_clip=clip, dp_noise=noise)

    def run(folder: RunFolder, progress: Progress) -> Tried:
        game = informed_game(settings, act.records, store=folder.store(), progress=progress)
        return _measured(
            act, game, settings, audit_private, store=folder.store(), progress=progress
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


def _clip(act: TrainingAct) -> float:
    """The median norm of some records' gradients at the start, to two digits."""
    architecture = act.recipe.architecture
    start = start_of(act.settings, act.recipe, Key.from_seed(act.settings.seed))
    some = act.records[:_SAMPLE]
    each = own_gradients(architecture, start.expand(len(some), -1), some.one_each())
    return float(f"{float(each.norm(dim=1).median()):.2g}")


def _secret_start(act: TrainingAct, store: Store, progress: Progress) -> Tried:
    game = act.game(store, progress)
    guess = act.recipe.architecture.initial(game.key.fold("a start of the adversary's own"))
    assert game.knowledge.initial is not None  # an informed adversary has one
    unknowing = replace(game.knowledge, initial=guess.to(game.knowledge.initial))
    told = replace(game, knowledge=unknowing)
    return _measured(act, told, act.settings, audit_informed, store=store, progress=progress)


def _rounded(act: TrainingAct, store: Store, progress: Progress) -> Tried:
    game, rounding = act.game(store, progress), Rounding("int8")
    release, secret = game.victim
    protected = rounding.protect(release, game.key)
    assert isinstance(protected, Weights)  # a defence keeps the kind of release
    assert game.knowledge.recipe is not None  # an informed adversary has it
    told = replace(
        game,
        victim=(protected, secret),
        knowledge=replace(game.knowledge, recipe=rounding.harden(game.knowledge.recipe)),
    )
    test = dealt(act.settings, act.records).test
    kept = None
    if len(test):
        right = accuracy(act.recipe.architecture, protected.parameters[:50], test)
        kept = float(right.mean())
    return _measured(
        act, told, act.settings, audit_informed, store=store, progress=progress, kept=kept
    )


def _measured(
    act: TrainingAct,
    game: Game,
    settings: Settings,
    how: Callable[..., Findings],
    *,
    store: Store,
    progress: Progress,
    kept: float | None = None,
) -> Tried:
    """kept: accuracy under the fix; None: as the game says."""
    found = how(game, settings, store=store, progress=progress)
    metrics = found.metrics
    if "success" not in metrics:
        raise ExhumeError(found.verdict.sentence)
    trials = int(metrics["targets"] - metrics["duplicates"])
    before = act.game(store, progress).facts.get("test_accuracy")
    return Tried(
        round(metrics["success"] * trials),
        trials,
        found.verdict.word,
        _number(game.facts.get("test_accuracy")) if kept is None else kept,
        _number(before),
    )


def _number(value: str | float | None) -> float | None:
    return None if value is None else float(value)


# Updates

_ON_UPDATES: tuple[tuple[str, str, ReleaseDefence], ...] = (
    ("noise-0.01", "noise of 1% of the update's size", NoiseRelease(0.01)),
    ("noise-1", "noise as large as the update", NoiseRelease(1.0)),
    ("4-bit", "updates in 4 bits", QuantiseRelease(4)),
    ("pruned", "only the largest 1% of the update's values", PruneRelease(0.99)),
)


def _of_updates(act: UpdateAct) -> list[Fix]:
    def fix(name: str, words: str, defence: ReleaseDefence) -> Fix:
        return Fix(
            name,
            words,
            "none",
            "likeness to the true update",
            act.seconds,
            lambda folder, progress: _protected(act, name, defence, folder, progress),
            short=name,
        )

    return [fix(*one) for one in _ON_UPDATES]


def _protected(
    act: UpdateAct, name: str, defence: ReleaseDefence, folder: RunFolder, progress: Progress
) -> Tried:
    key = Key.from_seed(act.settings.seed).fold("fix", name)
    cases, alike = [], []
    for place, case in enumerate(act.cases):
        safer = defence.protect(case.gradient, key.fold(place))
        assert isinstance(safer, Gradient)  # a defence keeps the kind of release
        cases.append(replace(case, gradient=safer))
        pair = safer.values[0], case.gradient.values[0]
        alike.append(float(torch.cosine_similarity(*pair, dim=0)))
    found = attack_updates(act.settings, cases, act.truth, folder, progress)
    best = max(found, key=lambda one: one.share(cases))
    records = _records(cases)
    return Tried(
        round(best.share(cases) * records),
        records,
        gravest([one.verdict for one in found]).word,
        sum(alike) / len(alike),
        1.0,
    )


def _records(cases: Sequence[Case]) -> int:
    return sum(case.batch_size or 1 for case in cases)
