"""The audit of a split network: what is written, what the verdict says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from exhume.auditing import audit
from exhume.auditing.kinds import split, split_attackers
from exhume.auditing.kinds.split_defence import secret_key
from exhume.auditing.kinds.split_files import read_split
from exhume.auditing.kinds.split_words import depth_sentence
from exhume.cli import app
from exhume.core.contract import ExhumeError, Key, silent
from exhume.core.results import read_result
from exhume.models.split.parts import load_pipeline
from exhume.report.folder import RunFolder
from exhume.settings import Brief

pytestmark = pytest.mark.xdist_group("split audits")
ALONE = ("as-sent", "shadow", "own-form", "lookalike", "matched", "head-known")
FEW = ("as-sent", "shadow", "matched", "head-known")


def other(settings, name):
    return settings.model.replace(":net", f":{name}")


def command(settings, out, *options, model=""):
    base = ["audit-split", model or settings.model, "--data", settings.data, "--channels", "4"]
    base += ["--targets", str(settings.targets), "--batch", "32", "--first", "0"]
    return CliRunner().invoke(app, [*base, "--out", str(out), *options])


# One audit of two depths, by everyone


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    """Shadows of one epoch."""
    return audit(Brief.of(settings), tmp_path_factory.mktemp("whole") / "run")


def test_everyone_attacks_the_depth_in_use_and_a_few_the_others(whole):
    result = json.loads((whole.folder / "result.json").read_text())
    assert [a["id"] for a in result["attacks"]] == [
        *(f"after-0-{name}" for name in ALONE),
        *(f"after-1-{name}" for name in FEW),
    ]
    assert [a["counts"] for a in result["attacks"]] == [*[True] * 5, *[False] * 5]
    assert result["charts"][0]["series"].keys() == {*ALONE, "mean image"}


def test_what_is_known_of_the_network(whole):
    facts = whole.result.victim
    assert facts["test_accuracy"] > 0.9
    assert facts["bytes_up_per_input"] == 3 * 8 * 8 * 4


def test_a_weak_attacker_proves_nothing(whole):
    """Who knows the head needs no shadow: a secret alone protects, whatever shadows have learned."""
    assert whole.verdict.word == "at risk"
    first = whole.result.attacks[0]
    shadow = next(one for one in whole.result.attacks if one.spec.id == "after-0-shadow")
    assert "so they are no attackers; raise --attack-epochs" in shadow.doubt
    assert any(note.startswith("Without a defence, ") for note in first.notes)
    assert first.lineup.targets == 12
    assert first.metrics["success"] == first.leak.share == first.lineup.share


def test_the_page_shows_inputs_beside_what_came_back(whole):
    page = whole.report.read_text()
    assert "Inputs recognised" in page
    assert page.count("<img") >= 2 * 12 * (len(ALONE) + len(FEW)) - 12 * 2  # one does not apply


@pytest.mark.slow
def test_the_same_again_has_the_same_numbers(whole, settings):
    assert audit(Brief.of(settings), whole.folder).metrics == whole.metrics


# Words


def test_what_only_a_secret_head_protects_is_at_risk(settings, tmp_path, only):
    only("shadow", "head-known")
    options = ["--weights", settings.weights, "--attack-epochs", "25", "--redact"]
    gated = command(settings, tmp_path / "run", *options, "--fail-on", "at-risk")
    assert gated.exit_code == 1, gated.output
    assert "the verdict is 'at risk'" in gated.stderr
    result = read_result(tmp_path / "run" / "result.json")
    assert result.verdict.word == "at risk"
    assert "an adversary who also knows the client's head gets" in result.verdict.sentence
    bound = result.attacks[-1]
    assert (bound.counts, bound.knows_more) == (False, "the client's head")
    assert bound.lineup.share > 0.5
    notes = " ".join(note for one in result.attacks for note in one.notes)
    assert "An adversary who knew the client's head would get" in notes
    assert "No other depth was tried." in notes
    assert "<img" not in (tmp_path / "run" / "report-redacted.html").read_text()


def test_a_head_that_sends_the_input_leaks(settings, tmp_path, only):
    """Whatever the shadows learn, and though it was never trained: somebody looks at what is sent."""
    only("as-sent", "shadow", "lookalike")
    plain = other(settings, "identity")
    options = ["--attack-epochs", "1", "--fail-over", "0.3"]
    done = command(settings, tmp_path / "run", *options, model=plain)
    assert done.exit_code == 1, done.output
    assert "The release leaks: 12 of 12 records" in done.stdout
    result = read_result(tmp_path / "run" / "result.json")
    assert result.strongest.spec.id == "after-0-as-sent"
    (lookalike,) = (row for row in result.plan if row.id == "after-0-lookalike")
    assert not lookalike.run
    assert lookalike.why.endswith("the client's head has no convolution")


@pytest.mark.parametrize("head", ["negative", "random_convolution"])
def test_a_head_that_hides_nothing_leaks(head, settings, tmp_path, only):
    only("as-sent", "lookalike")
    plain = replace(settings, model=other(settings, head), weights="", first=("0",))
    done = audit(Brief.of(plain), tmp_path / "run")
    assert done.verdict.word == "leaks"
    runs = {row.id: row.run for row in done.result.plan}
    assert runs["after-0-lookalike"] == (head == "random_convolution")
    if head == "negative":
        assert done.result.strongest.spec.id == "after-0-as-sent"
        assert done.leak.share > 0.9


def test_silence_counts_after_a_shallower_cut_gave_everything_away(settings, tmp_path, only):
    only("as-sent", "head-known")
    hiding = replace(settings, model=other(settings, "hiding"), weights="", first=("1",))
    hiding = replace(hiding, targets=30)  # with fewer nothing would have been noticed
    done = audit(Brief.of(hiding), tmp_path / "run")
    assert done.verdict.word == "no leak found"
    assert "identifies 16 of 16 after 0" in done.verdict.sentence
    assert done.result.reach[0].respect == "last layer of the client's head"


def test_a_crippled_attack_finds_no_safety(settings, tmp_path, only):
    """The same network, which hides everything, by shadows that did not learn."""
    only("as-sent", "shadow", "head-known")
    hiding = replace(settings, model=other(settings, "hiding"), weights="", first=("1",))
    done = audit(Brief.of(hiding), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert "raise --attack-epochs" in done.verdict.sentence


def test_silence_of_an_untrained_network_says_nothing(settings, tmp_path, only):
    only("shadow")
    done = audit(Brief.of(replace(settings, weights="", first=("0",))), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert "after 0, the network names" in done.verdict.sentence
    assert "it was not trained" in done.verdict.sentence


def test_depths_in_words():
    assert depth_sentence({"a": "leaks"}) == "No other depth was tried."
    words = {"a": "leaks", "b": "no leak found", "c": "not audited", "d": "no leak found"}
    assert depth_sentence(words) == (
        "Without a defence, it leaks after a; nothing came back, which alone proves nothing, after b, d; "
        "nothing can be said after c."
    )


# Defences


def test_a_defence_is_trained_attacked_costed_and_kept(settings, records, tmp_path, monkeypatch):
    monkeypatch.setattr(split, "FEW", ("as-sent",))
    defended = replace(settings, first=("0",), defend="ensembler")
    done = audit(Brief.of(defended), tmp_path / "run")
    attacks = done.result.attacks
    lines = [one.spec.id.removeprefix("after-0-with-ensembler-") for one in attacks[1:]]
    several = ("adaptive", "own-form", "lookalike", "matched")
    assert lines == ["as-sent", "body-1", "body-2", *several, "head-known"]
    facts = done.result.victim
    assert facts["defended_bytes_up_per_input"] == 2 * facts["bytes_up_per_input"]
    assert facts["bodies"] == 2
    assert "The defence costs" in " ".join(note for one in attacks for note in one.notes)
    client, server = (tmp_path / "run" / "defence" / side for side in ("client", "server"))
    kept = load_pipeline(client, server, factory=settings.model)
    own = read_split(defended, records).parts.test
    assert kept.accuracy(own.inputs, own.labels) == facts["defended_accuracy"]
    assert (done.folder / "secret.key").exists()


def test_every_run_draws_its_own_key(tmp_path):
    keys = set()
    for name in ("one", "two", "one"):
        with RunFolder.claimed(tmp_path / name, resume_anyway=False, progress=silent) as folder:
            keys.add(secret_key(folder))
    assert len(keys) == 2


def test_a_defence_that_was_not_trained_is_not_audited(settings, tmp_path, monkeypatch, only):
    """What holds for it says nothing about one that is trained."""
    only("shadow")
    monkeypatch.setattr(split, "secret_key", lambda folder: Key.from_seed(1))
    defended = replace(settings, first=("0",), defend="single", rate=1e-6, targets=30)
    done = audit(Brief.of(defended), tmp_path / "run")
    assert done.result.attacks[1].spec.id == "after-0-with-single-shadow"
    assert done.verdict.word == "not audited"
    assert "after 0 with single, the network names" in done.verdict.sentence
    assert "it was not trained, so that what holds for it says nothing" in done.verdict.sentence


@pytest.mark.slow
@pytest.mark.parametrize("defence", ["single", "shredder", "dropout", "dropout-ensemble"])
def test_every_defence_has_a_name(defence, settings, tmp_path, only):
    only("as-sent", "head-known")
    brief = Brief.of(replace(settings, first=("0",), defend=defence))
    done = audit(brief, tmp_path / "run")
    assert done.result.attacks[2].spec.id == f"after-0-with-{defence}-as-sent"
    assert audit(brief, tmp_path / "run").metrics == done.metrics  # by the key in the folder


def test_a_killed_run_ends_with_the_same_numbers(settings, tmp_path, monkeypatch, only):
    only("as-sent", "shadow")
    one = Brief.of(replace(settings, first=("0",)))
    whole = audit(one, tmp_path / "whole")
    calls = iter(range(100))

    def dies(*args, **kwargs):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    real = split_attackers.recognise
    monkeypatch.setattr(split_attackers, "recognise", dies)
    with pytest.raises(KeyboardInterrupt):
        audit(one, tmp_path / "killed")
    monkeypatch.setattr(split_attackers, "recognise", real)
    assert audit(one, tmp_path / "killed").metrics == whole.metrics
    with pytest.raises(ExhumeError, match="holds a run with other settings"):
        audit(Brief.of(replace(settings, first=("1",))), tmp_path / "killed")


def test_a_finished_module_cannot_be_trained_afresh(settings, tmp_path):
    fixed = replace(
        settings, model=other(settings, "same"), weights="", first=("0",), defend="single"
    )
    with pytest.raises(ExhumeError, match="gives the same weights at every call"):
        audit(Brief.of(fixed), tmp_path / "run")
    few = replace(settings, defend="ensembler", bodies=2, selected=3)
    with pytest.raises(ExhumeError, match="3 of 2 bodies; legal is 1 <= P <= N"):
        audit(Brief.of(few), tmp_path / "run")
    assert not (tmp_path / "run").exists()
