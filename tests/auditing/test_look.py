"""Records planted in parameters and buffers are seen, wherever and however they lie there."""

from __future__ import annotations

import pytest
import torch

from exhume.auditing import look
from exhume.auditing.look import look_at
from exhume.core.contract import Records
from exhume.score.places import places_for

COUNT, OTHERS = 12, 60


def records(shape, key, count=COUNT + OTHERS):
    inputs = torch.rand(count, *shape, generator=key.generator())
    return Records(inputs, torch.zeros(count, dtype=torch.long), ("a",))


def pool_of(given, key):
    release = torch.zeros(COUNT, dtype=torch.long)
    return places_for(given[:COUNT], release, given[COUNT:], key)


def first(seen, places):
    """Of the targets, those more alike than every stranger."""
    strangers = seen.similarity[places.target < 0].max()
    return (seen.similarity[places.target >= 0] > strangers).double().mean()


def planted(rows, where, key):
    """Tensors with these rows (k, d) in them, among noise; twice as large, lower and negative."""
    rows = 3 - 2 * rows
    k, d = rows.shape

    def noise(*shape):
        return torch.randn(*shape, generator=key.fold(where).generator())

    if where == "rows":
        return torch.cat([noise(5, d), rows, noise(4, d)])
    if where == "columns":
        return torch.cat([noise(d, 3), rows.T, noise(d, 7)], 1)
    if where == "longer rows":
        return torch.cat([noise(k, 11), rows, noise(k, 6)], 1)
    if where == "longer columns":
        return torch.cat([noise(7, k), rows.T, noise(3, k)])
    if where == "one row":
        return torch.cat([noise(13), rows.flatten(), noise(2)])
    if where == "half precision":
        return rows.half()
    return torch.cat([noise(k, 2, d), rows[:, None]], 1).movedim(1, 2)  # channels last


PLACES = (
    "rows",
    "columns",
    "longer rows",
    "longer columns",
    "one row",
    "half precision",
    "channels",
)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (6,)])
def test_records_are_seen_wherever_they_lie(where, shape, key):
    given = records(shape, key)
    places = pool_of(given, key.fold("places"))
    rows = given.inputs[:4].flatten(1)
    seen = look_at({"w": planted(rows, where, key), "b": torch.zeros(3)}, places, range(COUNT))
    seats = {int(t): place for place, t in enumerate(places.target) if t >= 0}
    own = torch.tensor([float(seen.similarity[seats[target]]) for target in range(4)])
    others = [i for i in range(len(places.target)) if places.target[i] < 0 or places.target[i] > 3]
    assert (own > 0.999).all()
    assert (own > seen.similarity[others].max()).all()
    assert seen.copies.tolist() == [len(shape) == 3] * 4 + [False] * (COUNT - 4)
    shown, truth = seen.windows[:4].flatten(1), rows - rows.mean(1, keepdim=True)
    if len(shape) == 3:  # vectors may be told by their standardised columns
        assert torch.allclose(shown, truth / truth.norm(dim=1, keepdim=True), atol=1e-3)


def test_colours_that_are_stored_last(key):
    given = records((3, 4, 4), key)
    places = pool_of(given, key.fold("places"))
    seen = look_at({"w": given.inputs.movedim(1, -1)[:COUNT].flatten(1)}, places, range(COUNT))
    assert first(seen, places) == 1
    truth = given.inputs[:COUNT] - given.inputs[:COUNT].mean((1, 2, 3), keepdim=True)
    assert torch.allclose(
        seen.windows, truth / truth.flatten(1).norm(dim=1)[:, None, None, None], atol=1e-4
    )


def test_what_is_not_there_is_not_seen(key):
    given = records((1, 8, 8), key)
    places = pool_of(given, key.fold("places"))
    tensors = {"w": torch.randn(70, 64, generator=key.generator()), "flat": torch.ones(64, 2)}
    assert first(look_at(tensors, places, range(COUNT)), places) < 0.2
    small = look_at({"w": torch.zeros(63), "broken": torch.full((64,), torch.nan)}, places, [0])
    assert not small.similarity.any()


def test_with_less_work_rows_come_first(key, monkeypatch):
    """A window that no row begins with goes unseen; memory and time stay bounded."""
    given = records((1, 8, 8), key)
    places = pool_of(given, key.fold("places"))
    rows = {"w": planted(given.inputs[:COUNT].flatten(1), "rows", key)}
    monkeypatch.setattr(look, "WORK", 64.0 * len(places.target) * 60)  # 60 windows
    assert first(look_at(rows, places, range(COUNT)), places) == 1
    assert first(look_at(rows, places, range(COUNT), share=0.01), places) < 1
