"""Texts from the gradient of a language model: whole, by the spans of its layers, or as a list of tokens.

1. *Tokens.* The first attention layer sees one vector a token and place; those of the batch span the rows of
   its gradient (queries, keys and values: the first place of a causal model leaves nothing in the queries).
2. *Texts.* What later layers see depends on the places before (a causal model is read from left to right)
   or on all places (an encoder's texts are searched for).
3. *What the loss asked for* beyond the texts as fed: the last token of a text, or what a mask hides.
   Then the whole update can be computed again.

What a layer of a causal model sees at a place depends on the tokens up to it: a prefix of some text of the
batch lies in every span, and any other does not. A prefix that nothing continues is a text that ends.

Where every place sees every other, what attention has mixed is nearly a sum over the places. From any text,
every change of one token is run through the network; the changes that together bring the sum into the span
are then found without it, from many starts. That gives the tokens of a text, hardly their order: which token
belongs to which place is told by what the layers behind the attention see there. Where this ends near a
text, single tokens are changed and exchanged. Each answer is a text that lies in the spans of all sites, at
every place.

`TokenBag` is content with the tokens, of batches of any size, by the rows of the outputs:

    dL/dw_v = 1/N (sum_i p_iv h_i - sum_{i: y(i) = v} h_i)

The row of a token that was asked for n times is as long as a sum of n vectors h_i. Their length and their
mean cosine c are the network's own, seen on drawn texts: |sum|^2 = |h|^2 (n + n (n - 1) c). N is the number
at which the counts add up to N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import functional_call

from exhume.attacks.gradient.text import model_of_texts, words_in
from exhume.attacks.gradient.traces import TokenTargets, Traces, asked_for, heights, traces_of
from exhume.attacks.releases import BatchAnswer, EachGradient
from exhume.core.contract import Key, Knowledge, NotApplicable, Progress, Store, silent
from exhume.models.own_texts import LanguageModel, drawn_tokens
from exhume.train.local import half_precision

_FINE = 1e-5  # relative rounding with which a span alone certifies a text
_SAME = 1e-4  # relative: vectors of the same place
_STAGES = (1, 4, None)  # sites: what lies behind them is run for what is left
_FITTING = 300  # beginnings that may fit
_AT_ONCE = 200_000  # continuations of one place that are tried
_NEAR = 4  # sites by which the order is chosen
_SWEEPS = 24  # over the places of a sum, which cost nearly nothing
_NEARLY = 5.0  # times the least distance of a sum: what is farther off is none
_FAR = 0.3  # of what drawn texts are off: no text of this length is nearer
_ORDERINGS = 3  # of the tokens of a text, one after the other
_DRAWN = 8  # texts that show the vectors of the outputs
_HALF = 0.5  # of a token: fewer is none
_STEPS = 60  # of halving
_CLEAR = 4.0  # times the median row: one that stands out


@dataclass(frozen=True)
class TextSearch:
    """Effort of the search for texts."""

    rounds: int = 8  # from another text, until the span is filled
    starts: int = 2048  # of a sum, each round
    sums: int = 12  # that are put in order, each round
    sweeps: int = 1  # of single changes, where the order leaves something
    changed: int = 2  # texts of a round that are swept: the nearest sums


@dataclass(frozen=True)
class LanguageAttack:
    """Recover whole token sequences from the gradient of a language model, batch size unknown.

    Sees: `Gradient`: the linear layers up to the last attention, and the output weight.
    Assumes: the architecture (`LanguageModel`) with its loss; attention; fewer places in the batch than its
    layers are wide. One gradient: after several local steps the spans are those of several models.
    Guarantees: every candidate lies in the spans of all layers at every place, and where the recomputed
    update is the one seen (`explained`), the candidates are its texts. Texts as fed: masks are left as they
    are. Equal texts of a batch are found once.
    Reference: Petrov et al. 2024 (DAGER) for the spans of two layers; all layers, any module, encoders by
    sums and assignment, the last token and the hidden ones from the outputs: ours.
    """

    search: TextSearch = TextSearch()
    explained: float = 1e-3  # relative residual up to which the update is the one of the candidates

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        net = model_of_texts(knowledge, LanguageModel)
        if not any(not site.local for site in net.sites):
            raise NotApplicable(
                f"{net}: no trained linear layer sees what attention has mixed", ever=False
            )
        invert = _LanguageReading(self, net, key).invert
        shape, who, stage = (net.length,), "the attack on texts", "reading texts"
        return EachGradient(shape, invert, who, stage, progress, net, tokens=True)


@dataclass(frozen=True, eq=False)
class _LanguageReading:
    attack: LanguageAttack
    net: LanguageModel
    key: Key

    def invert(self, values: Tensor, at: Tensor, place: int) -> BatchAnswer:
        traces = traces_of(self.net, values, at)
        texts, real = self._texts(traces, self.key.fold(place))
        if not len(texts):
            raise NotApplicable("no text lies in the spans of all layers", ever=True)
        texts, real, asked = self._explained(traces, texts, real, values, at)
        worst = traces.worst(texts, traces.mixed).masked_fill(~real, 0).amax(1)
        rounding = half_precision(values) or torch.finfo(values.dtype).eps
        proved = asked.residual < max(self.attack.explained, rounding)
        if self.net.loss == "next-token":
            rows, last = torch.arange(len(texts)), real.sum(1) - 1
            follows = asked.targets[rows, last]  # the token that the last place was asked for
            follows = torch.where(follows >= 0, follows, self.net.padding or 0)
            texts = texts.index_put((rows, last + 1), follows)
        if not proved:  # coarse spans hold what was never seen
            sure = asked.sure & (rounding < _FINE)
            texts, worst = texts[sure], worst[sure]
        rank = max(span.rank for _, span in traces.mixed)
        observed = {"explained": max(0.0, 1 - asked.residual), "rank": float(rank)}
        return BatchAnswer(texts, -worst.double(), observed, complete=proved)

    def _texts(self, traces: Traces, key: Key) -> tuple[Tensor, Tensor]:
        """(n, l) texts as fed, and which of their places leave a trace."""
        allowed = traces.allowed()
        fill = self.net.padding
        if not self.net.causal:
            whole_texts = read_whole(traces, allowed, self.attack.search, key)
            texts = torch.stack([torch.zeros(self.net.length).long(), *whole_texts])[1:]
            return texts, torch.ones_like(texts).bool() if fill is None else texts != fill
        whole = self.net.length - (self.net.loss == "next-token")
        rows = read_forward(traces, allowed, whole)
        rows = [row for row in rows if fill is not None or len(row) == whole]
        texts = torch.full((len(rows), self.net.length), fill or 0)
        real = torch.zeros_like(texts).bool()
        for place, row in enumerate(rows):
            texts[place, : len(row)], real[place, : len(row)] = row, True
        return texts, real

    def _explained(
        self, traces: Traces, texts: Tensor, real: Tensor, values: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor, TokenTargets]:
        """Without texts that leave no trace of their own, if the others explain the update."""
        alone = _own_traces(traces, texts, real)
        asked = self._asked(texts[alone], real[alone], values, at) if bool(alone.any()) else None
        if asked is None or not (bool(alone.all()) or asked.residual < self.attack.explained):
            every = self._asked(texts, real, values, at)
            if asked is None or every.residual < self.attack.explained:
                return texts, real, every
        return texts[alone], real[alone], asked

    def _asked(self, texts: Tensor, real: Tensor, values: Tensor, at: Tensor) -> TokenTargets:
        targets = torch.full_like(texts, -100)
        if self.net.loss == "masked":
            opened = (texts == self.net.mask) & real
        else:
            targets[:, :-1] = texts[:, 1:].masked_fill(~real[:, 1:], -100)
            last = real.sum(1) - 1
            opened = torch.zeros_like(real)
            opened[torch.arange(len(texts)), last] = True
            targets = targets.masked_fill(~real, -100)
        return asked_for(self.net, values, at, texts, targets, opened=opened)


def _own_traces(traces: Traces, texts: Tensor, real: Tensor) -> Tensor:
    """(n,) bool: some vector of the text is no other text's.

    A model that does not know where a text begins sees a, aa and aaa alike.
    """
    (seen,) = traces.net.seen(traces.at, texts, [traces.mixed[-1][0]])
    vectors, owner = seen[real].double(), torch.arange(len(texts))[:, None].expand_as(real)[real]
    sizes = vectors.norm(dim=1)
    alike = torch.cdist(vectors, vectors) < _SAME * sizes
    others = alike & (owner[:, None] != owner)
    unlike = ~others.any(1)
    alone = [bool(unlike[owner == i].any()) for i in range(len(texts))]
    return torch.tensor(alone, dtype=torch.bool)


def read_forward(traces: Traces, allowed: Sequence[Tensor], places: int) -> list[Tensor]:
    """Token sequences, as far as their places leave a trace; at most so many places."""
    prefixes, ended = torch.zeros(1, 0, dtype=torch.int64), []
    for place in range(places):
        options = allowed[place]
        if len(prefixes) * len(options) > _AT_ONCE:
            raise NotApplicable(
                f"{len(prefixes)} beginnings and {len(options)} tokens come into question for place "
                f"{place + 1}",
                ever=True,
            )
        parents = torch.arange(len(prefixes)).repeat_interleave(len(options))
        grown = torch.cat([prefixes[parents], options.repeat(len(prefixes))[:, None]], 1)
        for count in _STAGES:
            if len(grown):
                fits = traces.worst(grown, traces.mixed[:count])[:, -1] <= 1
                grown, parents = grown[fits], parents[fits]
        alone = ~torch.isin(torch.arange(len(prefixes)), parents)
        ended += [row for row in prefixes[alone] if len(row)]
        prefixes = grown
        if len(prefixes) > _FITTING:
            raise NotApplicable(
                f"{len(prefixes)} beginnings fit place {place + 1}: too much noise to tell them apart",
                ever=True,
            )
        if not len(prefixes):
            break
    return [*ended, *prefixes]


def read_whole(
    traces: Traces, allowed: Sequence[Tensor], search: TextSearch, key: Key
) -> list[Tensor]:
    """Every text (l,) whose vectors lie in all spans, filled up with padding."""
    changes = _Changes(traces, allowed)
    proved: dict[tuple[int, ...], Tensor] = {}
    if not changes.ends:
        return []
    if all(len(place) == 1 for place in allowed[: changes.ends]):
        state = changes.drawn(changes.ends, [], key.generator())
        return list(state[None][changes.proved(state[None])])
    lengths = [changes.ends] if traces.net.padding is None else range(changes.ends, 0, -1)
    idle = 0  # rounds without a new text
    for turn in range(search.rounds):
        before = len(proved)
        for length in lengths:
            generator = key.fold(turn, length).generator()
            states = changes.sums(length, list(proved.values()), search, generator)
            if not len(states):
                continue
            states = torch.stack([changes.ordered(state) for state in states])
            for sweep in range(search.sweeps + 1):
                good = changes.proved(states)
                proved |= {tuple(row.tolist()): row for row in states[good]}
                states = states[~good][: search.changed]
                if proved and traces.filled(torch.stack(list(proved.values()))):
                    return list(proved.values())
                if sweep == search.sweeps or not len(states):
                    break
                states = changes.swept(states, generator)
        idle = idle + 1 if len(proved) == before else 0
        if idle > 1:
            break
    return list(proved.values())


@dataclass(frozen=True, eq=False)
class _Changes:
    traces: Traces
    options: Sequence[Tensor]  # tokens for each place

    @property
    def ends(self) -> int:
        """Places that have any token."""
        empty = (i for i, place in enumerate(self.options) if not len(place))
        ends = next(empty, len(self.options))
        return ends if self.traces.net.padding is not None or ends == len(self.options) else 0

    def drawn(self, length: int, known: Sequence[Tensor], generator: torch.Generator) -> Tensor:
        """(l,) a text of tokens that no known text has, as far as there are such."""
        covered = torch.cat([torch.tensor([-1]), *known])
        state = torch.full((self.traces.net.length,), self.traces.net.padding or 0)
        for place, every in enumerate(self.options[:length]):
            fresh = every[~torch.isin(every, covered)]
            some = fresh if len(fresh) else every
            state[place] = some[int(torch.randint(len(some), (1,), generator=generator))]
        return state

    # Tokens, by the sum

    def sums(
        self, length: int, known: Sequence[Tensor], search: TextSearch, generator: torch.Generator
    ) -> Tensor:
        """(k, l) texts whose changes from a drawn one add up to what the first site has seen."""
        base = self.drawn(length, known, generator)
        tried = [base]
        for place in range(length):
            rows = base.repeat(len(self.options[place]), 1)
            rows[:, place] = self.options[place]
            tried += list(rows)
        off = self._off(torch.stack(tried), length)
        changes = torch.split(off[1:] - off[0], [len(place) for place in self.options[:length]])
        chosen = torch.stack(
            [
                torch.randint(len(place), (search.starts,), generator=generator)
                for place in self.options[:length]
            ],
            1,
        )
        total = off[0] + sum(change[chosen[:, i]] for i, change in enumerate(changes))
        usual = float(total.norm(dim=1).median())
        for _ in range(_SWEEPS):
            before = chosen.clone()
            for place in torch.randperm(length, generator=generator).tolist():
                change = changes[place]
                rest = total - change[chosen[:, place]]
                costs = 2 * rest @ change.T + change.square().sum(1)
                chosen[:, place] = costs.argmin(1)
                total = rest + change[chosen[:, place]]
            if torch.equal(before, chosen):
                break
        states = base.repeat(len(chosen), 1)
        for place in range(length):
            states[:, place] = self.options[place][chosen[:, place]]
        apart = total.norm(dim=1)
        order = apart.argsort()
        order = order[apart[order] <= _NEARLY * float(apart.min())]
        if float(apart.min()) > _FAR * usual:
            return states[:0]
        different: dict[tuple[int, ...], Tensor] = {}  # by their tokens, in any order
        for row in states[order]:
            different.setdefault(tuple(sorted(row.tolist())), row)
            if len(different) == search.sums:
                break
        return torch.stack(list(different.values()))

    def _off(self, states: Tensor, length: int) -> Tensor:
        """(n, l) to (n, d): what lies outside the span of the first site, the mean over the places."""
        site, span = self.traces.mixed[0]
        basis = span.basis.float()
        parts = []
        for part in torch.split(states, 1024):
            (seen,) = self.traces.net.seen(self.traces.at, part, [site])
            mean = seen[:, :length].float().mean(1)
            parts.append(mean - (mean @ basis) @ basis.T)
        return torch.cat(parts)

    # Their order

    def ordered(self, state: Tensor) -> Tensor:
        """(l,) the same tokens, each at the place where the layers behind see it least outside."""
        length = int(self._real(state).sum())
        for _ in range(_ORDERINGS):
            tried = state.repeat(length * length, 1)
            places = torch.arange(length).repeat_interleave(length)
            others = torch.arange(length).repeat(length)
            rows = torch.arange(len(tried))
            tried[rows, places], tried[rows, others] = state[others], state[places]
            here = self._squares(tried)[:, rows, places].reshape(-1, length, length)
            scale = here.flatten(1).mean(1).clamp_min(1e-12)
            costs = (here / scale[:, None, None]).sum(0)
            better = state.clone()
            better[:length] = state[torch.as_tensor(linear_sum_assignment(costs.numpy())[1])]
            if torch.equal(better, state):
                break
            state = better
        return state

    # Single changes

    def swept(self, states: Tensor, generator: torch.Generator) -> Tensor:
        """Every place once: the best token for it, then the best place to exchange it with."""
        scale = self._means(states).mean(1).clamp_min(1e-12)
        order = torch.randperm(self.ends, generator=generator).tolist()

        def replaced(state: Tensor, place: int) -> Tensor:
            """(o, l): the state first, then with every token here."""
            tried = state.repeat(len(self.options[place]) + 1, 1)
            if place < int(self._real(state).sum()):
                tried[1:, place] = self.options[place]
            return tried

        def exchanged(state: Tensor, place: int) -> Tensor:
            tried, length = state.repeat(self.ends + 1, 1), int(self._real(state).sum())
            for row, other in zip(tried[1:], range(self.ends), strict=True):
                if max(place, other) < length:
                    row[place], row[other] = state[other], state[place]
            return tried

        for change in (replaced, exchanged):
            for place in order:
                tried = torch.stack([change(state, place) for state in states])
                costs = (self._means(tried.flatten(0, 1)) / scale[:, None]).sum(0)
                best = costs.reshape(tried.shape[:2]).argmin(1)
                states = tried[torch.arange(len(tried)), best]
        return states

    def _real(self, states: Tensor) -> Tensor:
        fill = self.traces.net.padding
        return torch.ones_like(states).bool() if fill is None else states != fill

    def _squares(self, states: Tensor) -> Tensor:
        """(n, l) to (s, n, l): squared distances from the spans of the first sites."""
        near = self.traces.mixed[:_NEAR]
        tolerances = torch.tensor([span.tolerance for _, span in near])
        return (self.traces.outside(states, near) * tolerances[:, None, None]).square()

    def _means(self, states: Tensor) -> Tensor:
        """(s, n): over the places that are there."""
        real = self._real(states)
        return (self._squares(states) * real).sum(2) / real.sum(1).clamp_min(1)

    # Certificates

    def proved(self, states: Tensor) -> Tensor:
        """(n,) bool: in every span, at every place."""
        worst = self.traces.worst(states, self.traces.mixed)
        if self.traces.local:
            worst = torch.maximum(worst, self.traces.worst(states, self.traces.local))
        return worst.masked_fill(~self._real(states), 0.0).amax(1) <= 1


@dataclass(frozen=True)
class TokenBag:
    """The tokens behind a language model's update, each about as often as it occurs, in no order.

    Sees: `Gradient`, the rows of the output weight and of the embedding.
    Assumes: the architecture (`LanguageModel`); a trained output weight (tied or not) or embedding.
    Guarantees: nothing; tokens and counts are estimates. It needs no width: batches of any size.
    Candidates are single tokens (1,), each as often as it seems to occur; with a masked loss once.
    Reference: Melis et al. 2019 for the rows; Geng et al. 2021 for labels and their counts.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        net = model_of_texts(knowledge, LanguageModel)
        invert, who = _Bag(net, key).invert, "the list of tokens"
        return EachGradient((1,), invert, who, "reading tokens", network=net, tokens=True)


@dataclass(frozen=True, eq=False)
class _Bag:
    net: LanguageModel
    key: Key

    def invert(self, values: Tensor, at: Tensor, _: int) -> BatchAnswer:
        counts = self._counts(values, at).round().long()
        tokens = torch.arange(len(counts)).repeat_interleave(counts)
        return BatchAnswer(
            tokens[:, None], counts[tokens].double(), {"occurring": float((counts > 0).sum())}
        )

    def _counts(self, values: Tensor, at: Tensor) -> Tensor:
        """(v,) how often each token occurs."""
        used = words_in(self.net, values)
        rows = self.net.layout.split(values).get(self.net.output)
        if rows is not None and self.net.loss != "masked":
            return self._asked(rows[: self.net.vocabulary].double(), at)
        if used is not None:
            return torch.zeros(self.net.vocabulary).index_fill(0, used, 1.0)
        if rows is None:
            why = "neither the embedding nor the outputs tell which tokens occur: both are frozen"
            raise NotApplicable(why, ever=False)
        sizes: Tensor = rows.norm(dim=1)
        return (sizes > _CLEAR * sizes.median()).float()

    def _asked(self, rows: Tensor, at: Tensor) -> Tensor:
        size, cosine = self._vectors(at)
        squares = rows.square().sum(1) / size

        def counts(total: float) -> Tensor:
            """n + n (n - 1) c = N^2 |row|^2 / |h|^2."""
            wanted = squares * total**2
            if cosine < 1e-3:
                return wanted
            half = (1 - cosine) / (2 * cosine)
            return (half**2 + wanted / cosine).sqrt() - half

        low, high = 1.0, 1e7
        for _ in range(_STEPS):
            middle = (low * high) ** 0.5
            each = counts(middle)
            if float(each[each > _HALF].sum()) > middle:
                high = middle
            else:
                low = middle
        each = counts(low)
        return torch.where(each > _HALF, each.clamp_min(1.0), 0.0)

    def _vectors(self, at: Tensor) -> tuple[float, float]:
        """Mean |h|^2 of what the output weight is multiplied with, and the mean cosine of two."""
        shape = (_DRAWN, self.net.length)
        drawn = drawn_tokens(shape, self.net.vocabulary, self.net.padding, self.key.fold("drawn"))
        named = {
            n: t.detach().clone().requires_grad_() for n, t in self.net.layout.split(at).items()
        }
        outputs = functional_call(self.net.module, named, (drawn,))
        places = torch.stack(
            [torch.arange(_DRAWN), torch.arange(_DRAWN) % (self.net.length - 1)], 1
        )
        vectors = heights(outputs, named[self.net.output], places, drawn)
        square = float(vectors.square().sum(1).mean())
        products = vectors @ vectors.T
        others = float((products.sum() - products.diagonal().sum()) / (_DRAWN * (_DRAWN - 1)))
        return square, max(0.0, others / square)
