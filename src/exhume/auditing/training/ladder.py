"""Easier versions of a training: the same without its noise, or on fewer records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exhume.auditing.controls import RUNG_TARGETS, Ladder, Rung
from exhume.auditing.estimate import seconds_per_model_of
from exhume.auditing.training.game import (
    CLOSED_FORM,
    CORRECTED,
    NOISE_AWARE,
    THROUGH_TRAINING,
    attack_first,
    attack_targets,
    informed_game,
)
from exhume.auditing.training.release import TrainingRelease
from exhume.core.contract import Progress
from exhume.core.evidence import LineupRow
from exhume.report.folder import RunFolder
from exhume.settings import Settings

__all__ = ["training_ladder"]

_SHARES = (1 / 64, 1 / 16, 1 / 4)  # of the user's value
_HARDLY = 1e-3  # noise multiplier that hides nothing
_FEWEST = 4  # records besides the unknown one
_FITTED = (CLOSED_FORM, CORRECTED, NOISE_AWARE)


def training_ladder(release: TrainingRelease) -> Ladder:
    sizes, victim = release.settings.data, release.settings.victim
    if victim.dp_noise and release.ours:
        return _quieter(release, victim.dp_noise)
    counts = sorted({max(_FEWEST, int(share * sizes.fixed)) for share in _SHARES})
    rungs = [
        _rung(
            release,
            release.settings.with_values("data", fixed=count),
            f"{count + 1:,}",
            f"trained on {count + 1:,} records",
            count / sizes.fixed,
        )
        for count in counts
        if count < sizes.fixed
    ]
    own = f"{sizes.fixed + 1:,}"
    return Ladder("records trained on", own, f"trained on your {own}", tuple(rungs))


def _quieter(release: TrainingRelease, noise: float) -> Ladder:
    rungs = []
    for share in (min(_SHARES[0], _HARDLY / noise), *_SHARES):
        less = float(f"{share * noise:.2g}")
        settings = release.settings.with_values("victim", dp_noise=less)
        rungs.append(
            _rung(release, settings, f"{less:g}", f"with a noise multiplier of {less:g}", 1.0)
        )
    return Ladder("noise multiplier", f"{noise:g}", f"with your {noise:g}", tuple(rungs))


def _rung(
    release: TrainingRelease, settings: Settings, value: str, words: str, share: float
) -> Rung:
    """share: of the time that a model takes, where that is not counted."""
    targets = min(RUNG_TARGETS, settings.data.targets)
    settings = settings.with_values("data", targets=targets)

    def run(
        attacks: Sequence[str], folder: RunFolder, progress: Progress
    ) -> Mapping[str, LineupRow]:
        store = folder.store()
        game = informed_game(settings, release.records, store=store, progress=progress)
        found = [
            attack_targets(spec, game, settings, store=store, progress=progress)
            for spec in _FITTED
            if spec.id in attacks
        ]
        if THROUGH_TRAINING.id in attacks:
            found.append(attack_first(game, targets, store=store, progress=progress))
        rows = {one.section.spec.id: one.section.lineup for one in found}
        return {name: row for name, row in rows.items() if row is not None}

    each = seconds_per_model_of(release.recipe, settings.data.fixed, settings.machine.threads)
    if each is None:
        each = share * release.per_model
    seconds = each * (targets + settings.data.shadows)
    return Rung(value, words, seconds, run)
