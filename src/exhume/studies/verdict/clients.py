"""Clients of a split network, and of a federation, whose right verdict is known."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from exhume.auditing import Audit
from exhume.core.contract import Records
from exhume.readers.updates import Recording
from exhume.studies.verdict import nets
from exhume.studies.verdict.systems import NETS, Draw, of_class

# Split networks


def _split_network(
    draw: Draw, net: nn.Module, name: str, *, epochs: int = 30, **settings: Any
) -> Audit:
    _train_split(net, draw.digits[:600], epochs)
    torch.save(net.state_dict(), draw.folder / "net.pt")
    return draw.audit(
        split={
            "model": f"{NETS}:{name}",
            "weights": str(draw.folder / "net.pt"),
            "data": draw.file("data", draw.digits),
            "first": "head",
            "second": "body",
            "channels": 8,
            "attack_epochs": 6,
            "targets": 40,
            "lpips": False,
            **settings,
        }
    )


def _train_split(net: nn.Module, records: Records, epochs: int) -> None:
    parameters = [p for p in net.parameters() if p.requires_grad]
    descent = torch.optim.Adam(parameters, 1e-2)
    for _ in range(epochs):
        for start in range(0, len(records), 100):
            batch = records[start : start + 100]
            loss = nn.functional.cross_entropy(net(batch.inputs), batch.labels)
            descent.zero_grad()
            torch.autograd.backward(loss)
            descent.step()


def identity_head(draw: Draw) -> Audit:
    return _split_network(draw, nets.identity_head(), "identity_head")


def affine_head(draw: Draw) -> Audit:
    return _split_network(draw, nets.affine_head(), "affine_head")


def class_head(draw: Draw) -> Audit:
    net = nets.class_head()
    means = [of_class(draw.digits[:600], label).inputs.flatten(1).mean(0) for label in range(10)]
    net.get_buffer("head.prototypes").copy_(torch.stack(means))
    return _split_network(draw, net, "class_head")


def _mixing(draw: Draw, name: str, state: dict[str, Tensor], epochs: int) -> Audit:
    """A head that hides nothing, so that whoever knows it reads everything."""
    net: nn.Module = getattr(nets, name)()
    net.load_state_dict({**net.state_dict(), **state})
    return _split_network(draw, net, name, attack_epochs=epochs)


def _orthogonal(draw: Draw, size: int) -> Tensor:
    drawn = torch.randn(size, size, generator=draw.key.fold("matrix").generator())
    turned: Tensor = torch.linalg.qr(drawn)[0]
    return turned


def cosine_head(draw: Draw, epochs: int) -> Audit:
    """The orthonormal cosine transform of the whole picture."""
    at, wave = torch.arange(nets.SIDE) + 0.5, torch.arange(nets.SIDE)[:, None]
    basis = torch.cos(torch.pi * at * wave / nets.SIDE) * (2 / nets.SIDE) ** 0.5
    basis[0] /= 2**0.5
    return _mixing(draw, "turned_head", {"head.matrix": torch.kron(basis, basis)}, epochs)


def permuted_head(draw: Draw, epochs: int) -> Audit:
    order = torch.randperm(64, generator=draw.key.fold("order of pixels").generator())
    return _mixing(draw, "turned_head", {"head.matrix": torch.eye(64)[order]}, epochs)


def orthogonal_head(draw: Draw, epochs: int) -> Audit:
    return _mixing(draw, "turned_head", {"head.matrix": _orthogonal(draw, 64)}, epochs)


def projected_head(draw: Draw, epochs: int) -> Audit:
    matrix = _orthogonal(draw, 64)[:32]
    return _mixing(draw, "projected_head", {"head.matrix": matrix}, epochs)


def channels_head(draw: Draw, epochs: int) -> Audit:
    weight = _orthogonal(draw, 8)[:, :1, None, None]
    return _mixing(draw, "channels_head", {"head.weight": weight}, epochs)


def renamed_head(draw: Draw, epochs: int) -> Audit:
    generator = draw.key.fold("tables").generator()
    tables = torch.stack([torch.randperm(nets.GREYS, generator=generator) for _ in range(64)])
    return _mixing(draw, "renamed_head", {"head.tables": tables}, epochs)


def untrained_network(draw: Draw) -> Audit:
    """Only the class of an untrained network's own making leaves the client."""
    net = nets.class_head()
    drawn = torch.rand(10, 64, generator=draw.key.fold("prototypes").generator())
    net.get_buffer("head.prototypes").copy_(drawn)
    return _split_network(draw, net, "class_head", epochs=0)


# Updates of clients, whose right verdict is known.


def _update(draw: Draw, given: Records | str, **update: Any) -> Audit:
    source = given if isinstance(given, str) else draw.file("data", given)
    how = {"restarts": 1, "search_steps": 300, **update}
    return draw.audit(data={"source": source}, update=how)


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


def _mlp_of(draw: Draw) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(draw.seed)
        return nets.mlp()


def _noise_like(draw: Draw, values: Tensor, times: float) -> Tensor:
    noise = torch.randn(values.shape, generator=draw.key.fold("noise").generator())
    scaled: Tensor = times * noise * values.norm() / noise.norm()
    return scaled


def others_of_the_class(draw: Draw) -> Audit:
    """A batch of one class; named are other records of that class."""
    own = of_class(draw.digits, draw.number(10))
    net = _mlp_of(draw)
    files = _written(draw, net, _sent(draw, net, own[:4]))
    return _update(draw, own[4:], records="0-3", batch_size=4, **files)


def other_batch(draw: Draw) -> Audit:
    """Named is another client's batch."""
    net = _mlp_of(draw)
    files = _written(draw, net, _sent(draw, net, draw.digits[:8]))
    return _update(draw, draw.digits[8:], records="0-7", batch_size=8, **files)


def marked_batch(draw: Draw) -> Audit:
    """Named is another client's batch, on which two pixels are a little brighter."""
    net = _mlp_of(draw)
    files = _written(draw, net, _sent(draw, net, draw.digits[:8]))
    named = draw.digits[8:]
    inputs = named.inputs.clone()
    inputs[:8, 0, 0, :2] += 0.1
    return _update(draw, replace(named, inputs=inputs), records="0-7", batch_size=8, **files)


def wrong_records(draw: Draw) -> Audit:
    """Another client's batch, under noise that leaves nothing of it to prove."""
    net = _mlp_of(draw)
    values = _sent(draw, net, draw.digits[:8])
    files = _written(draw, net, values + _noise_like(draw, values, 30.0))
    return _update(draw, draw.digits[8:], records="0-7", batch_size=8, **files)


def wrong_training(draw: Draw) -> Audit:
    """Eight local steps; said is one."""
    net, batch = _mlp_of(draw), draw.digits[:8]
    before = {n: t.clone() for n, t in net.state_dict().items()}
    descent = torch.optim.SGD(net.parameters(), 0.5)
    for _ in range(8):
        loss = nn.functional.cross_entropy(net(batch.inputs), batch.labels)
        descent.zero_grad()
        torch.autograd.backward(loss)
        descent.step()
    for name, state in (("before", before), ("after", net.state_dict())):
        save_file(state, draw.folder / f"{name}.safetensors")
    files = {n: str(draw.folder / f"{n}.safetensors") for n in ("before", "after")}
    how = {"model": f"{NETS}:mlp", "rate": 0.5, "steps": 1}
    return _update(draw, draw.digits, records="0-7", batch_size=8, **files, **how)


def wrong_base(draw: Draw) -> Audit:
    """Computed at other weights than those that are given as the start."""
    net = _mlp_of(draw)
    values = _sent(draw, net, draw.digits[:8])
    other = _mlp_of(replace(draw, seed=draw.seed + 1))
    save_file(other.state_dict(), draw.folder / "before.safetensors")
    files = _written(draw, net, values)
    return _update(draw, draw.digits, records="0-7", batch_size=8, **files)


def noise_alone(draw: Draw) -> Audit:
    net = _mlp_of(draw)
    values = _sent(draw, net, draw.digits[:8])
    return _update(
        draw,
        draw.digits,
        records="0-7",
        batch_size=8,
        **_written(draw, net, _noise_like(draw, values, 1)),
    )


_PRIVATE = {"dp_clip": 1.0, "dp_noise": 4.0}


def noisy(draw: Draw) -> Audit:
    """Twenty clients with one record each, who clip and add noise of four times the clip, and say so."""
    net, named = _mlp_of(draw), {}
    before, place = net.state_dict(), draw.folder / "sent"
    recording = Recording(place)
    for number in range(20):
        values = _sent(draw, net, draw.digits[number : number + 1])
        values = values / values.norm().clamp_min(1.0)
        generator = draw.key.fold(number).fold("noise").generator()
        values = values + _PRIVATE["dp_noise"] * torch.randn(values.shape, generator=generator)
        parts = torch.split(values, [p.numel() for p in net.parameters()])
        changed = zip(net.named_parameters(), parts, strict=True)
        after = {n: p.detach() - part.reshape(p.shape) for (n, p), part in changed}
        client = f"client{number}"
        recording.write(before, after, round=0, client=client, rate=1.0, batch_size=1)
        named[client] = [number]
    path = draw.folder / "records.json"
    path.write_text(json.dumps(named), encoding="utf-8")
    files = {"model": f"{NETS}:mlp", "update": str(place), "records": str(path)}
    return _update(draw, draw.digits, search_steps=100, **_PRIVATE, **files)


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
