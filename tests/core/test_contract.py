from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exhume.core import contract
from exhume.core.contract import ExhumeError, Key, Knowledge, Layout, NotApplicable, Records, Secret


def test_keys_are_reproducible_and_distinct():
    assert Key.from_seed(3).fold("shadow", 1) == Key.from_seed(3).fold("shadow", 1)
    different = {
        Key.from_seed(0).digest,
        Key.from_seed(1).digest,
        Key.from_seed(0).fold("a").digest,
        Key.from_seed(0).fold("a", 1).digest,
        Key.from_seed(0).fold("a", "1").digest,
        Key.from_seed(0).fold("a").fold("1").digest,
    }
    assert len(different) == 6


def test_the_bits_of_a_key_are_these():
    """Every number of every study hangs on them."""
    start = hashlib.sha256(b"exhume seed 7").hexdigest()
    key = Key.from_seed(7)
    assert key.digest == start
    folded = hashlib.sha256(f'["{start}","shadow",17]'.encode()).hexdigest()
    assert key.fold("shadow", 17).digest == folded
    assert key.seed() == int(start, 16) >> 193  # the first 63 of 256 bits
    drawn = torch.rand(3, generator=torch.Generator().manual_seed(key.seed()))
    assert torch.equal(torch.rand(3, generator=key.generator()), drawn)


def test_a_generator_starts_afresh_each_time(key):
    assert torch.equal(
        torch.rand(4, generator=key.generator()), torch.rand(4, generator=key.generator())
    )


@given(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4), st.integers(0, 3))
def test_layout_split_and_join_are_inverse(shapes, models):
    layout = Layout(tuple(f"p{i}" for i in range(len(shapes))), tuple(tuple(s) for s in shapes))
    flat = torch.arange(models * layout.size, dtype=torch.float32).reshape(models, layout.size)
    assert layout.size == sum(math.prod(shape) for shape in shapes)
    parts = layout.split(flat)
    assert [tuple(part.shape) for part in parts.values()] == [(models, *s) for s in shapes]
    rows = [
        part.reshape(models, math.prod(s)) for part, s in zip(parts.values(), shapes, strict=True)
    ]
    assert torch.equal(torch.cat(rows, 1), flat)
    assert torch.equal(layout.join(parts), flat)
    for row in flat:
        assert torch.equal(layout.join(layout.split(row)), row)


def test_layout_refuses_what_does_not_fit():
    layout = Layout(("w", "b"), ((2, 3), (2,)))
    with pytest.raises(ExhumeError, match="7 numbers given, this architecture has 8"):
        layout.split(torch.zeros(7))
    with pytest.raises(ExhumeError, match=r"missing \['b'\], unexpected \['c'\]"):
        layout.join({"w": torch.zeros(2, 3), "c": torch.zeros(2)})
    with pytest.raises(ExhumeError, match=r"parameter w: shape \(3, 2\) given, \(2, 3\) expected"):
        layout.join({"w": torch.zeros(3, 2), "b": torch.zeros(2)})
    with pytest.raises(ExhumeError, match=r"parameter b: shape \(2,\) given"):
        layout.join({"w": torch.zeros(5, 2, 3), "b": torch.zeros(2)})  # of five models, of one
    with pytest.raises(ExhumeError, match=r"parameter w: shape \(3,\) given"):
        layout.join({"w": torch.zeros(3), "b": torch.zeros(2)})
    with pytest.raises(ExhumeError, match="missing none, unexpected"):
        layout.join({"w": torch.zeros(2, 3), "b": torch.zeros(2), "c": torch.zeros(2)})
    with pytest.raises(ExhumeError, match="unexpected none"):
        layout.join({"w": torch.zeros(2, 3)})


def test_layout_of_a_module_follows_its_parameters():
    layout = Layout.of(torch.nn.Linear(3, 2))
    assert layout == Layout(("weight", "bias"), ((2, 3), (2,)))


def test_a_secret_does_not_show_itself():
    secret = Secret(Records(torch.tensor([[0.123]]), torch.tensor([0]), ("a",)))
    assert "123" not in repr(secret)
    assert "123" not in str(secret)
    assert secret.open().inputs.item() == pytest.approx(0.123)


def test_knowledge_knows_what_it_lacks():
    knowledge = Knowledge(initial=torch.zeros(2), batch_size=3)
    assert knowledge.known() == ("initial", "batch_size")
    assert knowledge.lacking("recipe", "initial") == ("recipe",)
    assert Knowledge(parts={"head": torch.nn.Identity()}).known() == ("parts",)
    assert Knowledge().known() == ()
    knowledge.require("an attack", "initial")
    with pytest.raises(NotApplicable, match="^an attack needs to know: recipe, fixed$"):
        knowledge.require("an attack", "recipe", "initial", "fixed")
    with pytest.raises(NotApplicable) as lacking:
        knowledge.require("an attack", "recipe")
    assert lacking.value.ever


def test_neither_knowledge_nor_a_release_nor_an_attack_has_a_place_for_a_secret():
    values = (contract.Knowledge, contract.Weights, contract.Gradient, contract.Activations)
    for value in values:
        assert not any("Secret" in str(f.type) for f in dataclasses.fields(value))
    for method in (contract.Attack.prepare, contract.Prepared.run, contract.QueryingAttack.query):
        assert "Secret" not in str(inspect.signature(method))


def test_an_attack_that_does_not_apply_is_a_result():
    none = contract.Reconstruction.none(3, (2, 2), NotApplicable("no bias", ever=False))
    assert none.candidates.shape == (3, 0, 2, 2)
    assert none.status == contract.Status(contract.Outcome.NOT_APPLICABLE, "no bias", False)


def test_a_reconstruction_says_which_candidates_are_real():
    candidates = torch.arange(12.0).reshape(2, 3, 2)
    confidence = torch.tensor([[2.0, -5.0, contract.FILLED_UP], [0.0, 0.0, 0.0]])
    status = contract.Status(contract.Outcome.CONVERGED)
    found = contract.Reconstruction(candidates, confidence, status)
    assert found.real.tolist() == [[True, True, False], [True, True, True]]
    assert torch.equal(found.found(), candidates[0, :2])
    assert torch.equal(found.found(1), candidates[1])
    assert found.cost == contract.Cost(0.0, 0)
    assert found.status.converged
    assert found.status.ever
    assert not contract.Status(contract.Outcome.STOPPED_EARLY).converged
    nothing = contract.Reconstruction.none(2, (3,), NotApplicable("no", ever=True))
    assert nothing.real.shape == (2, 0)
    assert nothing.found(1).shape == (0, 3)


def test_a_shard_keeps_its_own_notes():
    notes = {"why": 1}
    shard = contract.Shard({"x": torch.zeros(1)}, notes)
    notes["why"] = 2
    assert shard.notes == {"why": 1}
    assert contract.Shard({}).notes == {}
    assert contract.silent("stage", 0, 1) is None
