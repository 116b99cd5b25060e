"""Training and attacks follow their inputs' device: no tensor is made where the program happens to be.

No second device is needed to see that. Every tensor that is made without naming a device is put on `meta`,
which holds no numbers, so that whatever mixes with the inputs fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from exhume.attacks.margin.descent import SearchDescent
from exhume.attacks.margin.hidden_span import HiddenSpan
from exhume.attacks.margin.stationarity import Equation6, FirstLayer
from exhume.core.contract import Key, Knowledge, Records
from exhume.models.mlp import HomogeneousMLP
from exhume.store.shards import NullStore
from exhume.train.margin import MarginDescent, train_to_margin
from exhume.victims.margin import release_margin

MLP = HomogeneousMLP((1, 6, 6), (60, 60), 4)
MAKERS = {torch.arange, torch.empty, torch.eye, torch.full, torch.ones, torch.tensor, torch.zeros}


class Elsewhere(TorchFunctionMode):
    """Tensors that name no device are made on `meta`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func in MAKERS and given.get("device") is None:
            given["device"] = "meta"
        return func(*args, **given)


RECIPE = MarginDescent(MLP, weight_decay=0.01, epochs=1500, stop_loss=0.0)


@pytest.fixture(scope="module")
def made():
    key = Key.from_seed(0)
    return release_margin(RECIPE, pictures(key), key=key, store=NullStore())


def pictures(key):
    drawn = torch.rand(8, 1, 6, 6, generator=key.fold("pictures").generator())
    return Records(drawn, torch.arange(8) % 4, tuple("abcd"))


@pytest.mark.parametrize(
    "attack",
    [
        FirstLayer(restarts=3, smooth=1e-4, descent=SearchDescent(steps=5)),
        HiddenSpan(restarts=2, widen=1.0, descent=SearchDescent(steps=40, rate=0.5)),
        Equation6(
            candidates=16, descent=SearchDescent("momentum", steps=5, rate=1e-3, falling=False)
        ),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_an_attack_makes_no_tensor_elsewhere(attack, made, key):
    knowledge = Knowledge(architecture=MLP, centre=made.centre)

    def found():
        return attack.prepare(knowledge, key=key, store=NullStore()).run(made.release)

    plain = found()
    with Elsewhere():
        again = found()
    assert torch.equal(again.candidates, plain.candidates)
    assert again.candidates.device == made.release.parameters.device


def test_training_makes_no_tensor_elsewhere(key):
    records, initial = pictures(key), MLP.initial(key)
    recipe = replace(RECIPE, epochs=100)
    plain = train_to_margin(recipe, initial, records)
    with Elsewhere():
        with pytest.raises((NotImplementedError, RuntimeError)):
            (torch.ones(2) + initial[:2]).tolist()  # what a tensor made elsewhere does
        again = train_to_margin(recipe, initial, records)
    assert torch.equal(again.parameters, plain.parameters)
