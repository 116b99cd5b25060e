from __future__ import annotations

import subprocess
import sys
import textwrap
import weakref

import pytest
import torch

from exhume.core.contract import Key, Weights
from exhume.defences.rounding import Rounding
from exhume.models.mlp import MLP
from exhume.store.shards import FolderStore, NullStore
from exhume.train.fleet import chunk_for, train_fleet
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.train.stacked import LARGEST_CHUNK

MLP_ = MLP((6,), (5,), 3)
RECIPE = FullBatch(MLP_, Descent(steps=5))


def fleet(make_records, store, *, count=10, chunk=4, progress=lambda *_: None, seed=0):
    key = Key.from_seed(seed)
    fixed = make_records(12, (6,), 3, key.fold("fixed"))
    extra = make_records(count, (6,), 3, key.fold("extra")).one_each()
    return train_fleet(
        RECIPE,
        MLP_.initial(key),
        fixed,
        extra,
        key=key,
        store=store,
        chunk=chunk,
        stage="s",
        progress=progress,
    )


def test_chunks_come_in_order_and_equal_one_big_stack(make_records):
    chunks = list(fleet(make_records, NullStore()))
    assert [len(c) for c in chunks] == [4, 4, 2]
    whole = torch.cat(list(fleet(make_records, NullStore(), chunk=10)))
    torch.testing.assert_close(torch.cat(chunks), whole)


def test_finished_chunks_are_not_trained_again(make_records, tmp_path, monkeypatch):
    store = FolderStore(tmp_path)
    job = fleet(make_records, store)
    first = next(job)
    job.close()
    fits = []
    original = FullBatch.fit

    def counted(self, *args):
        fits.append(1)
        return original(self, *args)

    monkeypatch.setattr(FullBatch, "fit", counted)
    again = list(fleet(make_records, store))
    assert len(fits) == 2
    assert torch.equal(first, again[0])
    assert torch.equal(torch.cat(again), torch.cat(list(fleet(make_records, NullStore()))))


def test_other_data_is_other_work(make_records, tmp_path):
    store = FolderStore(tmp_path)
    first = torch.cat(list(fleet(make_records, store, seed=0)))
    second = torch.cat(list(fleet(make_records, store, seed=1)))
    assert not torch.equal(first, second)


def test_progress_counts_models(make_records):
    seen = []
    list(fleet(make_records, NullStore(), progress=lambda *call: seen.append(call)))
    assert seen == [("s", 0, 10), ("s", 4, 10), ("s", 8, 10), ("s", 10, 10)]


@pytest.mark.parametrize(("memory", "expected"), [(0, 1), (5000, 5), (10**9, LARGEST_CHUNK)])
def test_chunk_follows_memory(memory, expected):
    assert chunk_for(1000, memory) == expected


PEAK = textwrap.dedent(
    """
    import resource, sys, torch
    from pathlib import Path
    from exhume.core.contract import Key, Records
    from exhume.models.mlp import MLP
    from exhume.store.shards import FolderStore
    from exhume.train.fleet import train_fleet
    from exhume.train.recipe import FullBatch
    from exhume.train.optimisers import Descent
    torch.set_num_threads(1)
    count, mlp, key = int(sys.argv[1]), MLP((784,), (100,), 10), Key.from_seed(0)
    draw = lambda n: Records(torch.rand(n, 784), torch.zeros(n, dtype=torch.int64), tuple("0123456789"))
    job = train_fleet(FullBatch(mlp, Descent(steps=1)), mlp.initial(key), draw(50), draw(count).one_each(),
        key=key, store=FolderStore(Path(sys.argv[2])), chunk=16, stage="s")
    for _ in job:
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
)


def test_a_chunk_is_let_go_before_the_next(make_records):
    held, job = [], fleet(make_records, NullStore(), count=12, chunk=2)
    for _ in range(6):
        held.append(weakref.ref(next(job)))
        assert sum(chunk() is not None for chunk in held) <= 1


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_number_of_models(tmp_path):
    def peak(count: int) -> int:
        folder = str(tmp_path / str(count))
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(count), folder],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout) * 1024

    few, many = peak(64), peak(640)
    written = 576 * MLP((784,), (100,), 10).layout.size * 4  # what the extra models come to: 183 MB
    assert many - few < 0.15 * written


def test_what_is_only_rounded_after_training_is_trained_once(make_records, tmp_path, monkeypatch):
    key, store = Key.from_seed(0), FolderStore(tmp_path)
    plain = torch.cat(list(fleet(make_records, store)))
    monkeypatch.setattr(FullBatch, "fit", None)  # nothing is trained any more
    fixed = make_records(12, (6,), 3, key.fold("fixed"))
    extra = make_records(10, (6,), 3, key.fold("extra")).one_each()
    coarse = Rounding("int8")
    rounded = train_fleet(
        coarse.harden(RECIPE),
        *(MLP_.initial(key), fixed, extra),
        key=key,
        store=store,
        chunk=4,
        stage="s",
    )
    protected = coarse.protect(Weights(plain, MLP_.layout), key).parameters
    torch.testing.assert_close(torch.cat(list(rounded)), protected, rtol=0, atol=0)
