"""Other packages bring in kinds of release and rows of attacks: examples/plugin, installed and audited."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import exhume
from exhume import readers
from exhume.auditing.case import added_kind, rows_of
from exhume.cli import app
from exhume.core.contract import ExhumeError
from exhume.core.results import AttackSpec
from exhume.settings import Brief

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"
UPDATE = {"made": 10, "batch_size": 1, "search_steps": 2, "restarts": 1}


@contextmanager
def importable(folder):
    """The folder's modules and metadata, for as long as it lasts."""
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    invalidate_caches()
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        invalidate_caches()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the example's package installed, records, and their vectors."""
    place = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, place / "source")
    quick = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-compile")
    words = [sys.executable, "-m", "pip", "install", *quick, "--target", "site", "./source"]
    subprocess.run(words, cwd=place, check=True, capture_output=True)
    digits, generator = readers.load("digits")[:900], np.random.default_rng(0)
    flat = digits.inputs.flatten(1).numpy()
    np.savez(place / "few.npz", x=digits.inputs.numpy(), y=digits.labels.numpy())
    vectors = np.tanh(flat @ generator.normal(size=(64, 48)) / 4)
    np.save(place / "vectors.npy", vectors.astype("float32"))
    np.save(place / "noise.npy", generator.normal(size=(900, 48)).astype("float32"))
    with importable(place / "site"):
        yield place


def brief(place, vectors="vectors.npy", **more):
    data = {"source": str(place / "few.npz")}
    embeddings = {"vectors": str(place / vectors)}
    return {"data": data, "machine": {"threads": 1}, "embeddings": embeddings, **more}


@pytest.fixture(scope="module")
def both(installed):
    victim = {"hidden": [24], "released": False}
    return exhume.audit(brief(installed, victim=victim, update=UPDATE), out=installed / "run")


def test_a_row_of_another_package_is_attacked_with_and_lined_up(both):
    sections = {section.spec.id: section for section in both.result.attacks}
    added = sections["leading-directions"]
    assert added.counts
    assert added.lineup.identified == added.lineup.targets == 10
    assert added.verdict == "leaks"
    decided = [section for section in both.result.attacks if section.lineup is not None]
    assert all(section.lineup.adjusted >= section.lineup.p for section in decided)


def test_a_kind_of_another_package_gets_its_verdict_from_the_engine(both):
    row = next(row for row in both.result.releases if row.kind == "embeddings")
    assert (row.name, row.word) == ("the vector store", "leaks")
    assert row.leak.share > 0.9
    assert (both.folder / "report.html").exists()
    config = (both.folder / "config.toml").read_text()
    assert "[embeddings]" in config
    assert "exhume-vectors 0.1.0" in config  # another version is another run


def test_silence_about_it_is_earned_on_its_ladder(installed):
    done = exhume.audit(brief(installed, "noise.npy"), out=installed / "silent")
    assert done.verdict.word == "no leak found"
    works = {row.value: row.works for row in done.result.controls}
    assert works["64"]
    assert not all(works.values())


def test_its_settings_are_checked_written_and_planned_like_others(installed, monkeypatch):
    monkeypatch.chdir(installed)
    with pytest.raises(ExhumeError, match="vector.*did you mean 'vectors'"):
        Brief.from_mapping({"embeddings": {"vector": "vectors.npy"}})
    made = CliRunner().invoke(
        app, "init a.toml --release embeddings --data few.npz --budget 10m".split()
    )
    assert made.exit_code == 0, made.output
    planned = CliRunner().invoke(app, "audit a.toml --dry-run --json --threads 1".split())
    assert planned.exit_code == 0, planned.output
    (release,) = json.loads(planned.stdout)["releases"]
    assert release["kind"] == "embeddings"
    assert [attack["id"] for attack in release["attacks"]] == ["ridge"]
    gone = brief(installed, "gone.npy")["embeddings"]
    Path("gone.toml").write_text(f'[embeddings]\nvectors = "{gone["vectors"]}"\n')
    assert CliRunner().invoke(app, ["audit", "gone.toml"]).exit_code == 2


def test_a_kind_that_nobody_brings_is_an_unknown_key():
    with pytest.raises(ExhumeError, match="unknown key 'nobodys'"):
        Brief.from_mapping({"nobodys": {}})
    done = CliRunner().invoke(app, ["init", "a.toml", "--release", "nobodys"])
    assert done.exit_code == 2


# What does not keep to the rules


def package(folder, group, name, code):
    """A package with one entry point, as if it were installed there."""
    number = len(list(folder.glob("*.dist-info")))
    info = folder / f"odd{number}-0.{number}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: odd{number}\nVersion: 0.{number}\n"
    )
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = odd_module{number}:thing\n")
    (folder / f"odd_module{number}.py").write_text(code)


class Named:
    """A case as far as rows go."""

    kind_name = "odd"

    @staticmethod
    def rows():
        from exhume.auditing.case import Row

        return [Row(AttackSpec("span", "Span"), None, "")]


_ROW = "from exhume.auditing.case import Row\nfrom exhume.core.results import AttackSpec\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError"),
        ("raise KeyError('x')", "KeyError"),
        ("other = 1", "AttributeError"),
        ("def thing(case): return case.gone", "it raised AttributeError"),
        ("thing = 3", "a function from a case to rows is needed"),
        ("def thing(case): return ['row']", "gives a str, not a Row"),
        (
            f"{_ROW}def thing(case): return [Row(AttackSpec('span', ''), None, '')]",
            "'span' already",
        ),
    ],
)
def test_broken_rows_are_one_sentence_with_the_packages_name(tmp_path, code, why):
    package(tmp_path, "exhume.attacks", "odd", code)
    with importable(tmp_path), pytest.raises(ExhumeError, match=f"package odd0 0.0: .*{why}"):
        rows_of(Named())


@pytest.mark.parametrize("code", ["thing = 3", "1 / 0", "class thing: section = int"])
def test_a_broken_kind_is_one_sentence_with_the_packages_name(tmp_path, code):
    package(tmp_path, "exhume.kinds", "odd", code)
    with importable(tmp_path):
        with pytest.raises(ExhumeError, match="package odd0 0.0: exhume.kinds: odd = "):
            Brief.from_mapping({"odd": {}})
        with pytest.raises(ExhumeError, match="package odd0 0.0"):
            added_kind("odd")


def test_two_packages_cannot_bring_the_same_kind(tmp_path):
    for _ in range(2):
        package(tmp_path, "exhume.kinds", "odd", "thing = 3")
    with importable(tmp_path), pytest.raises(ExhumeError, match=r"odd0 0\.0 and odd1 0\.1 both"):
        Brief.from_mapping({"odd": {}})


@pytest.mark.parametrize("name", ["update", "weights", "victim", "budget"])
def test_a_kind_with_a_name_of_ours_is_refused(tmp_path, name):
    package(tmp_path, "exhume.kinds", name, "thing = 3")
    with (
        importable(tmp_path),
        pytest.raises(ExhumeError, match=f"package odd0 0.0: exhume.kinds: {name} = .*own"),
    ):
        exhume.audit({"data": {"source": "digits"}}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_for_a_kind_whose_name_is_misspelt_are_refused(tmp_path):
    package(tmp_path, "exhume.attacks", "updates", "thing = 3")
    given = {"data": {"source": "digits"}}
    with (
        importable(tmp_path),
        pytest.raises(ExhumeError, match="package odd0 0.0: exhume.attacks: .*mean 'update'"),
    ):
        exhume.audit(given, out=tmp_path / "run")


def test_a_kind_that_init_would_hide_is_refused(tmp_path):
    package(tmp_path, "exhume.kinds", "updates", "thing = 3")
    with importable(tmp_path):
        done = CliRunner().invoke(app, ["init", str(tmp_path / "a.toml"), "--release", "updates"])
    assert done.exit_code == 2
    assert "package odd0 0.0: exhume.kinds: updates = " in done.stderr


_CASE = """
from exhume.auditing.case import Case, Kind
from exhume.settings import ReleaseSettings

class OddSettings(ReleaseSettings): ...

class Odd(Case):
    kind_name, title = "odd", "it"
    def resolved(self, brief, store): return self
    def inputs(self): ...
    def rows(self): return []
    def questions(self, row): return []
    def seats(self, row, answers): ...
    def score(self, row, answers, ranks): ...
    def _mine(self): ...
{more}

thing = Kind({case}, "Odd", lambda brief, load: None, OddSettings)
"""


def odd(more="", case="Odd"):
    return _CASE.format(more=more, case=case)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (odd("    def ladder(self): return []"), r"Odd.ladder \(did you mean 'ladders'\?\)"),
        (odd("    @staticmethod\n    def zyx(): ..."), r"Odd.zyx \(known: as_records, charts"),
        (odd("class Odder(Odd):\n    def fix(self): ...", "Odder"), "Odder.fix .*'fixes'"),
        (odd("    rows = Case.rows"), "Odd does not define rows"),
        (odd("class Strange: ...", "Strange"), "no class made from Case"),
        (odd(case="3"), "no class made from Case"),
    ],
)
def test_what_the_engine_would_pass_over_is_one_sentence_with_the_packages_name(
    tmp_path, code, why
):
    package(tmp_path, "exhume.kinds", "odd", code)
    with importable(tmp_path), pytest.raises(ExhumeError, match=f"package odd0 0.0: .*{why}"):
        added_kind("odd")


def test_a_case_with_methods_of_its_own_is_taken(tmp_path):
    package(tmp_path, "exhume.kinds", "odd", odd())
    with importable(tmp_path):
        assert added_kind("odd").name == "odd"
