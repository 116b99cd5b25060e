"""Cases of hostile input, each made from its number alone, and what counts as a clean end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from exhume.core.contract import ExhumeError


def blocks(few: int, many: int) -> Any:
    """A test of the first few `cases`, and the same of all others up to so many, which is slow."""
    rest = pytest.param(range(few, many), id=f"{few} to {many}", marks=pytest.mark.slow)
    return pytest.mark.parametrize("cases", [pytest.param(range(few), id=f"first {few}"), rest])


def clean(run: Callable[[], object], case: int) -> str | None:
    """Run a case: None if it was accepted, else the sentence it was refused with. A bug is raised."""
    try:
        run()
    except ExhumeError as error:
        text = str(error)
        assert text.strip(), f"case {case}: an empty sentence"
        assert len(text) < 2000, f"case {case}: {len(text)} characters are no sentence"
        return text
    except Exception as bug:
        raise AssertionError(f"case {case} ends in {type(bug).__name__}: {bug}") from bug
    return None


def scrambled(content: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, lost, doubled or invented, or the end cut off."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        if not data:
            break
        place, kind = chance.randrange(len(data)), chance.randrange(6)
        size = chance.choice((1, 1, 2, 8, 64))
        if kind == 0:
            data[place] = chance.randrange(256)
        elif kind == 1:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del data[place : place + size]
        elif kind == 3:
            data[place:place] = data[place : place + size]
        elif kind == 4:
            data[place:place] = chance.randbytes(size)
        else:
            del data[place:]
    return bytes(data)
