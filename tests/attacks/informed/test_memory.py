"""Reconstructors in blocks: the same answers, and no more memory than is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from exhume import readers
from exhume.attacks.informed import shadows as memory
from exhume.attacks.informed.closed_form import READINGS, ClosedForm, ReadRows
from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.reconn import RecoNN, fit_features, refit_features
from exhume.attacks.informed.shadows import room_for
from exhume.auditing.plan import closed_form_bytes, reconn_bytes
from exhume.core.contract import Key, Knowledge
from exhume.models.mlp import MLP
from exhume.models.reconstructors import Dense
from exhume.readers import Sizes
from exhume.store.shards import NullStore
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each


@pytest.fixture
def in_blocks(monkeypatch):
    def lower(**limits):
        for name, value in limits.items():
            monkeypatch.setattr(memory.LIMITS, name, value)

    return lower


@pytest.fixture(scope="module")
def game():
    key, net = Key.from_seed(0), MLP((1, 8, 8), (8,), 10)
    parts = readers.split(readers.load("digits"), Sizes(100, 20, 300, 100, 0), key)
    recipe = FullBatch(net, Descent(30, momentum=0.9))
    initial = net.initial(key)
    common = {"key": key, "store": NullStore(), "chunk": 32}
    release, _ = release_one_each(recipe, initial, parts.fixed, parts.target, **common)
    known = Knowledge(
        recipe=recipe, initial=initial, fixed=parts.fixed, shadow=parts.shadow, public=parts.public
    )
    return known, release


SMALL = {"models": 1000, "whole": 1000, "block": 40_000}  # bytes


@pytest.mark.parametrize(
    "attack",
    [
        ClosedForm(chunk=32),
        RecoNN(Dense((64, 64)), Training(batch=32, epochs=6), chunk=32),
        RecoNN(Dense((64, 64)), Training(batch=32, epochs=6), chunk=32, span=True, inputs="delta"),
    ],
    ids=["closed form", "network", "network, span"],
)
def test_the_same_answers_in_blocks(attack, game, in_blocks, key):
    known, release = game

    def answers():
        found = attack.prepare(known, key=key, store=NullStore()).run(release)
        return found.candidates

    whole = answers()
    in_blocks(**SMALL)
    torch.testing.assert_close(answers(), whole, rtol=1e-3, atol=1e-3)


def test_products_in_blocks_are_the_products(in_blocks, key):
    net = MLP((7,), (5,), 3)
    base = net.initial(key)
    size = len(base)
    models = base + torch.randn(23, size, generator=key.generator())
    rows = torch.tensor([3, 1, 4, 15, 9, 2, 6, 5, 22])
    in_blocks(block=8 * 2 * size)
    for reading in READINGS:
        whole = reading.apply(models, base, net.layout)
        read = ReadRows(reading, models, rows, base, net.layout)
        assert [len(block) for _, block in read.blocks()] == [2, 2, 2, 2, 1]
        torch.testing.assert_close(read.gram(), whole[rows] @ whole[rows].T)
        torch.testing.assert_close(read.cross(whole), whole @ whole[rows].T)


@pytest.mark.parametrize("kind", ["parameters", "delta"])
def test_features_in_blocks_are_the_features(kind, in_blocks, key):
    base = torch.randn(12, generator=key.generator())
    models = base + 5 + torch.randn(40, 12, generator=key.fold("m").generator())
    rows = torch.randperm(40, generator=key.fold("r").generator())[:31]
    whole = fit_features(kind, models, base, rows, span=False)
    seen = whole.apply(models[rows])
    in_blocks(whole=0, block=4 * 12 * 3)
    blocked = fit_features(kind, models, base, rows, span=False)
    torch.testing.assert_close(blocked.of_rows(models, rows), seen, rtol=1e-4, atol=1e-5)
    again = refit_features(whole, models + 1, base + 1, rows)
    torch.testing.assert_close(again.of_rows(models + 1, rows), seen, rtol=1e-3, atol=1e-4)
    in_blocks(span=5)
    assert fit_features(kind, models, base, rows, span=True).size == 5


def test_many_models_lie_in_a_file(in_blocks, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    in_blocks(models=1000)
    found = room_for(10, 30, torch.zeros(1))
    found[:] = torch.arange(300.0).view(10, 30)
    assert found[7, 3] == 213
    assert list(tmp_path.iterdir()) == []  # nobody else sees it, and it ends with the process
    assert _mapped(str(tmp_path))
    assert not _mapped(str(tmp_path / "no such"))
    few = room_for(2, 30, torch.zeros(1))
    assert few.shape == (2, 30)


def _mapped(folder):
    return any(folder in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_the_papers_size_fits_an_ordinary_machine():
    """53,000 shadows of 55,208 parameters took 47 GB, and a Gram matrix of 18 GB."""
    closed = closed_form_bytes(53_000, 55_208, 59_000, 3072, 10, 5300)
    assert 3e9 < closed < 16e9
    network = reconn_bytes(53_000, 55_208, 3072, span=True, network=20_000_000)
    assert 3e9 < network < 16e9


PEAK = """
import threading, time, torch, sys
from exhume.attacks.informed import shadows as memory
from exhume.attacks.informed.shadows import LIMITS, room_for
from exhume.auditing.plan import closed_form_bytes
from exhume.attacks.informed.closed_form import _fit
from exhume.attacks.informed.shadows import Shadows
from exhume.core.contract import Records, Key
from exhume.models.mlp import MLP

torch.set_num_threads(1)
LIMITS.models = LIMITS.whole = 1 << 20
LIMITS.block = 4 << 20
s, classes, inputs, hidden = (int(value) for value in sys.argv[1:])
net = MLP((inputs,), (hidden,), classes)
base = net.initial(Key.from_seed(0))
models = room_for(s, len(base), base)
for row in models:
    row.copy_(base).add_(torch.randn_like(base), alpha=.01)
labels = torch.arange(s) % classes
records = Records(torch.rand(s, inputs), labels, tuple(str(i) for i in range(classes)))
shadows = Shadows(models, base, records, net.layout, 0.0)

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024

torch.linalg.eigh(torch.eye(9, dtype=torch.float64))
before, peak, ended = anonymous(), [0], []
def watch():
    while not ended:
        peak[0] = max(peak[0], anonymous())
        time.sleep(.01)
thread = threading.Thread(target=watch)
thread.start()
_fit(shadows, records, lambda *_: None)
ended.append(1)
thread.join()
bound = closed_form_bytes(s, len(base), s, inputs, classes, s // classes)
print(peak[0] - before, bound, 16 * s * len(base))
"""


@pytest.mark.slow  # two processes that import everything
@pytest.mark.parametrize(
    ("size", "ways"),
    [
        ((300, 3, 30, 900), 2),  # many parameters
        ((600, 300, 200, 20), 0),  # many classes
    ],
)
def test_the_peak_is_below_what_is_said(size, ways):
    given = [sys.executable, "-c", PEAK, *(str(value) for value in size)]
    done = subprocess.run(given, check=True, capture_output=True, text=True)
    peak, bound, before = (int(value) for value in done.stdout.split())
    assert peak < 1.1 * bound + (20 << 20)  # the allocator's own
    assert ways * bound < before
