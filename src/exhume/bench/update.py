"""Time to the PSNR that gradient matching ends with: exact features and decoding, on a CNN's update.

Matching takes its steps once and is given the batch size; the PSNR it ends with is the bar. Ours decodes with
growing numbers of steps, each tried afresh, until it is there: the time of that try counts, `ours_all_tries`
is that of all. The truth decides which time counts; neither attack sees it. Weights: torch's own start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from exhume import readers
from exhume.attacks.gradient.features import FeatureDecoding
from exhume.attacks.gradient.matching import GradientMatching
from exhume.bench.entries import each_case, entry, timed
from exhume.core.contract import Attack, Key, Knowledge, Progress, Records
from exhume.core.own_code import seeded_globals
from exhume.models.ordinary import convnet
from exhume.models.own import ModuleArchitecture
from exhume.score.batches import score_batches
from exhume.store.shards import NullStore
from exhume.victims.gradient import cut_batches, release_batches

__all__ = ["CASES", "Case", "run"]


@dataclass(frozen=True)
class Case:
    source: str = "cifar10"
    channels: tuple[int, int] = (32, 64)
    batch: int = 4
    matching: int = 2000  # steps of the baseline
    decoding: tuple[int, ...] = (25, 50, 100, 200, 400, 800)  # steps of ours, until one is enough


CASES = (Case(),)


def run(progress: Progress) -> list[dict[str, Any]]:
    return each_case("update", CASES, _measure, progress)


def _measure(case: Case) -> dict[str, Any]:
    key = Key.from_seed(0).fold("bench update")
    network, private = _client(case, key)
    release, secret = release_batches(network, network.initial(key), private)

    def attacked(attack: Attack, size: int | None) -> tuple[float, float]:
        known = Knowledge(architecture=network, batch_size=size)
        seconds, found = timed(
            lambda: attack.prepare(known, key=key, store=NullStore()).run(release)
        )
        return seconds, score_batches(secret, found).metrics()["psnr"]

    matching = GradientMatching(
        steps=case.matching, restarts=1, signed=True, variation=0.03, falls=1e-3
    )
    baseline, bar = attacked(matching, case.batch)
    tries: list[tuple[float, float]] = []
    for steps in case.decoding:
        tries.append(attacked(FeatureDecoding(steps=steps), None))
        if tries[-1][1] >= bar:
            break
    ours, reached = tries[-1]
    more = {
        "ours_psnr": reached,
        "ours_steps": steps,
        "ours_reached": reached >= bar,
        "ours_all_tries": sum(seconds for seconds, _ in tries),
        "baseline_psnr": bar,
        "baseline_steps": case.matching,
    }
    first, second = case.channels
    name = f"{case.batch} of {case.source}, conv{first}-pool-conv{second}-pool-fc256-fc10"
    return entry("update", name, ours, baseline, 1, more)


def _client(case: Case, key: Key) -> tuple[ModuleArchitecture, Records]:
    """A network at torch's start, and one batch of the set."""
    records = readers.load(case.source)
    picked = torch.randperm(len(records), generator=key.generator())[: case.batch]
    with seeded_globals(key.fold("weights")):
        module = convnet(records.shape[0], records.shape[-1], *case.channels)
    network = ModuleArchitecture.of(module, records.shape)
    return network, cut_batches(records[picked], case.batch)
