from __future__ import annotations

import builtins
import math

import pytest
import torch

from exhume.core.contract import ExhumeError
from exhume.models.mlp import MLP
from exhume.victims.opacus import OpacusTraining, release_by_opacus

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture
def game(make_records, key):
    mlp = MLP((6,), (4,), 3)
    module = mlp.build()
    torch.nn.utils.vector_to_parameters(mlp.initial(key), module.parameters())
    return module, make_records(30, (6,), 3, key), make_records(2, (6,), 3, key.fold("target"))


def test_releases_are_private_and_reproducible(game, key):
    pytest.importorskip("opacus", reason="opacus is not installed: pip install 'exhume[opacus]'")
    module, fixed, targets = game
    before = torch.nn.utils.parameters_to_vector(module.parameters()).clone()
    training = OpacusTraining(epochs=2, batch=2)  # so small that some batches are empty
    calls = []
    release, secret, spent = release_by_opacus(
        module, training, fixed, targets, key=key, progress=lambda *call: calls.append(call[1:])
    )
    assert calls == [(0, 2), (1, 2), (2, 2)]
    assert release.parameters.shape == (2, release.layout.size)
    assert bool(torch.isfinite(release.parameters).all())
    assert secret.open() is targets
    assert 0 < spent < 20
    again, _, _ = release_by_opacus(module, training, fixed, targets, key=key)
    assert torch.equal(release.parameters, again.parameters)
    assert torch.equal(before, torch.nn.utils.parameters_to_vector(module.parameters()))
    assert not torch.equal(release.parameters[0], before)


def test_without_noise_there_is_no_guarantee(game, key):
    pytest.importorskip("opacus", reason="opacus is not installed: pip install 'exhume[opacus]'")
    training = OpacusTraining(epochs=1, batch=10, noise_multiplier=0.0)
    assert release_by_opacus(*_ordered(game, training), key=key)[2] == math.inf


def _ordered(game, training):
    module, fixed, targets = game
    return module, training, fixed, targets


def test_missing_opacus_is_named(game, key, monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name.startswith("opacus"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ExhumeError, match=r"pip install 'exhume\[opacus\]'"):
        release_by_opacus(*_ordered(game, OpacusTraining()), key=key)


def test_impossible_settings_are_named():
    with pytest.raises(ExhumeError, match="epochs 0 and batch 64 must be at least 1"):
        OpacusTraining(epochs=0)
