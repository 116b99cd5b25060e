from __future__ import annotations

import json
import resource
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from exhume.bench import BENCHES
from exhume.cli import app
from exhume.train.dp import epsilon

QUICK = "audit --data digits --fixed 100 --targets 20 --shadows 200 --steps 30".split()


@pytest.fixture(scope="module")
def invoke():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def run(invoke, tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    return out, invoke(*QUICK, "--out", out)


def test_help_answers_at_once_without_torch():
    code = (
        "import sys; from exhume.cli import app; app(['--help'], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 3  # seconds of a processor; well under one on an idle machine


def test_audit_says_the_verdict_and_where_the_report_is(run):
    out, result = run
    assert result.exit_code == 0
    assert "The release leaks:" in result.stdout
    assert result.stdout.rstrip().endswith(f"report: {out / 'report.html'}")


@pytest.mark.parametrize(("limit", "code"), [("0.01", 1), ("1", 0)])
def test_fail_over_is_a_gate(run, invoke, limit, code):
    out, _ = run
    assert invoke(*QUICK, "--out", out, "--fail-over", limit).exit_code == code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "--data", "mnits"], "mnist"),
        (["audit", "--data", "digits", "--hidden", "ten"], "--hidden: 'ten' is not a list"),
        (["audit", "--data", "digits", "--hidden", ","], "--hidden: ',' is not a list"),
        (["audit", "--data", "digits", "--threads", "1000"], "machine.threads: 1000 given"),
        (["audit", "--data", "digits", "--device", "meta"], "device: 'meta' cannot be used"),
        (["audit", "nowhere.toml"], "cannot read nowhere.toml"),
        (["audit", "--data", "digits", "--activation", "rulu"], "activation: 'rulu' is not one of"),
        (
            ["audit", "--data", "digits", "--network", "rnn"],
            "network: 'rnn' is not one of mlp, cnn",
        ),
        (["audit", "--data", "digits", "--network", "cnn"], "leave nothing of 8x8"),
        (["report", "nowhere"], "nowhere"),
        (["data", "fetch", "mnits"], "mnist"),
        (["study", "run", "informed-mnits"], "did you mean 'informed-mnist'"),
        (["bench", "nothing"], "bench: 'nothing' is not one of shadows"),
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


def test_not_audited_is_exit_2(invoke, tmp_path):
    """One shadow is not enough for the attack: that must never look like safety."""
    result = invoke(*QUICK[:-4], "--shadows", "1", "--steps", "5", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "Not audited: shadow: 1 records given" in result.stdout
    assert (tmp_path / "run" / "report.html").exists()


def test_private_training_states_its_epsilon(invoke, tmp_path):
    """With enough records, and with an attack that works where there is less noise: no leak found."""
    quick = (
        "audit --data digits --fixed 30 --targets 40 --test 800 --shadows 200 --steps 20".split()
    )
    sizes = "--hidden 4 --threads 1 --dp-clip 1 --dp-noise 20 --require-power 0.5".split()
    result = invoke(*quick, *sizes, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("No leak found: ")
    assert "with a noise multiplier of 0.001, " in result.stdout
    assert "with your 20." in result.stdout
    victim = json.loads((tmp_path / "run" / "result.json").read_text())["victim"]
    assert victim["delta"] == 1e-5
    assert victim["epsilon"] == pytest.approx(epsilon(20.0, 20))
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


@pytest.mark.parametrize(("order", "word"), [("known", "leaks"), ("unknown", "no leak found")])
def test_batches_in_an_order_known_or_not(invoke, tmp_path, order, word):
    quick = "audit --data digits --fixed 30 --targets 80 --test 400 --shadows 200 --steps 6".split()
    options = "--optimiser adam --rate 0.01 --batch 15 --threads 1 --batch-order".split()
    result = invoke(*quick, *options, order, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run" / "result.json").read_text())["verdict"]["word"] == word
    victim = json.loads((tmp_path / "run" / "result.json").read_text())["victim"]
    assert victim["training"].startswith("batches of 15 in random order, 6 steps, rate 0.01, Adam")
    assert "epsilon" not in victim


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


def test_the_same_command_without_out_finds_its_own_folder(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = invoke(*QUICK).stdout
    assert invoke(*QUICK).stdout == first
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_lists(invoke):
    assert "mnist" in invoke("data", "list").stdout
    assert "informed-mnist" in invoke("study", "list").stdout


def test_a_defect_does_not_look_like_a_leak(invoke, monkeypatch, tmp_path):
    import exhume.auditing

    def broken(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(exhume.auditing, "audit", broken)
    result = invoke(*QUICK, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "ZeroDivisionError: oops" in result.stderr
    assert "a defect of exhume" in result.stderr


def test_a_gate_finer_than_the_test_can_see_is_said(run, invoke):
    out, _ = run
    assert (
        "cannot be promised; more --targets help"
        in invoke(*QUICK, "--out", out, "--fail-over", "0.01").stderr
    )


@pytest.mark.parametrize("sink", ["| true", "| head -1", "> /dev/full"])
def test_a_closed_output_does_not_undo_the_audit(run, sink):
    out, _ = run
    command = f"{sys.executable} -m exhume {' '.join(QUICK)} --out {out} {sink}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_init_asks_and_writes_a_brief_that_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    asked = runner.invoke(
        app, ["init"], input="weights\ntraining\ndigits\nmlp\ngd\n0.9\n0.2\n50\n5m\n"
    )
    assert asked.exit_code == 0
    assert "'weights' is not one of these." in asked.stdout
    text = (tmp_path / "audit.toml").read_text()
    assert 'source = "digits"' in text
    for said in ("momentum = 0.9 ", "rate = 0.2 ", "steps = 50 "):
        assert said in text
    small = text.replace('source = "digits"', 'source = "digits"\ntargets = 10\nshadows = 60')
    (tmp_path / "audit.toml").write_text(small.replace("fixes = true", "fixes = false"))
    done = runner.invoke(app, ["audit", "audit.toml", "--out", "run", "--steps", "20"])
    assert done.exit_code == 0
    again = runner.invoke(app, ["init"])
    assert again.exit_code == 2
    assert "audit.toml exists; choose another name, or --force" in again.stderr


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


def test_json_and_junit_are_for_machines(run, invoke, tmp_path):
    out, _ = run
    junit = tmp_path / "junit.xml"
    result = invoke(*QUICK, "--out", out, "--json", "--junit", junit, "--fail-over", "0.5")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verdict"]["word"] == "leaks"
    assert 'failures="1"' in junit.read_text()


def test_compare_says_better_worse_or_within_noise(run, invoke, tmp_path):
    out, _ = run
    same = invoke("compare", out, out)
    assert same.exit_code == 0
    assert same.stdout.startswith("within noise: Closed-form per-label reconstructor")
    safe = tmp_path / "safe"
    invoke(*QUICK, "--out", safe, "--dp-clip", "1", "--dp-noise", "3")
    assert invoke("compare", out, safe).stdout.startswith("better: Closed-form")
    worse = invoke("compare", safe, out, "--fail-on-worse")
    assert worse.exit_code == 1
    assert worse.stdout.startswith("worse: Closed-form")
    assert invoke("compare", out, tmp_path / "nothing").exit_code == 2


def test_a_budget_and_fixes_by_options(invoke, tmp_path):
    out = tmp_path / "run"
    result = invoke(*QUICK, "--out", out, "--budget", "30s", "--try-fixes")
    assert result.exit_code == 0
    assert "initial weights that stay secret: " in result.stdout
    assert invoke("audit", "--data", "digits", "--budget", "soon").exit_code == 2
