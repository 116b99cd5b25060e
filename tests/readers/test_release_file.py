from __future__ import annotations

import json
import os
import pickle
import resource
import struct
import sys
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from exhume.core.contract import ExhumeError, NotApplicable
from exhume.models.mlp import MLP
from exhume.models.own import architecture_named
from exhume.readers.adapters import BaseReference, read_against, weights_in
from exhume.readers.checkpoint import read_checkpoint
from exhume.readers.tensors import read_tensors

SOURCE = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.head = nn.Linear(4, 3)
        self.register_buffer("mean", torch.tensor(0.5))
        self.still = nn.Linear(6, 6).requires_grad_(False)
    def forward(self, x): return self.head(self.model(self.still(x.flatten(1)) - self.mean))
"""
MLP_ = MLP((6,), (4,), 3, "relu")


@pytest.fixture
def net(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "net.py").write_text(SOURCE)
    return architecture_named("net.py:Net", input_shape=(6,), classes=3, root=tmp_path)


@pytest.fixture
def state(net):
    """What a trained network of the kind has: other parameters and statistics, the same constants."""
    torch.manual_seed(3)
    module = net.build()
    for name in net.layout.names:
        module.state_dict()[name].copy_(torch.rand_like(module.state_dict()[name]))
    return module.state_dict()


def saved(folder, content, name="net.pt"):
    torch.save(content, folder / name)
    return folder / name


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod.model."]
)
def test_a_state_dict_under_any_wrapper(net, state, tmp_path, prefix):
    path = saved(tmp_path, {f"{prefix}{name}": tensor for name, tensor in state.items()})
    for name, tensor in net.layout.split(weights_in(path, net)).items():
        assert torch.equal(tensor, state[name]), name
    assert "model.2.running_mean" in net.layout.names


def test_a_lora_adapter_is_its_merged_network(tmp_path, key):
    base = {n: t.clone() for n, t in MLP_.layout.split(MLP_.initial(key)).items()}
    torch.manual_seed(0)
    a, b, head = torch.rand(2, 6), torch.rand(4, 2), torch.rand(3)
    adapter = {
        "base_model.model.fc1.lora_A.weight": a,
        "base_model.model.fc1.lora_B.default.weight": b,
        "base_model.model.fc2.modules_to_save.bias": head,
    }
    save_file(adapter, tmp_path / "adapter.safetensors")
    before, path = saved(tmp_path, base, "base.pt"), tmp_path / "adapter.safetensors"
    config = tmp_path / "adapter_config.json"
    merged = base | {"fc1.weight": base["fc1.weight"] + 4 * b @ a, "fc2.bias": head}
    want = MLP_.layout.join(merged)
    for scaling, text in ((4.0, None), (None, {"lora_alpha": 8, "r": 2})):
        if text:
            config.write_text(json.dumps(text))
        states = read_against(path, BaseReference(before, scaling=scaling))
        torch.testing.assert_close(MLP_.layout.join(states.after), want)
        assert torch.equal(MLP_.layout.join(states.before), MLP_.layout.join(base))
        assert states.notes[-1] == "A LoRA adapter of fc1, scaled by 4."
    config.write_text(json.dumps({"lora_alpha": 8, "use_rslora": True}))
    change = read_against(path, BaseReference(before)).after["fc1.weight"] - base["fc1.weight"]
    torch.testing.assert_close(change, 8 / 2**0.5 * b @ a)
    with pytest.raises(
        ExhumeError, match="base: a LoRA adapter needs the state that it is added to"
    ):
        weights_in(path, MLP_)
    config.write_text(json.dumps({"lora_alpha": 8, "use_dora": True}))
    with pytest.raises(NotApplicable, match="use_dora is not read so far"):
        read_against(path, BaseReference(before))
    config.unlink()
    with pytest.raises(ExhumeError, match="adapter_config.json, or the number itself"):
        read_against(path, BaseReference(before))


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ({"fc1.lora_A.weight": (2, 6)}, "there is no fc1.lora_B.weight"),
        (
            {"fc9.lora_A.weight": (2, 6), "fc9.lora_B.weight": (4, 2)},
            "there is no fc9.weight in the base",
        ),
        (
            {"fc1.lora_A.weight": (2, 5), "fc1.lora_B.weight": (4, 2)},
            r"fc1 adds \(4, 2\) times \(2, 5\) to a weight of \(4, 6\)",
        ),
        (
            {"fc1.lora_A.weight": (2, 6), "fc1.lora_B.weight": (4,)},
            r"fc1 adds \(4,\) times \(2, 6\) to a weight of \(4, 6\)",
        ),
        ({"fc1.lora_magnitude_vector": (4,)}, "only lora_A and lora_B are read so far"),
    ],
)
def test_adapters_that_do_not_fit(tmp_path, key, adapter, message):
    base = saved(tmp_path, MLP_.layout.split(MLP_.initial(key)), "base.pt")
    path = saved(tmp_path, {name: torch.rand(shape) for name, shape in adapter.items()})
    with pytest.raises(ExhumeError, match=message):
        read_against(path, BaseReference(base, scaling=1.0))


def test_two_ranks_need_a_scaling(tmp_path, key):
    base = saved(tmp_path, MLP_.layout.split(MLP_.initial(key)), "base.pt")
    shapes = {
        "fc1.lora_A": (2, 6),
        "fc1.lora_B": (4, 2),
        "fc2.lora_A": (1, 4),
        "fc2.lora_B": (3, 1),
    }
    path = saved(tmp_path, {f"{n}.weight": torch.rand(shape) for n, shape in shapes.items()})
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 8}')
    with pytest.raises(ExhumeError, match=r"adapters of ranks \[1, 2\], one is needed"):
        read_against(path, BaseReference(base))


def test_differences_and_parts_of_a_state(tmp_path, key):
    base = {n: t.clone() for n, t in MLP_.layout.split(MLP_.initial(key)).items()}
    before = saved(tmp_path, base, "base.pt")
    change = {"fc2.weight": torch.ones(3, 4)}
    path = saved(tmp_path, change)
    added = read_against(path, BaseReference(before, "delta"))
    replaced = read_against(path, BaseReference(before))
    for states, want in ((added, base["fc2.weight"] + 1), (replaced, torch.ones(3, 4))):
        assert torch.equal(states.after["fc2.weight"], want)
        assert torch.equal(states.after["fc1.weight"], base["fc1.weight"])
    assert added.notes == ("1 tensors are differences to the base.",)
    assert replaced.notes == ("1 of 4 tensors are the file's own.",)
    with pytest.raises(ExhumeError, match="it lacks fc1.weight, fc1.bias, fc2.bias of 4 tensors"):
        weights_in(path, MLP_)
    with pytest.raises(ExhumeError, match="the base has no fc7.weight"):
        read_against(saved(tmp_path, {"fc7.weight": torch.ones(2)}), BaseReference(before, "delta"))
    with pytest.raises(
        ExhumeError, match=r"fc2.weight has shape \(2,\), that of the base \(3, 4\)"
    ):
        read_against(saved(tmp_path, {"fc2.weight": torch.ones(2)}), BaseReference(before, "delta"))


def test_what_does_not_fit_the_factory(net, state, tmp_path):
    def refused(changed, message):
        with pytest.raises(ExhumeError, match=message):
            weights_in(saved(tmp_path, {**state, **changed}), net)

    refused(
        {"extra.weight": torch.ones(2)}, r"extra.weight is no tensor of net.py:Net .*\(1 such\)"
    )
    refused({"still.weight": torch.ones(6, 6)}, "still.weight is not trained, but differs")
    refused(
        {"mean": torch.tensor(0.4)}, "mean is not trained, but differs .* load it in the factory"
    )
    refused({"head.bias": torch.tensor([0.0, 1.0, torch.nan])}, "head.bias holds NaN or infinite")
    refused({"head.bias": torch.ones(2)}, r"head.bias has shape \(2,\), \(3,\) is needed")
    refused({"head.bias": torch.ones(3).to_sparse()}, "head.bias is a sparse tensor, a plain one")
    refused({"head.bias": torch.ones(3) + 1j}, "head.bias holds complex numbers")
    refused({"model.head.bias": torch.ones(3)}, "two tensors are called head.bias")


# Files that run code


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_pickle_runs_only_where_it_is_trusted(tmp_path):
    mark = tmp_path / "ran"
    path = saved(tmp_path, {"fc1.weight": torch.ones(2), "x": Bomb(mark)})
    plain = tmp_path / "plain.pkl"
    plain.write_bytes(pickle.dumps(Bomb(mark)))
    for bomb in (path, plain):
        with pytest.raises(
            ExhumeError, match="needs Python code to be loaded.* unless you trust it"
        ):
            read_tensors(bomb)
        assert not mark.exists()
    named, _ = read_tensors(path, trust=True)
    assert mark.exists()
    assert list(named) == ["fc1.weight"]


def test_whole_modules_and_exported_programs_with_trust(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    exported = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(module, (torch.zeros(2, 9),)), exported)
    torch.jit.save(torch.jit.trace(module, torch.zeros(2, 9)), str(tmp_path / "net.ts"))
    whole = saved(tmp_path, module)
    for path, kind in (
        (exported, "is a torch.export program, which holds code"),
        (tmp_path / "net.ts", "is a TorchScript archive, which holds code"),
        (whole, "needs Python code"),
    ):
        with pytest.raises(ExhumeError, match=kind):
            read_tensors(path)
        named, _ = read_tensors(path, trust=True)
        assert {n: t.tolist() for n, t in named.items()} == {
            n: t.tolist() for n, t in module.state_dict().items()
        }
    read = read_checkpoint(exported, activation="relu", shape=(9,), trust=True)
    assert read.architecture.sizes == (9, 4, 3)
    whole.write_bytes(whole.read_bytes()[:300])
    with pytest.raises(ExhumeError, match="truncated, damaged or not a file of weights"):
        read_tensors(whole, trust=True)


# Large files


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors", "full.safetensors"])
def test_ten_gigabytes_are_refused_in_little_memory(tmp_path, monkeypatch, name):
    monkeypatch.setattr("exhume.store.memory.memory_free", lambda: 16e9)
    path = tmp_path / name
    header = b""
    if name.startswith("full"):  # a true file of one tensor
        about = {"w": {"dtype": "F32", "shape": [10 << 28], "data_offsets": [0, 10 << 30]}}
        header = json.dumps(about).encode()
        header = struct.pack("<Q", len(header)) + header
    path.write_bytes(header)
    os.truncate(path, len(header) + (10 << 30))  # sparse
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ExhumeError, match=r"need 21.5 GB of memory"):
        read_tensors(path)
    monkeypatch.setattr("exhume.store.memory.memory_free", lambda: 1e12)
    if not header:
        with pytest.raises(ExhumeError, match="truncated, damaged or not a file of weights"):
            read_tensors(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_an_archive_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("exhume.store.memory.memory_free", lambda: 1e6)
    path = tmp_path / "net.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/data.pkl", bytes(1_000_000))
    assert path.stat().st_size < 10_000
    with pytest.raises(ExhumeError, match="of memory, 1.0 MB are free"):
        read_tensors(path)
