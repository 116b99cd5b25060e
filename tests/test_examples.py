"""The examples run, and what they say to run next runs too. One for each kind of release is not slow."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from exhume import readers
from exhume.auditing.limits import identified_at_most
from exhume.cli import app
from exhume.core.contract import Key
from exhume.defences.split.channel import Channel
from exhume.models.split.blueprint import OwnNetwork
from exhume.store.shards import NullStore
from exhume.train.single import Schedule as SplitSchedule
from exhume.train.single import SplitJob

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    """Examples import the files beside them, and draw as they like."""
    known, state = set(sys.modules), torch.random.get_rng_state()
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    torch.random.set_rng_state(state)
    for name in set(sys.modules) - known:
        if "." not in name and not hasattr(sys.modules[name], "__path__"):
            del sys.modules[name]


@pytest.fixture
def follow(tmp_path, monkeypatch, capsys):
    """A function: do what the README of an example says, with options that make it quick."""

    def run(name, *quick, codes=(0,)):
        shutil.copytree(EXAMPLES / name, tmp_path / name)
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.syspath_prepend(str(tmp_path / name))
        block = re.search(r"```\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
        said = []
        for line in block[1].splitlines():
            program, *words = shlex.split(line)
            if program == "python":
                monkeypatch.setattr(sys, "argv", words)
                runpy.run_path(words[0], run_name="__main__")
            elif program == "exhume":
                result = CliRunner().invoke(app, [*words, *quick])
                assert result.exit_code in codes, result.output
                said.append(result.stdout)
            else:
                assert program in ("cd", "pip"), line
        return "".join(said) + capsys.readouterr().out

    return run


def test_a_checkpoint_to_be_audited(tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLES / "checkpoint.py"))["main"]
    main("digits", tmp_path / "work", each=1, width=40, decoys=100)
    command = shlex.split(capsys.readouterr().out)
    assert command[:2] == ["exhume", "audit-weights"]
    quick = ["--restarts", "1", "--steps", "100"]
    result = CliRunner().invoke(app, [*command[1:], *quick])
    assert result.exit_code == 0, result.output
    assert "of 10 records" in result.stdout
    assert (tmp_path / "work" / "run" / "report.html").exists()


@pytest.mark.slow
def test_an_ordinary_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(EXAMPLES / "own_checkpoint" / "train.py"))["main"]
    main(5e-3, tmp_path, source="digits", records=20, width=60, epochs=800)
    assert "20 of 20 training pictures right" in capsys.readouterr().out
    readme = (EXAMPLES / "own_checkpoint" / "README.md").read_text()
    command = shlex.split(re.search(r"exhume (audit-weights.*)", readme)[1])
    command[command.index("0:100")] = "0:20"
    result = CliRunner().invoke(app, [*command, "--restarts", "1", "--steps", "100"])
    assert result.exit_code in (0, 2), result.output  # a short attack on digits may find nothing
    conditions = json.loads(Path("run/result.json").read_text())["conditions"]
    assert len(conditions) == 5
    assert conditions[3]["holds"]
    assert "Can the attack work here?" in Path("run/report.html").read_text()


QUICK = "--fixed 40 --targets 20 --shadows 120 --test 300 --steps 40".split()


@pytest.mark.slow
def test_an_own_network_and_own_images(follow):
    said = follow("own_cnn", *QUICK, "--budget", "1m", "--steps", "15")
    assert "of 20 records" in said
    assert "model.py:build with 105,418 parameters" in Path("run/result.json").read_text()
    assert Path("run/report.html").exists()
    assert len(Path("audit.toml").read_text().splitlines()) <= 10
    assert "exhume" not in Path("model.py").read_text().split('"""')[2]


def test_a_head_on_frozen_features(follow):
    assert "of 20 records" in follow("frozen_features", *QUICK)
    victim = json.loads(Path("run/result.json").read_text())["victim"]
    assert victim["architecture"] == "model.py:build with 650 parameters"


@pytest.mark.slow
def test_a_private_network_by_opacus(follow):
    pytest.importorskip("opacus", reason="opacus is not installed: pip install 'exhume[opacus]'")
    quick = "--fixed 20 --targets 12 --shadows 12 --test 300".split()
    with pytest.warns(UserWarning, match="Secure RNG"):
        follow("opacus_cnn", *quick, codes=(0, 2))  # 12 shadows are hardly an attack
    assert "train.py:train" in Path("run/result.json").read_text()
    result = json.loads(Path("run/result.json").read_text())
    assert result["attacks"][0]["lineup"]["targets"] == 12
    said = "clip 1, noise multiplier 1, 40 steps, by Opacus"
    assert result["victim"]["privacy"] == said
    limits = next(a["limits"] for a in result["attacks"] if "limits" in a)
    assert [row["bound"] for row in limits["rows"]] == [pytest.approx(1.0, abs=1e-3)] * 2


@pytest.mark.slow
def test_an_adapter_of_a_base(follow, monkeypatch):
    monkeypatch.setenv("RANK", "48")
    assert "The release leaks: 1 of 1 records" in follow("lora_adapter")
    victim = json.loads(Path("run/result.json").read_text())["victim"]
    assert victim["read_as"] == "A LoRA adapter of 1, 3, scaled by 0.333333."


def test_a_published_credit_model(follow):
    said = follow("credit_model")
    assert "5 of 5 customers came back within 1%" in said
    main = runpy.run_path("credit.py")["main"]
    assert main(Path("loose"), tolerance=1e-4) == 0  # scikit-learn's default


def test_an_erased_customer(follow):
    follow("credit_model")  # puts the example's files here
    result = runpy.run_path("erasure.py")["main"](Path("erased")).result
    assert result.verdict.word == "leaks"
    attacks = {attack.spec.id: attack.metrics for attack in result.attacks}
    assert attacks["remaining"]["exact"] == 1
    assert attacks["difference"]["mse"] < 0.1 * attacks["difference"]["never_saw_mse"]


@pytest.mark.slow
def test_a_client_that_trains_on_notes(follow):
    said = follow("text_client")
    assert "4 of 4 records" in said
    attacks = {a["id"]: a for a in json.loads(Path("run/result.json").read_text())["attacks"]}
    assert attacks["texts"]["metrics"]["whole_texts"] == 1
    assert attacks["texts"]["metrics"]["certified"] == 4
    assert attacks["words"]["metrics"]["false_words"] == 0
    page = Path("run/report.html").read_text()
    assert "<mark>jones</mark>" in page
    assert "exhume" not in Path("client.py").read_text()


def test_a_client_that_fine_tunes_a_language_model(follow):
    said = follow("language_client", "--threads", "1")
    assert "4 of 4 records" in said
    attacks = {a["id"]: a for a in json.loads(Path("run/result.json").read_text())["attacks"]}
    assert attacks["language"]["metrics"]["whole_texts"] == 1
    assert attacks["language"]["metrics"]["certified"] == 4
    assert "not applicable" in json.dumps(attacks["words"]["status"])  # tied to the outputs
    assert "<mark>passport</mark>" in Path("run/report.html").read_text()
    assert "exhume" not in Path("client.py").read_text()


@pytest.mark.slow
def test_the_notebook(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "audit.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names = {}
    for cell in notebook["cells"]:
        assert set(cell) >= {"id", "cell_type", "metadata", "source"}
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec", dont_inherit=True), names)
    assert "% of the records came back" in capsys.readouterr().out
    assert Path("notebook-run/report.html").exists()


@pytest.mark.parametrize(
    "first", ["stem", pytest.param("stem,block1.out,block2.out", marks=pytest.mark.slow)]
)
def test_a_network_to_be_split(first, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NET", "1,10,4")
    main = runpy.run_path(str(EXAMPLES / "split_resnet" / "net.py"))["main"]
    state = torch.random.get_rng_state()
    main("digits", tmp_path / "work", width=4, epochs=2, records=300)
    torch.random.set_rng_state(state)
    setting, *command = shlex.split(capsys.readouterr().out)
    assert (setting, command[:2]) == ("NET=1,10,4", ["exhume", "audit-split"])
    quick = ["--attack-epochs", "1", "--channels", "4", "--targets", "30", "--held", "100"]
    result = CliRunner().invoke(app, [*command[1:], *quick, "--first", first])
    assert result.exit_code == 0, result.output  # it was not gated
    assert "The release leaks" in result.stdout
    assert (tmp_path / "work" / "run" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.network
def test_from_a_clean_environment_to_the_report(tmp_path):
    """The documented commands and nothing else: install, make the images, audit."""
    root, bin_ = EXAMPLES.parent, tmp_path / "env" / "bin"
    shutil.copytree(EXAMPLES / "own_cnn", tmp_path / "examples" / "own_cnn")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    install = ["install", "--quiet", "-c", root / "constraints.txt", root]
    subprocess.run([bin_ / "pip", *install], check=True)
    readme = (EXAMPLES / "own_cnn" / "README.md").read_text()
    block = re.search(r"```\n(.*?)```", readme, re.DOTALL)
    plain = {"PATH": f"{bin_}:/usr/bin:/bin", "HOME": str(tmp_path)}
    ran = subprocess.run(
        ["bash", "-e", "-c", block[1]],
        cwd=tmp_path,
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "of 50 records" in ran.stdout
    assert (tmp_path / "examples" / "own_cnn" / "run" / "report.html").exists()


@pytest.mark.slow
def test_a_channel_through_what_a_server_hears(tmp_path, monkeypatch):
    """The core of examples/split_resnet without servers: what they would hear is what the client sends."""
    service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
    monkeypatch.setenv("NET", "1,10,4")
    folder = EXAMPLES / "split_resnet"
    listen = runpy.run_path(str(folder / "listen.py"))
    records = readers.load("digits")
    network = OwnNetwork(f"{folder / 'net.py'}:net", (1, 8, 8))
    job = SplitJob(
        network, "stem", "flat", records[:300], SplitSchedule(2, 50, 0.05), augment=False
    )
    pipeline = Channel.of_bits(4.0, 6).train(job, key=Key.from_seed(0), store=NullStore())
    private, held, strangers = records[300:330], records[400:600], records[700:1100]
    heard = listen["Listener"]("nowhere")
    sent = pipeline.client.send(private.inputs)
    asked = service_pb2.ModelInferRequest(
        inputs=[{"shape": [30, 6]}], raw_input_contents=[sent.numpy().tobytes()]
    )
    heard.keep(asked.SerializeToString())
    (kept,) = heard.heard
    assert torch.equal(kept, sent)
    found = listen["attack"](pipeline, kept, private, held, strangers, epochs=2, channels=4)
    assert set(found) == {"a shadow of the head", "the true head"}
    for identified, of, among in found.values():
        assert identified / of <= identified_at_most(among, pipeline.client.sigma)
