"""The audit of a split network: what is written, what the verdict says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from exhume.auditing import audit
from exhume.auditing.split import cut, release
from exhume.auditing.split.defended import secret_key
from exhume.auditing.split.reading import read_split
from exhume.auditing.split.words import depth_sentence
from exhume.cli import app
from exhume.contract import ExhumeError, Key, silent
from exhume.models.split.parts import load_pipeline
from exhume.report.folder import RunFolder
from exhume.settings import Brief

ALONE = ("as-sent", "shadow", "own-form", "lookalike", "matched", "likelihood", "head-known")
FEW = ("as-sent", "shadow", "matched", "head-known")


def other(settings, name):
    return settings.model.replace(":net", f":{name}")


def test_depths_are_attacked_and_a_weak_attacker_proves_nothing(settings, tmp_path):
    done = audit(Brief.of(settings), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [a["id"] for a in result["attacks"]] == [
        *(f"after-0-{name}" for name in ALONE),
        *(f"after-1-{name}" for name in FEW),
    ]
    assert [a["counts"] for a in result["attacks"]] == [*[True] * 6, *[False] * 5]
    assert result["victim"]["test_accuracy"] > 0.9
    assert result["victim"]["bytes_up_per_input"] == 3 * 8 * 8 * 4
    assert result["charts"][0]["series"].keys() == {*ALONE, "mean image"}
    assert done.verdict.word == "not audited"  # shadows of one epoch
    assert "so they are no attackers; raise --attack-epochs" in done.verdict.sentence
    first = done.result.attacks[0]
    assert any(note.startswith("Without a defence, ") for note in first.notes)
    assert first.lineup.targets == 30
    assert first.metrics["success"] == first.leak.share == first.lineup.share
    page = done.report.read_text()
    assert "Inputs recognised" in page
    assert page.count("<img") > 60
    again = audit(Brief.of(settings), tmp_path / "run")
    assert again.metrics == done.metrics


def test_what_only_a_secret_head_protects_is_at_risk(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "names_for", lambda bodies: ("shadow", "head-known"))
    longer = replace(settings, first=("0",), attack_epochs=25)
    done = audit(Brief.of(longer), tmp_path / "run", redact=True)
    assert done.verdict.word == "at risk"
    assert "an adversary who also knows the client's head gets" in done.verdict.sentence
    bound = done.result.attacks[-1]
    assert (bound.counts, bound.knows_more) == (False, "the client's head")
    assert bound.lineup.share > 0.5
    notes = " ".join(note for one in done.result.attacks for note in one.notes)
    assert "An adversary who knew the client's head would get" in notes
    assert "No other depth was tried." in notes
    assert "<img" not in done.redacted.read_text()


def test_a_defence_is_trained_attacked_costed_and_kept(settings, records, tmp_path):
    defended = replace(settings, first=("0",), defend="ensembler")
    done = audit(Brief.of(defended), tmp_path / "run")
    attacks = done.result.attacks
    lines = [one.spec.id.removeprefix("after-0-with-ensembler-") for one in attacks[4:]]
    several = ("adaptive", "own-form", "lookalike", "matched", "likelihood", "committee", "subsets")
    assert lines == ["as-sent", "body-1", "body-2", *several, "head-known"]
    facts = done.result.victim
    assert facts["defended_bytes_up_per_input"] == 2 * facts["bytes_up_per_input"]
    assert facts["bodies"] == 2
    assert "The defence costs" in " ".join(note for one in attacks for note in one.notes)
    client, server = (tmp_path / "run" / "defence" / side for side in ("client", "server"))
    kept = load_pipeline(client, server, factory=settings.model)
    own = read_split(defended, records).parts.test
    assert kept.accuracy(own.inputs, own.labels) == facts["defended_accuracy"]
    again = audit(Brief.of(defended), tmp_path / "run")
    assert again.metrics == done.metrics
    with RunFolder.claimed(tmp_path / "other", resume_anyway=False, progress=silent) as elsewhere:
        secret_key(elsewhere)
        assert (done.folder / "secret.key").read_text() != (
            elsewhere.path / "secret.key"
        ).read_text()


def test_a_defence_that_was_not_trained_is_not_audited(settings, tmp_path, monkeypatch):
    """What holds for it says nothing about one that is trained."""
    monkeypatch.setattr(release, "names_for", lambda bodies: ("shadow", "head-known"))
    monkeypatch.setattr(release, "secret_key", lambda folder: Key.from_seed(1))
    defended = replace(settings, first=("0",), defend="single", rate=1e-6)
    done = audit(Brief.of(defended), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert "after 0 with single, the network names" in done.verdict.sentence
    assert "it was not trained, so that what holds for it says nothing" in done.verdict.sentence


@pytest.mark.parametrize("defence", ["single", "shredder", "dropout", "dropout-ensemble"])
def test_every_defence_has_a_name(defence, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "names_for", lambda bodies: ("as-sent", "head-known"))
    monkeypatch.setattr(release, "FEW", ("as-sent", "head-known"))
    one = replace(settings, first=("0",), defend=defence, targets=12)
    done = audit(Brief.of(one), tmp_path / "run")
    assert done.result.attacks[2].spec.id == f"after-0-with-{defence}-as-sent"


def test_a_killed_run_ends_with_the_same_numbers(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "names_for", lambda bodies: FEW)
    one = Brief.of(replace(settings, first=("0",)))
    whole = audit(one, tmp_path / "whole")
    calls = iter(range(100))

    def dies(*args, **kwargs):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    real = cut.recognise
    monkeypatch.setattr(cut, "recognise", dies)
    with pytest.raises(KeyboardInterrupt):
        audit(one, tmp_path / "killed")
    monkeypatch.setattr(cut, "recognise", real)
    assert audit(one, tmp_path / "killed").metrics == whole.metrics
    with pytest.raises(ExhumeError, match="holds a run with other settings"):
        audit(Brief.of(replace(settings, first=("1",))), tmp_path / "killed")


def test_the_command_and_its_exit_codes(settings, tmp_path):
    base = ["audit-split", settings.model, "--data", settings.data, "--weights", settings.weights]
    weak = [*base, "--channels", "4", "--attack-epochs", "1", "--targets", "30", "--first", "0"]
    result = CliRunner().invoke(app, [*weak, "--out", str(tmp_path / "weak")])
    assert result.exit_code == 2
    assert "Not audited" in result.stdout
    leaky = ["audit-split", other(settings, "identity"), *weak[2:4], *weak[6:]]
    leaky += ["--out", str(tmp_path / "leaky")]
    assert CliRunner().invoke(app, leaky).exit_code == 0
    result = CliRunner().invoke(app, [*leaky, "--fail-over", "0.3"])
    assert result.exit_code == 1, result.output
    assert "The release leaks: 30 of 30 records" in result.stdout


def test_a_gate_on_what_is_at_risk(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "names_for", lambda bodies: ("shadow", "head-known"))
    base = ["audit-split", settings.model, "--data", settings.data, "--weights", settings.weights]
    command = [
        *base,
        "--channels",
        "4",
        "--attack-epochs",
        "25",
        "--targets",
        "30",
        "--batch",
        "32",
    ]
    command += ["--first", "0", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, command).exit_code == 0
    gated = CliRunner().invoke(app, [*command, "--fail-on", "at-risk"])
    assert gated.exit_code == 1
    assert "the verdict is 'at risk'" in gated.stderr


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


def test_depths_in_words():
    assert depth_sentence({"a": "leaks"}) == "No other depth was tried."
    words = {"a": "leaks", "b": "no leak found", "c": "not audited", "d": "no leak found"}
    assert depth_sentence(words) == (
        "Without a defence, it leaks after a; nothing came back, which alone proves nothing, after b, d; "
        "nothing can be said after c."
    )


@pytest.mark.parametrize("head", ["identity", "negative", "random_convolution"])
def test_a_head_that_hides_nothing_leaks(head, settings, tmp_path):
    """Whatever the shadows learn, and though it was never trained: somebody looks at what is sent."""
    plain = replace(settings, model=other(settings, head), weights="", first=("0",), targets=60)
    done = audit(Brief.of(plain), tmp_path / "run")
    assert done.verdict.word == "leaks"
    lookalike = done.result.attacks[3]
    if head == "random_convolution":
        assert lookalike.applies
    else:
        assert done.result.strongest.spec.id == "after-0-as-sent"
        assert done.leak.share > 0.9
        assert not lookalike.applies
        assert lookalike.status.reason.endswith("the client's head has no convolution")


def test_silence_counts_after_a_shallower_cut_gave_everything_away(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "names_for", lambda bodies: ("as-sent", "head-known"))
    hiding = replace(settings, model=other(settings, "hiding"), weights="", first=("1",))
    done = audit(Brief.of(hiding), tmp_path / "run")
    assert done.verdict.word == "no leak found"
    assert "identifies 16 of 16 after 0" in done.verdict.sentence
    assert done.result.reach[0].respect == "last layer of the client's head"


def test_a_crippled_attack_finds_no_safety(settings, tmp_path):
    """The same network, which hides everything, by shadows that did not learn."""
    hiding = replace(settings, model=other(settings, "hiding"), weights="", first=("1",))
    done = audit(Brief.of(hiding), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert "raise --attack-epochs" in done.verdict.sentence


def test_silence_of_an_untrained_network_says_nothing(settings, tmp_path):
    done = audit(Brief.of(replace(settings, weights="", first=("0",))), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert "after 0, the network names" in done.verdict.sentence
    assert "it was not trained" in done.verdict.sentence
