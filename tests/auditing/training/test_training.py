"""The audit of weights that are trained here, from the brief to the run folder."""

from __future__ import annotations

import html
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import exhume
import exhume.store.shards
from exhume.cli import app
from exhume.core.contract import ExhumeError

pytestmark = pytest.mark.xdist_group("trained weights")
ARGUMENTS = "--data digits --fixed 120 --targets 20 --shadows 300 --steps 40 --threads 1".split()


def strip_times(result: dict) -> dict:
    for name in ("wall_seconds", "cost"):
        result.pop(name, None)
    for attack in result["attacks"]:
        attack.pop("cost")
    for planned in result["plan"]:
        planned.pop("seconds", None)
        planned.pop("cpu_seconds", None)
    return result


def content(folder: Path) -> dict[str, bytes]:
    """Everything a run leaves that must be the same every time, byte for byte."""
    files = {p.name: p.read_bytes() for p in folder.glob("*.safetensors")}
    files |= {f"shards/{p.name}": p.read_bytes() for p in (folder / "shards").iterdir()}
    result = strip_times(json.loads((folder / "result.json").read_text()))
    return {**files, "result": json.dumps(result).encode()}


def test_the_run_folder(trained):
    names = {p.name for p in trained.folder.iterdir()}
    assert names == {
        ".exhume-run",
        ".lock",
        "config.toml",
        "environment.json",
        "result.json",
        "closed-form.safetensors",
        "records-at-risk.csv",
        "report.html",
        "report-redacted.html",
        "shards",
    }
    assert trained.folder.stat().st_mode & 0o777 == 0o700
    assert trained.report.name == "report.html"
    assert trained.redacted.name == "report-redacted.html"


def test_the_result(trained, small):
    assert trained.verdict.word == "leaks"
    (attack,) = json.loads((trained.folder / "result.json").read_text())["attacks"]
    metrics, sizes = attack["metrics"], small["data"]
    for name in ("mse", "mae", "psnr", "ssim", "label_accuracy", "oracle_mse", "null_success"):
        assert np.isfinite(metrics[name])
    assert metrics["pool"] == sizes["fixed"] + sizes["shadows"] + sizes["public"]
    assert metrics["targets"] == sizes["targets"]
    assert {b["name"] for b in attack["baselines"]} == {
        "mean record",
        "held record nearest to the reconstruction",
        "nearest-neighbour oracle (knows the truth)",
    }


def test_how_far_the_verdict_goes(trained):
    """A record that counts once is enough; the weights come out again from the true records only."""
    extent = trained.result.extent
    assert extent.distance == 1
    assert "(distance 1)" in trained.verdict.detail
    assert (extent.premise.value, extent.premise.holds) == (0.0, True)
    assert extent.premise.stranger > extent.premise.limit
    assert extent.premise.sentence in html.unescape(trained.report.read_text())


def test_machine_readable_outputs_carry_no_record(trained):
    """No list of numbers as long as a record, anywhere."""

    def longest(value) -> int:
        if isinstance(value, dict):
            return max([longest(v) for v in value.values()], default=0)
        if isinstance(value, list):
            return max([len(value), *(longest(v) for v in value)])
        return 0

    for name in ("result.json", "environment.json"):
        assert longest(json.loads((trained.folder / name).read_text())) < 20


@pytest.fixture
def taken_up(trained, tmp_path) -> Path:
    """A copy of the finished run, to go on with."""
    return shutil.copytree(trained.folder, tmp_path / "run")


def test_the_same_again_elsewhere_has_the_same_bits(trained, small, tmp_path):
    same = exhume.audit(small, tmp_path / "same")
    assert content(same.folder) == content(trained.folder)


def test_another_seed_has_others(trained, small, tmp_path):
    other = exhume.audit({**small, "seed": 1}, tmp_path / "other")
    before, after = content(trained.folder), content(other.folder)
    assert before["closed-form.safetensors"] != after["closed-form.safetensors"]
    assert not {name for name in before if name.startswith("shards/")} & set(after)


def test_a_finished_run_goes_on_with_its_own_chunk_and_trains_nothing(taken_up, small):
    """The bits follow what was written, not the new machine."""
    before = content(taken_up)
    times = {p: p.stat().st_mtime_ns for p in (taken_up / "shards").iterdir()}
    exhume.audit({**small, "machine": {"threads": 1, "chunk": 7}}, taken_up)
    assert content(taken_up) == before
    assert {p: p.stat().st_mtime_ns for p in (taken_up / "shards").iterdir()} == times


def test_a_folder_of_another_run_is_refused(trained, small):
    with pytest.raises(ExhumeError, match="holds a run with other settings"):
        exhume.audit({**small, "seed": 5}, trained.folder)


def test_sizes_left_open_follow_the_data(small, tmp_path):
    data = {"source": small["data"]["source"], "shadows": 60, "targets": 10}
    done = exhume.audit({"data": data, "victim": {"steps": 5}}, tmp_path / "run")
    assert "fixed = 60" in (done.folder / "config.toml").read_text()  # a quarter


def test_tabular_records_have_no_ssim(tmp_path, key):
    x = torch.rand(200, 12, generator=key.generator()).numpy()
    np.savez(tmp_path / "credit.npz", x=x, y=(x[:, 0] > 0.5).astype(int))
    settings = {"data": {"source": str(tmp_path / "credit.npz")}, "victim": {"steps": 20}}
    done = exhume.audit(settings, tmp_path / "run")
    assert "ssim" not in done.metrics
    assert "psnr" not in done.metrics
    assert done.report.exists()


def test_too_few_records_are_named(tmp_path):
    with pytest.raises(ExhumeError, match=r"records needed \(.*shadows 5000.*\), 1797 available"):
        exhume.audit({"data": {"source": "digits", "shadows": 5000}}, tmp_path / "run")


def test_a_read_only_place_is_named(small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExhumeError, match="cannot use .*file/run as run folder: Not a directory"):
        exhume.audit(small, tmp_path / "file" / "run")


def test_a_device_that_is_not_there_is_named(small, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    settings = {**small, "machine": {"device": "cuda"}}
    with pytest.raises(ExhumeError, match="device: 'cuda' cannot be used here"):
        exhume.audit(settings, tmp_path / "run")
    with pytest.raises(
        ExhumeError, match="device: 'warp' cannot be used here: cpu and cuda are known"
    ):
        exhume.audit({**small, "machine": {"device": "warp"}}, tmp_path / "run2")


# Stopped and taken up


@contextmanager
def stopped(after):
    """Work is interrupted once it has saved so many shards."""
    write, saved = exhume.store.shards.write_shard, []

    def stops(path, shard):
        write(path, shard)
        saved.append(path)
        if len(saved) == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exhume.store.shards, "write_shard", stops)
        yield


def test_stopped_between_shards_it_ends_with_the_same_bytes(trained, small, tmp_path):
    """Killed at moments within a write: `tests/fuzz/test_kills.py`."""
    assert shards(trained.folder) == 5
    out = tmp_path / "run"
    for saved in (1, 2, 1):
        before = shards(out)
        with stopped(after=saved), pytest.raises(KeyboardInterrupt):
            exhume.audit(small, out)
        assert shards(out) == before + saved
    exhume.audit(small, out)
    assert content(out) == content(trained.folder)
    assert not list(out.rglob("*.part"))


def test_stopped_the_command_says_how_to_go_on(small, tmp_path):
    words = "audit --fixed 30 --targets 12 --shadows 60 --steps 5 --threads 1 --data".split()
    words += [small["data"]["source"], "--out", str(tmp_path / "run")]
    with stopped(after=1):
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    assert "the same command goes on from there" in done.stderr
    assert "Traceback" not in done.stderr
    assert shards(tmp_path / "run") == 1


HELD = """
import sys
import exhume.store.shards
from exhume.cli import main

write = exhume.store.shards.write_shard

def held(path, shard):
    write(path, shard)
    print("saved", flush=True)
    sys.stdin.readline()

exhume.store.shards.write_shard = held
main()
"""


class HeldRun:
    """A run in a process of its own that waits after each shard until it is let go on."""

    def __init__(self, out: Path) -> None:
        command = [sys.executable, "-c", HELD, "audit", *ARGUMENTS, "--out", str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, text=True
        )

    def after(self, shards: int) -> subprocess.Popen[str]:
        """The process, once it has saved so many and stands still."""
        for index in range(shards):
            if index:
                self.process.stdin.write("\n")
                self.process.stdin.flush()
            assert self.process.stdout.readline() == "saved\n"
        return self.process


def start(out: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "exhume", "audit", *ARGUMENTS, "--out", str(out)]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)


def shards(out: Path) -> int:
    return len(list((out / "shards").glob("*.safetensors")))


@pytest.mark.slow
def test_killed_between_shards_and_resumed_it_ends_with_the_same_bytes(tmp_path):
    assert start(tmp_path / "whole").returncode == 0
    assert shards(tmp_path / "whole") == 6
    out = tmp_path / "killed"
    for saved in (1, 2, 2):
        before = shards(out)
        run = HeldRun(out).after(saved)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        assert shards(out) == before + saved
    assert start(out).returncode == 0
    assert content(out) == content(tmp_path / "whole")
    assert not list(out.rglob("*.part"))


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(tmp_path):
    run = HeldRun(tmp_path / "run").after(1)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate()
    assert run.returncode == 130
    assert "the same command goes on from there" in errors
    assert "Traceback" not in errors


def few(tmp_path, x, y):
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return {"data": {"source": str(tmp_path / "data.npz")}, "victim": {"steps": 5}}


@pytest.mark.parametrize(
    ("records", "classes", "message"),
    [
        (3, 2, "3 records would give fixed 0, targets 0, shadows 1; at least 1, 2 and 1"),
        (100, 1, "1 class among the labels; a classifier needs two"),
    ],
)
def test_data_that_cannot_be_audited_is_refused_before_anything_is_written(
    tmp_path, records, classes, message
):
    settings = few(tmp_path, np.random.rand(records, 4), np.arange(records) % classes)
    with pytest.raises(ExhumeError, match=message):
        exhume.audit(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_records_the_adversary_already_holds_are_not_audited(tmp_path):
    """Every record is there many times over: nothing could have been found, so nothing is claimed."""
    base = np.random.default_rng(0).random((4, 6))
    settings = few(tmp_path, np.tile(base, (50, 1)), np.tile([0, 1, 0, 1], 50))
    done = exhume.audit(settings, tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert "(40 left out: held by the adversary)" in done.verdict.sentence


def test_two_targets_have_strangers_among_what_was_not_dealt(small, tmp_path):
    settings = {**small, "data": {**small["data"], "targets": 2, "test": 60}}
    done = exhume.audit(settings, tmp_path / "run")
    assert done.verdict.word == "leaks"
    assert "2 of 2 records" in done.verdict.sentence


def test_a_folder_with_other_files_is_left_alone(small, tmp_path):
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "mine" / "report.html").write_text("mine")
    with pytest.raises(ExhumeError, match="it holds other files; choose a new or empty one"):
        exhume.audit(small, tmp_path / "mine")
    assert (tmp_path / "mine" / "report.html").read_text() == "mine"
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755


def test_a_run_folder_inside_the_data_is_refused(tmp_path):
    from PIL import Image

    for index in range(40):
        place = tmp_path / "photos" / "ab"[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 255, (4, 4), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{index}.png")
    with pytest.raises(ExhumeError, match="lies inside the data"):
        exhume.audit({"data": {"source": str(tmp_path / "photos")}}, tmp_path / "photos" / "run")


def test_a_failed_setting_does_not_lock_its_folder(small, tmp_path):
    bad = {**small, "victim": {"steps": 40, "rate": 1e30}}
    with pytest.raises(ExhumeError, match="training diverged"):
        exhume.audit(bad, tmp_path / "run")
    assert exhume.audit(small, tmp_path / "run").verdict.word == "leaks"


def test_a_model_larger_than_the_memory_is_refused(small, tmp_path):
    settings = {**small, "victim": {"hidden": [10_000_000]}}
    with pytest.raises(ExhumeError, match="training one such model takes .* MiB"):
        exhume.audit(settings, tmp_path / "run")


# Other attacks


def test_the_first_targets_can_be_had_exactly(small, tmp_path):
    fewer = {**small, "victim": {**small["victim"], "steps": 10}, "attack": {"exact": 4}}
    done = exhume.audit(fewer, tmp_path / "run")
    result = json.loads((done.folder / "result.json").read_text())
    closed, exact = result["attacks"]
    assert exact["id"] == "through-training"
    assert exact["metrics"]["targets"] == 4
    assert exact["knows"] == ["architecture", "recipe", "initial", "fixed"]
    assert exact["metrics"]["mse"] < 1e-6 < closed["metrics"]["mse"]
    assert exact["metrics"]["label_accuracy"] == 1
    assert (done.folder / "through-training.safetensors").exists()
    assert "Differentiating through training" in done.report.read_text()


def test_an_attack_that_does_not_apply_is_reported_beside_one_that_does(small, tmp_path):
    victim = {**small["victim"], "dp_clip": 10.0}
    done = exhume.audit({**small, "victim": victim, "attack": {"exact": 4}}, tmp_path / "run")
    result = json.loads((done.folder / "result.json").read_text())
    assert result["attacks"][1]["status"]["outcome"] == "not applicable"
    assert "private training adds noise" in result["attacks"][1]["status"]["reason"]
    assert done.verdict.word != "not audited"


@pytest.mark.parametrize("exact", [1, 13])
def test_exact_targets_are_some_of_the_targets(small, tmp_path, exact):
    with pytest.raises(ExhumeError, match=f"attack.exact: {exact} given, 0 or from 2 to 12"):
        exhume.audit({**small, "attack": {"exact": exact}}, tmp_path / "run")


def test_private_training_is_attacked_by_one_who_also_trains_without_the_noise(small, tmp_path):
    victim = {**small["victim"], "momentum": 0.9, "dp_clip": 10.0, "dp_noise": 0.02}
    done = exhume.audit({**small, "victim": victim}, tmp_path / "run")
    plain, aware, _ = json.loads((done.folder / "result.json").read_text())["attacks"]
    assert [plain["id"], aware["id"]] == ["closed-form", "noise-aware"]
    assert aware["metrics"]["mse"] < plain["metrics"]["mse"]
    assert done.metrics["success"] == aware["metrics"]["success"] > plain["metrics"]["success"]
    assert (done.folder / aware["evidence"]).exists()
