"""Updates as clients really send them: augmented, private, of several epochs, behind batch norm, as adapters.

Each client trains with torch alone and writes its files; what it says about them is all that `exhume.audit`
is told. Each draw has its own records, weights, order and noise. Rows called `own` are of networks that only
this file has, the others of usual ones.

The last rows set gradient matching beside inverting gradients as published, for as many CPU seconds:

    min_x  1 - cos(g(x), g) + tv TV(x)     by signed Adam, its rate cut to a tenth three times     (Geiping20)
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call

import exhume
from exhume.attacks.gradient.matching import GradientMatching
from exhume.auditing import Audit
from exhume.core.contract import Gradient, Key, Outcome, Reconstruction, Records, Status
from exhume.core.own_code import seeded_globals
from exhume.core.records import total_variation
from exhume.models.ordinary import LanguageTransformer, ResNet, fully_connected
from exhume.models.own import ModuleArchitecture
from exhume.readers.updates import Recording
from exhume.score.batches import score_batches
from exhume.score.verdict import OF_OTHERS
from exhume.studies.claims import by_row
from exhume.studies.framework import Outcome as Found
from exhume.studies.framework import Run, Scale, Study
from exhume.studies.gradient.batches import attacked
from exhume.victims import secret_of
from exhume.victims.gradient import cut_batches, release_batches

_RATE, _CLIP = 0.1, 1.0
_EFFORT = {"search_seconds": 20.0, "restarts": 1}  # what a budget of a minute leaves for a search
_WORDS, _LENGTH, _WIDTH = 2000, 24, 128  # of texts
_CUTS, _VARIATION = (3 / 8, 5 / 8, 7 / 8), 0.01  # of inverting gradients
_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10

# Networks, usual ones and our own


def mlp() -> nn.Module:
    return fully_connected(64, 128, 10)


def own_mlp() -> nn.Module:
    leaky = nn.LeakyReLU(0.1)
    layers = (nn.Linear(64, 160), leaky, nn.Linear(160, 48), leaky, nn.Linear(48, 10))
    return nn.Sequential(nn.Flatten(), *layers)


def convnet() -> nn.Module:
    """Two convolutions, each with batch norm, and two fully connected layers."""
    return _normed(nn.ReLU(), nn.MaxPool2d(2), 32)


def own_convnet() -> nn.Module:
    return _normed(nn.LeakyReLU(0.2), nn.AvgPool2d(2), 24)


def _normed(gate: nn.Module, pool: nn.Module, first: int) -> nn.Module:
    layers = [nn.Conv2d(3, first, 3, padding=1), nn.BatchNorm2d(first), gate, pool]
    layers += [nn.Conv2d(first, 64, 3, padding=1), nn.BatchNorm2d(64), gate, pool]
    dense = (nn.Linear(64 * 64, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def gpt() -> nn.Module:
    sizes = {"vocabulary": _WORDS, "length": _LENGTH, "width": _WIDTH}
    return LanguageTransformer("gpt", layers=2, heads=4, **sizes)


class Conv1D(nn.Module):
    """As in GPT-2 of transformers: the weight is (in, out)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.get_parameter("weight").detach().T.contiguous())
        self.bias = layer.get_parameter("bias")

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def own_gpt() -> nn.Module:
    net = gpt()
    for block in net.get_submodule("blocks").children():
        block.add_module("qkv", Conv1D(block.get_submodule("qkv")))
    return net


# Clients: their files, and what they say


@dataclass(frozen=True, eq=False)
class _Client:
    folder: Path
    key: Key
    records: Records  # in an order of this draw's own; the first ones are the clients'
    seed: int
    network: Callable[[], nn.Module]

    def net(self) -> nn.Module:
        with seeded_globals(self.key.fold("weights")):
            return self.network()

    def sent(self, net: nn.Module, train: Callable[[], object]) -> dict[str, Any]:
        """The states before and after, as the client and the server have them."""
        files = {name: str(self.folder / f"{name}.safetensors") for name in ("before", "after")}
        save_file({n: t.clone() for n, t in net.state_dict().items()}, files["before"])
        train()
        save_file({n: t.clone() for n, t in net.state_dict().items()}, files["after"])
        return files

    def generator(self, *names: str | int) -> torch.Generator:
        return self.key.fold(*names).generator()

    def audited(self, named: str, **update: Any) -> _Audited:
        data, x = self.folder / "data.npz", self.records.inputs.numpy()
        kind = "x" if self.records.inputs.is_floating_point() else "tokens"
        arrays: dict[str, Any] = {kind: x, "y": self.records.labels.numpy()}
        np.savez(data, **arrays)
        model = f"{__name__}:{self.network.__name__}"
        began = time.process_time()
        done = exhume.audit(
            {
                "seed": self.seed,
                "data": {"source": str(data)},
                "victim": {"released": False},
                "machine": {"threads": 1},
                "update": {"model": model, "records": named, **_EFFORT, **update},
            },
            self.folder / "run",
        )
        return _Audited(done, time.process_time() - began)


@dataclass(frozen=True, eq=False)
class _Audited:
    done: Audit
    seconds: float  # of the processor

    @property
    def word(self) -> str:
        return self.done.verdict.word

    @property
    def overrun(self) -> float:
        """CPU seconds over those that were planned."""
        planned = [row.estimated_seconds for row in self.done.result.plan if row.run]
        return self.seconds / sum(planned)

    def best(self, name: str) -> float:
        """Best value over all attacks."""
        return max((a.metrics.get(name, 0.0) for a in self.done.result.attacks), default=0.0)


def _descended(net: nn.Module, inputs: Tensor, labels: Tensor, adam: Any = None) -> None:
    descent = adam or torch.optim.SGD(net.parameters(), _RATE)
    descent.zero_grad()
    torch.autograd.backward(F.cross_entropy(net(inputs), labels))
    descent.step()


def _augmented(client: _Client) -> dict[str, float]:
    """Four images, each flipped or not and shifted by up to two pixels; named is how they lie in the set."""
    own, generator = client.records[:4], client.generator("augmented")
    moved = []
    for image in own.inputs:
        flip, down, right = torch.randint(0, 5, (3,), generator=generator).tolist()
        turned = image.flip(-1) if flip % 2 else image
        padded = F.pad(turned, (2, 2, 2, 2))
        side = image.shape[-1]
        moved.append(padded[:, down : down + side, right : right + side])
    net = client.net()
    files = client.sent(net, lambda: _descended(net, torch.stack(moved), own.labels))
    done = client.audited("0-3", rate=_RATE, batch_size=4, **files)
    said = OF_OTHERS in done.done.verdict.detail
    return {"leaks": float(done.word == "leaks"), "said": float(said)}


def _private(client: _Client, noise: float) -> dict[str, float]:
    """Eight clients of four records, each record's gradient clipped to 1, noise on their sum."""
    net, named, place = client.net(), dict[str, list[int]](), client.folder / "sent"
    recording, before = Recording(place), {n: t.clone() for n, t in net.state_dict().items()}
    for number in range(8):
        rows = list(range(4 * number, 4 * number + 4))
        drawn = client.generator("noise", number)
        total = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
        for row in rows:
            loss = F.cross_entropy(net(client.records.inputs[[row]]), client.records.labels[[row]])
            slopes = torch.autograd.grad(loss, list(net.parameters()))
            norm = float(torch.cat([slope.flatten() for slope in slopes]).norm())
            clipped = [slope * min(1.0, _CLIP / norm) for slope in slopes]
            total = {n: t + c for (n, t), c in zip(total.items(), clipped, strict=True)}
        after = {
            n: before[n] - _RATE * (t + noise * _CLIP * torch.randn(t.shape, generator=drawn)) / 4
            for n, t in total.items()
        }
        recording.write(before, after, round=0, client=f"c{number}", rate=_RATE, batch_size=4)
        named[f"c{number}"] = rows
    path = client.folder / "records.json"
    path.write_text(json.dumps(named), encoding="utf-8")
    said = {"dp_clip": _CLIP, "dp_noise": noise, "search_steps": 100}
    done = client.audited(str(path), update=str(place), **said)
    words = {"leaks": "leaks", "no_leak": "no leak found"}
    return {name: float(done.word == word) for name, word in words.items()}


def _fedavg(client: _Client) -> dict[str, float]:
    """Three epochs of batches of eight over 24 records, momentum 0.9, in an order that nobody else knows."""
    own, net, generator = client.records[:24], client.net(), client.generator("order")
    descent = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def train() -> None:
        for _ in range(3):
            for rows in torch.split(torch.randperm(24, generator=generator), 8):
                _descended(net, own.inputs[rows], own.labels[rows], descent)

    said = {"rate": 0.01, "momentum": 0.9, "epochs": 3, "local_batch": 8, "batch_size": 24}
    done = client.audited("0-23", **client.sent(net, train), **said)
    return {"recovered": done.best("recovered"), "overrun": done.overrun}


def _normed_batch(client: _Client) -> dict[str, float]:
    """Four images behind batch norm in train mode; the state that comes back has its running statistics."""
    own, net = client.records[:4], client.net().train()
    files = client.sent(net, lambda: _descended(net, own.inputs, own.labels))
    done = client.audited("0-3", rate=_RATE, batch_size=4, **files)
    identified = done.done.leak.share if done.done.leak is not None else 0.0
    return {"identified": identified, "psnr": done.best("psnr"), "overrun": done.overrun}


def _adapted(client: _Client, rank: int) -> dict[str, float]:
    """One step of LoRA on queries, keys and values, on three texts of 24 random tokens; files as PEFT's."""
    net, own = client.net(), client.records[:3].inputs
    base = client.folder / "base.safetensors"
    save_file({n: t.clone() for n, t in net.state_dict().items() if n != "outputs.weight"}, base)
    drawn, named, trained = client.generator("adapter"), dict[str, Tensor](), list[Tensor]()
    for place, block in enumerate(net.get_submodule("blocks").children()):
        a = torch.randn(rank, _WIDTH, generator=drawn) / _WIDTH**0.5
        b = torch.zeros(3 * _WIDTH, rank, requires_grad=True)
        layer = block.get_submodule("qkv")
        layer.register_forward_hook(lambda _, x, y, a=a, b=b: y + 2 * x[0] @ a.T @ b.T)
        name = f"base_model.model.blocks.{place}.qkv"
        named |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
        trained.append(b)
    loss = F.cross_entropy(net(own)[:, :-1].flatten(0, 1), own[:, 1:].flatten())
    for b, slope in zip(trained, torch.autograd.grad(loss, trained), strict=True):
        b.data = -_RATE * slope
    adapter = client.folder / "adapter_model.safetensors"
    save_file({name: tensor.detach() for name, tensor in named.items()}, adapter)
    said = {"r": rank, "lora_alpha": 2 * rank, "fan_in_fan_out": client.network is own_gpt}
    (client.folder / "adapter_config.json").write_text(json.dumps(said), encoding="utf-8")
    files: dict[str, Any] = {"adapter": str(adapter), "base": str(base)}
    done = client.audited("0-2", loss="next-token", batch_size=3, rate=_RATE, **files)
    reason = done.done.result.attacks[0].status.reason
    return {
        "exact": done.best("whole_texts"),
        "reported": float(done.word == "not audited" and f"({rank}; " in reason),
    }


# Gradient matching beside inverting gradients


def _beside(client: _Client, steps: int) -> dict[str, float]:
    """Two images behind ResNet-18 in eval mode: ours, and theirs for as many CPU seconds."""
    module, batch = client.net(), cut_batches(client.records[:2], 2)
    network = ModuleArchitecture.of(module, batch.shape, "eval")
    release, _ = release_batches(network, network.initial(client.key), batch)
    ours = GradientMatching(steps=steps, restarts=1, signed=True, variation=0.03, falls=1e-3)
    began = time.process_time()
    _, scores = attacked(ours, network, release, batch, client.key, size=2)
    seconds = time.process_time() - began
    noise = client.generator("inverting")
    images, took, made = _inverted(network, release, batch.labels[0], seconds, noise)
    found = Reconstruction(images, torch.zeros(images.shape[:2]), Status(Outcome.STOPPED_EARLY))
    psnr, theirs = (
        float(one.psnr.mean()) for one in (scores, score_batches(secret_of(batch), found))
    )
    return {
        "psnr": psnr,
        "ratio": psnr / theirs,
        "seconds": seconds,
        "published_psnr": theirs,
        "published_seconds": took,
        "published_steps": float(made),
    }


def _inverted(
    network: ModuleArchitecture,
    release: Gradient,
    labels: Tensor,
    seconds: float,
    noise: torch.Generator,
) -> tuple[Tensor, float, int]:
    """(1, b, *shape) what comes back in so many CPU seconds, those that it took, and its steps.

    As in the code of the paper: labels known, pixels normalised, kept in their box, from noise on.
    """
    module = network.build()
    sent = release.values[0] / release.values[0].norm()
    mean, deviation = (torch.tensor(v)[:, None, None] for v in (_MEAN, _DEVIATION))
    x = torch.randn(len(labels), *network.input_shape, generator=noise).requires_grad_(True)
    parameters = {
        n: p.detach().requires_grad_(True) for n, p in network.layout.split(release.at).items()
    }
    adam = torch.optim.Adam([x])
    began, step = time.process_time(), 0
    while (done := (time.process_time() - began) / seconds) < 1:
        adam.param_groups[0]["lr"] = 0.1 ** (1 + sum(done >= cut for cut in _CUTS))
        outputs = functional_call(module, parameters, (x * deviation + mean,))
        loss = F.cross_entropy(outputs, labels)
        slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        made = torch.cat([slope.flatten() for slope in slopes])
        cost = 1 - made @ sent / made.norm() + _VARIATION * total_variation(x).mean()
        x.grad = torch.autograd.grad(cost, x)[0].sign()
        adam.step()
        with torch.no_grad():
            x.copy_(torch.minimum(torch.maximum(x, -mean / deviation), (1 - mean) / deviation))
        step += 1
    return (x * deviation + mean).detach()[None], seconds * done, step


# The study


def resnet() -> nn.Module:
    return ResNet()


def small_resnet() -> nn.Module:
    return ResNet(4)


@dataclass(frozen=True)
class _Cell:
    act: Callable[..., dict[str, float]]
    network: Callable[[], nn.Module]
    source: str = "digits"  # empty: texts of random tokens
    given: tuple[float, ...] = ()


_CELLS = {
    "lora.gpt": _Cell(_adapted, gpt, "", (96,)),
    "lora.gpt.own": _Cell(_adapted, own_gpt, "", (96,)),
    "lora.gpt.rank8": _Cell(_adapted, gpt, "", (8,)),
    "lora.gpt.rank16": _Cell(_adapted, own_gpt, "", (16,)),
    "augmented": _Cell(_augmented, mlp),
    "augmented.own": _Cell(_augmented, own_mlp),
    "bn_train.convnet.b4": _Cell(_normed_batch, convnet, "cifar10"),
    "bn_train.own.b4": _Cell(_normed_batch, own_convnet, "cifar10"),
    "private.noise_off": _Cell(_private, mlp, given=(0.0,)),
    "private.noise_off.own": _Cell(_private, own_mlp, given=(0.0,)),
    "private.strong": _Cell(_private, mlp, given=(16.0,)),
    "private.strong.own": _Cell(_private, own_mlp, given=(16.0,)),
    "fedavg.mlp": _Cell(_fedavg, mlp),
    "fedavg.own": _Cell(_fedavg, own_mlp),
    "resnet.b2": _Cell(_beside, resnet, "cifar10", (100,)),
    "small.b2": _Cell(_beside, small_resnet, "cifar10", (10,)),
}


@dataclass(frozen=True)
class _Setting:
    cells: tuple[str, ...]
    draws: int = 5
    pool: int = 1000  # records of a draw
    sources: Mapping[str, str] = field(default_factory=dict)


_USUAL = tuple(name for name in _CELLS if name != "small.b2")
_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(("lora.gpt.own", "augmented", "small.b2"), draws=1, pool=300),
    "cpu": _Setting(_USUAL),
    "paper": _Setting(_USUAL, draws=20),
}


def _run(run: Run[_Setting]) -> Found:
    jobs = {
        f"{name} {draw}": (name, draw)
        for draw in range(run.setting.draws)
        for name in run.setting.cells
    }
    rows = by_row(run.arms("clients", _one, jobs))
    return Found(
        {
            f"{name}.{number}": fmean(row[number] for row in kept)
            for name, kept in rows.items()
            for number in kept[0]
        }
    )


def _one(run: Run[_Setting], job: tuple[str, int]) -> dict[str, float]:
    """One draw, in a folder of its own, which is removed."""
    name, draw = job
    cell, key = _CELLS[name], run.key.fold("clients", name, draw)
    generator = key.fold("records").generator()
    if cell.source:
        records = run.records(cell.source)
        records = records[torch.randperm(len(records), generator=generator)[: run.setting.pool]]
    else:
        shape = (run.setting.pool, _LENGTH)
        tokens = torch.randint(1, _WORDS, shape, generator=generator)
        records = Records(tokens, torch.zeros(len(tokens), dtype=torch.long), ("text",))
    place = run.folder.path / "clients" / f"{name}-{draw}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    began, threads = time.process_time(), torch.get_num_threads()
    client = _Client(place, key, records, draw + 1000 * run.seed, cell.network)
    try:
        found = cell.act(client, *cell.given)
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(place, ignore_errors=True)
    return {"cpu_seconds": time.process_time() - began, **found}


STUDY = Study("update-clients", _SCALES, _run, threads={"smoke": 1, "cpu": 1})
