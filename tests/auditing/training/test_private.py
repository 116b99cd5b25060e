"""The audit of private training: measured beside allowed, and an alarm where the engine is broken."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import exhume
from exhume.auditing import Audit
from exhume.auditing.limits import LISTED
from exhume.bounds.dp_sgd import dp_sgd
from exhume.cli.audits import report_verdict
from exhume.core.contract import ExhumeError
from exhume.core.results import Rate, Result
from exhume.report.page import draw
from exhume.score.verdict import broken as broken_verdict
from exhume.train.dp import NoiseStream, epsilon

STEPS = 12
NOISE = math.sqrt(STEPS) / 1.0  # naming one of ten is allowed in 39% of the cases
VICTIM = {"hidden": [6], "steps": STEPS, "momentum": 0.5, "dp_clip": 0.5, "dp_noise": NOISE}
pytestmark = pytest.mark.xdist_group("private training")


@pytest.fixture(scope="module")
def brief(few_records):
    """A function: the brief with other sizes, or with other training. Ten shadows tell an attack nothing."""

    def brief(*, targets=10, **victim):
        sizes = {"fixed": 30, "targets": targets, "shadows": 10, "public": 20, "test": 30}
        data = {"source": few_records, **sizes}
        return {"data": data, "victim": {**VICTIM, **victim}, "machine": {"threads": 1}}

    return brief


@pytest.fixture
def broken(monkeypatch):
    """An engine that adds a tenth of the noise it should."""
    drawn = NoiseStream.draw
    monkeypatch.setattr(NoiseStream, "draw", lambda self, like: drawn(self, like).mul_(0.1))


def limits_of(folder):
    attacks = json.loads((folder / "result.json").read_text())["attacks"]
    return next((attack["limits"] for attack in attacks if attack["limits"]), None)


@pytest.fixture(scope="module")
def sound(brief, tmp_path_factory):
    """Four lists of ten, and three targets that fill none."""
    return exhume.audit(brief(targets=43), tmp_path_factory.mktemp("sound") / "run")


def test_sound_training_is_shown_below_its_bound(sound):
    limits = limits_of(sound.folder)
    rows = {(row["attack"], row["game"]): row for row in limits["rows"]}
    naming = f"the record named among {LISTED}"
    every = rows["Prior-aware attack, every step seen", naming]
    assert (every["trials"], every["kappa"]) == (40, pytest.approx(0.1))
    assert every["bound"] == pytest.approx(0.389, abs=1e-3)
    assert 0.1 < every["low"] <= every["rate"] <= every["high"]  # it is attacked
    assert (sound.alarm, limits["alarm"]) == ("", "")
    assert len(rows) == 6  # four attacks name, two of them reconstruct
    assert any("3 targets that fill no list of 10" in note for note in limits["notes"])


def test_naming_is_no_reconstruction_and_does_not_count(sound):
    assert sound.verdict.word == "not audited"
    assert (
        "reconstructor found no more than chance explains, and was not shown"
        in sound.verdict.sentence
    )


def test_both_pages_show_what_is_allowed(sound):
    page = sound.report.read_text()
    assert "What the stated privacy allows" in page
    assert "No attack did certainly better than the stated guarantee allows" in page
    assert "38.9%" in page
    shared = draw(sound.folder, redact=True).read_text()
    assert "What the stated privacy allows" in shared


def test_damaged_limits_are_one_sentence(sound, tmp_path):
    content = json.loads((sound.folder / "result.json").read_text())
    for damage in (3, {"alarm": "", "notes": [], "rows": [{"rate": "much"}]}):
        content["attacks"][0]["limits"] = damage
        (tmp_path / "result.json").write_text(json.dumps(content))
        with pytest.raises(ExhumeError, match=r"attacks\[0\].limits"):
            draw(tmp_path)


def test_a_broken_engine_raises_the_alarm_in_words(brief, tmp_path, broken):
    done = exhume.audit(brief(targets=40), tmp_path / "run")
    assert done.verdict.word == "leaks"
    assert done.verdict.sentence == "The stated privacy does not hold."
    assert "ALARM" in done.alarm
    assert "Prior-aware attack, every step seen (the record named among 10)" in done.alarm
    assert "the implementation of the private training is wrong" in done.report.read_text()


def test_the_gate_fails_on_an_alarm(tmp_path, capsys):
    """Whatever share of leaks was allowed, and although no record was reconstructed."""
    verdict, leak = broken_verdict("ALARM: too good."), Rate(0, 30, 0.0, 0.1, detectable=0.1)
    result = Result("Private training", "digits", 0, verdict, leak)
    done = Audit(result, tmp_path, tmp_path / "report.html")
    assert report_verdict(done, 1.0, more="--targets") == 0
    alarmed = replace(done, result=replace(result, alarm="ALARM: too good."))
    assert report_verdict(alarmed, 1.0, more="--targets") == 1
    assert "did better than the stated privacy allows" in capsys.readouterr().err


@pytest.mark.parametrize("order", ["known", pytest.param("unknown", marks=pytest.mark.slow)])
def test_where_steps_draw_their_records_the_bound_is_lower(brief, tmp_path, order):
    sampled = brief(dp_noise=1.0, dp_sampling=0.3, batch_order=order)
    done = exhume.audit(sampled, tmp_path / "run")
    limits = limits_of(done.folder)
    rows = {row["attack"]: row for row in limits["rows"] if "named" in row["game"]}
    every = rows["Prior-aware attack, every step seen"]
    assert every["bound"] == pytest.approx(dp_sgd(0.1, 1.0, STEPS, 0.3).gamma)
    assert every["bound"] < dp_sgd(0.1, 1.0, STEPS).gamma / 1.5
    assert limits["alarm"] == ""
    assert "sampling rate 0.3" in limits["notes"][0]
    facts = json.loads((done.folder / "result.json").read_text())["victim"]
    assert facts["epsilon"] == pytest.approx(epsilon(1.0, STEPS, sampling=0.3))
    assert facts["training"].startswith("gradient descent on Poisson samples")


@pytest.mark.parametrize(
    ("victim", "sentence"),
    [
        (
            {"dp_sampling": 0.0, "dp_clip": 1.0},
            "victim.dp_sampling: 0.0 given, a probability above",
        ),
        ({"dp_sampling": 0.5}, "dp_sampling: 0.5 given without a dp_clip"),
        (
            {"dp_sampling": 0.5, "dp_clip": 1.0, "optimiser": "sgd", "batch": 8},
            "there for full batches and Poisson samples",
        ),
    ],
)
def test_sampling_that_cannot_be(brief, tmp_path, victim, sentence):
    with pytest.raises(ExhumeError, match=sentence):
        exhume.audit({**brief(), "victim": victim}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_noise_nothing_is_allowed_or_forbidden(brief, tmp_path):
    done = exhume.audit(brief(dp_noise=0.0), tmp_path / "run")
    assert limits_of(done.folder) is None
    assert "What the stated privacy allows" not in done.report.read_text()


def test_adam_is_attacked_from_the_end_only(brief, tmp_path):
    done = exhume.audit(brief(targets=8, optimiser="adam", rate=0.01), tmp_path / "run")
    limits = limits_of(done.folder)
    assert {row["attack"] for row in limits["rows"]} == {
        "Prior-aware attack, final weights",
        "Closed-form per-label reconstructor",
        "Noise-aware reconstructor",
    }
    assert {row["trials"] for row in limits["rows"]} == {8}  # one short list
    assert any("only steps of gradient descent can be undone" in note for note in limits["notes"])
