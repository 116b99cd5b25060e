"""Checkpoints as people save them, and as they should not: what is read, what is refused."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from exhume.core.contract import ExhumeError, NotApplicable
from exhume.models.mlp import MLP as FullMLP
from exhume.models.mlp import HomogeneousMLP
from exhume.readers.checkpoint import activation_named, read_checkpoint
from exhume.victims import secret_of

SHAPE = (1, 3, 3)
MLP = HomogeneousMLP(SHAPE, (7, 6), 4)


def read(path, activation="relu", shape=SHAPE):
    return read_checkpoint(path, activation=activation, shape=shape)


@pytest.fixture
def state(key):
    module = MLP.build()
    torch.nn.utils.vector_to_parameters(MLP.initial(key), module.parameters())
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


def saved(tmp_path, content, name="net.pt"):
    torch.save(content, tmp_path / name)
    return tmp_path / name


def test_a_state_dict_and_a_safetensors_file_are_the_same_release(state, tmp_path, key):
    pickled = read(saved(tmp_path, state))
    save_file(state, tmp_path / "net.safetensors")
    safe = read(tmp_path / "net.safetensors")
    assert torch.equal(pickled.release.parameters[0], MLP.initial(key))
    assert torch.equal(safe.release.parameters, pickled.release.parameters)
    assert pickled.architecture == safe.architecture == MLP
    assert "fc1.weight, fc2.weight, fc3.weight, in the order of the file" in pickled.inferred[0]
    assert "in the order of names; MLP 9-7-6-4, relu, one bias" in safe.inferred[0]


def test_what_it_computes_is_what_the_module_computes(state, tmp_path, key):
    found = read(saved(tmp_path, state))
    module = MLP.build()
    module.load_state_dict(state)
    records = torch.rand(5, *SHAPE, generator=key.generator())
    network = found.architecture.matrices(found.release.parameters[0])
    torch.testing.assert_close(network.forward(records.flatten(1))[1], module(records))


def test_wrappers_are_taken_off(state, tmp_path):
    plain = read(saved(tmp_path, state))
    wrapped = {f"module._orig_mod.{name}": tensor for name, tensor in state.items()}
    found = read(saved(tmp_path, {"model_state_dict": wrapped, "epoch": 3}))
    assert torch.equal(found.release.parameters, plain.release.parameters)
    assert found.inferred[0] == "The weights are the entry 'model_state_dict' of the file."
    mixed = read(saved(tmp_path, {**state, "note": "hello"}))
    assert mixed.inferred[0] == "Entries that are no tensors were left out: note."
    twice = {**state, "module.fc1.weight": state["fc1.weight"]}
    with pytest.raises(ExhumeError, match="two tensors are called fc1.weight"):
        read(saved(tmp_path, twice))


def test_the_order_of_layers(state, tmp_path, key):
    renamed = {"b": "fc1", "c": "fc3", "a": "fc2"}
    odd = {
        f"{new}.weight": state[f"{old}.weight"] for new, old in renamed.items()
    }  # neither the file's order nor that of names fits the shapes
    found = read(saved(tmp_path, odd))
    assert "b.weight, a.weight, c.weight, in the only order in which" in found.inferred[0]
    deep = {f"layers.{i}.weight": torch.rand(9, 9) for i in range(12)}
    save_file(deep, tmp_path / "deep.safetensors")
    assert "layers.9.weight, layers.10.weight" in read(tmp_path / "deep.safetensors").inferred[0]
    wide = HomogeneousMLP(SHAPE, (7, 7, 7), 4).initial(key)
    layers = HomogeneousMLP(SHAPE, (7, 7, 7), 4).layout.split(wide)
    unclear = {"x": "fc2", "y": "fc1", "z": "fc3", "w": "fc4"}
    several = {f"{new}.weight": layers[f"{old}.weight"].clone() for new, old in unclear.items()}
    with pytest.raises(ExhumeError, match="fit together in more than one order"):
        read(saved(tmp_path, several))


def test_biases_and_types(state, tmp_path):
    without = {name: tensor for name, tensor in state.items() if name != "fc1.bias"}
    found = read(saved(tmp_path, {**without, "fc3.bias": torch.zeros(4)}))
    assert found.inferred[1:] == (
        "fc1.weight has no bias.",
        "fc3.bias is zero everywhere and counts as absent.",
    )
    assert not bool(found.architecture.matrices(found.release.parameters[0]).bias.any())
    half = {name: tensor.half() for name, tensor in state.items()}
    found = read(saved(tmp_path, half))
    assert found.release.parameters.dtype == torch.float32
    assert found.inferred[-1] == "The weights are float16, read as float32."
    double = {name: tensor.double() for name, tensor in state.items()}
    assert read(saved(tmp_path, double)).release.parameters.dtype == torch.float64


TRAINING, HEAD = r"as \[victim\] with `exhume audit`", "give its name with --part"


@pytest.mark.parametrize(
    ("extra", "layer", "instead"),
    [
        ({"conv.weight": torch.ones(2, 1, 3, 3)}, "conv.weight: a convolution", TRAINING),
        ({"conv.weight": torch.ones(2, 1, 3, 3)}, "conv.weight: a convolution", HEAD),
        ({"bn.running_mean": torch.ones(7)}, "bn: a batch norm leaves the length", TRAINING),
        ({"running_var": torch.ones(7)}, "running_var: a batch norm", HEAD),
        ({"norm.weight": torch.ones(7)}, "norm.weight: a vector that is no layer's bias", TRAINING),
        (
            {"fc2.weight": torch.ones(6, 7).to(torch.int8)},
            "fc2.weight: int8",
            "before they were quan",
        ),
        ({"fc3.weight": torch.ones(4, 5)}, "fc3.weight: takes 5 inputs where fc2.weight", TRAINING),
        ({"side.weight": torch.ones(2, 9)}, "side.weight: takes 9 inputs where fc3", HEAD),
    ],
)
def test_a_refusal_names_the_layer_and_what_to_use_instead(state, tmp_path, extra, layer, instead):
    with pytest.raises(NotApplicable, match=f"{layer}.*{instead}") as refused:
        read(saved(tmp_path, {**state, **extra}))
    assert refused.value.ever


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("ReLU", "relu"),
        ("nn.GELU()", "gelu"),
        ("leaky_relu", "leaky-relu"),
        ("torch.nn.LeakyReLU", "leaky-relu"),
        (" SiLU", "silu"),
        ("swish", "silu"),
    ],
)
def test_activations_by_their_names(written, name):
    assert activation_named(written) == name


@pytest.mark.parametrize("function", ["relu", "leaky-relu", "gelu", "silu", "tanh", "elu"])
def test_biases_everywhere_and_any_activation(tmp_path, key, function):
    own = {"relu": nn.ReLU, "leaky-relu": nn.LeakyReLU, "gelu": nn.GELU, "silu": nn.SiLU}
    act = (own | {"tanh": nn.Tanh, "elu": nn.ELU})[function]
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(9, 7), act(), nn.Linear(7, 6), act(), nn.Linear(6, 4)
    )
    found = read(saved(tmp_path, module.state_dict()), function)
    records = torch.rand(5, *SHAPE, generator=key.generator())
    network = found.architecture.matrices(found.release.parameters[0])
    torch.testing.assert_close(network.forward(records.flatten(1))[1], module(records))
    assert isinstance(found.architecture, FullMLP)
    assert (
        f"Layers: 1.weight, 3.weight, 5.weight, in the order of the file; MLP 9-7-6-4, {function}."
        in (found.inferred)
    )


def test_a_layer_without_a_bias_among_others(state, tmp_path, key):
    partly = {**state, "fc3.bias": torch.ones(4)}
    found = read(saved(tmp_path, partly))
    network = found.architecture.matrices(found.release.parameters[0])
    assert [bool(bias.any()) for bias in network.later_biases] == [False, True]


def test_the_head_of_a_larger_network(state, tmp_path):
    whole = {f"head.{name}": tensor for name, tensor in state.items()}
    whole["body.conv.weight"] = torch.ones(2, 1, 3, 3)
    path = saved(tmp_path, whole)
    found = read_checkpoint(path, activation="relu", shape=(9,), part="head")
    alone = read(saved(tmp_path, state), shape=(9,))
    assert torch.equal(found.release.parameters, alone.release.parameters)
    with pytest.raises(
        ExhumeError, match=r"part: no tensor's name begins with 'tail\.'; .* head, body"
    ):
        read_checkpoint(saved(tmp_path, whole), activation="relu", shape=(9,), part="tail")


def test_a_linear_network_can_never_work(state, tmp_path):
    with pytest.raises(
        NotApplicable, match=r"with no activation after it .* \[fitted\]"
    ) as refused:
        read(saved(tmp_path, state), "identity")
    assert not refused.value.ever


def test_a_linear_model_can_never_work(tmp_path):
    with pytest.raises(NotApplicable, match="weight: without a hidden layer") as refused:
        read(saved(tmp_path, {"weight": torch.ones(4, 9), "bias": torch.ones(4)}))
    assert not refused.value.ever


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"fc1.weight": torch.full((4, 9), torch.nan)}, "fc1.weight holds NaN or infinite values"),
        ({"fc1.bias": 3}, "holds no tensors"),
        ([torch.ones(3)], "holds list, not a state dict"),
        ({"scale": torch.tensor(1.0)}, "no two-dimensional tensor among scale"),
        ({"fc1.weight": torch.ones(4, 8)}, "records of 9 numbers given, but fc1.weight takes 8"),
    ],
)
def test_contents_that_are_no_network(tmp_path, content, message):
    with pytest.raises(ExhumeError, match=message):
        read(saved(tmp_path, content))


class Trap:
    """Unpickled by a careless reader, it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("protocol", ["zip", "plain"])
def test_code_in_a_pickle_is_never_run(tmp_path, protocol):
    path, mark = tmp_path / "trap.pt", tmp_path / "ran"
    if protocol == "zip":
        torch.save({"fc1.weight": Trap(mark)}, path)
    else:
        path.write_bytes(pickle.dumps({"fc1.weight": Trap(mark)}, protocol=2))
    with pytest.raises(ExhumeError, match="needs Python code to be loaded"):
        read(path)
    assert not mark.exists()


def test_whole_modules_are_refused(tmp_path):
    with pytest.raises(ExhumeError, match=r"needs Python code to be loaded \(torch.nn"):
        read(saved(tmp_path, nn.Sequential(nn.Linear(9, 4))))
    scripted = torch.jit.trace(nn.Linear(9, 4), torch.ones(1, 9))
    torch.jit.save(scripted, str(tmp_path / "script.pt"))
    with pytest.raises(ExhumeError, match="TorchScript archive"):
        read(tmp_path / "script.pt")


@pytest.fixture
def own_class(tmp_path, monkeypatch):
    """A module `ownnet_17` with a class, in a folder of its own."""
    folder = tmp_path / "code"
    folder.mkdir()
    source = "import torch\nclass Net(torch.nn.Sequential):\n    pass\n"
    (folder / "ownnet_17.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("ownnet_17")
    yield module
    sys.modules.pop("ownnet_17", None)


def test_a_pickled_module_whose_class_is_not_here(own_class, tmp_path, monkeypatch):
    path = saved(tmp_path, own_class.Net(nn.Linear(9, 7), nn.Linear(7, 4)), "whole.pt")
    beside = saved(tmp_path / "code", own_class.Net(nn.Linear(9, 7), nn.Linear(7, 4)), "whole.pt")

    def read_it(path):
        return read_checkpoint(path, activation="relu", shape=(9,), trust=True)

    assert read_it(path).architecture.sizes == (9, 7, 4)
    monkeypatch.delattr(own_class, "Net")
    with pytest.raises(
        ExhumeError, match=r"not here \(Can't get attribute 'Net' on <module 'ownnet_17'"
    ):
        read_it(path)
    sys.modules.pop("ownnet_17")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.endswith("code")])
    importlib.invalidate_caches()
    with pytest.raises(ExhumeError) as refused:
        read_it(path)
    said = str(refused.value)
    assert "needs code that is not here (No module named 'ownnet_17')" in said
    assert "run the command in the folder of its classes" in said
    assert "save model.state_dict()" in said
    assert read_it(beside).architecture.sizes == (9, 7, 4)  # modules beside the file are found
    assert not any(p.endswith("code") for p in sys.path)


def test_a_class_of_the_script_that_saved_it(tmp_path, monkeypatch):
    path = tmp_path / "main.pt"
    main = sys.modules["__main__"]
    monkeypatch.setattr(
        main,
        "Local_17",
        type("Local_17", (nn.Sequential,), {"__module__": "__main__"}),
        raising=False,
    )
    torch.save(main.Local_17(nn.Linear(9, 4)), path)
    monkeypatch.delattr(main, "Local_17")
    with pytest.raises(ExhumeError, match="'Local_17'.*a class of the script that saved it"):
        read_checkpoint(path, activation="relu", shape=(9,), trust=True)


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors"])
def test_damaged_files(state, tmp_path, name):
    path = tmp_path / name
    with pytest.raises(ExhumeError, match="there is no file"):
        read(path)
    path.write_bytes(b"")
    with pytest.raises(ExhumeError, match="is empty"):
        read(path)
    whole = saved(tmp_path, state).read_bytes()
    if name.endswith("safetensors"):
        save_file(state, path)
        whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:20], b"no weights at all, but text"):
        path.write_bytes(damaged)
        with pytest.raises(ExhumeError, match="truncated, damaged or not a file of weights") as one:
            read(path)
        assert "\n" not in str(one.value)
    with pytest.raises(ExhumeError, match="is a folder"):
        read(tmp_path)


def test_a_secret_shows_nothing(make_records, key):
    assert repr(secret_of(make_records(2, SHAPE, 2, key))) == "Secret(...)"
