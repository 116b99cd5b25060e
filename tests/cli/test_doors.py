"""Every audit command takes the same road: the same options, plan, number, charts and comparison."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from contextlib import chdir, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from exhume import auditing, readers
from exhume.auditing import Audit
from exhume.cli import app
from exhume.core.contract import ExhumeError, Outcome, Status
from exhume.core.evidence import Extent
from exhume.core.results import (
    AttackSpec,
    Rate,
    ReleaseRow,
    Result,
    Section,
    Verdict,
    read_result,
)

NET = """
import torch
from torch import nn

def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10))

def conv():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 10),
    )
"""
SHARED = ("seed", "threads", "budget", "try-fixes", "out", "junit", "fail-over", "redact", "json")
SHARED += (
    "fail-on",
    "require-power",
    "dry-run",
    "resume-anyway",
    "no-code",
    "ray",
    "processes",
    "device",
)
DOORS = {
    "audit": "audit --data few.npz --fixed 40 --targets 12 --shadows 100 --steps 30",
    "audit-update": "audit-update g.safetensors --model nets_of_doors.py:dense --data few.npz "
    "--records 3,17 --batch-size 2 --search-steps 3 --restarts 1",
    "audit-weights": "audit-weights net.pt --trained-on few.npz --rows 0:20 --restarts 1 --steps 3",
    "audit-split": "audit-split nets_of_doors.py:conv --data few.npz --first 1 --channels 2 "
    "--attack-epochs 1 --targets 12 --held 60 --seen 20",
}
EVERY = pytest.mark.parametrize("door", DOORS)
pytestmark = pytest.mark.xdist_group("doors")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doors")
    (folder / "nets_of_doors.py").write_text(NET)
    space = {}
    exec(NET, space)
    module, digits = space["dense"](), readers.load("digits")[:1000]
    np.savez(folder / "few.npz", x=digits.inputs.numpy(), y=digits.labels.numpy())
    rows = torch.tensor([3, 17])
    nn.functional.cross_entropy(module(digits.inputs[rows]), digits.labels[rows]).backward()
    save_file({n: p.grad for n, p in module.named_parameters()}, folder / "g.safetensors")
    shapes = {"fc1.weight": (40, 64), "fc1.bias": (40,), "fc2.weight": (10, 40)}
    torch.manual_seed(0)
    torch.save({name: torch.randn(shape) for name, shape in shapes.items()}, folder / "net.pt")
    return folder


@pytest.fixture
def invoke(place, monkeypatch):
    monkeypatch.chdir(place)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def audited(place):
    """A function: the audit behind a door, with everything that it can write; done once."""
    done = {}

    def audited(door):
        if door not in done:
            out, junit = place / f"{door}-run", place / f"{door}.xml"
            words = [*DOORS[door].split(), "--threads", "1", "--out", out, "--json", "--redact"]
            words += ["--junit", junit, "--fail-over", "0.01"]
            with chdir(place), few_attackers_of_features():
                done[door] = CliRunner().invoke(app, list(map(str, words)))
        return done[door]

    return audited


@contextmanager
def few_attackers_of_features():
    names = ("as-sent", "shadow", "head-known")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exhume.auditing.kinds.split.names_for", lambda bodies: names)
        yield


@EVERY
def test_the_same_options(door, invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = invoke(door, "--help").stdout
    assert [name for name in SHARED if f"--{name} " not in said] == []


@EVERY
def test_the_plan_with_everything_resolved(door, invoke, place):
    before = set(place.iterdir())
    words = [*DOORS[door].split(), "--seed", "7", "--threads", "1", "--dry-run"]
    done = invoke(*words, "--json")
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    (release,) = plan["releases"]
    assert (release["seed"], release["threads"], release["data"]) == (7, 1, "few.npz")
    assert {"estimated_seconds", "records", "models", "steps", "why"} <= set(release["attacks"][0])
    assert set(place.iterdir()) == before
    lines = invoke(*words).stdout.splitlines()
    assert lines[0] == f"plan: {release['name']} (seed 7, threads 1)"
    assert " in few.npz" in lines[1]
    assert lines[-1].startswith("plan: ")
    assert "CPU seconds (no limit)" in lines[-1]


def test_options_win_over_the_file_for_every_release(invoke, place):
    (place / "all.toml").write_text(
        'seed = 1\n[data]\nsource = "mnist"\n[victim]\nnetwork = "nets_of_doors.py:conv"\nsteps = 5\n'
        "[update]\nmade = 2\nbatch_size = 2\nseed = 2\nthreads = 2\n"
        '[split]\nfirst = ["1"]\ndata = "faces"\n'
    )
    words = "audit all.toml --seed 7 --data digits --threads 1 --dry-run --json".split()
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    releases = json.loads(done.stdout)["releases"]
    assert [one["kind"] for one in releases] == ["weights", "update", "split"]
    assert {(one["seed"], one["data"], one["threads"]) for one in releases} == {(7, "digits", 1)}


@EVERY
def test_one_number_and_a_comparison(door, audited, invoke, place):
    """What leaks is the same in JSON, JUnit, `--fail-over`, the page and `compare`."""
    out, junit = place / f"{door}-run", place / f"{door}.xml"
    done = audited(door)
    result = json.loads(done.stdout)
    assert result["kind"] == "audit"
    assert (out / "report-redacted.html").exists()
    leak = result["leak"]
    scored = [a["leak"] for a in result["attacks"] if a["counts"] and a["leak"]]
    shares = [one["successes"] / one["trials"] for one in scored]
    assert leak["successes"] / leak["trials"] == max(shares)
    assert result["releases"][0]["leak"] == leak
    if result["verdict"]["word"] == "not audited":
        assert done.exit_code == 2
        assert ET.parse(junit).getroot().get("errors") == "1"
    else:
        leaks = result["verdict"]["word"] == "leaks"
        assert (
            (done.exit_code == 1) == leaks == bool(int(ET.parse(junit).getroot().get("failures")))
        )
    assert f"{leak['successes']} of {leak['trials']}" in (out / "report.html").read_text()
    assert read_result(out / "result.json").to_json() == result  # there and back
    same = invoke("compare", out, out)
    assert same.exit_code == 0, same.output
    assert same.stdout.startswith("within noise: ")


def test_some_doors_end_in_a_leak_and_some_in_no_audit(audited):
    """So that the test above sees both; one convolution is at risk, as only its secrecy protects."""
    codes = {door: audited(door).exit_code for door in DOORS}
    assert codes == {"audit": 1, "audit-update": 1, "audit-weights": 2, "audit-split": 0}


def test_features_are_attacked_alike_through_both_doors(audited, invoke, place):
    (place / "split.toml").write_text(
        '[data]\nsource = "few.npz"\n[split]\nmodel = "nets_of_doors.py:conv"\nfirst = ["1"]\n'
        "channels = 2\nattack_epochs = 1\ntargets = 12\nheld = 60\nseen = 20\n"
    )
    with few_attackers_of_features():
        invoke(*"audit split.toml --threads 1 --out toml".split())
    brief = json.loads((place / "toml" / "result.json").read_text())
    assert brief["charts"] == json.loads(audited("audit-split").stdout)["charts"]
    assert brief["charts"][0]["title"] == "How much of an input comes back"
    assert brief["title"] == "What the features of a split network give away"
    assert {planned["id"].startswith("after-1-") for planned in brief["plan"]} == {True}
    names = {attack["release"] for attack in brief["attacks"]}
    assert names == {"the features of the split network"}


def test_an_old_result_gets_one_sentence(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"schema": 1, "kind": "audit", "attacks": []}))
    with pytest.raises(ExhumeError, match="the result of another version of exhume; run the audit"):
        read_result(tmp_path / "result.json")


@EVERY
def test_time_is_written_one_way(door, invoke):
    wrong = invoke(*DOORS[door].split(), "--budget", "soon")
    assert wrong.exit_code == 2
    assert "budget: 'soon' is not a time such as 90s, 10m or 1.5h" in wrong.stderr


@EVERY
def test_a_device_that_cannot_be_used_is_refused(door, invoke):
    done = invoke(*DOORS[door].split(), "--device", "cuda")
    assert done.exit_code == 2
    assert "device: 'cuda' " in done.stderr


def finished(folder, word, *, share, detectable, strength=None):
    """An audit of one release that ended with this word."""
    folder.mkdir()
    leak = Rate(round(100 * share), 100, 0.0, 1.0, 0.01, detectable)
    section = Section(
        AttackSpec("a", "An attack"), Status(Outcome.CONVERGED, ""), leak=leak, verdict=word
    )
    verdict = Verdict(word, f"In short: {word}.", "In detail.")
    row = ReleaseRow("weights", "the weights", word, verdict.sentence, "", leak=leak)
    result = Result("Title", "digits", 0, verdict, leak, attacks=(section,), releases=(row,))
    result = replace(result, extent=Extent(strength=strength))
    (folder / "result.json").write_text(json.dumps(result.to_json()))
    return Audit(result, folder, folder / "report.html")


GATES = {
    # verdict, share that leaks, share that would be noticed; options; exit code and what JUnit says
    "none": ("leaks", 0.4, 0.1, "", 0, (1, 0)),
    "fail over": ("leaks", 0.4, 0.1, "--fail-over 0.3", 1, (1, 0)),
    "below": ("leaks", 0.4, 0.1, "--fail-over 0.5", 0, (0, 0)),
    "at risk is no leak": ("at risk", 0.0, 0.1, "--fail-over 0", 0, (0, 0)),
    "at risk": ("at risk", 0.0, 0.1, "--fail-on at-risk", 1, (1, 0)),
    "leaks is worse": ("leaks", 0.4, 0.1, "--fail-on at-risk", 1, (1, 0)),
    "not at risk": ("no leak found", 0.0, 0.1, "--fail-on at-risk", 0, (0, 0)),
    "enough power": ("no leak found", 0.0, 0.1, "--require-power 0.1", 0, (0, 0)),
    "too little power": ("no leak found", 0.0, 0.3, "--require-power 0.1", 2, (0, 1)),
    "power of a leak": ("leaks", 0.4, 0.3, "--require-power 0.1", 0, (1, 0)),
    "a leak comes first": ("leaks", 0.4, 0.3, "--require-power 0.1 --fail-over 0", 1, (1, 0)),
    "not audited": ("not audited", 0.0, 1.0, "--require-power 0.1", 2, (0, 1)),
    "never mind": ("not audited", 0.0, 1.0, "--fail-on at-risk", 2, (0, 1)),
}


@pytest.mark.parametrize(
    ("door", "gate"),
    [("audit", gate) for gate in GATES]
    + [
        (door, gate) for door in list(DOORS)[1:] for gate in ("fail over", "at risk", "not audited")
    ],
)
def test_gates(door, gate, invoke, place, tmp_path, monkeypatch):
    word, share, detectable, options, code, counts = GATES[gate]
    done = finished(tmp_path / "run", word, share=share, detectable=detectable)
    monkeypatch.setattr(auditing, "audit", lambda *_, **__: done)
    junit = tmp_path / "j.xml"
    ended = invoke(*DOORS[door].split(), "--junit", junit, *options.split())
    assert ended.exit_code == code, ended.output
    suite = ET.parse(junit).getroot()
    assert (int(suite.get("failures")), int(suite.get("errors"))) == counts


@pytest.mark.parametrize(
    ("word", "strength", "refused", "code"),
    [
        ("leaks", "recognised", "recognised", 1),
        ("leaks", "recognised", "reconstructed", 0),
        ("leaks", "reconstructed", "reconstructed", 1),
        ("leaks", "reconstructed", "recognised", 1),
        ("at risk", None, "recognised", 0),
        ("no leak found", None, "reconstructed", 0),
    ],
)
def test_gates_on_strength(word, strength, refused, code, invoke, tmp_path, monkeypatch):
    done = finished(tmp_path / "run", word, share=0.0, detectable=0.1, strength=strength)
    monkeypatch.setattr(auditing, "audit", lambda *_, **__: done)
    junit = tmp_path / "j.xml"
    ended = invoke(*DOORS["audit"].split(), "--fail-on", refused, "--junit", junit)
    assert ended.exit_code == code, ended.output
    assert int(ET.parse(junit).getroot().get("failures")) == code
    assert (f"--fail-on {refused}: records are {strength}" in ended.stderr) == bool(code)


def test_gates_say_why(invoke, tmp_path, monkeypatch):
    done = finished(tmp_path / "a", "no leak found", share=0.0, detectable=0.3)
    monkeypatch.setattr(auditing, "audit", lambda *_, **__: done)
    weak = invoke(*DOORS["audit"].split(), "--require-power", "0.1")
    why = "a leak below 30% of the records may go unnoticed, 10% is asked for"
    assert f"exhume: --require-power: {why}" in weak.stderr.splitlines()
    done = finished(tmp_path / "b", "at risk", share=0.0, detectable=0.3)
    risky = invoke(*DOORS["audit"].split(), "--fail-on", "at-risk")
    assert "exhume: --fail-on at-risk: the verdict is 'at risk'" in risky.stderr.splitlines()
    for wrong in (["--require-power", "2"], ["--fail-on", "leaks"]):
        assert invoke(*DOORS["audit"].split(), *wrong).exit_code == 2
