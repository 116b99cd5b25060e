"""Checkpoints and split networks, whose right verdict is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import exhume
from exhume.auditing import Audit
from exhume.core.contract import Records
from exhume.models.homogeneous import HomogeneousMLP
from exhume.store.shards import NullStore
from exhume.studies.verdict import nets
from exhume.studies.verdict.systems import NETS, Draw, of_class
from exhume.train.margin import MarginDescent
from exhume.victims.margin import release_margin

# Checkpoints


def _checkpoint(
    draw: Draw, trained: Records, named: Records, first: float | None, **settings: Any
) -> Audit:
    """Trained on some records; the owner names others, or the same."""
    net = HomogeneousMLP((1, 8, 8), (100, 100), 10, first_scale=first)
    growing = 0.01 if first is not None else 0.0
    recipe = MarginDescent(net, growing_steps=growing, stop_loss=1e-5, epochs=3000)
    victim = release_margin(recipe, trained, key=draw.key, store=NullStore())
    module = net.build()
    nn.utils.vector_to_parameters(victim.release.parameters[0].clone(), module.parameters())
    torch.save(module.state_dict(), draw.folder / "net.pt")
    np.savez(draw.folder / "mean.npz", mean=victim.centre.numpy())
    count = len(trained)
    return exhume.audit(
        {
            "seed": draw.seed,
            "victim": {"released": False},
            "machine": {"threads": 1},
            "checkpoint": {
                "file": str(draw.folder / "net.pt"),
                "mean": str(draw.folder / "mean.npz"),
                "trained_on": draw.file("digits", named),
                "rows": f"0:{count}",
                "restarts": 2,
                "steps": 120,
                **settings,
            },
        },
        draw.out,
    )


def never_trained_on(draw: Draw) -> Audit:
    return _checkpoint(draw, draw.digits[:20], draw.digits[20:], 1e-4)


def from_a_large_start(draw: Draw) -> Audit:
    """torch's own start and no decay: not at the point that the attack needs."""
    return _checkpoint(draw, draw.digits[:300], draw.digits, None)


def five_steps(draw: Draw) -> Audit:
    return _checkpoint(draw, draw.digits[:300], draw.digits, None, restarts=1, steps=5)


# Split networks


def _split(
    draw: Draw, net: nn.Module, name: str, first: str, *, epochs: int = 30, **settings: Any
) -> Audit:
    _train(net, draw.digits[:600], epochs)
    torch.save(net.state_dict(), draw.folder / "net.pt")
    return exhume.audit(
        {
            "seed": draw.seed,
            "victim": {"released": False},
            "machine": {"threads": 1},
            "split": {
                "model": f"{NETS}:{name}",
                "weights": str(draw.folder / "net.pt"),
                "data": draw.file("data", draw.digits),
                "first": first,
                "second": "body",
                "channels": 8,
                "attack_epochs": 6,
                "targets": 40,
                "lpips": False,
                **settings,
            },
        },
        draw.out,
    )


def _train(net: nn.Module, records: Records, epochs: int) -> None:
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
    return _split(draw, nets.identity_head(), "identity_head", "head")


def affine_head(draw: Draw) -> Audit:
    return _split(draw, nets.affine_head(), "affine_head", "head")


def class_head(draw: Draw) -> Audit:
    net = nets.class_head()
    means = [of_class(draw.digits[:600], label).inputs.flatten(1).mean(0) for label in range(10)]
    net.get_buffer("head.prototypes").copy_(torch.stack(means))
    return _split(draw, net, "class_head", "head")


def untrained_network(draw: Draw) -> Audit:
    """Only the class of an untrained network's own making leaves the client."""
    net = nets.class_head()
    drawn = torch.rand(10, 64, generator=draw.key.fold("prototypes").generator())
    net.get_buffer("head.prototypes").copy_(drawn)
    return _split(draw, net, "class_head", "head", epochs=0)
