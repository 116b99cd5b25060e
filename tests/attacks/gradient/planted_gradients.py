"""Planted batches and their gradients."""

from __future__ import annotations

import torch

from exhume.core.contract import Key, Knowledge, Records
from exhume.store.shards import NullStore
from exhume.victims.gradient import release_batches


def unit_batches(releases, size, shape, classes, key, *, positive=True):
    draws = torch.randn(releases, size, *shape, generator=key.generator())
    draws = draws.abs() if positive else draws
    flat = draws.flatten(2)
    inputs = (flat / flat.norm(dim=2, keepdim=True)).reshape(draws.shape)
    labels = (torch.arange(releases * size) % classes).reshape(releases, size)
    return Records(inputs, labels, tuple(str(i) for i in range(classes)))


def attacked(attack, architecture, batches, key: Key, **options):
    """The attack at its own queried parameters: reconstruction and secret."""
    parameters = attack.query(architecture, key)
    release, secret = release_batches(architecture, parameters, batches, **options)
    prepared = attack.prepare(Knowledge(architecture=architecture), key=key, store=NullStore())
    return prepared.run(release), secret
