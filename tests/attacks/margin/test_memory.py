"""More restarts take more time, not more memory: measured as the peak of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from exhume.attacks.margin.descent import RestartRun
from exhume.attacks.margin.restarts import _agreement

PEAK = """
import resource, torch
from exhume.attacks.margin.descent import SearchDescent
from exhume.attacks.margin.stationarity import FirstLayer
from exhume.core.contract import Key, Knowledge, Weights
from exhume.models.mlp import HomogeneousMLP
from exhume.store.shards import NullStore

torch.set_num_threads(1)
mlp, key = HomogeneousMLP((1, 10, 10), (200, 200), 2), Key.from_seed(0)
weights = Weights(mlp.initial(key)[None], mlp.layout)
def peak(restarts):
    attack = FirstLayer(
        restarts=restarts, fresh=9, candidates=5.0, descent=SearchDescent(steps=1)
    )
    found = attack.prepare(Knowledge(architecture=mlp), key=key, store=NullStore()).run(weights)
    assert found.candidates.shape[1] == 505 * restarts
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(peak(2), peak(2), peak(9))
"""


@pytest.mark.slow  # a process that imports everything
def test_the_peak_does_not_grow_with_restarts():
    """All pairs of 9 x 500 candidates at once would take 77 MiB a matrix; a restart's own are 0.2 MiB."""
    done = subprocess.run([sys.executable, "-c", PEAK], check=True, capture_output=True, text=True)
    _, two, nine = (float(value) for value in done.stdout.split())
    assert nine - two < 25


def test_agreement_in_blocks_is_agreement(key):
    generator = key.generator()
    runs = [
        RestartRun(torch.randn(m, 6, generator=generator), torch.arange(m) % 3, torch.zeros(m), 0.0)
        for m in (4, 7, 5)
    ]
    units = torch.nn.functional.normalize(torch.cat([run.inputs for run in runs]), dim=1)
    labels = torch.cat([run.labels for run in runs])
    where = torch.cat([torch.full((len(run.labels),), i) for i, run in enumerate(runs)])
    expected = [
        max(
            float(units[i] @ units[j])
            for j in range(len(units))
            if where[i] != where[j] and labels[i] == labels[j]
        )
        for i in range(len(units))
    ]
    torch.testing.assert_close(_agreement(runs), torch.tensor(expected))
