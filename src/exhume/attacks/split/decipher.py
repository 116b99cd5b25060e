"""Undo a substitution of words: which symbol is which word, from two texts that say different things.

One text is written in symbols, one for each word; the other is plain, of the same kind. Frequencies, places
in the sentence and neighbours of a word hardly differ between them. With counts a_if of symbol i in context f
and the word's shares q_jf from the plain text, symbol i is taken for word j by

    log-likelihood  L_ij = sum_f a_if log q_jf

summed over all kinds of context, one word for each symbol (linear assignment). Contexts are first the
places, counted from either end; then also the neighbours at distance one and two, as far as they are
deciphered: those of the most frequent symbols first, more of them in every round.

Cost: `rounds` linear assignments of v symbols, O(v^3) each in the worst case.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from exhume.core.contract import ExhumeError

_FIRST, _GROWTH = 30, 1.25  # symbols whose neighbours count in the first round; growth by round
_GAPS = (1, 2)
_PRIOR = 3.0  # counts that a word's shares owe to the shares of all words


def by_frequency(symbols: Tensor, plain: Tensor, kinds: tuple[int, int]) -> Tensor:
    """Symbols (n, l) and plain tokens (m, l), 0 where there is nothing, to a word for each symbol (s,).

    Nothing but how often each occurs. 0 for symbol 0, and for those that are left over.
    kinds: how many symbols s and words there are, 0 included.
    """
    _check(symbols, plain, kinds)
    return _assigned(_as_often(symbols, plain, kinds))


def decipher(symbols: Tensor, plain: Tensor, kinds: tuple[int, int], rounds: int = 25) -> Tensor:
    """`by_frequency`, improved by the places and neighbours of words."""
    _check(symbols, plain, kinds)
    settled = _as_often(symbols, plain, kinds)
    settled += _explained(_places(symbols, kinds[0]), _places(plain, kinds[1]))
    found = _assigned(settled)
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
        trusted = trusted[found[trusted] > 0]
        score = settled.clone()
        for a, b in neighbours:
            score += _explained(_known(a, trusted), _known(b, found[trusted]))
        better = _assigned(score)
        if len(trusted) >= int((found > 0).sum()) and torch.equal(better, found):
            break
        found = better
    return found


def _check(symbols: Tensor, plain: Tensor, kinds: tuple[int, int]) -> None:
    for name, text, kind in (("symbols", symbols, kinds[0]), ("plain", plain, kinds[1])):
        if text.ndim != 2 or not bool((text > 0).any()) or int(text.max()) >= kind:
            raise ExhumeError(f"{name}: (n, l) numbers from 1 to {kind - 1} needed, 0 for nothing")


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
    found = torch.zeros(len(score), dtype=torch.long)
    found[1 + torch.from_numpy(rows)] = 1 + torch.from_numpy(columns)
    return found
