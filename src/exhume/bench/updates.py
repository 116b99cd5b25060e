"""Seconds until an attack on an update is as good as a bar, against gradient matching.

`gradient`: the span attack, on a batch of digits. The bar is a PSNR of 30 dB. Matching gets steps in growing
numbers until it is there, or until they are used up; then its time is a lower bound and the entry says so.

`update`: exact features and decoding, on a CNN's update. The bar is the PSNR that matching ends with, which
takes its steps once. Decoding gets steps in growing numbers; `ours_all_tries` is the time of all of them.

Matching is given the batch size. Every try begins afresh, and the time of the last one counts. The truth
decides which that is; no attack sees it. The weights are the network's own start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exhume import readers
from exhume.attacks.gradient.features import FeatureDecoding
from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.span import SpanAttack
from exhume.bench.entries import each_case, entry, timed
from exhume.core.contract import Architecture, Attack, Key, Knowledge, Progress, Records
from exhume.core.own_code import seeded_globals
from exhume.models.ordinary import convnet
from exhume.models.own import ModuleArchitecture
from exhume.models.two_layer import TwoLayer
from exhume.score.batches import score_batches
from exhume.store.shards import NullStore
from exhume.victims.gradient import cut_batches, release_batches

_BAR = 30.0  # dB, mean over the batch
_REPEATS = 3  # of the span attack, the best kept


@dataclass(frozen=True)
class SpanCase:
    batch: int = 4
    width: int = 1000
    matching: tuple[int, ...] = (100, 400, 1600)  # steps of the baseline, until one is enough


@dataclass(frozen=True)
class DecodingCase:
    source: str = "cifar10"
    channels: tuple[int, int] = (32, 64)
    batch: int = 4
    matching: int = 2000  # steps of the baseline
    decoding: tuple[int, ...] = (25, 50, 100, 200, 400, 800)  # steps of ours, until one is enough


SPAN_CASES, DECODING_CASES = (SpanCase(),), (DecodingCase(),)


@dataclass(frozen=True)
class _Try:
    seconds: float
    psnr: float
    steps: int = 0


def run_span(progress: Progress) -> list[dict[str, Any]]:
    return each_case("gradient", SPAN_CASES, _measure_span, progress)


def run_decoding(progress: Progress) -> list[dict[str, Any]]:
    return each_case("update", DECODING_CASES, _measure_decoding, progress)


def _measure_span(case: SpanCase) -> dict[str, Any]:
    key = Key.from_seed(0).fold("bench gradient")
    picked = _drawn_batch("digits", case.batch, key)
    private = Records(picked.inputs.float(), picked.labels % 2, ("even", "odd"))
    network = TwoLayer(picked.shape, case.width, 1, "tanh")
    attacked = _attacker(network, private, key)
    ours = min((attacked(SpanAttack()) for _ in range(_REPEATS)), key=lambda each: each.seconds)
    tries = _until(
        _BAR, case.matching, lambda n: attacked(GradientMatching(steps=n, rate=0.1, restarts=1), n)
    )
    theirs = tries[-1]
    more = {
        "ours_psnr": ours.psnr,
        "baseline_psnr": theirs.psnr,
        "baseline_steps": theirs.steps,
        "baseline_reached": theirs.psnr >= _BAR,
        "bar": _BAR,
    }
    name = f"{case.batch} digits, {network}"
    return entry("gradient", name, ours.seconds, theirs.seconds, _REPEATS, more)


def _measure_decoding(case: DecodingCase) -> dict[str, Any]:
    key = Key.from_seed(0).fold("bench update")
    private = _drawn_batch(case.source, case.batch, key)
    with seeded_globals(key.fold("weights")):
        module = convnet(private.shape[0], private.shape[-1], *case.channels)
    attacked = _attacker(ModuleArchitecture.of(module, private.shape), private, key)
    theirs = attacked(
        GradientMatching(steps=case.matching, restarts=1, signed=True, variation=0.03, falls=1e-3)
    )
    tries = _until(theirs.psnr, case.decoding, lambda n: attacked(FeatureDecoding(steps=n), n))
    ours = tries[-1]
    more = {
        "ours_psnr": ours.psnr,
        "ours_steps": ours.steps,
        "ours_reached": ours.psnr >= theirs.psnr,
        "ours_all_tries": sum(each.seconds for each in tries),
        "baseline_psnr": theirs.psnr,
        "baseline_steps": case.matching,
    }
    first, second = case.channels
    name = f"{case.batch} of {case.source}, conv{first}-pool-conv{second}-pool-fc256-fc10"
    return entry("update", name, ours.seconds, theirs.seconds, 1, more)


def _drawn_batch(source: str, size: int, key: Key) -> Records:
    records = readers.load(source)
    return records[torch.randperm(len(records), generator=key.generator())[:size]]


def _attacker(network: Architecture, private: Records, key: Key) -> Callable[..., _Try]:
    """What an attack, with the steps that it takes, gets out of the update of these records."""
    batches = cut_batches(private, len(private))
    release, secret = release_batches(network, network.initial(key), batches)
    known = Knowledge(architecture=network, batch_size=len(private))

    def attacked(attack: Attack, steps: int = 0) -> _Try:
        prepared = attack.prepare(known, key=key, store=NullStore())
        seconds, answer = timed(lambda: prepared.run(release))
        return _Try(seconds, score_batches(secret, answer).metrics()["psnr"], steps)

    return attacked


def _until(bar: float, steps: Sequence[int], attacked: Callable[[int], _Try]) -> list[_Try]:
    """Tries with growing numbers of steps, up to the first that reaches the bar."""
    tries: list[_Try] = []
    for count in steps:
        tries.append(attacked(count))
        if tries[-1].psnr >= bar:
            break
    return tries
