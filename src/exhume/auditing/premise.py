"""Whether the records that are named for a client give the update that it sent.

Names can be wrong without anybody noticing: the rows of another order of the same folder are records, too.
The update that the named records would give is computed, and compared with the one that was sent where that
is not zero (a pruned update is zero elsewhere). What they leave over is
- nothing but rounding: these are its records;
- noise: what is drawn independently of the update is nearly orthogonal to it, so that the part of the update
  along the records' own is within four deviations of 1. It is everywhere, in what was zero, too. It prefers
  no other direction, while what other records would add does: gradients of a few records have a low rank;
- noise of the size that a private client is said to add: it may hide the records' own part, which is
  clipped here as it is there;
- rounding to few levels: its error is not independent of the value, as values below half a level vanish and
  those above come out too large. Rounding the records' own update to these levels must then give the update;
- something else: these are not its records.

An update that came from clipping, momentum or weight decay that nobody named is something else, too. Clipping
of each record's gradient is looked for then: the norm that explains the update is printed, and used for
nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.auditing.kinds.update_files import ClientUpdate, Truth
from exhume.auditing.proof import labels_behind, order_behind, retrained
from exhume.core.contract import ExhumeError, Key, Layout, Records
from exhume.core.evidence import Premise
from exhume.models.own_texts import TextModel
from exhume.train.dp import NOT_PRIVATE, Privacy
from exhume.victims.gradient import release_updates

# batch norm of one record, unknown labels
_CANNOT = (RuntimeError, ValueError, IndexError, ExhumeError)
_EXACT = 1e-2  # relative: rounding, half precision
_NEAR = 5e-2  # relative: bfloat16 training, whose errors depend on the values
_DEVIATIONS = 4.0
_LEVELS = 256  # different values of a tensor that count as few
_ROUNDED = 0.97  # share of the values that must come out at the same level
_SMALL = 64  # values of a tensor, which may all differ even if they are rounded
_BEYOND = 3.0  # deviations: how far the norm of a random matrix may be beyond its edge
_TURNS = 30  # of the power iteration
_NUMBERS = 5e7  # of the gradients of single records that are made at once
_CLIPS, _FINER = 60, 6  # norms that are tried at once, and how often between the best two


@dataclass(frozen=True)
class Agreement:
    """How the update that the named records give compares with the one that was sent."""

    client: str
    scale: float = 0.0  # <sent, own> / <own, own>
    noise: float = math.inf  # |sent - own| / |own|
    nonzero: float = 0.0  # share of the sent values that are not zero
    known: bool = False  # whether it could be compared
    noise_like: bool = False  # what is left over looks like noise, or like rounding
    renumbered: bool = False  # with other numbers of their classes than the data gives them
    private: Privacy = NOT_PRIVATE  # as the client is said to train
    hides: bool = False  # its noise would hide other records as well
    clip: float | None = None  # that nobody named, and that explains the update

    @property
    def exact(self) -> bool:
        """These records give it, up to rounding."""
        return self.known and self.noise < _EXACT

    @property
    def scaled(self) -> bool:
        """These records give it, times a factor other than 1."""
        apart = self.scale > 0 and abs(self.scale - 1) > _EXACT
        return self.known and not self.exact and apart and self._left < _EXACT**2

    @property
    def noisy(self) -> bool:
        """These records give it, and something was drawn or rounded besides."""
        return self.known and not self.exact and not self.scaled and self.noise_like

    @property
    def wrong(self) -> bool:
        """These are not its records."""
        return self.known and not (self.exact or self.scaled or self.noisy)

    @property
    def cosine(self) -> float:
        """Between the two updates, where the one that was sent is not zero."""
        size = math.sqrt(max(self.noise**2 + 2 * self.scale - 1, 0.0))  # |sent| / |own|
        return min(1.0, self.scale / size) if size and math.isfinite(size) else 0.0

    @property
    def _left(self) -> float:
        """Share of the update's square that is not along the records' own."""
        return 1 - max(0.0, self.cosine) ** 2

    @property
    def _why_wrong(self) -> str:
        if self.clip is not None:
            return (
                f"give this update only if each record's gradient was clipped to {self.clip:.3g}: if the "
                f"client does that, say --dp-clip {self.clip:.3g}"
            )
        return (
            f"do not give this update ({self._left:.0%} of it stays unexplained): check their order; "
            "folders are sorted naturally here, 2 before 10, torchvision sorts 10 before 2."
        )

    @property
    def sentence(self) -> str:
        named = f"The records named for client {self.client}"
        if not self.known:
            return f"Whether {named[0].lower()}{named[1:]} give this update is not known."
        if self.wrong:
            return f"{named} {self._why_wrong}"
        some = f"the {self.nonzero:.1%} of this update that was sent"
        part = "this update" if self.nonzero > 0.1 else some
        part += " if their classes are numbered otherwise" * self.renumbered
        if self.exact:
            return f"{named} give {part}."
        if self.scaled:
            return f"{named} give {part}, times {self.scale:.2g}."
        if self.private.noise:
            hidden = ". It would hide other records, too" * self.hides
            return f"{named}, clipped, give {part} with noise of the size that is said{hidden}."
        return f"{named} give {part}, with noise of {self.noise:.2g} times its size."


def agreements_of(
    updates: Sequence[ClientUpdate], private: Mapping[str, Records]
) -> list[Agreement]:
    """One for each client; not known where it sent several updates, as each may be of other records."""
    sent = Counter(update.client for update in updates)
    first = {update.client: update for update in reversed(updates)}
    return [
        agreement_of(first[client], records) if sent[client] == 1 else Agreement(client)
        for client, records in private.items()
        if client in first
    ]


def agreement_of(update: ClientUpdate, records: Records) -> Agreement:
    """What all records that are named for an update say of it, whatever numbers its classes have here."""
    unknown = Agreement(update.client)
    if not len(records) or update.batch_size not in (None, len(records)):
        return unknown
    first = agreement = _compared(update, records)
    for labels in _other_labels(update, records):
        if agreement.known and not agreement.wrong:
            break
        agreement = _compared(update, replace(records, labels=labels))
    if not agreement.known or agreement.wrong:
        # a step may have seen a part of them only
        some_only = update.steps.several and update.batch_size is None
        if some_only or not update.repeatable:
            return unknown
        return replace(first, clip=_clip_behind(update, records)) if first.wrong else first
    return agreement if agreement is first else replace(agreement, renumbered=True)


def _other_labels(update: ClientUpdate, records: Records) -> Iterator[Tensor]:
    """(n,) labels as the sender may number them: as the names say, in torchvision's order, by the update."""
    names = records.classes if int(records.labels.max()) < len(records.classes) else ()
    if names and all(name.isdecimal() for name in names):
        yield torch.tensor([int(name) for name in names])[records.labels]
    if names:
        yield torch.tensor([sorted(names).index(name) for name in names])[records.labels]
    if isinstance(update.architecture, TextModel) or update.steps.routine.loss == "mse":
        return
    try:
        inputs = records.inputs.to(update.gradient.values.dtype)
        labels = labels_behind(update.gradient, update.architecture, inputs)
    except _CANNOT:
        return
    if labels is not None:
        yield labels


def _made_update(update: ClientUpdate, records: Records) -> Tensor | None:
    """(p,) what training on these records gives; None where that cannot be computed."""
    batch = Records(records.inputs[None], records.labels[None], records.classes)
    reduction = "mean" if update.averaged else "sum"
    steps = update.steps.still()
    local = steps.of(update.architecture, reduction)
    try:
        order = order_behind(update.gradient, update.architecture, batch, steps)
        return retrained(update.gradient, local, batch, order)
    except _CANNOT:
        return None


def _compared(update: ClientUpdate, records: Records) -> Agreement:
    made = _made_update(update, records)
    if made is None:
        return Agreement(update.client)
    sent, made = update.gradient.values[0].double(), made.double()
    there = sent != 0
    size = made[there].square().sum()
    if not bool(torch.isfinite(made).all()) or not float(size) > 0:
        return Agreement(update.client)
    scale = float((sent * made)[there].sum() / size)
    noise = float((sent - made)[there].norm() / size.sqrt())
    layout = update.gradient.layout
    private = update.steps.privacy
    like = noise < _NEAR or _is_noise(layout, sent, made) or _is_rounded(layout, sent, made)
    hidden = like and abs(scale) < _DEVIATIONS * noise / math.sqrt(int(there.sum()))
    if private.noise and not update.steps.several:
        left = (sent - made)[there]
        like = like and _of_the_size(left, private.deviation / len(records))
        known = like or not hidden
    else:
        known = not hidden
    return Agreement(
        update.client,
        scale,
        noise,
        float(there.double().mean()),
        known=known,
        noise_like=like,
        private=private,
        hides=hidden,
    )


def _of_the_size(left: Tensor, deviation: float) -> bool:
    """Whether so many independent draws of this deviation have the size of what is left over (p,)."""
    off = float(left.norm()) / (deviation * math.sqrt(len(left))) - 1
    return abs(off) < _DEVIATIONS / math.sqrt(2 * len(left)) + _EXACT


def _clip_behind(update: ClientUpdate, records: Records) -> float | None:
    """The norm to which each record's gradient was clipped, if that alone explains the update.

    ||sent - mean_i min(1, C / ||g_i||) g_i|| is least at C; what is left over is rounding or noise.
    """
    steps, sent = update.steps, update.gradient.values[0].double()
    plain = not (steps.several or steps.privacy.clips or isinstance(update.architecture, TextModel))
    if not plain or not update.averaged or len(records) * len(sent) > _NUMBERS:
        return None
    start = update.start().double()
    try:
        each, _ = release_updates(steps.of(update.architecture), start, records.one_each())
    except _CANNOT:
        return None
    slopes = each.values.double() / len(records)
    norms, gram, along = len(records) * slopes.norm(dim=1), slopes @ slopes.T, slopes @ sent
    if not float(norms.min()) > 0:
        return None
    tried = torch.logspace(-4, 0, _CLIPS, dtype=torch.float64) * norms.max()
    for _ in range(_FINER):
        weights = (tried[:, None] / norms).clamp(max=1)
        misfit = (weights @ gram * weights).sum(1) - 2 * weights @ along
        best = int(misfit.argmin())
        low, high = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
        clip = float(tried[best])
        tried = torch.linspace(float(low), float(high), _CLIPS, dtype=torch.float64)
    made = (clip / norms).clamp(max=1) @ slopes
    if clip >= 0.99 * float(norms.max()) or not _fits(update, sent, made):
        return None
    return clip


def _fits(update: ClientUpdate, sent: Tensor, made: Tensor) -> bool:
    """What is left over is rounding or noise, and does not hide what was made."""
    noise = float((sent - made).norm() / made.norm())
    along = abs(float(sent @ made / made.square().sum()))
    seen = along > _DEVIATIONS * noise / math.sqrt(len(sent))
    return seen and (noise < _EXACT or _is_noise(update.gradient.layout, sent, made))


def _is_noise(layout: Layout, sent: Tensor, made: Tensor) -> bool:
    """Independent draws, of one deviation a tensor, prefer neither the update nor any other direction."""
    left, parts = layout.split(sent - made), layout.split(made)
    along = variance = 0.0
    for name, error in left.items():
        deviation, rows = float(error.norm()) / math.sqrt(error.numel()), error.shape[0]
        # norm of a matrix of independent draws of deviation 1: sqrt(m) + sqrt(n), hardly ever more
        edge = math.sqrt(rows) + math.sqrt(error.numel() / rows) + _BEYOND
        if _largest(error) > edge * deviation:
            return False
        along += float((error * parts[name]).sum())
        variance += deviation**2 * float(parts[name].square().sum())
    return abs(along) < _DEVIATIONS * math.sqrt(variance)


def _largest(tensor: Tensor) -> float:
    """The largest singular value of a tensor as a matrix, from below: few directions stand out at once."""
    matrix = tensor.reshape(tensor.shape[0], -1)
    generator = Key.from_seed(0).fold("direction").generator()
    here = torch.randn(matrix.shape[1], generator=generator, dtype=matrix.dtype)
    for _ in range(_TURNS):
        here = matrix.T @ (matrix @ here)
        here = here / here.norm().clamp_min(1e-300)
    return float((matrix @ here).norm())


def _is_rounded(layout: Layout, sent: Tensor, made: Tensor) -> bool:
    """Every tensor has few levels, and the nearest to the records' own value is the one that was sent."""
    same = total = 0
    mine = layout.split(made)
    for name, part in layout.split(sent).items():
        flat, values = part.flatten(), mine[name].flatten()
        levels = torch.unique(flat)
        if len(levels) > _LEVELS or 2 * len(levels) > len(flat) > _SMALL:
            return False
        near = levels[torch.bucketize(values, (levels[1:] + levels[:-1]) / 2)]
        signs = values.sign() * levels.abs().max()
        shares = [_share(flat, nearest) for nearest in (near, signs)]
        best = max(shares, key=lambda share: share[0] / max(share[1], 1))
        same, total = same + best[0], total + best[1]
    return total > 0 and same > _ROUNDED * total


def _share(sent: Tensor, expected: Tensor) -> tuple[int, int]:
    """How many are as expected, of how many; most values are zero in both, which says little."""
    counted = (sent != 0) | (expected != 0)
    return int((sent == expected)[counted].sum()), int(counted.sum())


def check_named_records(
    updates: Sequence[ClientUpdate], truth: Truth
) -> tuple[list[ClientUpdate], Truth]:
    """What the named records give beside what was sent: its noise is known then, or that they are wrong."""
    agreements = {each.client: each for each in agreements_of(updates, truth.private)}
    wrong = {name: each.sentence for name, each in agreements.items() if each.wrong}
    fits = {name for name, each in agreements.items() if each.exact or each.noise_like}
    doubts = dict.fromkeys(d for u in updates if u.client not in fits for d in u.doubts)
    doubts |= dict.fromkeys(
        f"whether the records of client {u.client} give this update with the noise that is said is not known"
        for u in updates
        if u.steps.privacy.noise and u.client not in fits and u.client not in wrong
    )
    truth = replace(
        truth,
        premise=_premise_of(list(agreements.values())),
        wrong=next(iter(wrong.values()), "").rstrip("."),
        strange=frozenset(wrong),
        exact=frozenset(name for name, each in agreements.items() if each.exact),
        doubt="; ".join(doubts),
    )
    checked = list(updates)
    for place, update in enumerate(updates):
        agreement = agreements.get(update.client, Agreement(update.client))
        noisy = agreement.noise_like and not agreement.exact and math.isfinite(agreement.noise)
        if noisy:
            unexplained = 1 - agreement.cosine
            checked[place] = replace(update, noise=agreement.noise, unexplained=unexplained)
    return checked, truth


def _premise_of(agreements: Sequence[Agreement]) -> Premise | None:
    """What is said of the client whose records explain least; None: none of them could be compared."""
    known = [each for each in agreements if each.known]
    if not known:
        return None
    worst = max(known, key=lambda each: (each.wrong, each._left))
    why = worst.sentence.rstrip(".") if worst.wrong else ""
    statistic = "share of the update that the named records leave unexplained"
    holds = not worst.wrong
    return Premise(statistic, worst._left, _EXACT, holds, sentence=worst.sentence, why=why)
