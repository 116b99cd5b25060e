from __future__ import annotations

import tomllib

import pytest

from exhume.core.contract import ExhumeError
from exhume.settings import Brief
from exhume.settings.reference import KINDS, brief_file


def test_without_sections_weights_are_released():
    brief = Brief.from_mapping({})
    assert brief.weights
    assert brief.checkpoint is None
    assert brief.update is None
    assert brief.budget.seconds is None


def test_data_and_model_are_said_once():
    brief = Brief.from_mapping(
        {
            "seed": 3,
            "budget": "10m",
            "data": {"source": "digits"},
            "victim": {"network": "net.py:make", "released": False},
            "update": {"batch_size": 2},
            "checkpoint": {"file": "a.safetensors", "rows": "0:10"},
        }
    ).resolved()
    assert not brief.weights
    assert (brief.update.model, brief.update.data, brief.update.seed) == (
        "net.py:make",
        "digits",
        3,
    )
    assert (brief.update.made, brief.update.batch_size) == (4, 2)
    assert (brief.checkpoint.checkpoint, brief.checkpoint.trained_on) == ("a.safetensors", "digits")
    assert brief.budget.seconds == 600


EVERYTHING = {
    "seed": 3,
    "data": {"source": "digits"},
    "machine": {"threads": 2},
    "victim": {"network": "net.py:make"},
    "checkpoint": {"file": "a.pt", "rows": "0:10", "trained_on": "photos/", "seed": 8},
    "update": {"made": 1, "batch_size": 2, "data": "faces", "seed": 9, "threads": 4},
    "split": {"data": "cifar10", "seed": 10},
    "fitted": {"file": "a.skops"},
}


def test_what_a_section_says_itself_holds_for_it():
    brief = Brief.from_mapping(EVERYTHING).resolved()
    assert (brief.checkpoint.seed, brief.update.seed, brief.split.seed) == (8, 9, 10)
    assert (brief.checkpoint.threads, brief.update.threads, brief.split.threads) == (2, 4, 2)
    assert (brief.checkpoint.trained_on, brief.update.data, brief.split.data) == (
        "photos/",
        "faces",
        "cifar10",
    )


def test_options_win_over_the_file_for_every_release():
    brief = Brief.from_mapping(EVERYTHING).with_options(seed=7, data="mnist", threads=1).resolved()
    assert (brief.settings.seed, brief.settings.machine.threads) == (7, 1)
    assert brief.settings.data.source == "mnist"
    for release in (brief.checkpoint, brief.update, brief.split):
        assert (release.seed, release.threads) == (7, 1)
    assert brief.checkpoint.trained_on == brief.update.data == brief.split.data == "mnist"
    same = Brief.from_mapping(EVERYTHING).with_options()
    assert same == Brief.from_mapping(EVERYTHING)


def test_nothing_is_resolved_before_the_run():
    brief = Brief.from_mapping({"data": {"source": "digits"}, "update": {}})
    assert brief.update.seed is None
    assert brief.update.data is None
    assert "seed = 0\n" in brief.toml()
    assert brief.toml().count("seed") == 1
    assert (
        Brief.from_mapping({"checkpoint": {"file": "a.pt"}}).resolved().checkpoint.trained_on == ""
    )


def test_a_brief_is_its_file():
    given = {
        "data": {"source": "digits"},
        "victim": {"hidden": [3, 4]},
        "update": {"made": 1, "batch_size": 2, "shape": [1, 8, 8]},
        "checkpoint": {"file": "a.pt"},
        "budget": {"time": "2m", "fixes": True},
    }
    brief = Brief.from_mapping(given)
    assert Brief.from_mapping(tomllib.loads(brief.toml())) == brief
    assert Brief.from_mapping(tomllib.loads(brief.resolved().toml())) == brief.resolved()
    assert Brief.from_mapping(tomllib.loads(brief.toml({"update_update": "ab"}))) == brief


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"chekpoint": {"file": "x"}}, "unknown key 'chekpoint'"),
        ({"checkpoint": {"fil": "x"}}, "checkpoint: no file is named"),
        ({"checkpoint": {"file": "x", "row": "1"}}, "unknown key 'row'; did you mean 'rows'"),
        ({"checkpoint": "x"}, "checkpoint: a section is needed here, got 'x'"),
        ({"update": {"made": 2.5}}, "made: a whole number is needed, got 2.5"),
        ({"update": {"made": 2, "update": "f"}}, "made: updates are given, or made here, not both"),
        ({"split": {"first": "a"}}, "split: no network is named; write model ="),
        ({"split": {"model": "a:b", "first": [1]}}, "first: a text or a list of texts is needed"),
        ({"fitted": {"targets": -1}}, "targets: -1 given, at least 0 needed"),
        ({"update": {"budget": 9.0}}, "the key 'budget' is now called 'search_seconds'"),
        ({"budget": "soon"}, "'soon' is not a time"),
        ({"budget": {"fixes": 1}}, "fixes: true or false is needed, got 1"),
    ],
)
def test_mistakes_are_named(given, sentence):
    with pytest.raises(ExhumeError, match=sentence):
        Brief.from_mapping(given).resolved()


@pytest.mark.parametrize("release", KINDS)
@pytest.mark.parametrize("model", ["mlp", "net.py:make"])
def test_the_file_that_init_writes_says_what_was_asked(release, model):
    text = brief_file(release, data="digits", model=model, checkpoint="w.pt", budget="5m")
    brief = Brief.from_mapping(tomllib.loads(text))
    assert brief.weights == (release == "training")
    assert (brief.checkpoint is not None) == (release == "checkpoint")
    assert (brief.update is not None) == (release == "updates")
    assert (brief.split is not None) == (release == "features")
    assert (brief.fitted is not None) == (release == "fitted")
    assert brief.settings.data.source == "digits"
    assert brief.budget.seconds == 300
    assert brief.budget.fixes
    if release == "updates" and model != "mlp":
        assert brief.update.model == model
        said = tomllib.loads(
            text.replace("# vocabulary", "vocabulary").replace("# length", "length")
        )
        update = Brief.from_mapping(said).update
        assert (update.vocabulary, update.length) == ("vocab.txt", 64)
    assert all(len(line) < 120 for line in text.splitlines())


def test_an_unknown_kind_of_release_is_refused():
    with pytest.raises(
        ExhumeError,
        match="'x' is not known; known: training, checkpoint, updates, features, fitted",
    ):
        brief_file("x", data="digits", model="mlp", checkpoint="", budget="5m")
