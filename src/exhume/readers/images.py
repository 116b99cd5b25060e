"""A folder of images: one sub-folder per class, or all images side by side as one class.

Grey images give one channel; as soon as one image is in colour, all become RGB. Pixels are taken
as they are stored: orientation tags are ignored, as most training pipelines do.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from exhume.core.contract import ExhumeError, Progress, Records, silent
from exhume.store.cache import Content
from exhume.store.memory import check_memory

SUFFIXES = frozenset(
    {".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The decoders that may see a file, whatever its name: among Pillow's others are some that start programs."""

_GREY = frozenset({"1", "L", "LA"})
_COLOUR = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV"})


@dataclass(frozen=True)
class Blob:
    """An image file that is kept inside another file."""

    name: str  # for messages
    data: bytes = field(repr=False)

    def __str__(self) -> str:
        return self.name


def folder(path: Path, *, size: int | None = None, progress: Progress = silent) -> Pixels:
    """All images below a folder, classes and files in natural order.

    size: crop each image to its centre square and resize it to size x size; None keeps it as it is.
    """
    groups = _by_class(path)
    files = [file for _, group in groups for file in group]
    labels = [label for label, (_, group) in enumerate(groups) for _ in group]
    return Pixels(
        stack(files, size=size, progress=progress),
        torch.tensor(labels, dtype=torch.int64),
        tuple(name for name, _ in groups),
    )


def files_in(path: Path) -> list[str]:
    """The names of a folder's images, counted from the folder, in the order in which `folder` reads them."""
    return [file.relative_to(path).as_posix() for _, group in _by_class(path) for file in group]


def _by_class(path: Path) -> list[tuple[str, list[Path]]]:
    kinds = folders_below(path)
    here = images_in(path)
    if kinds and here:
        raise ExhumeError(
            f"{path}: holds both images ({here[0].name}) and folders ({kinds[0].name}); "
            "put every image into the folder of its class"
        )
    if not kinds and not here:
        raise ExhumeError(f"{path}: holds no images; legal endings are {_legal()}")
    return [(kind.name, _class_images(kind)) for kind in kinds] or [(path.resolve().name, here)]


def images_in(path: Path) -> list[Path]:
    """The image files directly in a folder, in natural order."""
    return [file for file in files_below(path) if file.suffix.lower() in SUFFIXES]


def files_below(path: Path) -> list[Path]:
    """The files directly in a folder that are not hidden, in natural order."""
    return [file for file in _visible(path) if file.is_file()]


def folders_below(path: Path) -> list[Path]:
    """The folders directly in a folder that are not hidden, in natural order."""
    return [folder for folder in _visible(path) if folder.is_dir()]


def _visible(path: Path) -> list[Path]:
    names = [inner for inner in path.iterdir() if not inner.name.startswith((".", "__MACOSX"))]
    return sorted(names, key=lambda inner: natural(inner.name))


def stack(
    files: Sequence[Path | Blob], *, size: int | None = None, progress: Progress = silent
) -> Tensor:
    """(n, c, h, w) uint8. Sizes and modes are compared before the first image is decoded."""
    if size is not None and size < 1:
        raise ExhumeError(f"size: {size} given, it must be 1 or more")
    mode, (width, height) = _agree(files, size)
    channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (len(files), channels, height, width)
    sides = "x".join(str(side) for side in shape[1:])  # 1 byte a pixel as read, 4 as a float record
    check_memory(5 * math.prod(shape), f"{files[0]}: {len(files)} records of {sides}")
    values = np.empty(shape, dtype=np.uint8)
    for index, file in enumerate(files):
        progress("read images", index, len(files))
        with _decoding(file), _opened(file) as image:
            pixels = image.convert(mode)
            if size is not None:
                pixels = _square(pixels, size)
            values[index] = np.asarray(pixels).reshape(height, width, channels).transpose(2, 0, 1)
    progress("read images", len(files), len(files))
    return torch.from_numpy(values)


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key by which s2 comes before s10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts] + [(-2, name)]


def _opened(file: Path | Blob) -> Image.Image:
    source = io.BytesIO(file.data) if isinstance(file, Blob) else file
    return Image.open(source, formats=FORMATS)


def _agree(files: Sequence[Path | Blob], size: int | None) -> tuple[str, tuple[int, int]]:
    """The mode and the (width, height) that all images will have."""
    mode, first = "L", (0, 0)
    for index, file in enumerate(files):
        with _decoding(file), _opened(file) as image:
            kind, extent = image.mode, image.size
        if kind not in _GREY | _COLOUR:
            raise ExhumeError(f"{file}: mode {kind}; legal are 8-bit grey and colour images")
        mode = "RGB" if kind in _COLOUR else mode
        first = extent if index == 0 else first
        if extent != first and size is None:
            raise ExhumeError(
                f"images of different sizes: {files[0]} is {first[0]}x{first[1]}, "
                f"{file} is {extent[0]}x{extent[1]}; make them equal or pass a size"
            )
    return mode, first if size is None else (size, size)


def _square(image: Image.Image, size: int) -> Image.Image:
    """The centre square, cut out first so that nothing outside it shines in."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    centre = image.crop((left, top, left + side, top + side))
    return centre.resize((size, size), Image.Resampling.BICUBIC)


@contextmanager
def _decoding(file: Path | Blob) -> Iterator[None]:
    """Turns what Pillow's decoders raise on a damaged file into one sentence."""
    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except bombs as error:
        raise ExhumeError(
            f"{file}: more than {Image.MAX_IMAGE_PIXELS:,} pixels, perhaps a decompression bomb"
        ) from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error) as error:
        raise ExhumeError(f"{file}: unreadable or truncated image ({error})") from error


def _class_images(kind: Path) -> list[Path]:
    deeper = folders_below(kind)
    if deeper:
        raise ExhumeError(
            f"{kind}: a class folder holds images only, it has a folder {deeper[0].name}"
        )
    files = images_in(kind)
    if not files:
        raise ExhumeError(
            f"{kind}: this class folder holds no images; legal endings are {_legal()}"
        )
    return files


def _legal() -> str:
    return ", ".join(sorted(SUFFIXES))


@dataclass(frozen=True, eq=False)
class Pixels:
    """n images of whole numbers: a quarter of the memory and disk of their records."""

    values: Tensor  # (n, c, h, w) uint8, from 0 to `white`
    labels: Tensor  # (n,) int64
    classes: tuple[str, ...]
    white: int = 255

    def records(self) -> Records:
        inputs = self.values.to(torch.float32).div_(self.white)
        return Records(inputs, self.labels, self.classes)

    def content(self) -> Content:
        return Content(
            {"values": self.values, "labels": self.labels},
            {"classes": json.dumps(self.classes), "white": str(self.white)},
        )

    @staticmethod
    def of(content: Content) -> Pixels:
        """The inverse of `content`."""
        classes = tuple(json.loads(content.about["classes"]))
        white = int(content.about["white"])
        return Pixels(content.tensors["values"], content.tensors["labels"], classes, white)
