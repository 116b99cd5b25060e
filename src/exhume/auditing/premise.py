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

An update that came from clipping, momentum or weight decay that nobody named is something else, too. A few
causes are looked for then (`auditing.causes`) and printed; nothing uses them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from exhume.auditing.causes import OTHER_ORDER, Cause, cause_behind, other_count
from exhume.auditing.kinds.update_files import ClientUpdate, Truth
from exhume.auditing.noise import has_size, is_noise, is_rounded
from exhume.auditing.proof import labels_behind, order_behind, retrained
from exhume.core.contract import ExhumeError, Records
from exhume.core.evidence import Premise
from exhume.models.own_texts import TextModel
from exhume.train.dp import NOT_PRIVATE, Privacy
from exhume.train.order import search_seconds

# batch norm of one record, unknown labels
_CANNOT = (RuntimeError, ValueError, IndexError, ExhumeError)
_EXACT = 1e-2  # relative: rounding, half precision
_NEAR = 5e-2  # relative: bfloat16 training, whose errors depend on the values
_DEVIATIONS = 4.0


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
    numbers: int = 0  # that were sent and are not zero
    cause: Cause | None = None  # what explains the update that the records do not

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
        if self.cause is not None:
            return self.cause.sentence
        return (
            f"do not give this update ({self._left:.0%} of it stays unexplained): they are other records, or "
            "the client trained otherwise than is said"
        )

    @property
    def doubt(self) -> str:
        """What is not as it is said although the records are right; empty: nothing."""
        if not self.known and self.cause is not None:
            return f"the records named for client {self.client} {self.cause.sentence}"
        if self.scaled:
            return self.sentence.rstrip(".")
        return ""

    @property
    def sentence(self) -> str:
        named = f"The records named for client {self.client}"
        if not self.known:
            return f"Whether {named[0].lower()}{named[1:]} give this update is not known."
        if self.wrong:
            return f"{named} {self._why_wrong}."
        some = f"the {self.nonzero:.1%} of this update that was sent"
        part = "this update" if self.nonzero > 0.1 else some
        part += " if their classes are numbered otherwise" * self.renumbered
        if self.exact:
            return f"{named} give {part}."
        if self.scaled:
            return (
                f"{named} give {part}, times {self.scale:.2g}: it was clipped as a whole, or not divided by "
                "the rate or the number of records."
            )
        if self.private.noise:
            hidden = ". It would hide other records, too" * self.hides
            return f"{named}, clipped, give {part} with noise of the size that is said{hidden}."
        return f"{named} give {part}, with noise of {self.noise:.2g} times its size."


def order_seconds(updates: Sequence[ClientUpdate], private: Mapping[str, Records]) -> float:
    """Seconds, estimated, of finding out which of the named records each step saw; 0: nobody has to."""
    seconds, sent = 0.0, Counter(update.client for update in updates)
    for update in updates:
        records = len(private.get(update.client, ()))
        if sent[update.client] == 1 and update.batch_size in (None, records):
            seconds += search_seconds(update.steps.of(update.architecture), records)
    return seconds


def agreements_of(
    updates: Sequence[ClientUpdate],
    private: Mapping[str, Records],
    reordered: Mapping[str, Records] = MappingProxyType({}),
) -> list[Agreement]:
    """One for each client; not known where it sent several updates, as each may be of other records.

    reordered: the records at the same places of the folder in torchvision's order.
    """
    sent = Counter(update.client for update in updates)
    first = {update.client: update for update in reversed(updates)}
    return [
        agreement_of(first[client], records, reordered.get(client))
        if sent[client] == 1
        else Agreement(client)
        for client, records in private.items()
        if client in first
    ]


def agreement_of(
    update: ClientUpdate, records: Records, reordered: Records | None = None
) -> Agreement:
    """What all records that are named for an update say of it, whatever numbers its classes have here."""
    unknown = Agreement(update.client)
    if len(records) and update.batch_size not in (None, len(records)):
        if _compared(replace(update, batch_size=len(records)), records).exact:
            return replace(unknown, cause=other_count(len(records), update.batch_size or 0))
        return unknown
    if not len(records):
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
        return _with_cause(first, update, records, reordered) if first.wrong else first
    return agreement if agreement is first else replace(agreement, renumbered=True)


def _with_cause(
    agreement: Agreement, update: ClientUpdate, records: Records, reordered: Records | None
) -> Agreement:
    """With the reason why the named records do not give the update, if one of a few explains it."""
    if reordered is not None and _compared(update, reordered).exact:
        return replace(agreement, cause=OTHER_ORDER)
    return replace(agreement, cause=cause_behind(update, records))


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
    like = noise < _NEAR or is_noise(layout, sent, made) or is_rounded(layout, sent, made)
    hidden = like and abs(scale) < _DEVIATIONS * noise / math.sqrt(int(there.sum()))
    if private.noise and not update.steps.several:
        left = (sent - made)[there]
        like = like and has_size(left, private.deviation / len(records))
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
        numbers=int(there.sum()),
    )


def check_named_records(
    updates: Sequence[ClientUpdate],
    truth: Truth,
    reordered: Mapping[str, Records] = MappingProxyType({}),
) -> tuple[list[ClientUpdate], Truth]:
    """What the named records give beside what was sent: its noise is known then, or that they are wrong."""
    agreements = {each.client: each for each in agreements_of(updates, truth.private, reordered)}
    wrong = {name: each.sentence for name, each in agreements.items() if each.wrong}
    fits = {name for name, each in agreements.items() if each.exact or each.noise_like}
    doubts = dict.fromkeys(d for u in updates if u.client not in fits for d in u.doubts)
    doubts |= dict.fromkeys(
        f"whether the records of client {u.client} give this update with the noise that is said is not known"
        for u in updates
        if u.steps.privacy.noise and u.client not in fits and u.client not in wrong
    )
    doubts |= dict.fromkeys(doubt for each in agreements.values() if (doubt := each.doubt))
    hidden = [each for each in agreements.values() if each.hides and each.noise_like]
    if undeclared := [each.client for each in hidden if not each.private.noise]:
        some = (
            f"{undeclared[0]} and {len(undeclared) - 1} more" if undeclared[1:] else undeclared[0]
        )
        doubts[
            f"noise that nobody declared (--dp-clip, --dp-noise) is in the update of client {some}, and "
            "would hide other records as well"
        ] = None
    truth = replace(
        truth,
        premise=_premise_of(list(agreements.values()), updates, truth),
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


def _premise_of(
    agreements: Sequence[Agreement], updates: Sequence[ClientUpdate], truth: Truth
) -> Premise | None:
    """What is said of the client whose records explain least; None: none of them could be compared."""
    known = [each for each in agreements if each.known]
    if any(each.hides and not each.known for each in agreements):
        pooled = _pooled([each for each in agreements if each.noise_like and each.noise > 1])
        if not known or pooled.why:
            return pooled
    if not known:
        return None
    worst = max(known, key=lambda each: (each.wrong, each._left))
    why = worst.sentence.rstrip(".") if worst.wrong else ""
    statistic = "share of the update that the named records leave unexplained"
    limit, stranger = max(_EXACT, 0.0 if worst.wrong else worst._left), None
    if not (worst.wrong or worst.renumbered) and len(truth.others):
        sent = next(update for update in updates if update.client == worst.client)
        rest = truth.private[worst.client][1:]
        swapped = _compared(sent, Records.joined([truth.others[:1], rest]))
        stranger = swapped._left if swapped.known else None
        limit = max(limit, 0.0 if swapped.wrong or stranger is None else stranger)
    holds, sentence = not worst.wrong, worst.sentence
    return Premise(statistic, worst._left, limit, holds, stranger, sentence, why)


def _pooled(hidden: Sequence[Agreement]) -> Premise:
    """What noise hides client by client and not over all: the part of the updates along the records' own.

    Of each it is 1 give or take noise / sqrt(numbers) where the records are right.
    """
    weights = [each.numbers / each.noise**2 for each in hidden]
    spread = sum(weights) ** -0.5
    pairs = zip(weights, hidden, strict=True)
    scale = spread**2 * sum(weight * each.scale for weight, each in pairs)
    off = abs(scale - 1) / spread
    said = (
        f"{scale:.2g} of what the named records give is in the updates, give or take {spread:.2g}"
    )
    why = "" if off <= _DEVIATIONS else f"under the noise {said}: these are other records"
    what = (
        "deviations from the named records' own part of the updates, under the noise of all clients"
    )
    sentence = f"Under the noise of all clients, {said}."
    return Premise(what, off, _DEVIATIONS, not why, None, sentence, why)
