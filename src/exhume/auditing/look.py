"""The owner's look: does a private record lie in what is released, as it is?

No attack, and no adversary's skill: every run of as many numbers as a record has is compared with records.
A run is a window of a parameter or a buffer, as it is stored and with its first (of three or more dimensions
also its second) dimension last, so that rows, columns, records inside a longer row and channels that are
stored last are windows. Sign, scale and shift do not matter:

    similarity of window w and record x = |<w - mean(w), x - mean(x)>| / (|w - mean(w)| |x - mean(x)|)

The same rule holds for every record of the line-up, targets and strangers, and nothing is fitted. Of images
with several channels records are compared in both orders, of vectors also with each column standardised.

Bounded: `WORK` multiplications at most for all releases of an audit; of more windows than that allows, those
that begin where a row or a record can begin come first, then others at even distances. Memory: the numbers
looked at, twice, and 32 MB besides. A record that is spread over several tensors, over every other number
of a row, or hidden on purpose (low bits, a cipher) is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.auditing.case import Answer, Question, Scored, Seats
from exhume.core.contract import Key, Outcome, Reconstruction, Records, Status
from exhume.core.results import AttackSpec
from exhume.score.places import Places

STORED = AttackSpec(
    "as-stored", "What is stored, looked at", "", "parameters and buffers as they are"
)
WORK = 2e12  # multiplications of all looks of an audit: half a minute of one core
FEWEST = 4  # numbers of a record: of fewer, every window is like every record
_AT_ONCE = 1 << 22  # numbers of the windows that are compared at once
_SECONDS = 2.5e-11  # of a multiplication
_STRIP = 0.01  # seconds of a release besides
_COPY = 1e-5  # of the similarity: rounding, half precision included
_TELLING, _LEVELS = (
    16,
    8,
)  # numbers of a record, and different ones among them, that make a copy no chance
_FLAT = 1e-6  # relative: a smaller spread is rounding
_EXACT = 32  # numbers of a record from which single precision tells a copy from what is nearly one


@dataclass(frozen=True, eq=False)
class Seen:
    """One release, looked at."""

    similarity: Tensor  # (n,) of every record of the pool to the window most like it
    windows: Tensor  # (t, *shape) most like each target, about 0 and of unit size; 0: it is not in the pool
    copies: Tensor  # (t,) bool: a scale and a shift of a window give the target to rounding, and no stranger


def look_at(
    tensors: Mapping[str, Tensor], places: Places, targets: Sequence[int], share: float = 1.0
) -> Seen:
    """One release's tensors by name. targets: whose windows are kept; share: of all looks of the audit."""
    pool = places.inputs
    shape, size = pool.shape[1:], pool.shape[1:].numel()
    if not len(pool):  # all are copies of one another
        nobody = torch.zeros(len(targets), dtype=torch.bool)
        return Seen(torch.zeros(0), torch.zeros(len(targets), *shape), nobody)
    kind = torch.float32 if size >= _EXACT else torch.float64
    orders = _orders(pool.to(kind))
    most = max(1, int(WORK * share / (size * len(pool) * len(orders))))
    best = torch.zeros(len(pool), dtype=kind, device=pool.device)
    likest = torch.zeros(len(pool), size, dtype=kind, device=pool.device)
    for numbers, starts in _strips(tensors, size, most):
        runs = numbers.to(pool.device, kind).unfold(0, size, 1)
        for some in torch.split(starts.to(pool.device), max(1, _AT_ONCE // size)):
            windows = _unit(runs[some])
            for order in orders:
                alike = windows @ order.units.T  # (w, n)
                value, at = alike.abs().max(0)
                nearer = value > best
                best = torch.where(nearer, value, best)
                signs = alike.gather(0, at[None])[0].sign()[:, None]
                likest[nearer] = order.as_stored((windows[at] * signs)[nearer])
    seats = {int(target): place for place, target in enumerate(places.target) if target >= 0}
    copied = _copied(best, places)
    none = torch.zeros(size, dtype=kind, device=pool.device)
    kept = [likest[seats[target]] if target in seats else none for target in targets]
    return Seen(
        best.double().cpu(),
        torch.stack(kept).view(-1, *shape).float().cpu(),
        torch.tensor([target in seats and bool(copied[seats[target]]) for target in targets]),
    )


def _copied(similarity: Tensor, places: Places) -> Tensor:
    """(n,) bool: alike to rounding, by more numbers than a scale and a shift explain; no stranger is."""
    alike = (similarity > 1 - _COPY).cpu()
    if places.inputs[0].numel() < _TELLING or bool(alike[places.target < 0].any()):
        return torch.zeros_like(alike)
    levels = [len(torch.unique(x)) >= _LEVELS for x in places.inputs]
    return alike & torch.tensor(levels, dtype=torch.bool)


def seconds_of_looks(
    tensors: Mapping[str, tuple[int, ...]], size: int, releases: int, records: int
) -> float:
    """Seconds of looks at tensors of these shapes for records of so many numbers; records: in the line-up."""
    windows = sum(
        min(3, max(1, len(shape))) * max(0, math.prod(shape) - size + 1)
        for shape in tensors.values()
    )
    return _SECONDS * min(WORK, float(releases * windows * size * records)) + _STRIP * releases


@dataclass(frozen=True, eq=False)
class _Order:
    """Records as unit vectors about 0, in an order in which their numbers may be stored."""

    units: Tensor  # (n, d)
    channels_last: tuple[int, ...] = ()  # (c, h, w) of images that are

    def as_stored(self, windows: Tensor) -> Tensor:
        """(w, d) windows in the order of records."""
        if not self.channels_last:
            return windows
        c, h, w = self.channels_last
        return windows.view(-1, h, w, c).movedim(-1, 1).flatten(1)


def _orders(pool: Tensor) -> list[_Order]:
    flat = pool.flatten(1)
    orders = [_Order(_unit(flat))]
    if pool.ndim == 4 and pool.shape[1] > 1:
        shape = (pool.shape[1], pool.shape[2], pool.shape[3])
        orders.append(_Order(_unit(pool.movedim(1, -1).flatten(1)), shape))
    if pool.ndim == 2:
        spread = flat.std(0).clamp_min(1e-12)
        orders.append(_Order(_unit((flat - flat.mean(0)) / spread)))
    return orders


def _unit(rows: Tensor) -> Tensor:
    """(n, d) about 0 and of unit length; what is flat stays 0."""
    about = rows - rows.mean(1, keepdim=True)
    size = about.norm(dim=1, keepdim=True)
    flat = size <= _FLAT * rows.abs().amax(1, keepdim=True)
    return torch.where(flat, 0, about / size.clamp_min(1e-30))


def _strips(tensors: Mapping[str, Tensor], size: int, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Numbers in one order, and the starts of windows in them; `most` windows in all."""
    ordered = [strip for tensor in tensors.values() for strip in _ordered(tensor, size)]
    total = sum(len(numbers) - size + 1 for numbers, _ in ordered)
    for numbers, row in ordered:
        count = len(numbers) - size + 1
        if total <= most:
            yield numbers, torch.arange(count)
            continue
        share = max(1, most * count // total)
        first = torch.unique(torch.cat([torch.arange(0, count, row), torch.arange(0, count, size)]))
        if len(first) < share:
            between = torch.linspace(0, count - 1, share - len(first)).long()
            yield numbers, torch.unique(torch.cat([first, between]))
        else:
            yield numbers, first[torch.linspace(0, len(first) - 1, share).long()]


def _ordered(tensor: Tensor, size: int) -> list[tuple[Tensor, int]]:
    """A tensor's numbers in each order that has room for a record, and how long a row is there."""
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.numel() < size:
        return []
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = torch.nan_to_num(tensor.detach().float(), posinf=0.0, neginf=0.0)
    ordered = [(tensor.flatten(), tensor.shape[-1] if tensor.ndim else 1)]
    for place in range(min(2, tensor.ndim - 1)):
        turned = tensor.movedim(place, -1)
        ordered.append((turned.flatten(), turned.shape[-1]))
    return ordered


# In an audit


def looked(seen: Seen, question: Question) -> Answer:
    """What was seen of a release, as an answer; its line-up is by what was seen."""
    nothing = Reconstruction(torch.zeros(1, 1, 1), torch.zeros(1, 1), Status(Outcome.CONVERGED))
    return Answer(replace(question, source=seen), nothing)


def seats_of(answers: Sequence[Answer], places: Places, key: Key) -> Seats:
    """One answer for each release; a candidate is the number of its release."""
    every = torch.stack([answer.question.source.similarity for answer in answers])

    def alike(found: Tensor, _: Tensor) -> Tensor:
        return every[found[:, 0].long()]

    numbers = [torch.full((1, 1), float(release)) for release in range(len(answers))]
    return Seats(places, numbers, key, alike)


def score_look(targets: Records, answers: Sequence[Answer], ranks: Tensor | None) -> Scored:
    """What lies there beside what is private, with brightness and contrast of the private records."""
    inputs = targets.inputs.cpu()
    windows = torch.cat([answer.question.source.windows for answer in answers])
    spread = inputs.std() * math.sqrt(inputs[0].numel())
    shown = {"targets": inputs, "reconstructions": windows * spread + inputs.mean()}
    evidence = {**shown, "labels": targets.labels} | ({} if ranks is None else {"rank": ranks})
    copies = sum(int(answer.question.source.copies.sum()) for answer in answers)
    note = (
        f"Of {copies} records every number lies there in its order: a scale and a shift, fitted to "
        f"{inputs[0].numel()} numbers, gives the release back to rounding."
    )
    metrics = {"targets": float(len(targets)), "copies": float(copies)}
    return Scored(metrics, evidence, (note,) * bool(copies), proved=copies, members=len(targets))
