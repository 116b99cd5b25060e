from __future__ import annotations

import json
import pickle
import stat

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from exhume.core.contract import ExhumeError
from exhume.readers.updates import (
    Recorded,
    Recording,
    from_gradient,
    from_recording,
    from_states,
    read_state,
    recorded_in,
    with_state,
)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_states_are_read_without_running_anything(tmp_path, capsys):
    state = network().state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save({f"module.{n}": t for n, t in state.items()}, tmp_path / "b.pt")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "c.pth")
    for name in ("a.safetensors", "b.pt", "c.pth"):
        read = read_state(tmp_path / name)
        assert set(read) == set(state)
        assert torch.equal(read["0.weight"], state["0.weight"])
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Evil()))
    torch.save(Evil(), tmp_path / "evil2.pt")
    for name in ("evil.pt", "evil2.pt"):
        with pytest.raises(ExhumeError, match="update: .* needs Python code to be loaded"):
            read_state(tmp_path / name)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.pt", None, "there is no file"),
        ("cut.safetensors", b"abc", "update: .* is truncated, damaged or not a file of weights"),
        ("cut.pt", b"abc", "is truncated, damaged or not a file of weights"),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ExhumeError, match=message):
        read_state(tmp_path / name)


def test_a_list_is_no_state(tmp_path):
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with pytest.raises(ExhumeError, match="holds list, not a state dict of named tensors"):
        read_state(tmp_path / "list.pt")


def test_a_state_is_loaded_into_a_copy_with_its_buffers():
    module, other = network(0), network(1)
    other[1].running_mean.fill_(2.0)
    before = module[0].weight.clone()
    there = with_state(module, other.state_dict())
    assert torch.equal(there[0].weight, other[0].weight)
    assert torch.equal(there[1].running_mean, other[1].running_mean)
    assert torch.equal(module[0].weight, before)
    with pytest.raises(ExhumeError, match=r"the state before lacks 0.bias \(4,\)"):
        with_state(module, {n: t for n, t in other.state_dict().items() if n != "0.bias"})
    with pytest.raises(ExhumeError, match=r"has 0.bias \(3,\), the model wants 0.bias \(4,\)"):
        with_state(module, other.state_dict() | {"0.bias": torch.zeros(3)})


def test_the_three_ways_agree(tmp_path):
    start, end = network(0), network(1)
    gradient = {
        n: (p - q).detach() / 0.5
        for (n, p), q in zip(start.named_parameters(), end.parameters(), strict=True)
    }
    save_file(gradient, tmp_path / "g.safetensors")
    save_file(start.state_dict(), tmp_path / "s.safetensors")
    save_file(end.state_dict(), tmp_path / "e.safetensors")
    one = from_gradient(tmp_path / "g.safetensors", network(7), tmp_path / "s.safetensors")
    two = from_states(
        tmp_path / "s.safetensors", tmp_path / "e.safetensors", network(7), rate=0.25, steps=2
    )
    recording = Recording(tmp_path / "run")
    recording.write(
        start.state_dict(), end.state_dict(), round=3, client="7", rate=0.5, batch_size=8
    )
    (three,) = from_recording(tmp_path / "run", network(7))
    for other in (two, three):
        torch.testing.assert_close(one.payload.values, other.payload.values)
        assert torch.equal(one.payload.at, other.payload.at)
    assert (three.client, three.round, three.rate, three.batch_size) == ("7", 3, 0.5, 8)


def test_a_recording_is_private_and_complete(tmp_path):
    recording = Recording(tmp_path / "run")
    for client in ("1", "0"):
        recording.write(
            network(0).state_dict(), network(2).state_dict(), round=1, client=client, rate=1.0
        )
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    found = recorded_in(tmp_path / "run")
    assert [one.client for one in found] == ["0", "1"]
    assert len({one.before for one in found}) == 1  # what was sent alike is kept once
    for path in (tmp_path / "run").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not path.name.endswith(".part")


def test_what_is_no_recording(tmp_path):
    with pytest.raises(ExhumeError, match="holds no recorded update"):
        recorded_in(tmp_path)
    with pytest.raises(ExhumeError, match="rate: must be above 0, got 0"):
        Recorded(1, "a", "b", "c", 0.0, 1, 0)
    with pytest.raises(
        ExhumeError, match="steps, batch_size: must be at least 1 and 0, got 0 and 0"
    ):
        Recorded(1, "a", "b", "c", 1.0, 0, 0)
    with pytest.raises(ExhumeError, match="client: '../x' must be of letters"):
        Recorded(1, "../x", "b", "c", 1.0, 1, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ExhumeError, match="cannot record in"):
        Recording(tmp_path / "file")
    told = {"schema": 1, "round": 1, "client": "a", "before": "../b", "after": "c", "rate": 1.0}
    path = tmp_path / "round-1-client-a.json"
    for content, message in (
        ("{", "not readable as JSON"),
        (json.dumps(told), "steps is missing"),
        (json.dumps(told | {"schema": 2}), "not of schema 1"),
        (json.dumps(told | {"steps": 1, "batch_size": 0}), "'../b' lies outside the folder"),
    ):
        path.write_text(content)
        with pytest.raises(ExhumeError, match=message):
            recorded_in(tmp_path)
