"""Which tokens a language model was trained on, and about how often: by the rows of its outputs.

    dL/dw_v = 1/N (sum_i p_iv h_i - sum_{i: y(i) = v} h_i)

The row of a token that was asked for n times is as long as a sum of n vectors h_i. Their length and their
mean cosine c are the network's own, seen on drawn texts: |sum|^2 = |h|^2 (n + n (n - 1) c). N is the number
at which the counts add up to N.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from exhume.attacks.gradient.gathering import BatchAnswer, EachGradient
from exhume.attacks.gradient.text import model_of_texts, words_in
from exhume.attacks.gradient.traces import heights
from exhume.core.contract import Key, Knowledge, NotApplicable, Progress, Store, silent
from exhume.models.own_texts import LanguageModel, drawn_tokens

_DRAWN = 8  # texts that show the vectors of the outputs
_HALF = 0.5  # of a token: fewer is none
_STEPS = 60  # of halving
_CLEAR = 4.0  # times the median row: one that stands out


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
