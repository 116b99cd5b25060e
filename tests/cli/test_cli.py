"""The commands from the words to the exit code: one small audit, and what is done with its folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from exhume import auditing
from exhume.auditing import Audit
from exhume.bench import BENCHES
from exhume.cli import app
from exhume.core.contract import Key
from exhume.core.results import FixRow, Result, Verdict
from exhume.train.dp import epsilon


@pytest.fixture(scope="module")
def invoke():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory, make_mixtures):
    """small.npz and more.npz: images of three classes, so few that a line-up takes a moment."""
    folder = tmp_path_factory.mktemp("cli")
    for name, count in (("small", 240), ("more", 400)):
        records = make_mixtures(count, (1, 6, 6), 3, Key.from_seed(0))
        np.savez(folder / f"{name}.npz", x=records.inputs.numpy(), y=records.labels.numpy())
    return folder


@pytest.fixture(scope="module")
def quick(place):
    sizes = "--fixed 30 --targets 12 --shadows 60 --test 60 --steps 30 --hidden 8 --threads 1"
    return ["audit", "--data", place / "small.npz", *sizes.split()]


@pytest.fixture(scope="module")
def run(invoke, quick, place):
    out = place / "run"
    return out, invoke(*quick, "--out", out, "--fail-over", "1")


def test_help_loads_the_settings_and_no_library_that_computes():
    """Well under half a processor second, as long as nothing else is loaded: torch alone takes two."""
    code = (
        "import sys; from exhume.cli import app; app(['--help'], standalone_mode=False); "
        "print('loaded', *sys.modules)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    loaded = done.stdout.splitlines()[-1].split()[1:]
    assert "audit-update" in done.stdout
    ours = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("exhume.")}
    assert ours == {"exhume.cli", "exhume.core", "exhume.settings"}
    heavy = {
        "torch",
        "numpy",
        "scipy",
        "sklearn",
        "safetensors",
        "jinja2",
        "opacus",
        "ray",
    }
    assert not heavy & set(loaded)


def test_audit_says_the_verdict_and_where_the_report_is(run):
    out, result = run
    assert result.exit_code == 0
    assert "The release leaks:" in result.stdout
    assert result.stdout.rstrip().endswith(f"report: {out / 'report.html'}")


def test_the_folder_answers_machines_and_gates(run, invoke, quick, tmp_path):
    """Nothing runs twice: all of it at once, on the finished run."""
    out, _ = run
    junit = tmp_path / "junit.xml"
    before = {path: path.stat().st_mtime_ns for path in (out / "shards").iterdir()}
    result = invoke(*quick, "--out", out, "--fail-over", "0.01", "--json", "--junit", junit)
    assert result.exit_code == 1
    assert "cannot be promised; more --targets help" in result.stderr  # finer than the test can see
    assert json.loads(result.stdout)["verdict"]["word"] == "leaks"
    assert 'failures="1"' in junit.read_text()
    assert {path: path.stat().st_mtime_ns for path in (out / "shards").iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "--data", "mnits"], "mnist"),
        (["audit", "--data", "digits", "--hidden", "ten"], "--hidden: 'ten' is not a list"),
        (["audit", "--data", "digits", "--threads", "1000"], "machine.threads: 1000 given"),
        (["audit", "--data", "digits", "--device", "meta"], "device: 'meta' cannot be used"),
        (["audit", "--data", "digits", "--network", "cnn"], "leave nothing of 8x8"),
        (["bench", "nothing"], "bench: 'nothing' is not known"),
    ],
)
def test_failures_are_one_sentence_and_exit_2(invoke, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    (sentence,) = [
        line for line in result.stderr.splitlines() if not line.startswith("exhume: read ")
    ]
    assert sentence.startswith("exhume: ")
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("result.json"))


def test_not_audited_is_exit_2_and_the_same_command_finds_its_own_folder(
    invoke, quick, tmp_path, monkeypatch
):
    """One shadow is not enough for the attack: that must never look like safety."""
    monkeypatch.chdir(tmp_path)
    one = [*quick, "--shadows", "1", "--steps", "5"]
    result = invoke(*one)
    assert result.exit_code == 2
    assert "Not audited: shadow: 1 records given" in result.stdout
    assert invoke(*one).stdout == result.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").exists()


def test_private_training_states_its_epsilon(invoke, place, tmp_path):
    """With enough records, and with an attack that works where there is less noise: no leak found."""
    sizes = "--fixed 30 --targets 24 --test 200 --shadows 60 --steps 10 --hidden 4 --threads 1"
    private = "--dp-clip 1 --dp-noise 20 --require-power 0.5".split()
    more = ["audit", "--data", place / "more.npz", *sizes.split()]
    result = invoke(*more, *private, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("No leak found: ")
    assert "with a noise multiplier of 0.001, " in result.stdout
    assert "with your 20." in result.stdout
    victim = json.loads((tmp_path / "run" / "result.json").read_text())["victim"]
    assert victim["delta"] == 1e-5
    assert victim["epsilon"] == pytest.approx(epsilon(20.0, 10))
    assert "clip 1, noise multiplier 20" in victim["training"]
    assert "Epsilon" in (tmp_path / "run" / "report.html").read_text()


def test_a_convolutional_network_is_audited(invoke, tmp_path, make_mixtures, key):
    records = make_mixtures(120, (1, 12, 12), 3, key)
    np.savez(tmp_path / "shapes.npz", x=records.inputs.numpy(), y=records.labels.numpy())
    sizes = "--network cnn --fixed 12 --targets 12 --shadows 40 --test 40 --steps 8".split()
    out = tmp_path / "run"
    result = invoke(
        "audit", "--data", tmp_path / "shapes.npz", *sizes, "--threads", 1, "--out", out
    )
    assert result.exit_code == 0, result.output
    found = json.loads((out / "result.json").read_text())
    assert (
        found["victim"]["architecture"]
        == "CNN 16 of 4x4 stride 2, 32 of 4x4 stride 1, then 10-3, elu"
    )
    metrics = found["attacks"][0]["metrics"]
    assert metrics["mse"] < metrics["mean_record_mse"]


@pytest.mark.parametrize(("order", "word"), [("known", "leaks"), ("unknown", "not audited")])
def test_batches_in_an_order_known_or_not(invoke, place, tmp_path, order, word):
    sizes = "--fixed 30 --targets 20 --test 200 --shadows 100 --steps 6 --threads 1".split()
    options = "--optimiser adam --rate 0.01 --batch 15 --batch-order".split()
    more = ["audit", "--data", place / "more.npz", *sizes, *options, order]
    result = invoke(*more, "--out", tmp_path / "run")
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["verdict"]["word"] == word
    assert result.exit_code == (0 if word == "leaks" else 2)
    assert found["distance"] == (1 if word == "leaks" else 8)  # too far away to say anything
    training = found["victim"]["training"]
    assert training.startswith("batches of 15 in random order, 6 steps, rate 0.01, Adam")
    assert "epsilon" not in found["victim"]


def test_bench_prints_a_list(invoke, monkeypatch):
    monkeypatch.setitem(BENCHES, "shadows", lambda progress: [{"name": "shadows", "ratio": 2.0}])
    result = invoke("bench", "shadows", "--json")
    assert json.loads(result.stdout) == [{"name": "shadows", "ratio": 2.0}]
    assert invoke("bench", "shadows").stdout.strip() == "name shadows  ratio 2.0"


def test_report_redraws_and_redacts(run, invoke):
    out, _ = run
    (out / "report.html").unlink()
    assert invoke("report", out).exit_code == 0
    assert (out / "report.html").exists()
    assert invoke("report", out, "--redact").stdout.strip().endswith("report-redacted.html")


def test_lists(invoke):
    assert "mnist" in invoke("data", "list").stdout
    assert "informed-mnist" in invoke("study", "list").stdout


def test_a_defect_does_not_look_like_a_leak(invoke, quick, monkeypatch, tmp_path):
    def broken(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(auditing, "audit", broken)
    result = invoke(*quick, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "ZeroDivisionError: oops" in result.stderr
    assert "a defect of exhume" in result.stderr


SINKS = pytest.mark.parametrize("sink", ["| true", "| head -1", "> /dev/full"])


def in_a_shell(command):
    shell = ["bash", "-o", "pipefail", "-c", command]
    return subprocess.run(shell, capture_output=True, text=True, check=False)


@SINKS
def test_a_closed_output_is_no_failure(sink):
    code = "from exhume.cli.frame import echo_out; [echo_out(str(i)) for i in range(3)]"
    done = in_a_shell(f"{sys.executable} -c '{code}' {sink}")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert ("cannot write to standard output" in done.stderr) == ("full" in sink)


@pytest.mark.slow
@SINKS
def test_a_closed_output_does_not_undo_the_audit(run, quick, sink):
    out, _ = run
    done = in_a_shell(f"{sys.executable} -m exhume {' '.join(map(str, quick))} --out {out} {sink}")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What `init` wrote after its questions were answered."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    asked = runner.invoke(
        app, ["init"], input="weights\ntraining\ndigits\nmlp\ngd\n0.9\n0.2\n50\n5m\n"
    )
    assert asked.exit_code == 0
    assert "'weights' is not one of these." in asked.stdout
    return tmp_path / "audit.toml"


def test_init_asks_and_writes_a_brief(asked):
    text = asked.read_text()
    assert 'source = "digits"' in text
    for said in ("momentum = 0.9 ", "rate = 0.2 ", "steps = 50 "):
        assert said in text
    runner = CliRunner()
    done = runner.invoke(app, ["audit", "audit.toml", "--steps", "20", "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    assert [one["kind"] for one in json.loads(done.stdout)["releases"]] == ["weights"]
    again = runner.invoke(app, ["init"])
    assert again.exit_code == 2
    assert "audit.toml exists; choose another name, or --force" in again.stderr


@pytest.mark.slow
def test_the_brief_that_init_writes_runs(asked):
    sizes = 'source = "digits"\ntargets = 10\nshadows = 60'
    small = asked.read_text().replace('source = "digits"', sizes)
    asked.write_text(small.replace("fixes = true", "fixes = false"))
    done = CliRunner().invoke(app, ["audit", "audit.toml", "--out", "run", "--steps", "20"])
    assert done.exit_code == 0, done.output


def test_init_whose_questions_are_not_answered_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = CliRunner().invoke(app, ["init"], input="training\n")
    assert asked.exit_code == 130
    assert asked.stderr.splitlines()[-1] == "exhume: stopped; nothing was written"
    assert not (tmp_path / "audit.toml").exists()


def test_init_without_questions(invoke, tmp_path):
    out = tmp_path / "a.toml"
    options = ["--release", "checkpoint", "--data", "digits", "--budget", "1m"]
    result = invoke("init", out, *options, "--checkpoint", "w.safetensors")
    assert result.exit_code == 0
    assert 'file = "w.safetensors"' in out.read_text()
    audited = invoke("audit", out, "--out", tmp_path / "run")
    assert audited.exit_code == 2
    assert "there is no file w.safetensors" in audited.stderr
    assert not (tmp_path / "run").exists()


def test_init_takes_a_function_of_ones_own_or_an_optimiser(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answers = "training\ndigits\nnet.py:build\nown\nfit.py:train\n5m\n"
    assert CliRunner().invoke(app, ["init"], input=answers).exit_code == 0
    text = (tmp_path / "audit.toml").read_text()
    assert 'train = "fit.py:train"' in text
    assert "\noptimiser" not in text
    given = ["init", "two.toml", "--train", "fit.py:train", "--optimiser", "adamw"]
    both = CliRunner().invoke(
        app, [*given, "--release", "training", "--data", "digits"], input="mlp\n"
    )
    assert both.exit_code == 2
    assert "give one of the two" in both.stderr


def test_compare_says_better_worse_or_within_noise(run, invoke, tmp_path):
    out, _ = run
    same = invoke("compare", out, out)
    assert same.exit_code == 0
    assert same.stdout.startswith("within noise: Closed-form per-label reconstructor")
    safe = tmp_path / "safe"
    shutil.copytree(out, safe)
    result = json.loads((out / "result.json").read_text())
    result["attacks"][0]["leak"] |= {"successes": 0, "low": 0.0, "high": 0.3}
    (safe / "result.json").write_text(json.dumps(result))
    assert invoke("compare", out, safe).stdout.startswith("better: Closed-form")
    worse = invoke("compare", safe, out, "--fail-on-worse")
    assert worse.exit_code == 1
    assert worse.stdout.startswith("worse: Closed-form")
    assert invoke("compare", out, tmp_path / "nothing").exit_code == 2


def test_a_budget_and_fixes_by_options(invoke, quick, tmp_path, monkeypatch):
    """What they do: `tests/auditing/test_run.py`."""
    briefs = []

    def audited(brief, *_, **__):
        briefs.append(brief)
        tried = FixRow("a", "it", "a secret start", "", "", "0 of 9", tried=True, verdict="leaks")
        result = Result("", "", 0, Verdict("leaks", "It leaks.", ""), fixes=(tried,))
        return Audit(result, tmp_path, tmp_path / "report.html")

    monkeypatch.setattr(auditing, "audit", audited)
    done = invoke(*quick, "--budget", "30s", "--try-fixes")
    assert done.exit_code == 0, done.output
    assert "  a secret start: 0 of 9." in done.stdout.splitlines()
    assert (briefs[0].budget.seconds, briefs[0].budget.fixes) == (30, True)
    assert invoke("audit", "--data", "digits", "--budget", "soon").exit_code == 2
