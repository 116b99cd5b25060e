"""A network without any bias asks nothing of the sum of the multipliers."""

from __future__ import annotations

from dataclasses import replace

import torch

from exhume.attacks.margin.descent import SearchDescent
from exhume.attacks.margin.stationarity import FirstLayer
from exhume.core.contract import Knowledge, Weights
from exhume.models.heads import pulls
from exhume.models.matrices import Matrices
from exhume.models.mlp import HomogeneousMLP
from exhume.store.shards import NullStore

SHAPE = (1, 6, 6)


def trained(key):
    """The reference: plain descent on all weights but the bias, which stays at zero."""
    mlp = HomogeneousMLP(SHAPE, (80, 60), 4, first_scale=1e-4)
    start = mlp.matrices(mlp.initial(key).double())
    inputs = torch.rand(8, 36, generator=key.generator(), dtype=torch.float64)
    inputs = inputs - inputs.mean(0)
    labels = torch.arange(8) % 4
    first, later = start.first.clone(), [matrix.clone() for matrix in start.later]
    for _ in range(6000):
        network = Matrices(first, torch.zeros(80, dtype=torch.float64), tuple(later))
        entering, outputs = network.forward(inputs)
        loss, pull = pulls("multiclass", outputs, labels)
        rate = 0.3 * max(1.0, 0.01 / float(loss.mean())) / 8
        for index in (1, 0):
            back = pull @ later[index]
            later[index] = later[index] + rate * pull.T @ entering[index].clamp_min(0)
            pull = back * (entering[index] > 0)
        first = first + rate * pull.T @ inputs
        if float(loss.mean()) < 1e-5:
            break
    return (
        mlp,
        mlp.join(Matrices(first, torch.zeros(80, dtype=torch.float64), tuple(later))),
        inputs,
    )


def test_planted_records_come_back_without_a_bias(key):
    mlp, parameters, truth = trained(key)
    attack = FirstLayer(restarts=1, contrast=0.28, largest=0.32, descent=SearchDescent(steps=200))
    knowledge = Knowledge(architecture=mlp, centre=torch.zeros(SHAPE))

    def likeness(flat):
        prepared = replace(attack).prepare(knowledge, key=key, store=NullStore())
        found = prepared.run(Weights(flat[None].float(), mlp.layout))
        images = found.candidates[0].flatten(1).double()
        unit = torch.nn.functional.normalize
        images, wanted = images - images.mean(1, True), truth - truth.mean(1, True)
        near = (unit(wanted, dim=1) @ unit(images, dim=1).T).max(1).values
        return found.observed["residual"], float(near.median())

    residual, near = likeness(parameters)
    assert near > 0.8
    # a bias that is there but tiny must be explained too, and cannot be
    layers = mlp.matrices(parameters)
    tiny = mlp.join(Matrices(layers.first, layers.bias + 1e-6, layers.later))
    assert likeness(tiny)[0] > residual
