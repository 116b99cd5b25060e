from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from planted_data import says

from exhume.core.contract import ExhumeError, Progress
from exhume.readers import catalogue, fetch, load, pairs
from exhume.readers.images import Pixels
from exhume.readers.named import SETS, Route
from exhume.readers.sentences import TextPairs
from exhume.store.download import SourceUnreachable

TINY = Pixels(
    torch.arange(8, dtype=torch.uint8).reshape(2, 1, 2, 2), torch.tensor([0, 1]), ("a", "b")
)
OTHER = replace(TINY, values=TINY.values + 1)


Plant = Callable[..., None]


@dataclass
class Planted:
    """A source that answers, does not, or sends other bytes."""

    trouble: Exception | None = None
    asked: int = 0

    def bring(self, folder: Path, progress: Progress) -> None:
        self.asked += 1
        (folder / "half").write_bytes(b"x")
        if self.trouble:
            raise self.trouble


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files of a fetch go where a test can see that none is left."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    def into(*routes: tuple[Planted, Pixels], name: str = "mnist", pin: bool = True) -> None:
        known = replace(
            SETS[name],
            routes=tuple(Route(o, lambda _, p=p: p.content()) for o, p in routes),
            digest=TINY.content().digest() if pin else None,
        )
        monkeypatch.setitem(SETS, name, known)

    return into


def test_first_source_that_answers(plant: Plant, no_user_cache: Path, scratch: Path) -> None:
    down, up, spare = Planted(SourceUnreachable("nobody")), Planted(), Planted()
    plant((down, TINY), (up, TINY), (spare, TINY))
    records = load("mnist")
    assert torch.equal(records.inputs * 255, TINY.values.float())
    assert (down.asked, up.asked, spare.asked) == (1, 1, 0)
    assert [p.name for p in no_user_cache.iterdir()] == ["mnist.safetensors"]
    assert not list(scratch.iterdir())


def test_second_time_from_the_cache(plant: Plant, no_user_cache: Path) -> None:
    origin = Planted()
    plant((origin, TINY))
    path = fetch("mnist")
    assert path == no_user_cache / "mnist.safetensors"
    first, second = load("mnist"), load("mnist")
    assert torch.equal(first.inputs, second.inputs)
    assert fetch("mnist") == path
    assert origin.asked == 1


def test_own_cache_folder(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant((Planted(), TINY))
    monkeypatch.setenv("EXHUME_CACHE", str(tmp_path / "mine"))
    assert fetch("mnist") == tmp_path / "mine" / "mnist.safetensors"
    assert [named.name for named in catalogue() if named.cached] == ["mnist"]
    monkeypatch.setenv("EXHUME_CACHE", str(tmp_path / "other"))
    assert not any(named.cached for named in catalogue())


def test_corrupt_download_ends_the_search(plant: Plant, no_user_cache: Path, scratch: Path) -> None:
    spare = Planted()
    plant((Planted(ExhumeError("file.gz: does not match")), TINY), (spare, TINY))
    assert says(lambda: load("mnist")) == "file.gz: does not match"
    assert spare.asked == 0
    assert not no_user_cache.exists()
    assert not list(scratch.iterdir())


def test_other_content_is_thrown_away(plant: Plant, no_user_cache: Path, scratch: Path) -> None:
    plant((Planted(), OTHER))
    text = says(lambda: load("mnist"))
    assert text.startswith("mnist: the content read from")
    assert "is not the pinned one and was thrown away" in text
    assert not no_user_cache.exists()
    assert not list(scratch.iterdir())


def test_altered_cache_is_refused_and_fetch_replaces_it(plant: Plant) -> None:
    plant((Planted(), OTHER), pin=False)
    path = fetch("mnist")
    plant((Planted(), TINY))
    text = says(lambda: load("mnist"))
    assert text.startswith(f"{path}: this cache file is damaged or was altered")
    assert "exhume data fetch mnist" in text
    fetch("mnist")
    assert torch.equal(load("mnist").inputs * 255, TINY.values.float())


def test_nothing_reachable(plant: Plant) -> None:
    plant(
        (Planted(SourceUnreachable("web: nobody")), TINY),
        (Planted(SourceUnreachable("pip: nobody")), TINY),
    )
    text = says(lambda: load("mnist"))
    assert text.startswith("mnist: no source can be reached (web: nobody; pip: nobody); download")
    assert text.endswith("pass mnist:FOLDER")


@pytest.mark.parametrize("name", SETS)
def test_every_set_says_what_to_do(plant: Plant, name: str) -> None:
    plant((Planted(SourceUnreachable("nobody")), TINY), name=name)
    text = says(lambda: fetch(name))
    assert text == f"{name}: no source can be reached (nobody); {SETS[name].by_hand}"


def test_celeba_has_no_source() -> None:
    text = says(lambda: load("celeba-hq"))
    assert text.startswith("celeba-hq: no source can be reached; ask its owners")


def test_digits_need_no_network(no_user_cache: Path) -> None:
    for _ in range(2):
        records = load("digits")
        assert records.inputs.shape == (1797, 1, 8, 8)
        assert (records.inputs.min(), records.inputs.max()) == (0, 1)
        assert torch.equal(records.labels.unique(), torch.arange(10))
    assert (no_user_cache / "digits.safetensors").is_file()


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    text = says(lambda: load("digits"))
    assert "(scikit-learn is not installed); install scikit-learn" in text


def test_pairs_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    text = TextPairs(("Go.",), ("Va !",), ("en", "fr"))
    known = replace(
        SETS["en-fr"], routes=(Route(Planted(), lambda _: text.content()),), digest=None
    )
    monkeypatch.setitem(SETS, "en-fr", known)
    assert pairs("en-fr") == text
    assert pairs("en-fr") == text


def test_catalogue() -> None:
    names = [named.name for named in catalogue()]
    assert names == ["mnist", "cifar10", "faces", "digits", "cifar100", "celeba-hq", "en-fr"]
    for named in catalogue():
        assert named.description
        assert named.source
        assert named.records > 0
        assert not named.cached


def test_progress(plant: Plant) -> None:
    plant((Planted(), TINY))
    calls: list[tuple[str, int, int]] = []
    load("mnist", progress=lambda *call: calls.append(call))
    assert calls == [("read mnist", 0, 1), ("read mnist", 1, 1)]


def test_fetch_of_an_unknown_name() -> None:
    text = says(lambda: fetch("cifar-10"))
    assert text.startswith("no such data: 'cifar-10'; did you mean 'cifar10'? legal are mnist,")
