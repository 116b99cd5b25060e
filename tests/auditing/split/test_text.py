"""Texts through audit-split: planted truth in a made-up language, read as a cipher or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from exhume.auditing import audit
from exhume.auditing.kinds.split import read_released_split
from exhume.auditing.kinds.split_attackers import HEAD_KNOWN, TEXT_FEW, TEXT_NAMES
from exhume.auditing.kinds.split_files import positions_of, read_network
from exhume.auditing.limits import identified_at_most
from exhume.bounds.channel import sigma_for
from exhume.cli import app
from exhume.core.contract import ExhumeError, Key, NotApplicable
from exhume.core.results import read_result
from exhume.settings import Brief, SplitSettings

pytestmark = pytest.mark.xdist_group("split texts")
COUNT = 2000  # of which a cipher's frequencies are counted
OWNER = Path(__file__).with_name("text_owner.py")
its = SimpleNamespace(**run_path(str(OWNER)))
MODEL = f"{OWNER}:plain"


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    """A folder with texts, words and weights."""
    folder = tmp_path_factory.mktemp("texts")
    texts = its.corpus(COUNT, Key.from_seed(0))
    np.savez(folder / "texts.npz", tokens=texts.tokens.numpy(), y=texts.labels.numpy())
    words = ["<pad>", "<unk>", *(f"w{i}" for i in range(its.VOCABULARY - 2))]
    (folder / "words.txt").write_text("\n".join(words) + "\n")
    torch.manual_seed(0)
    torch.save(its.trained(its.plain(), texts).state_dict(), folder / "net.pt")
    return folder


@pytest.fixture(scope="module")
def settings(owner):
    return SplitSettings(
        MODEL,
        str(owner / "texts.npz"),
        weights=str(owner / "net.pt"),
        first=("embed",),
        vocabulary=str(owner / "words.txt"),
        padding=its.PADDING,
        targets=16,
        attack_epochs=4,
        epochs=4,
        seed=0,
        threads=1,
    )


def other(settings, name, **changes):
    return replace(settings, model=MODEL.replace(":plain", f":{name}"), weights="", **changes)


def by_id(result, where="after-embed-"):
    return {a.spec.id.removeprefix(where): a for a in result.attacks}


# A secret embedding, through the command


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    """The folder of a run, and what the command said."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    command = ["audit-split", settings.model, "--data", settings.data, "--padding", "0"]
    command += ["--weights", settings.weights, "--first", "embed", "--targets", "16"]
    command += ["--vocabulary", settings.vocabulary, "--attack-epochs", "4", "--threads", "1"]
    command += ["--out", str(folder), "--fail-over", "0.5", "--redact"]
    return folder, CliRunner().invoke(app, command)


def result_of(whole):
    return read_result(whole[0] / "result.json")


def test_a_leak_ends_the_command(whole):
    folder, done = whole
    assert done.exit_code == 1, done.output
    assert "The release leaks: " in done.stdout
    assert json.loads((folder / "result.json").read_text())["verdict"]["word"] == "leaks"


def test_a_secret_embedding_is_read_as_a_cipher(whole):
    result = result_of(whole)
    attacks = by_id(result)
    assert tuple(attacks) == TEXT_NAMES
    assert result.strongest.spec.id == "after-embed-cipher"
    assert attacks["cipher"].metrics["token_accuracy"] > 0.95
    assert attacks["cipher"].metrics["usual_token_accuracy"] < 0.2
    assert "of the tokens are right in their place" in attacks["cipher"].notes[0]
    assert attacks["frequency"].leak.share < 0.5
    assert attacks["shadow"].metrics["token_accuracy"] < 0.3
    assert attacks["shadow"].metrics["own_accuracy_on_own_features"] > 0.9
    assert "are no words by themselves" in attacks["as-sent"].status.reason


def test_who_knows_the_head_reads_everything_and_decides_nothing(whole):
    known = by_id(result_of(whole))[HEAD_KNOWN]
    assert known.leak.share == 1
    assert (known.counts, known.knows_more) == (False, "the client's head")


def test_the_texts_stand_on_the_page_alone(whole):
    folder, _ = whole
    assert (folder / "report.html").read_text().count("w17") > 1  # the texts, word by word
    assert "w17" not in (folder / "report-redacted.html").read_text()
    assert "w17" not in (folder / "result.json").read_text()


def test_the_chart_is_of_tokens_in_place(whole):
    (chart,) = [c for c in result_of(whole).charts if "comes back" in c.title]
    assert chart.y == "share of tokens in place"
    assert {"cipher", "usual words"} <= chart.series.keys()


@pytest.mark.slow
def test_the_same_again_has_the_same_numbers(settings, tmp_path):
    done = audit(Brief.of(settings), tmp_path / "run")
    assert audit(Brief.of(settings), tmp_path / "run").metrics == done.metrics


# Other clients


def test_words_that_are_sent_as_they_are_need_no_cipher(settings, tmp_path):
    done = audit(Brief.of(other(settings, "one_hot", first=("0",))), tmp_path / "run")
    looked = by_id(done.result, "after-0-")["as-sent"]
    assert done.verdict.word == "leaks"
    assert looked.metrics["whole_texts"] == 1


@pytest.mark.slow
def test_positions_that_nobody_published_are_found(settings, tmp_path):
    """A container that adds in the end is a layer by itself."""
    done = audit(Brief.of(other(settings, "placed")), tmp_path / "run")
    assert done.verdict.word == "leaks"
    assert by_id(done.result)["cipher"].metrics["token_accuracy"] > 0.9


@pytest.mark.slow
def test_fixed_noise_is_a_position_and_hides_nothing(settings, tmp_path):
    done = audit(Brief.of(replace(settings, defend="single", sigma=0.5)), tmp_path / "run")
    cipher = by_id(done.result, "after-embed-with-single-")["cipher"]
    assert cipher.metrics["token_accuracy"] > 0.9
    assert done.verdict.word == "leaks"


def test_behind_attention_only_the_heads_secret_protects(settings, tmp_path):
    deep = replace(settings, first=("mixed", "embed"))
    done = audit(Brief.of(deep), tmp_path / "run")
    attacks = by_id(done.result, "after-mixed-")
    why = {row.id: row.why for row in done.result.plan}
    assert "depends on the words around it" in why["after-mixed-cipher"]
    assert attacks[HEAD_KNOWN].leak.share > 0.5
    assert done.verdict.word == "at risk"
    assert [a for a in attacks if a.startswith("after-embed")] == [
        f"after-embed-{name}" for name in TEXT_FEW
    ]


@pytest.mark.slow
def test_a_channel_of_four_bits_does_not_leak_texts(settings, tmp_path):
    one = replace(settings, defend="channel", bits=4.0, numbers=4, epochs=10, attack_epochs=20)
    done = audit(Brief.of(one), tmp_path / "run")
    attacks, sigma = by_id(done.result, "after-embed-with-channel-"), sigma_for(4.0, 4)
    assert done.verdict.word != "leaks"
    assert not done.alarm
    assert "are not one vector for each of 8 places" in attacks["cipher"].status.reason
    for name in ("shadow", HEAD_KNOWN):
        row = attacks[name].lineup
        assert row.share <= identified_at_most(row.strangers, sigma)
    rows = attacks["channel-namer"].limits.rows
    assert all(row.rate <= row.bound for row in rows)
    assert done.result.victim["defended_bytes_up_per_input"] == 16


def test_what_the_architecture_does_with_places():
    table = torch.nn.Embedding(9, 4)
    assert positions_of(table, 5, 9) == "none"

    class Flipped(torch.nn.Module):
        def forward(self, x):
            return x + x.flip(1)

    with pytest.raises(NotApplicable, match="depends on the words around it"):
        positions_of(torch.nn.Sequential(table, Flipped()), 5, 9)

    class Scaled(torch.nn.Module):
        def forward(self, x):
            return x * torch.arange(1, 6)[:, None]

    with pytest.raises(NotApplicable, match="position is not only added"):
        positions_of(torch.nn.Sequential(table, Scaled()), 5, 9)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("masked", {}, "made of the vectors, not of the tokens"),
        ("plain", {"first": ("9",)}, "the network has no layer '9'"),
        ("plain", {"defend": "channel", "bits": 600.0}, "bits: 600.0 given"),
    ],
)
def test_errors_come_before_texts_are_read(name, change, sentence, settings):
    def load(source, reading):
        raise AssertionError("data were read")

    with pytest.raises(ExhumeError, match=sentence):
        read_released_split(Brief.of(other(settings, name, **change)), load)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("writer", {"first": ("0",)}, "only the study split-text has an audit"),
        ("plain", {"defend": "ensembler"}, "for texts there are no attackers of such"),
        ("plain", {"vocabulary": "few"}, "has the token|vocabulary goes from 0 to"),
    ],
)
def test_what_does_not_fit_is_refused(name, change, sentence, settings, tmp_path):
    if "vocabulary" in change:
        (tmp_path / "few.txt").write_text("a\nb\nc\n")
        change = {"vocabulary": str(tmp_path / "few.txt")}
    with pytest.raises(ExhumeError, match=sentence):
        audit(Brief.of(other(settings, name, **change)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_texts_for_a_network_of_numbers_and_numbers_for_one_of_texts(settings, tmp_path):
    np.savez(
        tmp_path / "x.npz", inputs=np.zeros((50, its.LENGTH), np.float32), labels=np.arange(50) % 2
    )
    with pytest.raises(ExhumeError, match="only images and texts are covered"):
        audit(
            Brief.of(replace(settings, data=str(tmp_path / "x.npz"), vocabulary="", padding=-1)),
            tmp_path / "run",
        )
    (tmp_path / "texts.txt").write_text("\n".join(f"w1 w2\t{i % its.CLASSES}" for i in range(50)))
    unnumbered = replace(settings, data=str(tmp_path / "texts.txt"), vocabulary="", padding=-1)
    with pytest.raises(ExhumeError, match="vocabulary: say with --vocabulary"):
        audit(Brief.of(unnumbered), tmp_path / "run")


def test_a_default_cut_is_behind_the_embedding(settings):
    network = read_network(replace(settings, first=()))
    assert network.first == ()
