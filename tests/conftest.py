"""Runtime type checks where results and records are made, one thread per test process.

On nearly the whole package (EXHUME_TYPES=all, in `make test-all`) they cost 6 s a process and a tenth of all
tests. `auditing` and the rest of `core` take classes as arguments by protocols that cannot be checked.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from io import IOBase
from typing import IO

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some virtual machines claim AMX and then refuse its instructions: products in bf16 would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from beartype import BeartypeConf, BeartypeHintOverrides
from beartype.claw import beartype_packages

CHECKED = "core.contract store.shards score bounds victims"
if os.environ.get("EXHUME_TYPES") == "all":
    CHECKED += " settings store models train defences readers attacks report bench"
    CHECKED += " integrations"
CONF = BeartypeConf(
    claw_is_pep526=False,
    is_pep484_tower=True,  # a whole number is a float
    hint_overrides=BeartypeHintOverrides({IO[bytes]: IOBase}),  # io.BytesIO is no IO[bytes] to it
)
beartype_packages(tuple(f"exhume.{room}" for room in CHECKED.split()), conf=CONF)

import hypothesis
import pytest
import torch
from _pytest.nodeid import coerce_node_id

from exhume.core.contract import Key, Records, Shard

torch.set_num_threads(1)

# How long an example takes says nothing on a busy machine.
hypothesis.settings.register_profile("exhume", deadline=None)
hypothesis.settings.load_profile("exhume")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """pytest-xdist marks groups in a name that pytest 9 no longer reads: without this, groups are split."""
    if getattr(config.option, "loadgroup", False):
        for item in items:
            grouped = getattr(item, "_nodeid", "")
            if "@" in grouped and "@" not in item.nodeid:
                item._id = coerce_node_id(grouped)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Studies and audits choose as many threads as there are cores: with several workers these crawl."""
    monkeypatch.setattr("exhume.choices._cores", lambda: 1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def memory_given_back() -> Iterator[None]:
    """What the tests of a file freed goes back to the system; else a process keeps the most that one took."""
    yield
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.fixture
def key() -> Key:
    return Key.from_seed(0)


def blobs(count: int, shape: tuple[int, ...], classes: int, key: Key) -> Records:
    """Records in [0, 1] that differ by class and among themselves; every class is there."""
    generator = key.generator()
    labels = torch.arange(count) % classes
    centres = torch.rand(classes, *shape, generator=key.fold("centres").generator())
    noise = torch.rand(count, *shape, generator=generator)
    return Records(
        0.5 * centres[labels] + 0.5 * noise, labels, tuple(f"class {i}" for i in range(classes))
    )


@pytest.fixture
def make_records():
    """A function: (count, shape, classes, key) to Records."""
    return blobs


def mixtures(count: int, shape: tuple[int, ...], classes: int, key: Key) -> Records:
    """Records in [0, 1], each a mixture of twelve patterns and of any class: few numbers tell it all."""
    patterns = torch.rand(12, *shape, generator=key.fold("patterns").generator()) - 0.5
    amounts = torch.randn(count, 12, generator=key.fold("amounts").generator())
    inputs = 0.5 + 0.2 * torch.tensordot(amounts, patterns, 1)
    labels = torch.arange(count) % classes
    return Records(inputs.clamp(0, 1), labels, tuple(f"class {i}" for i in range(classes)))


@pytest.fixture(scope="session")
def make_mixtures():
    """A function: (count, shape, classes, key) to Records."""
    return mixtures


class Dying:
    """A store in memory that dies while it saves for the n-th time."""

    def __init__(self, at: int) -> None:
        self.kept, self.saves, self.at = {}, 0, at

    def load(self, address):
        return self.kept.get(address)

    def save(self, address, tensors):
        self.kept[address] = Shard({n: t.detach().clone() for n, t in tensors.items()})
        self.saves += 1
        if self.saves == self.at:
            raise KeyboardInterrupt


@pytest.fixture
def dying_store():
    return Dying
