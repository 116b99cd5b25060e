from __future__ import annotations

import json
import pickle
import subprocess
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from exhume.core.contract import ExhumeError
from exhume.report.folder import RunFolder
from exhume.settings import DataSettings
from exhume.store.scale import Processes, spread_over
from exhume.studies.framework import (
    Outcome,
    Run,
    RunOptions,
    Study,
    plain,
    run_study,
    sources_in,
    taken_up,
    to_toml,
)

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Sizes:
    width: int
    source: str = "digits"
    depths: tuple[int, ...] = (1, 2)
    kinds: dict[str, float] = field(default_factory=lambda: {"a b": 0.5})
    nothing: float | None = None


def double(run: Run[Sizes], depth: int) -> dict[str, float]:
    drawn = torch.rand(1, generator=run.key.fold(depth).generator())
    return {"doubled": 2.0 * depth * run.setting.width, "drawn": float(drawn)}


def experiment(run: Run[Sizes]) -> Outcome:
    arms = run.arms("doubling", double, {f"depth{d}": d for d in run.setting.depths})
    metrics = {f"{name}.{n}": v for name, arm in arms.items() for n, v in arm.items()}
    return Outcome(metrics | {"threads": float(torch.get_num_threads())})


STUDY = Study("an-example", {"smoke": Sizes(3), "cpu": Sizes(5)}, experiment)


def ran(out, study=STUDY, scale="smoke", **asked):
    return run_study(study, scale, out, RunOptions(**asked)).to_json()


def test_the_real_setting_is_saved_and_shown(tmp_path):
    result = ran(tmp_path / "run", seed=4)
    saved = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (saved["study"], saved["scale"], saved["seed"]) == ("an-example", "smoke", 4)
    sizes = {"width": 3, "source": "digits", "depths": [1, 2], "kinds": {"a b": 0.5}}
    assert saved["setting"] == sizes | {"nothing": "none"}
    assert result["setting"] == sizes | {"nothing": None}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "setting.width" in page
    assert "elu" not in page.lower().split("settings")[-1]  # no network that was never trained


def test_a_resumed_run_keeps_its_threads(tmp_path, monkeypatch):
    ran(tmp_path / "run")
    monkeypatch.setattr("exhume.choices._cores", lambda: 2)
    assert ran(tmp_path / "run")["metrics"]["threads"] == 1
    assert ran(tmp_path / "new")["metrics"]["threads"] == 2
    fixed = replace(STUDY, threads={"smoke": 1})
    assert ran(tmp_path / "fixed", fixed)["metrics"]["threads"] == 1
    assert torch.get_num_threads() == 1


def test_a_folder_of_another_setting_is_refused(tmp_path):
    ran(tmp_path / "run")
    for other in ({"scale": "cpu"}, {"seed": 1}):
        with pytest.raises(ExhumeError, match="holds a run with other settings"):
            ran(tmp_path / "run", **other)
    wider = replace(STUDY, scales={"smoke": Sizes(4)})
    with pytest.raises(ExhumeError, match="choose another --out, or delete it"):
        ran(tmp_path / "run", wider)


def test_an_arm_may_depend_on_less_than_the_whole_setting(tmp_path):
    """A study that grows keeps what it had."""
    run = Run(STUDY, "smoke", RunOptions(), RunFolder.create(tmp_path / "run"), 1)
    made = []

    def make(run, job):
        made.append(job)
        return {"number": 0.1}

    grown = replace(run, study=replace(STUDY, scales={"smoke": Sizes(3, kinds={"a b": 0.6})}))
    for one in (run, grown):
        one.tensors("arms", make, {"one": 1, "two": 2}, lambda job: job)
    assert made == [1, 2]
    grown.tensors("arms", make, {"one": 3}, lambda job: job)
    assert made == [1, 2, 3]


def test_arms_are_kept_under_the_whole_setting(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    run = Run(STUDY, "smoke", RunOptions(), folder, 1)
    made = []

    def make(run, job):
        made.append(job)
        return {"number": 0.1}

    for _ in range(2):
        assert run.arms("arms", make, {"one": 1}) == {"one": {"number": 0.1}}
    assert len(made) == 1
    others = (
        replace(run, scale="cpu"),
        replace(run, asked=RunOptions(seed=1)),
        replace(run, asked=RunOptions(data="elsewhere")),
        replace(run, study=replace(STUDY, name="another")),
        replace(run, study=replace(STUDY, scales={"smoke": Sizes(3, kinds={"a b": 0.6})})),
    )
    addresses = {(r.address(arm, r.setting)) for r in (run, *others) for arm in ("one", "two")}
    assert len(addresses) == 12
    for other in others:
        other.arms("arms", make, {"one": 1})
    assert len(made) == 6


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    """What is finished when it dies is not made again."""
    made = []

    def counted(run, depth):
        made.append(depth)
        return double(run, depth)

    def counting(run):
        arms = run.arms("doubling", counted, {f"depth{d}": d for d in run.setting.depths})
        return Outcome({name: arm["drawn"] for name, arm in arms.items()})

    def dying(stage, done, total):
        if done == 1:
            raise KeyboardInterrupt

    study = replace(STUDY, run=counting)
    whole = run_study(study, "smoke", tmp_path / "whole", RunOptions())
    with pytest.raises(KeyboardInterrupt):
        run_study(study, "smoke", tmp_path / "killed", RunOptions(), progress=dying)
    assert not (tmp_path / "killed" / "result.json").exists()
    again = run_study(study, "smoke", tmp_path / "killed", RunOptions())
    assert again.metrics == whole.metrics
    assert made == [1, 2, 1, 2]
    assert run_study(study, "smoke", tmp_path / "killed", RunOptions()).metrics == whole.metrics
    assert len(made) == 4


def test_arms_of_several_processes_are_those_of_one(tmp_path):
    told = []
    alone = run_study(
        STUDY, "smoke", tmp_path / "one", RunOptions(), progress=lambda *what: told.append(what)
    )
    with spread_over(Processes(2)):
        spread = ran(tmp_path / "two")
    assert spread["metrics"] == alone.metrics
    assert told == [("doubling", 0, 2), ("doubling", 1, 2), ("doubling", 2, 2)]
    assert pickle.loads(pickle.dumps(STUDY)) == STUDY


def test_tensors_come_back_as_they_were(tmp_path):
    run = Run(STUDY, "smoke", RunOptions(), RunFolder.create(tmp_path / "run"), 1)
    made = run.tensors("drawing", lambda run, n: {"row": torch.arange(n)}, {"a": 2, "b": 3})
    again = run.tensors("drawing", lambda run, n: {"row": None}, {"a": 2, "b": 3})
    assert [len(made["a"]["row"]), len(made["b"]["row"])] == [2, 3]
    assert torch.equal(again["b"]["row"], made["b"]["row"])
    assert again["b"]["row"].dtype == torch.int64


def test_another_copy_serves_where_one_set_is_read(tmp_path, make_records, key):
    copy = tmp_path / "copy.npz"
    digits = make_records(20, (1, 8, 8), 2, key)
    import numpy as np

    np.savez(copy, x=digits.inputs.numpy(), y=digits.labels.numpy())
    run = Run(STUDY, "smoke", RunOptions(data=str(copy)), RunFolder.create(tmp_path / "run"), 1)
    assert torch.allclose(run.records("digits").inputs, digits.inputs)
    with pytest.raises(ExhumeError, match=r"has records of shape \(1, 8, 8\); a copy of mnist"):
        run.records("mnist")


def test_what_a_study_cannot_honour_is_refused_before_anything_is_written(tmp_path):
    none = replace(STUDY, scales={"smoke": Sizes(3, source="")})
    with pytest.raises(
        ExhumeError, match="--data: an-example makes its own records at scale smoke"
    ):
        ran(tmp_path / "run", none, data="x")
    both = replace(STUDY, scales={"smoke": (Sizes(3), DataSettings("mnist"))})
    with pytest.raises(ExhumeError, match="reads digits, mnist at scale smoke; one copy cannot"):
        ran(tmp_path / "run", both, data="x")
    with pytest.raises(ExhumeError, match="device: 'meta' cannot be used here"):
        ran(tmp_path / "run", device="meta")
    assert not (tmp_path / "run").exists()


def test_a_study_of_the_cpu_refuses_another_device(tmp_path, monkeypatch):
    monkeypatch.setattr("exhume.studies.framework.device_named", torch.device)
    with pytest.raises(
        ExhumeError, match="--device: an-example runs on the cpu only, 'cuda' given"
    ):
        ran(tmp_path / "run", device="cuda")


def test_a_kept_result_is_the_result(tmp_path):
    result = run_study(
        STUDY, "smoke", tmp_path / "run", RunOptions(), keep=tmp_path / "docs" / "results"
    )
    kept = json.loads((tmp_path / "docs" / "results" / "an-example.json").read_text())
    assert kept == json.loads(json.dumps(result.to_json()))


def test_sources_are_found_wherever_a_setting_names_them():
    assert list(sources_in({"a": [DataSettings("mnist")], "b": Sizes(1), "c": 3})) == [
        "mnist",
        "digits",
    ]


def test_any_setting_can_be_written(tmp_path):
    values = {
        "n": float("inf"),
        "t": 'a "b"\n',
        "ü": True,
        "many": [{"k": 1}, {"k": None}],
        "e": {},
    }
    read = tomllib.loads(to_toml({"deep": {"er": values}}))
    assert read["deep"]["er"] == {**values, "many": [{"k": 1}, {"k": "none"}]}
    assert plain((Sizes(1), 2))[1] == 2
    folder = RunFolder.create(tmp_path / "run")
    assert taken_up(folder, {"study": "x", "setting": plain(Sizes(1))}, 3) == 3
    assert taken_up(folder, {"study": "x", "setting": plain(Sizes(1))}, 1) == 3


def test_a_result_names_the_commit_that_made_it(tmp_path):
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    made_by = ran(tmp_path / "run")["environment"].get("commit", "")
    assert made_by.removesuffix("-dirty") == head
