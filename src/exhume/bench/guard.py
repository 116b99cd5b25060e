"""What the guard for updates takes, and what it lets through, beside the full audit of the same updates.

Updates of an MLP, a CNN and a text model at their own start, in batches of 1 to 8, bare or with noise. The
full audit says which of them leak: every attack, gradient matching included, lined up with the true records
among strangers. Controls are left out, as they only tell *no leak found* from *not audited*. An update is
defended where its noise is large, or the client private, and the audit identifies nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from exhume import readers
from exhume.auditing.attack import attack_case
from exhume.auditing.case import rows_of
from exhume.auditing.judge import holm_adjust
from exhume.auditing.kinds.update import UpdateCase
from exhume.auditing.kinds.update_files import Truth, updates_of_batches
from exhume.core.contract import Architecture, Gradient, Key, Progress, Records, Vocabulary, silent
from exhume.core.own_code import seeded_globals
from exhume.defences.release import NoiseRelease
from exhume.guard import Guard, GuardPolicy
from exhume.models.ordinary import convnet, fully_connected
from exhume.models.own import ModuleArchitecture
from exhume.models.own_texts import TextModel
from exhume.score.verdict import found_something
from exhume.settings import UpdateSettings
from exhume.store.shards import NullStore
from exhume.train.dp import Privacy
from exhume.train.local import Steps

_PRIVATE = Steps(privacy=Privacy(1.0, 1.0))
_WORDS, _LENGTH, _TEXTS = 500, 8, 2000


@dataclass(frozen=True)
class GuardCase:
    name: str
    batches: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    weak: tuple[float, ...] = (0.0, 1e-4, 1e-3, 1e-2)  # noise, over the update's root mean square
    strong: tuple[float, ...] = (20.0, 50.0, 100.0)
    matching: int = 200  # steps of the audit's gradient matching


CASES = (GuardCase("mlp"), GuardCase("cnn"), GuardCase("text"))


class _Classifier(nn.Module):
    """The mean of the words' vectors, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, 64)
        self.hidden, self.out = nn.Linear(64, 256), nn.Linear(256, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.out(torch.relu(self.hidden(self.embed(tokens).mean(1))))
        return outputs


def run(progress: Progress) -> list[dict[str, Any]]:
    """The entries, one a case."""
    entries = []
    for index, case in enumerate(CASES):
        progress("bench guard", index, len(CASES))
        entries.append(_measure(case))
    progress("bench guard", len(CASES), len(CASES))
    return entries


def _measure(case: GuardCase) -> dict[str, Any]:
    guard, ours, baseline = Guard(GuardPolicy()), [], []
    counts = dict.fromkeys(("leaking", "leaking_passed", "defended", "defended_passed"), 0)
    for update, strong in _updates(case):
        started = time.perf_counter()
        why = guard.leak_in(update.updates[0], silent)
        answered = time.perf_counter()
        leaks = _leaks(update)
        ours.append(answered - started)
        baseline.append(time.perf_counter() - answered)
        if leaks or strong:
            kind = "leaking" if leaks else "defended"
            counts[kind] += 1
            counts[f"{kind}_passed"] += not why
    return {
        "name": "guard",
        "case": case.name,
        "ours": median(ours),
        "baseline": median(baseline),
        "ratio": median(baseline) / median(ours),
        **counts,
        "ours_ms": 1000 * median(ours),
        "threads": torch.get_num_threads(),
    }


def _leaks(case: UpdateCase) -> bool:
    rows = rows_of(case)
    tests = sum(row.tests for row in rows)
    found = attack_case(case, rows, NullStore(), silent, tests=tests)
    return any(found_something(one.section) for one in holm_adjust(found, tests))


def _updates(case: GuardCase) -> Iterator[tuple[UpdateCase, bool]]:
    """One update each, with its true records and strangers, and whether it is strongly defended."""
    key = Key.from_seed(0).fold("bench guard", case.name)
    make, records = _SYSTEMS[case.name]()
    start = make.initial(key.fold("weights"))
    settings = UpdateSettings(update="made here", restarts=1, search_steps=case.matching)
    settings = replace(settings, seed=0, threads=torch.get_num_threads(), data="")
    kinds = [(noise, Steps()) for noise in (*case.weak, *case.strong)] + [(0.0, _PRIVATE)]
    for size, (noise, steps) in product(case.batches, kinds):
        drawn = key.fold(size, str(noise), str(steps.privacy))
        order = torch.randperm(len(records), generator=drawn.generator())
        (update,), private = updates_of_batches(
            make, start, records[order[:size]], size, steps=steps, key=drawn.fold("local")
        )
        if noise:
            gradient = NoiseRelease(noise).protect(update.gradient, drawn.fold("noise"))
            assert isinstance(gradient, Gradient)  # a defence keeps the kind of release
            update = replace(update, gradient=gradient, unexplained=1.0)
        truth = Truth(private, records[order[size : size + _TEXTS]])
        strong = noise >= min(case.strong, default=0.0) or steps is _PRIVATE
        yield UpdateCase(settings, [update], truth, ()), strong


def _images(make: Callable[[], nn.Module]) -> tuple[Architecture, Records]:
    records = readers.load("digits")
    with seeded_globals(Key.from_seed(0)):
        return ModuleArchitecture.of(make(), records.shape), records


def _texts() -> tuple[Architecture, Records]:
    """Words are drawn as in texts: the r-th with a chance of 1/r."""
    chance = 1 / torch.arange(1, _WORDS)
    generator = Key.from_seed(0).fold("texts").generator()
    tokens = 1 + torch.multinomial(
        chance.expand(_TEXTS, -1), _LENGTH, replacement=True, generator=generator
    )
    with seeded_globals(Key.from_seed(0)):
        network = TextModel.of(_Classifier(), _LENGTH)
    return network, Records(tokens, tokens[:, 0] % 4, tuple("abcd"), Vocabulary())


_SYSTEMS: dict[str, Callable[[], tuple[Architecture, Records]]] = {
    "mlp": lambda: _images(lambda: fully_connected(64, 128, 10)),
    "cnn": lambda: _images(lambda: convnet(1, 8, 16, 32)),
    "text": _texts,
}
