"""How the records that a client trained on differ from the records as they are named.

Clients flip, shift and normalise their images before they train on them; the owner names the images on disk.
Where reconstructions prove themselves, each is compared with every named record under each member of a small
family: a horizontal flip, a shift of a few pixels, a normalisation by the usual means and deviations. Only
what overlaps is compared: what a shift brings in at the edge is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_PIXELS = 4  # of a shift, at most; and at most a quarter of the image
_SAME = 0.1  # distance, relative to a record's deviation from its mean, at which one is the other
_NEAR = 0.3  # at which it still is, where nothing else is nearer
_BETTER = 0.999  # of the distance before: the simpler transform wins a tie
_MEANS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mean and deviation of 0.5": ((0.5,), (0.5,)),
    "the numbers of MNIST": ((0.1307,), (0.3081,)),
    "the numbers of Fashion-MNIST": ((0.2860,), (0.3530,)),
    "the numbers of ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "the numbers of CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "the numbers of CIFAR-10 as often copied": (
        (0.4914, 0.4822, 0.4465),
        (0.2023, 0.1994, 0.2010),
    ),
    "the numbers of CIFAR-100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "a factor of 255": ((0.0,), (1 / 255,)),
}


@dataclass(frozen=True)
class Transform:
    """What a client did to one image."""

    flipped: bool = False  # left and right
    down: int = 0  # pixels
    right: int = 0
    normalised: str = ""  # by which numbers

    @property
    def pixels(self) -> int:
        return max(abs(self.down), abs(self.right))


@dataclass(frozen=True)
class Comparison:
    """For each reconstruction the transform of a named record that it is; None: it is none of them."""

    transforms: tuple[Transform | None, ...]

    @property
    def as_named(self) -> bool:
        """Every one is a named record, unchanged."""
        return all(one == Transform() for one in self.transforms)

    @property
    def sentence(self) -> str:
        """Without a full stop; empty: they are the records as they are named."""
        if self.as_named:
            return ""
        known = [one for one in self.transforms if one is not None]
        far = max((one.pixels for one in known), default=0)
        counts = {
            "flipped left to right": sum(one.flipped for one in known),
            f"shifted by up to {far} pixel{'s' * (far > 1)}": sum(one.pixels > 0 for one in known),
        }
        for name in dict.fromkeys(one.normalised for one in known if one.normalised):
            counts[f"normalised by {name}"] = sum(one.normalised == name for one in known)
        strange = "none of those named, nor one of them flipped, shifted or normalised as is usual"
        counts[strange] = len(self.transforms) - len(known)
        said = [f"{count} {'is' if count == 1 else 'are'} {how}" for how, count in counts.items()]
        parts = [words for words, count in zip(said, counts.values(), strict=True) if count]
        return f"of {len(self.transforms)} that are proved, {', '.join(parts)}"


def compare_with_named(proved: Tensor, named: Tensor) -> Comparison:
    """Reconstructions that are proved (k, *shape) and the named records (n, *shape).

    Where the sign of a reconstruction is not known, its negative is as good.
    """
    proved, named = proved.double(), named.double()
    plain = torch.minimum(_distances(proved, named), _distances(-proved, named))
    best, chosen = plain, [Transform()] * len(proved)
    if named.ndim == 4:
        for transform, made, record in _family(proved, named):
            distance = _distances(made, record)
            nearer = distance < _BETTER * best
            best = torch.where(nearer, distance, best)
            chosen = [
                transform if new else old for new, old in zip(nearer.tolist(), chosen, strict=True)
            ]
    explained = (best < _SAME).tolist()
    near = (plain < _NEAR).tolist()
    return Comparison(
        tuple(
            transform if fits else Transform() if as_named else None
            for transform, fits, as_named in zip(chosen, explained, near, strict=True)
        )
    )


def _family(proved: Tensor, named: Tensor) -> Iterator[tuple[Transform, Tensor, Tensor]]:
    """Transforms, the simple ones first, with what must be equal if it is that one."""
    channels, height, width = named.shape[1:]
    numbers = {"": ((0.0,), (1.0,)), **_MEANS}
    far = min(_PIXELS, height // 4, width // 4)
    reach = range(-far, far + 1)
    shifts = sorted(((y, x) for y in reach for x in reach), key=lambda s: abs(s[0]) + abs(s[1]))
    for name, (mean, deviation) in numbers.items():
        if len(mean) not in (1, channels):
            continue
        centre, scale = (torch.tensor(v).double()[:, None, None] for v in (mean, deviation))
        plain = proved * scale + centre
        for flipped in (False, True):
            turned = named.flip(-1) if flipped else named
            for down, right in shifts:
                transform = Transform(flipped, down, right, name)
                if transform != Transform():
                    yield transform, _cut(plain, down, right), _cut(turned, -down, -right)


def _cut(images: Tensor, down: int, right: int) -> Tensor:
    """The part of images that were shifted so which was inside before."""
    height, width = images.shape[-2:]
    rows = slice(max(down, 0), height + min(down, 0))
    return images[..., rows, max(right, 0) : width + min(right, 0)]


def _distances(made: Tensor, records: Tensor) -> Tensor:
    """(k,) to the nearest record, relative to how much that record differs from its own mean."""
    flat = records.flatten(1)
    size = (flat - flat.mean(1, keepdim=True)).norm(dim=1)
    apart = torch.cdist(made.flatten(1), flat) / size.clamp_min(1e-300)
    nearest: Tensor = apart.masked_fill(size == 0, torch.inf).min(1).values
    return nearest
