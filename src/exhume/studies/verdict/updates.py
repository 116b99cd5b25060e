"""Updates of clients, whose right verdict is known."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import exhume
from exhume.auditing import Audit
from exhume.core.contract import Records
from exhume.readers.updates import Recording
from exhume.studies.verdict import nets
from exhume.studies.verdict.systems import NETS, Draw, of_class


def _update(draw: Draw, given: Records | str, **update: Any) -> Audit:
    source = given if isinstance(given, str) else draw.file("data", given)
    return exhume.audit(
        {
            "seed": draw.seed,
            "data": {"source": source},
            "victim": {"released": False},
            "machine": {"threads": 1},
            "update": {"restarts": 1, "search_steps": 300, **update},
        },
        draw.out,
    )


def _sent(draw: Draw, net: nn.Module, batch: Records) -> Tensor:
    """(p,) the gradient of the mean loss; the state that it was computed at is written beside it."""
    loss = nn.functional.cross_entropy(net(batch.inputs), batch.labels)
    save_file(
        {n: t.detach().clone() for n, t in net.state_dict().items()},
        draw.folder / "before.safetensors",
    )
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])


def _written(draw: Draw, net: nn.Module, values: Tensor) -> dict[str, str]:
    parts = torch.split(values, [p.numel() for p in net.parameters()])
    named = zip(net.named_parameters(), parts, strict=True)
    tensors = {n: part.reshape(p.shape).contiguous() for (n, p), part in named}
    save_file(tensors, draw.folder / "update.safetensors")
    return {
        "model": f"{NETS}:mlp",
        "update": str(draw.folder / "update.safetensors"),
        "before": str(draw.folder / "before.safetensors"),
    }


def _mlp(draw: Draw) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(draw.seed)
        return nets.mlp()


def _noise(draw: Draw, values: Tensor, times: float) -> Tensor:
    noise = torch.randn(values.shape, generator=draw.key.fold("noise").generator())
    scaled: Tensor = times * noise * values.norm() / noise.norm()
    return scaled


def others_of_the_class(draw: Draw) -> Audit:
    """A batch of one class; named are other records of that class."""
    own = of_class(draw.digits, draw.number(10))
    net = _mlp(draw)
    files = _written(draw, net, _sent(draw, net, own[:4]))
    return _update(draw, own[4:], records="0-3", batch_size=4, **files)


def other_batch(draw: Draw) -> Audit:
    """Named is another client's batch."""
    net = _mlp(draw)
    files = _written(draw, net, _sent(draw, net, draw.digits[:8]))
    return _update(draw, draw.digits[8:], records="0-7", batch_size=8, **files)


def noise_alone(draw: Draw) -> Audit:
    net = _mlp(draw)
    values = _sent(draw, net, draw.digits[:8])
    return _update(
        draw,
        draw.digits,
        records="0-7",
        batch_size=8,
        **_written(draw, net, _noise(draw, values, 1)),
    )


def noisy(draw: Draw) -> Audit:
    """Twenty clients with one record each, and noise three hundred times as large as their updates."""
    net, named = _mlp(draw), {}
    before, place = net.state_dict(), draw.folder / "sent"
    recording = Recording(place)
    for number in range(20):
        values = _sent(draw, net, draw.digits[number : number + 1])
        values = values + _noise(replace(draw, key=draw.key.fold(number)), values, 300.0)
        parts = torch.split(values, [p.numel() for p in net.parameters()])
        changed = zip(net.named_parameters(), parts, strict=True)
        after = {n: p.detach() - part.reshape(p.shape) for (n, p), part in changed}
        client = f"client{number}"
        recording.write(before, after, round=0, client=client, rate=1.0, batch_size=1)
        named[client] = [number]
    path = draw.folder / "records.json"
    path.write_text(json.dumps(named), encoding="utf-8")
    files = {"model": f"{NETS}:mlp", "update": str(place), "records": str(path)}
    return _update(draw, draw.digits, search_steps=100, **files)


def one_record(draw: Draw) -> Audit:
    return _update(draw, "mnist", made=6, batch_size=1, model=f"{NETS}:wide")


def one_record_of_a_cnn(draw: Draw) -> Audit:
    return _update(draw, "mnist", made=6, batch_size=1, model=f"{NETS}:conv", search_steps=600)


def one_text(draw: Draw) -> Audit:
    """A transformer's gradient of one text."""
    generator = draw.key.fold("texts").generator()
    tokens = torch.randint(1, nets.WORDS, (400, nets.LENGTH), generator=generator)
    path = draw.folder / "texts.npz"
    np.savez(path, tokens=tokens.numpy(), y=(tokens[:, 0] % 2).numpy())
    return _update(draw, str(path), made=6, batch_size=1, model=f"{NETS}:transformer")


def unfinished(draw: Draw) -> Audit:
    """A CNN's batch of sixteen, and five steps: with twenty and eight, some records came back."""
    model = f"{NETS}:conv"
    return _update(draw, "mnist", made=2, batch_size=16, model=model, search_steps=5)


def averaged(draw: Draw) -> Audit:
    """Batches of one class and no hidden layer: every number of the gradient is about a mean."""
    own = of_class(draw.digits, draw.number(10))
    return _update(draw, own, made=4, batch_size=4, model=f"{NETS}:softmax", search_steps=100)
