"""Easier updates of the same model: without their noise, or of fewer records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from exhume.auditing.controls import RUNG_TARGETS, Ladder, Rung
from exhume.auditing.updates.lineups import Truth
from exhume.auditing.updates.made import cases_of
from exhume.auditing.updates.release import UpdateRelease, attack_updates
from exhume.core.contract import ExhumeError, Gradient, Key, Progress
from exhume.core.evidence import LineupRow
from exhume.defences.release import NoiseRelease
from exhume.report.folder import RunFolder

__all__ = ["update_ladder"]

_SHARES = (0.0, 1 / 16, 1 / 4)  # of the noise


def update_ladder(release: UpdateRelease) -> Ladder | None:
    """Of records that no client had. None: there are no such records."""
    if release.truth is None or not len(release.truth.others):
        return None
    size = max(case.batch_size or 1 for case in release.cases)
    noise = max(case.noise for case in release.cases)
    if noise:
        rungs = [_rung(release, size, share * noise) for share in _SHARES]
        own = f"{noise:.2g}"
        return Ladder("noise beside the update", own, f"with your {own}", tuple(rungs))
    sizes = [2**power for power in range(12) if 2**power < size]
    words = f"at your batch of {size}"
    rungs = [_rung(release, fewer, 0.0) for fewer in sizes]
    return Ladder("records in a batch", str(size), words, tuple(rungs))


def _rung(release: UpdateRelease, size: int, noise: float) -> Rung:
    value, words = str(size), f"at a batch of {size}"
    if max(case.noise for case in release.cases):
        value = f"{noise:.2g}"
        words = f"with noise of {noise:.2g} times the update" if noise else "without the noise"
    count = max(1, RUNG_TARGETS // size)

    def run(
        attacks: Sequence[str], folder: RunFolder, progress: Progress
    ) -> Mapping[str, LineupRow]:
        easier = _easier(release, count, size, noise)
        found = attack_updates(easier, folder, progress, only=attacks)
        rows = {one.section.spec.id: one.section.lineup for one in found}
        return {name: row for name, row in rows.items() if row is not None}

    return Rung(value, words, release.seconds / len(release.cases) * count, run)


def _easier(release: UpdateRelease, count: int, size: int, noise: float) -> UpdateRelease:
    """As many batches of so many records, at the weights that the client was sent."""
    assert release.truth is not None  # or there were no ladder
    others, case = release.truth.others, release.cases[0]
    key = Key.from_seed(release.settings.seed).fold("control", size, f"{noise:.6g}")
    needed = count * size
    if 2 * needed > len(others):
        raise ExhumeError(
            f"{needed} other records and strangers are needed, there are {len(others)}"
        )
    order = torch.randperm(len(others), generator=key.generator())
    cases, private = cases_of(
        case.architecture, case.start(), others[order[:needed]], size, steps=case.steps
    )
    if noise:
        cases = [
            replace(one, gradient=_noisy(one.gradient, noise, key.fold(place)), noise=noise)
            for place, one in enumerate(cases)
        ]
    cases = [replace(one, vocabulary=case.vocabulary, averaged=case.averaged) for one in cases]
    return replace(release, cases=cases, truth=Truth(private, others[order[needed:]]))


def _noisy(gradient: Gradient, noise: float, key: Key) -> Gradient:
    protected = NoiseRelease(noise).protect(gradient, key)
    assert isinstance(protected, Gradient)  # a defence keeps the kind of release
    return protected
