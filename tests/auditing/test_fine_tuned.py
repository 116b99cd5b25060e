"""Adapters and differences as releases: read against their base, attacked as an update and as weights."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import exhume
from exhume import readers
from exhume.cli import app
from exhume.core.contract import ExhumeError
from exhume.readers.adapters import BaseReference, adapted, read_against
from exhume.readers.updates import from_fine_tuning
from exhume.settings import Brief, CheckpointSettings, UpdateSettings

NET = """
from torch import nn
def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))
def bare():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40, bias=False), nn.ReLU(),
                         nn.Linear(40, 10, bias=False))
def conv():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
"""
ROWS, RATE, ALPHA = [3, 17], 0.1, 8


def network(**options) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 40, **options), nn.ReLU(), nn.Linear(40, 10, **options)
    )


def private():
    digits = readers.load("digits")
    return digits.inputs[ROWS], digits.labels[ROWS]


def fine_tuned(base, folder, *, rank=4, steps=1, change=None, config=None):
    """LoRA of both layers and the last bias trained whole, written out; saved as PEFT names it."""
    inputs, labels = private()
    torch.manual_seed(1)
    a = [torch.randn(rank, 64) / 8, torch.randn(rank, 40) / 6]
    b = [torch.zeros(40, rank), torch.zeros(10, rank)]
    bias = base[3].bias.detach().clone()
    trained = [*a, *b, bias]
    for _ in range(steps):
        for tensor in trained:
            tensor.requires_grad_()
        scale = ALPHA / rank
        hidden = F.relu(
            F.linear(inputs.flatten(1), base[1].weight + scale * b[0] @ a[0], base[1].bias)
        )
        outputs = F.linear(hidden, base[3].weight + scale * b[1] @ a[1], bias)
        slopes = torch.autograd.grad(F.cross_entropy(outputs, labels), trained)
        for tensor, slope in zip(trained, slopes, strict=True):
            tensor.requires_grad_(False).sub_(RATE * slope)
    saved = {"base_model.model.3.modules_to_save.bias": bias}
    for layer, first, second in zip("13", a, b, strict=True):
        saved[f"base_model.model.{layer}.lora_A.weight"] = first
        saved[f"base_model.model.{layer}.lora_B.weight"] = second
    save_file({**saved, **(change or {})}, folder / "adapter.safetensors")
    said = {"lora_alpha": ALPHA, "r": rank} if config is None else config
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return slopes


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    save_file(dict(network().state_dict()), tmp_path / "base.safetensors")
    return tmp_path


UPDATE = {
    "model": "net.py:make",
    "base": "base.safetensors",
    "adapter": "adapter.safetensors",
    "rate": RATE,
    "batch_size": len(ROWS),
    "records": "3,17",
    "search_steps": 20,
    "restarts": 1,
}


def audited(place, **update):
    given = {k: v for k, v in {**UPDATE, **update}.items() if v is not None}
    done = exhume.audit({"data": {"source": "digits"}, "update": given}, place / "run")
    return done, json.loads((place / "run" / "result.json").read_text())


def test_an_adapter_that_adds_nothing_is_the_base(key):
    net, a = network(), torch.rand(2, 64)
    own = adapted(net, {"1": a}, 3.0, ["3.bias"])
    inputs = torch.rand(5, 64, generator=key.generator())
    assert torch.equal(own(inputs), net(inputs))
    assert [n for n, _ in own.named_parameters()] == ["1.second.weight", "3.bias"]
    with torch.no_grad():
        own[1].second.weight.fill_(0.1)
        net[1].weight += 3.0 * torch.full((40, 2), 0.1) @ a
    torch.testing.assert_close(own(inputs), net(inputs))


def test_one_step_of_an_adapter_is_the_gradient_of_b(place):
    slopes = fine_tuned(network(), place)
    against = BaseReference(place / "base.safetensors", "adapter")
    update = from_fine_tuning(place / "adapter.safetensors", against, network(), rate=RATE)
    parts = update.payload.layout.split(update.payload.values[0])
    wanted = {"1.second.weight": slopes[2], "3.second.weight": slopes[3], "3.bias": slopes[4]}
    assert set(parts) == set(wanted)
    for name, slope in wanted.items():
        torch.testing.assert_close(parts[name], slope, rtol=1e-4, atol=1e-6)
    assert update.notes == ("A LoRA adapter of 1, 3, scaled by 2.",)


def test_a_difference_gives_its_records_away(place):
    net, (inputs, labels) = network(), private()
    F.cross_entropy(net(inputs), labels).backward()
    change = {n: -RATE * p.grad for n, p in net.named_parameters()}
    save_file(change, place / "delta.safetensors")
    done, result = audited(place, adapter=None, delta="delta.safetensors")
    assert done.verdict.word == "leaks"
    assert done.metrics["success"] == 1
    assert result["victim"]["read_as"] == "4 tensors are differences to the base."
    assert result["victim"]["architecture"] == "MLP 64-40-10, relu"


@pytest.mark.parametrize("steps", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_an_adapter_from_the_file_to_the_page(place, steps):
    fine_tuned(network(), place, steps=steps)
    done, result = audited(place, steps=steps)
    assert done.verdict.word == "not audited"  # 20 steps of search are no evidence
    assert "gradient matching made only 20 steps; more --search-steps" in done.verdict.sentence
    applied = [a for a in result["attacks"] if a["status"]["outcome"] != "not applicable"]
    assert [a["id"] for a in applied] == ["matching"]
    assert all(a["status"]["reason"] for a in result["attacks"] if a not in applied)
    assert result["victim"]["architecture"] == "Sequential with 210 parameters"
    assert result["victim"]["read_as"] == "A LoRA adapter of 1, 3, scaled by 2."
    assert (place / "run" / "report.html").exists()


def test_the_same_on_the_command_line(place):
    fine_tuned(network(), place)
    words = "audit-update --model net.py:make --base base.safetensors --adapter adapter.safetensors"
    words += " --rate 0.1 --batch-size 2 --data digits --records 3,17 --search-steps 5 --out run"
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 2, result.output
    assert "Not audited: gradient matching made only 5 steps; more --search-steps" in result.stdout


def decoyed(place):
    records = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    np.savez(place / "x.npz", x=records.numpy(), y=np.arange(60) % 10)


def test_silence_about_a_fine_tuned_checkpoint_is_no_verdict(place):
    """The attack runs on the merged weights, but what it assumes of them does not hold."""
    net = network(bias=False)
    save_file(dict(net.state_dict()), place / "base.safetensors")
    save_file({"1.weight": 0.01 * torch.rand(40, 64)}, place / "delta.safetensors")
    decoyed(place)
    section = {"base": "base.safetensors", "delta": "delta.safetensors", "rows": "0:10"}
    section |= {"steps": 5, "restarts": 2}
    done = exhume.audit({"data": {"source": "x.npz"}, "checkpoint": section}, place / "run")
    assert done.verdict.word == "not audited"
    assert "those of a fine-tuned network are mostly its base's" in done.verdict.sentence
    victim = json.loads((place / "run" / "result.json").read_text())["victim"]
    assert (victim["checkpoint"], victim["base"]) == ("delta.safetensors", "base.safetensors")
    assert victim["read_as"].startswith("1 tensors are differences to the base.")


def test_an_adapter_of_a_network_with_biases_is_read_and_silence_about_it_is_no_verdict(place):
    fine_tuned(network(), place)
    decoyed(place)
    words = "audit-weights --base base.safetensors --adapter adapter.safetensors --trained-on x.npz"
    words += " --rows 0:10 --restarts 1 --steps 5 --out run"
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 2
    assert "those of a fine-tuned network are mostly its base's" in result.output.replace("\n", " ")


NAN = torch.tensor([[math.nan] * 4] * 40)
OTHER = {"layers.7.lora_A.weight": torch.ones(4, 9), "layers.7.lora_B.weight": torch.ones(5, 4)}


@pytest.mark.parametrize(
    ("change", "config", "sentence"),
    [
        ({}, {"lora_alpha": 8, "r": 16}, r"adapter: rank 4, but .*_config.json says r = 16"),
        ({}, {"r": 4}, "lora_alpha is None, a finite number is needed"),
        ({}, {"lora_alpha": "inf", "r": 4}, "lora_alpha is 'inf', a finite number is needed"),
        (OTHER, None, r"layers.7.lora_A.weight is there, but there is no layers.7.weight in the"),
        ({"base_model.model.1.lora_B.weight": NAN}, None, r"1.lora_B.weight holds NaN or infinite"),
        (
            {"base_model.model.1.lora_B.weight": torch.ones(40, 4).int()},
            None,
            r"adapter: 1 holds torch.float32 and torch.int32, not floating-point",
        ),
        ({"9.lora_B.weight": torch.ones(40, 4)}, None, "but there is no 9.lora_A.weight"),
        (
            {"4.weight": torch.ones(2)},
            None,
            r"adapter: 4.weight is no tensor of the model \(1 such",
        ),
    ],
)
def test_adapters_that_do_not_fit(place, change, config, sentence):
    fine_tuned(network(), place, change=change, config=config)
    with pytest.raises(ExhumeError, match=sentence):
        audited(place)
    assert not (place / "run").exists()


def test_files_of_another_kind(place):
    fine_tuned(network(), place)
    with pytest.raises(ExhumeError, match=r"adapter: .* holds no lora_A and lora_B"):
        audited(place, adapter="base.safetensors")
    with pytest.raises(ExhumeError, match=r"delta: .* holds a LoRA adapter"):
        audited(place, adapter=None, delta="adapter.safetensors")
    with pytest.raises(ExhumeError, match="base: there is no file gone.pt"):
        audited(place, base="gone.pt")
    some = {n: t for n, t in network().state_dict().items() if n != "3.bias"}
    save_file(some, place / "short.safetensors")
    with pytest.raises(ExhumeError, match="the state before lacks 3.bias"):
        audited(place, base="short.safetensors")


class Conv1D(nn.Module):
    """As transformers has it: the weight is (in, out)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.rand(inputs, outputs)),
            nn.Parameter(torch.ones(outputs)),
        )

    def forward(self, x):
        return x @ self.weight + self.bias


@pytest.mark.parametrize("outputs", [3, 5])  # other than the inputs, or as many
def test_an_adapter_of_a_turned_weight(tmp_path, key, outputs):
    net, a, b = nn.Sequential(Conv1D(5, outputs)), torch.rand(2, 5), torch.rand(outputs, 2)
    save_file(dict(net.state_dict()), tmp_path / "base.safetensors")
    named = {"base_model.model.0.lora_A.weight": a, "base_model.model.0.lora_B.weight": b}
    save_file(named, tmp_path / "adapter.safetensors")
    (tmp_path / "adapter_config.json").write_text(
        '{"lora_alpha": 6, "r": 2, "fan_in_fan_out": true}'
    )
    against = BaseReference(tmp_path / "base.safetensors", "adapter")
    states = read_against(tmp_path / "adapter.safetensors", against)
    assert states.adapter is not None
    own = adapted(net, {"0": a}, 3.0, (), states.adapter.turned)
    inputs = torch.rand(4, 5, generator=key.generator())
    torch.testing.assert_close(own(inputs), net(inputs))
    with torch.no_grad():
        own[0].second.weight.copy_(b)
    net.load_state_dict(states.after)
    torch.testing.assert_close(own(inputs), net(inputs))


def test_an_adapter_of_another_kind_of_layer():
    net = nn.Sequential(nn.Conv2d(1, 2, 3))
    with pytest.raises(ExhumeError, match="0 is a Conv2d; adapters of nn.Linear and Conv1D are"):
        adapted(net, {"0": torch.ones(1, 9)}, 1.0)
    with pytest.raises(ExhumeError, match="it adapts no layer of this model"):
        adapted(net, {}, 1.0)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"adapter": "a", "delta": "d", "base": "b"}, "delta: an adapter is given too"),
        ({"adapter": "a"}, "base: adapter needs the state that it is added to"),
        ({"delta": "a"}, "base: delta needs the state that it is added to"),
        ({"delta": "a", "base": "b", "scaling": 2.0}, "scaling: only together with adapter"),
        ({"adapter": "a", "base": "b", "scaling": -2.0}, "scaling: -2.0 given"),
        ({"file": "c", "base": "b"}, "base: only together with adapter or delta"),
        ({"file": "c", "base": "b", "delta": "d"}, "checkpoint: give it, or an adapter or"),
    ],
)
def test_what_is_said_wrongly(section, sentence):
    with pytest.raises(ExhumeError, match=sentence):
        Brief.from_mapping({"checkpoint": section})


def test_what_is_said_wrongly_about_an_update():
    tuned = {"adapter": "a", "base": "b", "data": "digits"}
    for given, sentence in (
        ({}, "rate: an adapter or a difference needs the rate of its SGD"),
        ({"rate": 0.1, "before": "c"}, "give them with --base alone"),
        ({"rate": 0.1, "made": 2, "batch_size": 1}, "updates are given, or made here, not both"),
    ):
        with pytest.raises(ExhumeError, match=sentence):
            UpdateSettings(**tuned, **given)
    with pytest.raises(ExhumeError, match="checkpoint: no file of weights is named"):
        CheckpointSettings()
    assert Brief.of(UpdateSettings(**tuned, rate=0.1)).folder().name.startswith("update-a-")


def test_init_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = "checkpoint\ndigits\nadapter\nlora.safetensors\nb.safetensors\n5m\n"
    asked = CliRunner().invoke(app, ["init"], input=said)
    assert asked.exit_code == 0, asked.output
    brief = Brief.from_toml(tmp_path / "audit.toml")
    found = brief.checkpoint
    assert (found.adapter, found.base) == ("lora.safetensors", "b.safetensors")
    options = "init u.toml --release updates --data digits --model net.py:make --holds delta"
    options += " --checkpoint d.safetensors --base b.safetensors --budget 1m"
    assert CliRunner().invoke(app, options.split()).exit_code == 0
    update = Brief.from_toml(tmp_path / "u.toml").update
    assert (update.delta, update.base, update.made) == ("d.safetensors", "b.safetensors", 0)
