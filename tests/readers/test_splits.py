from __future__ import annotations

from dataclasses import astuple, fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planted_data import says

from exhume.core.contract import Key, Records
from exhume.readers import Sizes, split

counts = st.integers(0, 12)
sizes = st.builds(Sizes, counts, counts, counts, counts, counts)


def numbered(n: int) -> Records:
    """Records that are their own number."""
    return Records(torch.arange(n).float()[:, None], torch.arange(n) % 3, ("a", "b", "c"))


def numbers(part: object) -> list[list[int]]:
    return [getattr(part, f.name).inputs[:, 0].int().tolist() for f in fields(part)]  # type: ignore[arg-type]


@given(sizes, st.integers(0, 20), st.integers(0, 2**32))
def test_disjoint_sized_and_reproducible(sizes: Sizes, spare: int, seed: int) -> None:
    records, key = numbered(sizes.total + spare), Key.from_seed(seed)
    dealt = numbers(split(records, sizes, key))
    flat = [number for part in dealt for number in part]
    assert [len(part) for part in dealt] == list(astuple(sizes))
    assert len(flat) == len(set(flat))
    assert dealt == numbers(split(records, sizes, key))


def test_labels_travel_with_their_inputs() -> None:
    parts = split(numbered(30), Sizes(10, 5, 5, 5, 5), Key.from_seed(1))
    assert torch.equal(parts.fixed.labels, parts.fixed.inputs[:, 0].long() % 3)
    assert parts.test.classes == ("a", "b", "c")


def test_another_key_deals_otherwise() -> None:
    one, two = (numbers(split(numbered(50), Sizes(20), Key.from_seed(s))) for s in (0, 1))
    assert one != two


def test_too_few_records() -> None:
    text = says(lambda: split(numbered(9), Sizes(fixed=8, target=2), Key.from_seed(0)))
    assert "10 records needed" in text
    assert "9 available" in text


@pytest.mark.parametrize("name", [f.name for f in fields(Sizes)])
def test_negative_size(name: str) -> None:
    assert says(lambda: Sizes(**{name: -1})) == f"sizes: {name} is -1, it must be 0 or more"
