"""An embedding table is a substitution cipher: read it like one.

The client's table is secret but fixed. Take the positions away, which everybody knows, and a word sends the
same vector wherever it stands, whoever writes it. The server numbers the vectors it has been sent, and finds
out which number is which word by the statistics of its own text, of the same kind: frequencies, places in the
sentence and neighbours of a word hardly differ between the two. With counts a_if of symbol i in context f and
the word's shares q_jf from the plain text, symbol i is taken for word j by

    log-likelihood  L_ij = sum_f a_if log q_jf

summed over all kinds of context, one word for each symbol (linear assignment). Contexts are first the
places, counted from either end; then also the neighbours at distance one and two, as far as they are
deciphered: those of the most frequent symbols first, more of them in every round. The body's weights are not
needed, and nothing is trained.

Positions that nobody published are found by a vote. What is sent for word w at place p is E_w + P_p, so that
the vectors of two places are the same set but for a shift, P_q - P_p: of all differences between a vector of
one place and a vector of the other, the shift is the one that occurs most often.

Cost: `rounds` linear assignments of v symbols, O(v^3) each in the worst case.
Shapes: n texts, l places, e numbers of a vector; s distinct vectors.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from exhume.attacks.releases import Answer, EachSent
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Store,
    silent,
)
from exhume.models.split.seq2seq import PADDING, UNKNOWN, sinusoids

SINUSOIDS, NO_POSITIONS, FOUND = _POSITIONS = ("sinusoids", "none", "found")
"""What a client adds to a word's vector: the public sinusoids, nothing, or a vector of each place."""
_FIRST, _GROWTH = 30, 1.25  # symbols whose neighbours count in the first round; growth by round
_GAPS = (1, 2)
_PRIOR = 3.0  # counts that a word's shares owe to the shares of all words
_AT_ONCE = 4096
_COMPARED = 300  # vectors of a place whose distances are looked at
_SAME = 1e-6  # of their length: two vectors are the same
_SHARE = (0.001, 0.5)  # quantiles of distances between which the gap lies
_CELL = 3  # directions in which differences are compared
_VOTES = 3  # words that must agree on a shift
_CLEAR = 1.5  # times the votes of the next one


@dataclass(frozen=True)
class SubstitutionCipher:
    """Number the vectors that a client has sent, then decipher the numbers.

    Sees: `Activations`, what the client sends for n sentences.
    Assumes: what the client sent before, sentences of the server's own of the same kind, a vector for each
    place that depends on its word alone but for a position that is added. Neither the body nor a
    translation. No query.
    Guarantees: nothing about the truth is used. A vector not seen before is an unknown word. No randomness.
    Reference: ours; Ensembler24 leaves it out.
    """

    rounds: int = 25  # 0: by frequency alone
    tolerance: float = (
        0.5  # vectors closer than this share of their usual length are one word; 0: found out
    )
    positions: str = (
        SINUSOIDS  # what is added to a vector: these, nothing, or something to be found out
    )
    padding: int | None = PADDING  # fills sentences up; it counts as a word unless it sends zeros
    unknown: int = UNKNOWN  # stands for a vector not seen before

    def __post_init__(self) -> None:
        if self.rounds < 0 or not 0 <= self.tolerance < 1:
            raise ExhumeError(f"rounds at least 0 and tolerance in [0, 1) needed: {self}")
        if self.positions not in _POSITIONS:
            raise ExhumeError(
                f"positions: {self.positions!r} is not one of {', '.join(_POSITIONS)}"
            )

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachSent:
        held, seen = knowledge.require("reading the embeddings as a cipher", "shadow", "seen")
        if seen.ndim != 3 or seen.shape[1:2] != held.shape:
            raise NotApplicable(
                f"features of shape {tuple(seen.shape[1:])} are not one vector for each of "
                f"{held.shape[0]} places",
                ever=False,
            )
        if not bool((seen != 0).any()):
            raise NotApplicable("nothing but zeros was sent before", ever=False)
        started = time.perf_counter()
        progress("deciphering", 0, 1)
        places, apart = self._placed(seen)
        vectors = unplaced(seen, places)
        symbols, centres = numbered(vectors, vectors[0, :0], apart)
        silent_places = bool((seen == 0).all(2).any())
        padding = self.padding if silent_places else None
        plain = held.inputs.long().cpu()
        # token numbers from 1, 0 for the padding; those above it stay
        if padding is None:
            plain = plain + 1
        else:
            plain = torch.where(plain == padding, 0, plain + (plain < padding).long())
        kinds = (len(centres) + 1, int(plain.max()) + 1)
        words = decipher(symbols.cpu(), plain, kinds, self.rounds)
        progress("deciphering", 1, 1)
        given = words - (1 if padding is None else (words <= padding).long())
        named = torch.where(words > 0, given, self.unknown)  # 0: left over
        counts = torch.bincount(symbols.flatten().cpu(), minlength=kinds[0])
        table, known = named[1:].to(seen.device), counts[1:].double().log1p().to(seen.device)
        nothing = self.unknown if self.padding is None else self.padding  # where nothing was sent

        def answer(values: Tensor) -> Answer:
            vectors, device = unplaced(values, places), values.device
            real = (vectors != 0).any(2)
            far, nearest = nearest_of(vectors[real], centres)
            tokens = torch.full(real.shape, nothing, device=device)
            tokens[real] = torch.where(far <= apart, table[nearest], self.unknown)
            sure = torch.zeros(real.shape, dtype=torch.float64, device=device)
            sure[real] = torch.where(far <= apart, known[nearest], 0.0)
            share = sure.sum(1) / real.sum(1).clamp_min(1)
            return tokens[:, None].to(values.dtype), share[:, None]

        features, observed = tuple(seen.shape[1:]), {"symbols": float(len(centres))}
        cost, wanted = Cost(time.perf_counter() - started), f"{features} expected"
        return EachSent(held.shape, features, wanted, answer, cost, observed)

    def _placed(self, seen: Tensor) -> tuple[Tensor, float]:
        """(l, e) what is added at every place, and how far apart the vectors of two words are."""
        places = torch.zeros_like(seen[0])
        if self.positions == SINUSOIDS:
            _, length, width = seen.shape
            places = sinusoids(length, width, seen.device).to(seen.dtype)
        vectors = unplaced(seen, places)
        usual = self.tolerance * _length_of(vectors)
        apart = usual or gap_between(vectors)
        if self.positions == FOUND:
            places = shifts(vectors, apart)
        return places, apart


def decipher(symbols: Tensor, plain: Tensor, kinds: tuple[int, int], rounds: int = 25) -> Tensor:
    """Symbols (n, l) and plain tokens (m, l), 0 where there is nothing, to a word for each symbol (s,).

    0 for symbol 0, and for those that are left over. kinds: how many symbols s and words there are, 0
    included. rounds: of places and neighbours; 0: nothing but how often each occurs.
    """
    for name, text, kind in (("symbols", symbols, kinds[0]), ("plain", plain, kinds[1])):
        if text.ndim != 2 or not bool((text > 0).any()) or int(text.max()) >= kind:
            raise ExhumeError(f"{name}: (n, l) numbers from 1 to {kind - 1} needed, 0 for nothing")
    settled = _as_often(symbols, plain, kinds)
    if not rounds:
        return _assigned(settled)
    settled += _explained(_places(symbols, kinds[0]), _places(plain, kinds[1]))
    words = _assigned(settled)
    neighbours = [
        pair
        for gap in _GAPS
        for pair in zip(_pairs(symbols, kinds[0], gap), _pairs(plain, kinds[1], gap), strict=True)
    ]
    often = torch.bincount(symbols.flatten(), minlength=kinds[0])
    often[0] = -1
    order = torch.argsort(often, descending=True, stable=True)[:-1]
    for turn in range(rounds):
        trusted = order[: int(_FIRST * _GROWTH**turn)]
        trusted = trusted[words[trusted] > 0]
        score = settled.clone()
        for a, b in neighbours:
            score += _explained(_known(a, trusted), _known(b, words[trusted]))
        better = _assigned(score)
        if len(trusted) >= int((words > 0).sum()) and torch.equal(better, words):
            break
        words = better
    return words


def _as_often(symbols: Tensor, plain: Tensor, kinds: tuple[int, int]) -> Tensor:
    """(s, w) log-likelihood of every symbol's count, as a Poisson variable with the word's rate."""
    there, here = (
        torch.bincount(text.flatten(), minlength=kind).double()
        for text, kind in zip((symbols, plain), kinds, strict=True)
    )
    there[0] = here[0] = 0
    rate = (here + 0.5) * there.sum() / here.sum()
    return there[:, None] * rate.log() - rate


def _explained(seen: Tensor, known: Tensor) -> Tensor:
    """L (s, w) of counts (s, f) by the shares of counts (w, f)."""
    overall = known.sum(0) / known.sum().clamp_min(1)
    shares = known + _PRIOR * overall + 1e-12
    return seen @ (shares / shares.sum(1, keepdim=True)).log().T


def _places(text: Tensor, kinds: int) -> Tensor:
    """(kinds, 2l): how often each is at each place, counted from the start and from the end."""
    length = text.shape[1]
    words = (text > 0).sum(1, keepdim=True)
    at = torch.arange(length).expand_as(text)
    real = text > 0
    counts = torch.zeros(kinds, 2 * length, dtype=torch.float64)
    for column in (at, length + words - 1 - at):
        where = (text[real], column[real])
        counts.index_put_(where, torch.ones(len(where[0]), dtype=torch.float64), accumulate=True)
    return counts


def _pairs(text: Tensor, kinds: int, gap: int) -> tuple[Tensor, Tensor]:
    """(kinds, kinds) twice: how often b stands `gap` places after a, and before it; 0 is no word."""
    edge = text.new_zeros(len(text), gap)
    padded = torch.cat([edge, text, edge], 1)
    a, b = padded[:, :-gap].flatten(), padded[:, gap:].flatten()
    counts = torch.zeros(kinds, kinds, dtype=torch.float64)
    counts.index_put_((a, b), torch.ones(len(a), dtype=torch.float64), accumulate=True)
    counts[0, 0] = 0
    return counts, counts.T


def _known(counts: Tensor, trusted: Tensor) -> Tensor:
    """Contexts: the trusted words in their order, no word at all, and any other word."""
    named = torch.cat([counts[:, trusted], counts[:, :1]], 1)
    return torch.cat([named, (counts.sum(1) - named.sum(1))[:, None]], 1)


def _assigned(score: Tensor) -> Tensor:
    """One word for each symbol; nothing and nothing belong together."""
    rows, columns = linear_sum_assignment(score[1:, 1:].numpy(), maximize=True)
    words = torch.zeros(len(score), dtype=torch.long)
    words[1 + torch.from_numpy(rows)] = 1 + torch.from_numpy(columns)
    return words


def unplaced(features: Tensor, places: Tensor) -> Tensor:
    """(n, l, e) without what is added at each place, (l, e); zeros stay zeros."""
    real = (features != 0).any(2, keepdim=True)
    return (features - places) * real


def numbered(vectors: Tensor, centres: Tensor, apart: float) -> tuple[Tensor, Tensor]:
    """(n, l, e), zeros where there is nothing, to numbers (n, l) and what they stand for, (s, e).

    A vector has the number of the nearest centre within `apart`, else it becomes one. Numbers are from 1;
    what is not a number (a place that is not known) has 0.
    """
    real = (vectors != 0).any(2) & ~vectors.isnan().any(2)
    for part in torch.split(vectors[real], _AT_ONCE):
        new = part[nearest_of(part, centres)[0] > apart]
        while len(new):
            centres = torch.cat([centres, new[:1]])
            new = new[(new - new[0]).norm(dim=1) > apart]
    numbers = torch.zeros(real.shape, dtype=torch.long, device=vectors.device)
    numbers[real] = 1 + nearest_of(vectors[real], centres)[1]
    return numbers, centres


def nearest_of(vectors: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) distance to the nearest centre and which it is; infinite where there is none."""
    device = vectors.device
    if not len(centres):
        nowhere = torch.zeros(len(vectors), dtype=torch.long, device=device)
        return torch.full_like(vectors[:, 0], float("inf")), nowhere
    parts = [torch.cdist(part, centres).min(1) for part in torch.split(vectors, _AT_ONCE)]
    return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])


def gap_between(vectors: Tensor) -> float:
    """A distance that one word's vectors stay below, and two words' exceed: amid the widest gap.

    Vectors of the same place are compared, so that whatever is added there does not matter.
    """
    distances = []
    for column in vectors[:_COMPARED].unbind(1):
        here = column[(column != 0).any(1)]
        if len(here) > 1:
            apart = torch.cdist(here, here, compute_mode="donot_use_mm_for_euclid_dist")
            distances.append(apart[tuple(torch.triu_indices(len(here), len(here), 1))])
    least = _SAME * _length_of(vectors)
    every = torch.cat(distances).double() if distances else torch.zeros(0)
    logs = every.clamp_min(least).log().sort().values
    low, high = (round(share * (len(logs) - 1)) for share in _SHARE)
    inner = logs[low : high + 1]
    if len(every) < 2 or len(inner) < 2:
        return least
    at = int(inner.diff().argmax())
    return float(((inner[at] + inner[at + 1]) / 2).exp())


def _length_of(vectors: Tensor) -> float:
    """Usual length of those that are there."""
    lengths = vectors[(vectors != 0).any(2)].norm(dim=1)
    return float(lengths.median()) if len(lengths) else 1.0


def shifts(vectors: Tensor, apart: float) -> Tensor:
    """(n, l, e) to what is added at each place (l, e), but for one vector common to all.

    Not a number where too few words agree: a place at which everybody writes the same, for instance.
    """
    length, width = vectors.shape[1:]
    vectors_at = [numbered(vectors[:, p : p + 1], vectors[0, :0], apart)[1] for p in range(length)]
    order = sorted(range(length), key=lambda p: -len(vectors_at[p]))
    directions = torch.randn(width, _CELL, generator=Key.from_seed(0).fold("votes").generator())
    directions = (directions / directions.norm(dim=0)).to(vectors)
    places = torch.full_like(vectors[0], float("nan"))
    places[order[0]] = 0.0
    known = vectors_at[order[0]]
    for place in order[1:]:
        shift = _voted(vectors_at[place], known, apart, directions)
        if shift is None:
            continue
        places[place] = shift
        moved = vectors_at[place] - shift
        known = torch.cat([known, moved[nearest_of(moved, known)[0] > apart]])
    return places


def _voted(here: Tensor, known: Tensor, apart: float, directions: Tensor) -> Tensor | None:
    """(e,) the shift from the known vectors (k, e) to those of one place (s, e) that most pairs agree on."""
    if not len(here) or not len(known):
        return None
    apart_along = (here @ directions)[:, None] - (known @ directions)[None]
    cells = (apart_along / apart).round().long().flatten(0, 1)
    _, which, votes = torch.unique(cells, dim=0, return_inverse=True, return_counts=True)
    most = int(votes.max())
    best = votes.argmax()
    others = votes.clone()
    others[best] = 0
    if most < _VOTES or most < _CLEAR * int(others.max()):
        return None
    agreeing = (which == best).nonzero()[:, 0]
    row, column = agreeing // len(known), agreeing % len(known)
    return (here[row] - known[column]).mean(0)
