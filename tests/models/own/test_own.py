from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call

from exhume.core.contract import Architecture, ExhumeError, Key
from exhume.models.mlp import MLP
from exhume.models.own import OwnArchitecture, architecture_named, fully_connected
from exhume.store.shards import address

SHAPE = (1, 6, 6)
SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn
from exhume.models.mlp import MLP

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.5))
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(64, 3)
    def forward(self, x):
        assert type(x).__name__ not in {"str", "list", "dict", "int"}  # a set has no order
        return self.fc(F.relu(self.conv(x - self.mean)).flatten(1))

def dense(*middle):
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), *middle, nn.Linear(5, 3))
def plain(): return dense(nn.ReLU())
def drops(): return dense(nn.ReLU(), nn.Dropout(0.5))
def normed(): return dense(nn.BatchNorm1d(5), nn.ReLU())
def frozen():
    net = dense(nn.BatchNorm1d(5), nn.ReLU())
    net[1].requires_grad_(False)
    net[2].eval().requires_grad_(False)
    return net
def ours(): return MLP((1, 6, 6), (4,), 3)
def wide(): return nn.Sequential(nn.Flatten(), nn.Linear(35, 3))
def four(): return nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
def image(): return nn.Conv2d(1, 1, 1)
def pair():
    class Two(nn.Linear):
        def forward(self, x): return x, x
    return Two(2, 2)
def broken():
    class Broken(nn.Linear):
        def forward(self, x): raise KeyError("weights")
    return Broken(2, 2)
def infinite():
    class Log(nn.Linear):
        def forward(self, x): return super().forward(x.flatten(1)).log() * 0 + float("nan")
    return Log(36, 3)
def nan():
    net = plain()
    net[1].weight.data[0, 0] = float("nan")
    return net
def double(): return plain().double()
def lazy(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
def still(): return plain().requires_grad_(False)
def moody(count=[0]):
    count[0] += 1
    return nn.Sequential(nn.Flatten(), nn.Linear(36, count[0]), nn.Linear(count[0], 3))
fixed = plain()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "net.py").write_text(SOURCE)

    def make(name, shape=SHAPE, classes=3):
        return architecture_named(
            f"net.py:{name}", input_shape=shape, classes=classes, root=tmp_path
        )

    return make


def test_an_own_network_is_an_architecture(own):
    net = own("Net")
    assert isinstance(net, Architecture)
    assert isinstance(net, OwnArchitecture)
    assert net.layout.names == ("conv.weight", "conv.bias", "fc.weight", "fc.bias")
    assert str(net) == "net.py:Net with 235 parameters"
    assert not net.build().training
    flat, inputs = net.initial(Key.from_seed(1)), torch.rand(2, *SHAPE)
    got = functional_call(net.build(), net.layout.split(flat), (inputs,))
    named = net.layout.split(flat)
    hidden = torch.relu(
        nn.functional.conv2d(inputs - 0.5, named["conv.weight"], named["conv.bias"])
    )
    torch.testing.assert_close(got, hidden.flatten(1) @ named["fc.weight"].T + named["fc.bias"])


def test_fresh_parameters_come_from_the_key_alone(own):
    net, key = own("Net"), Key.from_seed(3)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other = net.initial(key), net.initial(key.fold("other"))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(net.initial(key), one)
    assert not torch.equal(one, other)
    fixed = own("fixed")  # a module, not a factory: it has one start
    assert torch.equal(fixed.initial(key), fixed.initial(key.fold("other")))


def test_it_is_named_by_its_code_and_its_constants(own, tmp_path):
    def name(net):
        return address("f", net, (), Key.from_seed(0), 0)

    first = own("Net")
    assert own("Net") == first
    assert name(own("Net")) == name(first)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "net.py").write_text(SOURCE)
    there = architecture_named("net.py:Net", input_shape=SHAPE, classes=3, root=moved)
    assert there == first
    assert name(there) == name(first)
    for old, new in (("0.5)", "0.4)"), ("F.relu", "F.elu"), ("x - self", "x + self")):
        (moved / "net.py").write_text(SOURCE.replace(old, new))
        changed = architecture_named("net.py:Net", input_shape=SHAPE, classes=3, root=moved)
        assert changed != first
        assert name(changed) != name(first)


def test_it_arrives_on_another_machine_by_name(own, tmp_path):
    net = own("Net")
    assert net.initial(Key.from_seed(0)).shape == (235,)  # so that everything is loaded
    sent = tmp_path / "sent"
    sent.write_bytes(pickle.dumps(net))
    assert sent.stat().st_size < 1000
    script = f"""
import pathlib, pickle
from exhume.core.contract import ExhumeError, Key
sent, source = pathlib.Path({str(sent)!r}), pathlib.Path({str(tmp_path / "net.py")!r})
print(pickle.loads(sent.read_bytes()).initial(Key.from_seed(7)).double().sum().item())
source.write_text(source.read_text().replace("F.relu", "F.elu"))
try:
    pickle.loads(sent.read_bytes()).build()
except ExhumeError as error:
    print(error)
"""
    paths = ":".join(path for path in sys.path if str(tmp_path) not in path)
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": paths, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        cwd="/",
        check=True,
    )
    total, refusal = ran.stdout.splitlines()
    assert float(total) == net.initial(Key.from_seed(7)).double().sum().item()
    assert "net.py:Net is not the code that it was where the work began" in refusal


def test_a_fully_connected_network_in_disguise(own):
    plain = own("plain")
    assert fully_connected(plain) == MLP(SHAPE, (5,), 3, "relu")
    assert fully_connected(own("ours")) == MLP(SHAPE, (4,), 3)
    assert [fully_connected(own(n)) for n in ("Net", "drops", "normed", "frozen")] == [None] * 4


def test_what_training_changes_and_what_it_does_not(own):
    normed, frozen = own("normed"), own("frozen")
    assert normed.layout.names[-2:] == ("2.running_mean", "2.running_var")
    assert normed.not_per_record == "2 (BatchNorm1d) takes statistics over the batch"
    assert frozen.layout.names == ("4.weight", "4.bias")
    assert frozen.not_per_record == ""
    assert torch.equal(frozen.build()[1].weight, frozen.trainable()[1].weight)
    assert own("drops").not_per_record == "3 (Dropout) drops inputs at random"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wide", r"net.py:wide does not take records of shape \(1, 6, 6\): RuntimeError: mat1"),
        ("four", "net.py:four returns 4 logits a record, the data has 3 classes"),
        ("image", r"must return \(2, 3\) logits for 2 records, it returns \(2, 1, 6, 6\)"),
        ("pair", r"must return \(2, 3\) logits for 2 records, it returns tuple"),
        ("broken", "does not take records of shape .*: KeyError: 'weights'"),
        ("infinite", "returns NaN or infinite logits for records of zeros"),
        ("nan", "net.py:nan: 1.weight holds NaN or infinite values"),
        ("double", r"net.py:double: 1.weight is float64; return the module as .float\(\)"),
        ("lazy", "net.py:lazy: 1.weight has no shape yet; run one batch"),
        ("still", "net.py:still: no parameter requires a gradient"),
        ("torch", "net.py:torch gives a module, not an nn.Module"),
    ],
)
def test_what_is_wrong_is_one_sentence(own, name, message):
    with pytest.raises(ExhumeError, match=message) as error:
        own(name)
    assert "\n" not in str(error.value)


def test_a_factory_must_keep_to_its_shapes(own):
    moody = own("moody")
    with pytest.raises(ExhumeError, match="gives other parameters from call to call"):
        moody.initial(Key.from_seed(0))
    with pytest.raises(
        ExhumeError, match=r"net.py:ours takes records of shape \(1, 6, 6\), the data has \(4,\)"
    ):
        own("ours", shape=(4,))
