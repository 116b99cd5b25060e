"""Invert a known head in every way that knowing it allows, and answer with the best one on held pairs.

Whoever knows the head makes as many pairs (x, h(x)) as there are records at hand. A tenth of them stands
aside and judges four ways back, which share the rest:

- `ridge`: the linear map from features to inputs, its penalty by leave-one-out error. It undoes whatever
  mixes numbers linearly: an orthonormal transform, a permutation, convolutions with as many channels.
- `table`: for features that depend on a single number of the input (found by changing one number at a time),
  the level that sends what was sent. It undoes any bijection of grey values, in any order of the pixels.
- `search`: the input whose features are those sent, by gradient from the ridge's answer and from the mean
  record, with a little total variation for images; of the two the one that explains the features better.
- `decoder`: a trained network, where one can be built for these shapes.

The way that names most of the judged records among all held ones is taken; where several name as many, the
one with the smallest squared error. Texts (`StrongestReading`): words by the nearest vector and word after
word (token_search.py), a ridge from all features of a text to the words at each of its places, or both in
turn.

Cost: n^3 for the n held records in the ridge, one pass of the head for each number of an input, `steps`
forward and backward passes for each judged record and each input from both beginnings, and one decoder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from exhume.attacks.informed.ridge import Ridge, fit_ridge
from exhume.attacks.releases import Answer, EachSent
from exhume.attacks.split.inversion import TrueHeadInversion, mismatch, search_inputs
from exhume.attacks.split.shadow import ServerSide, head_of, server_of
from exhume.attacks.split.token_search import KnownHead
from exhume.core.contract import Cost, ExhumeError, Key, Knowledge, Progress, Records, Store, silent
from exhume.models.split.inverter import Decoder
from exhume.train.single import Schedule

_AT_ONCE = 500
MOST_PAIRS = 2000  # of a ridge: an eigendecomposition of this size takes seconds
_MOST_JUDGED, _MOST_TEXTS = 100, 30  # records set aside, at most
_MOST_NUMBERS = 4096  # of an input that are changed one at a time
_LEVELS = 256  # of a number that are looked up, at most
_TABLE = 1 << 24  # numbers of a table held at once
_CHANGED = 1e-6  # relative: less is rounding
_SCHEDULE = Schedule(epochs=10, rate=1e-3, optimiser="adam", weight_decay=0.0)
Way = Callable[[Tensor], Tensor]
"""(n, *features) to (n, *shape)."""


@dataclass(frozen=True)
class StrongestInversion:
    """Invert the client's real head by ridge, look-up, search and decoder: the best on held pairs answers.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: the part named head (fixed noise included), the size of fresh noise, and records of the training
    distribution.
    Guarantees: nothing about the truth is used. Never weaker, on held pairs, than a plain ridge. An upper
    bound: what nobody who knows the head less well can be expected to exceed.
    Reference: He et al. 2019 (search through a known model); the others and the choice are ours.
    """

    decoder: Decoder = Decoder()
    decoder_schedule: Schedule = _SCHEDULE
    steps: int = 200  # of a search
    rate: float = 0.05
    smooth: float = 1e-4  # weight of the total variation of images

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.rate > 0 or not self.smooth >= 0:
            raise ExhumeError(f"steps and rate must be positive, smooth at least 0: {self}")

    starts: ClassVar[int] = 2  # of a search

    @staticmethod
    def judged_of(held: int) -> int:
        """Records set aside, of so many that are held."""
        return min(_MOST_JUDGED, max(1, held // 10))

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachSent:
        started = time.perf_counter()
        who = "inverting a known head"
        server, head = server_of(knowledge, who), head_of(knowledge, who)
        judged, used = _set_aside(server.records, key, self.judged_of(len(server.records)))
        pairs = _Pairs(head, replace(server, records=used), key)
        ways: dict[str, Way] = {"ridge": _ridge(pairs)}
        table = _table(pairs, ways["ridge"])
        if table is not None:
            ways["table"] = table
        inputs = pairs.inputs[:2].clone().requires_grad_()
        with torch.enable_grad():
            sent = pairs.head(inputs)
            slope = None  # whether features change with inputs in a way that a search can follow
            if sent.requires_grad:
                (slope,) = torch.autograd.grad(sent.square().sum(), inputs, allow_unused=True)
        if slope is not None and bool(torch.isfinite(slope).all()) and bool(slope.any()):
            ways["search"] = _Search(self, pairs, ways["ridge"], progress)
        try:  # a network of ours need not go from these features to these records
            self.decoder.module(server.features, used.shape, key)
        except ExhumeError:
            pass
        else:
            trained = TrueHeadInversion(self.decoder, self.decoder_schedule).prepare(
                replace(knowledge, shadow=used), key=key, store=store, progress=progress
            )
            ways["decoder"] = trained.decoded
        best, observed = _best_of(ways, pairs, judged)

        def answer(values: Tensor) -> Answer:
            found = best(values).to(values.dtype)
            return found[:, None], -mismatch(head, found, values)[:, None]

        cost = Cost(time.perf_counter() - started, models=int("decoder" in ways))
        wanted = f"the bodies take {server.features}"
        return EachSent(server.records.shape, server.features, wanted, answer, cost, observed)


def _set_aside(records: Records, key: Key, count: int) -> tuple[Records, Records]:
    """So many that judge, and those that the ways back are fitted on."""
    order = torch.randperm(len(records), generator=key.fold("set aside").generator())
    return records[order[:count]], records[order[count:]]


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Held records, and what the client would send for them."""

    head: nn.Module
    server: ServerSide
    key: Key

    @property
    def inputs(self) -> Tensor:
        """(n, *shape) those that fit into a ridge."""
        return self.server.records.inputs[:MOST_PAIRS]

    @torch.no_grad()
    def sent(self, inputs: Tensor, name: str) -> Tensor:
        """(n, *shape) to (n, *features), with fresh noise where there is some."""
        features = torch.cat([self.head(part) for part in torch.split(inputs, _AT_ONCE)])
        return self.server.noisy(features, self.key.fold("noise", name).generator())

    @property
    def range(self) -> tuple[Tensor, Tensor]:
        """Between which values a record's numbers lie: all together for an image, each by itself else."""
        inputs = self.inputs
        if inputs.ndim == 4:
            return inputs.amin(), inputs.amax()
        return inputs.amin(0), inputs.amax(0)


@dataclass(frozen=True, eq=False)
class _Linear:
    """A ridge from flat features to something, fitted in fp64."""

    anchors: Tensor  # (n, f) about their mean, of unit size on average
    mean: Tensor  # (f,)
    size: float
    ridge: Ridge

    @staticmethod
    def fit(features: Tensor, targets: Tensor, loss: Callable[[Tensor], float]) -> _Linear:
        """features: (n, f); targets: (n, q) about their mean; loss: of leave-one-out predictions (n, q)."""
        mean = features.double().mean(0)
        centred = features.double() - mean
        size = float(centred.square().sum(1).mean().sqrt().clamp_min(1e-30))
        anchors = centred / size
        return _Linear(anchors, mean, size, fit_ridge(anchors @ anchors.T, targets, loss))

    def weights(self, values: Tensor) -> Tensor:
        """(m, f) to (m, n): inner products with the anchors."""
        return ((values.double() - self.mean) / self.size) @ self.anchors.T


def _ridge(pairs: _Pairs) -> Way:
    inputs, (low, high) = pairs.inputs, pairs.range
    truth = inputs.flatten(1).double()
    mean = truth.mean(0)

    def error(held_out: Tensor) -> float:
        return float((held_out + mean - truth).square().mean())

    features = pairs.sent(inputs, "ridge").flatten(1)
    if bool((features == features[:1]).all()):  # nothing tells records apart
        middle = mean.to(inputs.dtype).view(1, *inputs.shape[1:])
        return lambda values: middle.expand(len(values), *inputs.shape[1:]).clone()
    fitted = _Linear.fit(features, truth - mean, error)

    def answer(values: Tensor) -> Tensor:
        found = fitted.ridge.predict(fitted.weights(values.flatten(1))) + mean
        return found.to(inputs.dtype).view(-1, *inputs.shape[1:]).clamp(low, high)

    return answer


@torch.no_grad()
def _table(pairs: _Pairs, otherwise: Way) -> Way | None:
    """Levels looked up number by number; None: no feature depends on a single number.

    otherwise: for numbers on which no feature depends alone.
    """
    inputs = pairs.inputs
    levels = torch.unique(inputs)  # values that numbers take, or evenly between the extremes
    if len(levels) > _LEVELS:
        ends = float(levels[0]), float(levels[-1])
        levels = torch.linspace(*ends, _LEVELS, device=inputs.device)
    shape, numbers = inputs.shape[1:], inputs[0].numel()
    if numbers > _MOST_NUMBERS or len(levels) < 2 or len(inputs) < 2:
        return None
    owner = _owners(pairs.head, inputs, levels)
    alone = (owner >= 0).nonzero()[:, 0]
    if not len(alone) or len(levels) * len(alone) > _TABLE:
        return None
    flat = levels[:, None].expand(-1, numbers).reshape(-1, *shape)
    sent = torch.cat([pairs.head(part).flatten(1)[:, alone] for part in torch.split(flat, 64)])
    own, spread = owner[alone], sent.std(0).clamp_min(1e-12)
    reached = torch.zeros(numbers, dtype=torch.bool, device=inputs.device)
    reached[own] = True

    def answer(values: Tensor) -> Tensor:
        found = otherwise(values).flatten(1)
        for row, value in enumerate(values.flatten(1)[:, alone]):
            apart = ((value - sent) / spread).square()
            total = apart.new_zeros(len(levels), numbers).index_add_(1, own, apart)
            found[row] = torch.where(reached, levels[total.argmin(0)], found[row])
        return found.view(-1, *shape)

    return answer


def _owners(head: nn.Module, inputs: Tensor, levels: Tensor) -> Tensor:
    """(f,) the number of the input on which a feature alone depends; -1: on none or on several."""
    numbers, shape = inputs[0].numel(), inputs.shape[1:]
    bases = inputs[:2].flatten(1)
    before = head(inputs[:2]).flatten(1)
    near = _CHANGED * before.abs().amax().clamp_min(1e-30)
    count = torch.zeros(before.shape[1], dtype=torch.long, device=inputs.device)
    owner = torch.full_like(count, -1)
    for part in torch.split(torch.arange(numbers, device=inputs.device), 64):
        changed = torch.zeros(len(part), before.shape[1], dtype=torch.bool, device=inputs.device)
        for base, sent in zip(bases, before, strict=True):
            tried = base.expand(len(part), -1).clone()
            here = torch.arange(len(part), device=inputs.device)
            at = (tried[here, part][:, None] - levels).abs().argmin(1)
            tried[here, part] = levels[(at + len(levels) // 2) % len(levels)]
            changed |= (head(tried.view(-1, *shape)).flatten(1) - sent).abs() > near
        count += changed.sum(0)
        owner = torch.where(changed.any(0), part[changed.long().argmax(0)], owner)
    return torch.where(count == 1, owner, -1)


@dataclass(frozen=True, eq=False)
class _Search:
    attack: StrongestInversion
    pairs: _Pairs
    begin: Way
    progress: Progress

    def __call__(self, values: Tensor) -> Tensor:
        mean = self.pairs.inputs.mean(0).expand(len(values), *self.pairs.inputs.shape[1:])
        first, second = (self._from(start, values) for start in (self.begin(values), mean))
        left, other = (mismatch(self.pairs.head, inputs, values) for inputs in (first, second))
        return torch.where((other < left).view(-1, *[1] * (first.ndim - 1)), second, first)

    def _from(self, start: Tensor, values: Tensor) -> Tensor:
        search = partial(
            search_inputs,
            self.pairs.head,
            within=self.pairs.range,
            steps=self.attack.steps,
            rate=self.attack.rate,
            smooth=self.attack.smooth,
            progress=partial(self.progress, "searching through the head"),
        )
        parts = zip(torch.split(start, _AT_ONCE), torch.split(values, _AT_ONCE), strict=True)
        return torch.cat([search(begin, sent) for begin, sent in parts])


def _best_of(ways: dict[str, Way], pairs: _Pairs, judged: Records) -> tuple[Way, dict[str, float]]:
    """The way that names most of the records set aside, and the share that each names."""
    sent = pairs.sent(judged.inputs, "judged")
    truth = judged.inputs.flatten(1).double()
    others = pairs.server.records.inputs.flatten(1).double()
    observed, ranking = dict[str, float](), list[tuple[float, float, str]]()
    for name, way in ways.items():
        inputs = way(sent).flatten(1).double()
        # named: strictly nearest to its own record, among all that are held
        own = (inputs - truth).square().sum(1)
        among = torch.cdist(inputs, truth).square()
        among.fill_diagonal_(torch.inf)
        rivals = torch.cat([among, torch.cdist(inputs, others).square()], 1).amin(1)
        observed[f"named_by_{name}"] = share = float((own < rivals).double().mean())
        ranking.append((share, -float((inputs - truth).square().mean()), name))
    return ways[max(ranking)[2]], observed


@dataclass(frozen=True)
class StrongestReading:
    """Read texts off a known head by look-up, by a ridge and by both: the best on held pairs answers.

    Sees: `Activations`, what the client sends for n texts.
    Assumes: the part named head, texts of the same kind; the number of words.
    Guarantees: nothing about the truth is used. Never weaker, on held pairs, than a plain ridge to the words.
    Reference: ours.
    """

    reading: KnownHead

    @staticmethod
    def judged_of(held: int) -> int:
        """Texts set aside, of so many that are held."""
        return min(_MOST_TEXTS, max(1, held // 10))

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachSent:
        started = time.perf_counter()
        who = "reading texts off a known head"
        held, features = knowledge.require(who, "shadow", "features")
        head = head_of(knowledge, who)
        judged, used = _set_aside(held, key, self.judged_of(len(held)))
        lookup = self.reading.prepare(
            replace(knowledge, shadow=used), key=key, store=store, progress=progress
        )
        ridge = _WordRidge.fit(head, used, self.reading.vocabulary)
        ways: dict[str, Way] = {
            "look_up": lookup.read,
            "ridge": lambda values: ridge.options(values, 1)[:, :, 0],
            "both": lambda sent: lookup.read(sent, ridge.options(sent, self.reading.options)),
        }
        best, observed = _best_reading(ways, head, judged)

        def answer(values: Tensor) -> Answer:
            found = best(values)
            return found[:, None], -lookup.mismatch(found, values)[:, None].double()

        cost = Cost(time.perf_counter() - started)
        return EachSent(held.shape, features, f"{features} expected", answer, cost, observed)


@dataclass(frozen=True, eq=False)
class _WordRidge:
    """From all features of a text to the words at each place, one number for each word."""

    linear: _Linear
    texts: Tensor  # (n, l)
    vocabulary: int

    @staticmethod
    @torch.no_grad()
    def fit(head: nn.Module, held: Records, vocabulary: int) -> _WordRidge:
        texts = held.inputs[:MOST_PAIRS].long()
        sent = torch.cat([head(part).flatten(1) for part in torch.split(texts, _AT_ONCE)])
        # a text's own number is its target: the solution weighs texts, and words by the texts they are in
        own = torch.eye(len(texts), dtype=torch.float64, device=sent.device) - 1 / len(texts)

        def wrong(held_out: Tensor) -> float:
            return float((_words(held_out, texts, vocabulary, 1)[:, :, 0] != texts).double().mean())

        return _WordRidge(_Linear.fit(sent, own, wrong), texts, vocabulary)

    @torch.no_grad()
    def options(self, values: Tensor, count: int) -> Tensor:
        """(n, *features) to the likeliest words (n, l, o) of every place."""
        weights = self.linear.ridge.predict(self.linear.weights(values.flatten(1)))
        return _words(weights, self.texts, self.vocabulary, count)


def _words(weights: Tensor, texts: Tensor, vocabulary: int, count: int) -> Tensor:
    """(m, n) weights of texts (n, l), about 0, to the likeliest words (m, l, o) of every place."""
    rows = []
    for column in texts.T:
        usual = torch.bincount(column, minlength=vocabulary).double() / len(column)
        score = weights.new_zeros(len(weights), vocabulary).index_add_(1, column, weights)
        rows.append((score + usual).topk(min(count, vocabulary), dim=1).indices)
    return torch.stack(rows, 1)


def _best_reading(
    ways: dict[str, Way], head: nn.Module, judged: Records
) -> tuple[Way, dict[str, float]]:
    """The way that reads most words of the texts set aside, and the share that each reads."""
    texts = judged.inputs.long()
    with torch.no_grad():
        sent = head(texts)
    observed = {
        f"read_by_{name}": float((way(sent) == texts).double().mean()) for name, way in ways.items()
    }
    best = max(ways, key=lambda name: observed[f"read_by_{name}"])
    return ways[best], observed
