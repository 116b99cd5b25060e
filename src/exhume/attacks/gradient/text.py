"""Tokens of somebody else's text classifier: the words of a batch, and whole sentences.

1. *Which words.* A trained embedding has a gradient in the rows of its batch's tokens only.
2. *Vectors.* What enters the first fully connected layer is recovered by the bias ratio.
3. *Sentences.* Where that vector is the embeddings side by side, each place is the nearest token; where it
   is a mean of what every token gives alone, it is a sum of whole numbers of them. Of any other network
   (attention) sentences are tried: each place takes the tokens that the rows allow and, where a layer sees
   the places one by one, those whose vector lies in the span of its gradient; the network itself says what
   vector they give.

How the network makes one vector of a sequence is found out by running it on drawn tokens. The span of
attention's gradients tells which tokens stand at a place in some record of the batch (and a few that do not:
if s and t share place l, and t is at place m too, then s fits at m). The features of a record tell which of
them belong together: all sentences are tried where they are few; else a search changes one place at a time,
from many starts, then two where that is not enough. The misfit says whether the sentence is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from typing import TypeVar

import torch
from scipy.optimize import nnls
from torch import Tensor

from exhume.attacks.gradient.analytic import BiasRatio, agreeing_ratios
from exhume.attacks.releases import BatchAnswer, EachGradient
from exhume.core.contract import Key, Knowledge, NotApplicable, Progress, Store, silent
from exhume.models.own_texts import TextModel, drawn_tokens

Net = TypeVar("Net", bound=TextModel)

_MOST = 4000  # tokens of which a mean can be made up
_VECTORS = 16  # that are read as sums before it is asked whether more are needed
_CHUNK = 2048  # sentences that go through the network at once
_ROUNDING = 100  # machine epsilons, over the largest singular value: what lies below is rounding
_PROBES = 6  # drawn texts that show the pooling
_SAME = 1e-4  # relative: fp32 outputs of the same function
_DRAWN = Key.from_seed(0).fold("pooling")
_SWEEPS = 12  # over the places of a sentence, at most
_FINALISTS = 4  # starts that go on with two places at a time
_EXACT = 1e-4  # misfit at which a sentence is found: fp32 leaves 1e-6
_DENSE = 0.5  # share of the rows beyond which they say nothing: tied or noisy embeddings touch all


@dataclass(frozen=True)
class TextAttack:
    """Recover token sequences from the gradient of any text classifier.

    Sees: `Gradient`: the embedding, where it is trained; the layers that see places or records one by one.
    Assumes: the architecture (`TextModel`); a fully connected layer with a bias behind the pooling.
    Guarantees: the network gives a candidate's vector back up to `tolerance`; minus the misfit is the
    confidence. Where the order does not change the vector, a candidate has none (sorted). Records whose
    vector is not found stay unfound.
    Reference: Wang23 (embeddings first, then tokens); Melis et al. 2019 for the rows; Petrov et al. 2024
    for the span of local layers. The search for sentences by the network itself: ours.
    """

    tolerance: float = 1e-3  # relative misfit from which a vector is no sentence's
    agreeing: int = 3  # neurons that must agree on a vector whose text has to be searched for
    largest: int = 20_000  # sentences up to which all are tried
    starts: int = 24  # of the search for them otherwise
    options: int = 300  # tokens a place may have, on average, for a search
    pairs: int = 400_000  # sentences of one sweep up to which two places are changed at a time

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        net = model_of_texts(knowledge, TextModel)
        if not net.head and not net.local:
            raise NotApplicable(
                f"{net}: no fully connected layer with a bias sees its records or places one by one",
                ever=False,
            )
        invert = _TextReading(self, net, knowledge.batch_size, key).invert
        shape, who, stage = (net.length,), "the attack on texts", "reading texts"
        return EachGradient(shape, invert, who, stage, progress, net, tokens=True)


@dataclass(frozen=True, eq=False)
class _TextReading:
    attack: TextAttack
    net: TextModel
    batch_size: int | None
    key: Key

    def invert(self, values: Tensor, at: Tensor, _: int) -> BatchAnswer:
        words = words_in(self.net, values)
        allowed = torch.arange(self.net.vocabulary) if words is None else words
        if words is not None and self.net.padding is not None:
            allowed = torch.unique(torch.cat([words, torch.tensor([self.net.padding])]))
        pooling = pooling_of(self.net, at) if self.net.head else Pooling("other", ordered=True)
        reason, features = self._features(values, searched=pooling.kind == "other")
        try:
            tokens, misfit = self._read(pooling, features, values, at, allowed)
        except NotApplicable as why:
            reason, tokens, misfit = why.why, torch.zeros(0, self.net.length).long(), torch.zeros(0)
        sure = misfit < self.attack.tolerance
        tokens, misfit = tokens[sure], misfit[sure]
        first: dict[tuple[int, ...], int] = {}  # every sentence once, with its smallest misfit
        for place in misfit.argsort(stable=True).tolist():
            first.setdefault(tuple(tokens[place].tolist()), place)
        different = torch.tensor(sorted(first.values()), dtype=torch.int64)
        tokens, misfit = tokens[different], misfit[different]
        refused = None
        if not len(tokens):
            reason = reason or "what enters the fully connected layers is no text's vector"
            refused = NotApplicable(reason, ever=True)
        observed = {} if words is None else {"occurring": float(len(words))}
        observed["ordered"] = float(pooling.ordered)
        return BatchAnswer(tokens, -misfit.double(), observed, refused=refused)

    def _features(self, values: Tensor, *, searched: bool) -> tuple[str, Tensor]:
        """(b, d) what entered the head, by the ratio of its gradients; or why there is none.

        searched: reading a vector takes long. Else one neuron is enough: a mixture is no text's vector.
        """
        if not self.net.head:
            reason = "no fully connected layer with a bias sees one vector a record"
            return reason, torch.zeros(0, 1)
        parts = self.net.layout.split(values)
        weight, bias = (parts[f"{self.net.head}.{name}"] for name in ("weight", "bias"))
        vectors, counts = agreeing_ratios(weight, bias, self.attack.tolerance)
        vectors = vectors[counts >= min(self.attack.agreeing, len(weight))] if searched else vectors
        vectors = vectors[: BiasRatio.largest] if searched else vectors
        reason = "no neurons of the first fully connected layer agree on a text"
        return reason if not len(vectors) else "", vectors.to(weight.dtype).double()

    def _read(
        self, pooling: Pooling, features: Tensor, values: Tensor, at: Tensor, allowed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(b, l) tokens and (b,) relative misfits."""
        if pooling.kind == "other":
            return self._assembled(features, values, at, allowed)
        if not len(features):
            return torch.zeros(0, self.net.length).long(), torch.zeros(0)
        if pooling.kind == "flatten":
            return in_place(features - pooling.offset, self.net.table(at).double(), allowed)
        if len(allowed) > _MOST:
            raise NotApplicable(f"{len(allowed)} tokens come into question for a mean", ever=True)
        return self._summed(pooling.kind == "masked", features, at, allowed)

    def _summed(
        self, masked: bool, features: Tensor, at: Tensor, allowed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Texts of the vectors, the surest first, until there are as many as the batch has records."""
        words = allowed[allowed != self.net.padding] if masked else allowed
        alone = self._through(at, words[:, None].expand(-1, self.net.length))
        tokens, misfit = torch.zeros(0, self.net.length).long(), torch.zeros(0).double()
        for part in torch.split(features, _VECTORS):
            summed, apart = self._sums(masked, part, alone, words)
            tokens, misfit = torch.cat([tokens, summed]), torch.cat([misfit, apart])
            different = torch.unique(tokens[misfit < self.attack.tolerance], dim=0)
            if self.batch_size is not None and len(different) >= self.batch_size:
                break
        return tokens, misfit

    def _sums(
        self, masked: bool, features: Tensor, alone: Tensor, words: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Whole numbers of what every token gives alone; of fewer tokens where padding is left out."""
        fill = self.net.padding or 0
        tokens = torch.full((len(features), self.net.length), fill)
        misfit = torch.ones(len(features), dtype=torch.float64)
        for count in range(1, self.net.length + 1) if masked else (self.net.length,):
            places, apart = counted(features * count, alone, torch.arange(len(words)), count)
            better = (apart < misfit) & (misfit >= self.attack.tolerance)  # the shortest that fits
            tokens[better] = fill
            tokens[better, :count] = words[places[better]]
            misfit[better] = apart[better]
        order = ((tokens == fill) if self.net.padding is not None else tokens < 0).long()
        return tokens.gather(1, order.argsort(dim=1, stable=True)), misfit

    def _through(self, at: Tensor, tokens: Tensor) -> Tensor:
        parts = torch.split(tokens, _CHUNK)
        return torch.cat([self.net.features(at, part) for part in parts]).double()

    def _assembled(
        self, features: Tensor, values: Tensor, at: Tensor, allowed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sentences whose vector the network itself computes; first those that the span allows."""
        places, distances = self._places(values, at, allowed)
        if math.prod(len(place) for place in places) == 1:
            single = torch.tensor([[place[0] for place in places]])
            return single, torch.tensor([max(distances)], dtype=torch.float64)
        if not len(features):
            return torch.zeros(0, self.net.length).long(), torch.zeros(0)
        everywhere = [allowed.tolist()] * self.net.length
        tokens = torch.zeros(len(features), self.net.length, dtype=torch.int64)
        misfit = torch.ones(len(features), dtype=torch.float64)
        if all(places) and places != everywhere:
            tokens, misfit = self._fitted(places, features, at)
        wanted = (self.batch_size or 1) - int((misfit < self.attack.tolerance).sum())
        left = (misfit >= self.attack.tolerance).nonzero()[: max(0, wanted), 0]
        if len(left):  # some places may leave no trace in the layer that sees them
            tokens[left], misfit[left] = self._fitted(everywhere, features[left], at)
        return tokens, misfit

    def _fitted(
        self, places: list[list[int]], features: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor]:
        attack, key = self.attack, self.key.fold("sentences")
        if sum(len(place) for place in places) > attack.options * self.net.length:
            raise NotApplicable(
                f"more than {attack.options} tokens a place come into question", ever=True
            )
        through = partial(self._through, at)
        search = Assembly(places, through, attack.largest, attack.starts, key, attack.pairs)
        return search.fit(features, self.batch_size or len(features))

    def _places(
        self, values: Tensor, at: Tensor, allowed: Tensor
    ) -> tuple[list[list[int]], list[float]]:
        """The tokens of every place: by the span of local layers where they have a gradient."""
        parts = self.net.layout.split(values)
        # queries, keys and values in one tensor differ in size by magnitudes: each for itself
        slopes = [
            slope
            for name in self.net.local
            for slope in (
                parts[name].chunk(3) if name.endswith("in_proj_weight") else (parts[name],)
            )
            if float(slope.norm()) > 0
        ]
        if not slopes:
            return [allowed.tolist()] * self.net.length, [math.inf] * self.net.length
        vectors = torch.cat(
            [self.net.vectors(at, part.tolist()) for part in torch.split(allowed, _CHUNK)], 1
        )
        places, worst = in_span(slopes, vectors, allowed, self.attack.tolerance)
        if self.net.padding is not None:  # a place that is masked out leaves no trace
            places = [sorted({*place, self.net.padding}) for place in places]
        return places, worst


def in_place(features: Tensor, table: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """(b, l·e) to (b, l) nearest tokens, and (b,) the largest relative distance among the places."""
    width = table.shape[1]
    vectors = features.reshape(len(features), features.shape[1] // width, width)
    apart, index = torch.cdist(vectors, table[allowed].expand(len(vectors), -1, -1)).min(2)
    size = table.norm(dim=1).mean()
    return allowed[index], apart.amax(1) / size


def counted(sums: Tensor, table: Tensor, allowed: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """(b, e) sums of embeddings to (b, l) sorted tokens and the relative misfit (b,).

    min_n || E^T n - sum ||, n >= 0, with sum_v n_v = l as one more equation: with so few tokens the
    solution is sparse by itself, and whole.
    """
    tokens = torch.zeros(len(sums), length, dtype=torch.int64)
    misfit = torch.ones(len(sums), dtype=torch.float64)
    vectors = table[allowed]
    equations = torch.cat([vectors, vectors.new_ones(len(vectors), 1)], 1).T.numpy()
    for row, wanted in enumerate(sums):
        target = torch.cat([wanted, wanted.new_tensor([float(length)])])
        try:
            counts = torch.from_numpy(nnls(equations, target.numpy())[0]).round().long()
        except RuntimeError:  # not within its iterations: the vector is no sum of tokens
            continue
        if int(counts.sum()) == length:
            tokens[row] = allowed.repeat_interleave(counts).sort().values
            misfit[row] = (table[tokens[row]].sum(0) - wanted).norm() / wanted.norm()
    return tokens, misfit


def in_span(
    slopes: Sequence[Tensor], vectors: Tensor, allowed: Tensor, tolerance: float
) -> tuple[list[list[int]], list[float]]:
    """(m, e) gradients, (l, a, e) vectors of tokens (a,): those in the rows for each place, and the worst."""
    doubled = [slope.double() for slope in slopes]
    rows = torch.cat([slope / slope.norm().clamp_min(1e-300) for slope in doubled])
    _, sizes, right = torch.linalg.svd(rows)
    rank = int((sizes > _ROUNDING * torch.finfo(slopes[0].dtype).eps * sizes[0]).sum())
    outside = right[rank:]  # (e - rank, e): orthogonal to the batch's vectors; empty: anything goes
    off = (vectors.double() @ outside.T).norm(dim=2) / vectors.norm(dim=2)
    inside = off < tolerance
    worst = off.masked_fill(~inside, -math.inf).amax(1)
    worst = torch.where(inside.any(1), worst, math.inf)
    return [allowed[row].tolist() for row in inside], worst.tolist()


@dataclass(frozen=True, eq=False)
class Pooling:
    """kind: one of

    - flatten: the embeddings side by side, plus `offset`
    - mean: the mean of what every token gives alone, padding included
    - masked: the same without padding
    - other
    """

    kind: str
    ordered: bool  # whether the order of the tokens matters
    offset: Tensor = field(default_factory=lambda: torch.zeros(()))


def pooling_of(net: TextModel, at: Tensor) -> Pooling:
    """How the network pools at these parameters (p,), tried on drawn tokens."""
    tokens = drawn_tokens((_PROBES, net.length), net.vocabulary, net.padding, _DRAWN)
    seen = net.features(at, tokens).double()
    table = net.table(at).double()
    beside = table[tokens].flatten(1)
    if beside.shape == seen.shape and _alike(seen - seen[:1], beside - beside[:1]):
        return Pooling("flatten", ordered=True, offset=seen[0] - beside[0])
    turned = net.features(at, tokens.flip(1)).double()
    if net.length > 1 and not _alike(seen, turned):
        return Pooling("other", ordered=True)
    # what every token gives if it stands at all places
    everywhere = tokens.flatten()[:, None].expand(-1, net.length)
    alone = net.features(at, everywhere).double().reshape(*tokens.shape, -1)
    if not _alike(seen, alone.mean(1)):
        return Pooling("other", ordered=False)
    if net.padding is None or net.length == 1:
        return Pooling("mean", ordered=False)
    half, filled = net.length // 2, tokens.clone()
    filled[:, half:] = net.padding  # perhaps left out, at the end
    masked = _alike(net.features(at, filled).double(), alone[:, :half].mean(1))
    return Pooling("masked" if masked else "mean", ordered=False)


def _alike(left: Tensor, right: Tensor) -> bool:
    finite = bool(left.isfinite().all())
    return finite and float((left - right).norm()) <= _SAME * float(left.norm())


@dataclass(frozen=True, eq=False)
class Assembly:
    """places: the tokens each of l places may have, none empty; features: (n, l) tokens to (n, d)."""

    places: list[list[int]]
    features: Callable[[Tensor], Tensor]
    largest: int  # sentences to try them all
    starts: int  # of the search, otherwise
    key: Key
    pairs: int = 10_000_000  # sentences of one sweep up to which two places are changed at a time

    def fit(self, wanted: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """(b, d) features, the surest first, to (b, l) tokens and (b,) relative misfits.

        count: how many records there are; once so many are found the rest is not searched for.
        """
        if math.prod(len(place) for place in self.places) <= self.largest:
            sentences = torch.tensor(list(product(*self.places)))
            apart = torch.cat(
                [self._apart(part, wanted) for part in torch.split(sentences, 2 * _CHUNK)]
            )
            misfit, best = apart.min(0)
            return sentences[best], misfit
        tokens = torch.zeros(len(wanted), len(self.places), dtype=torch.int64)
        misfits = torch.ones(len(wanted), dtype=torch.float64)
        finalists: dict[int, Tensor] = {}
        for i, vector in enumerate(wanted):
            if int((misfits < _EXACT).sum()) >= count:
                return tokens, misfits
            finalists[i], misfits[i] = self._search(vector, self.key.fold(i))
            tokens[i] = finalists[i][0]
        counts = [len(place) for place in self.places]
        sweep = _FINALISTS * (sum(counts) ** 2 - sum(count**2 for count in counts)) // 2
        if sweep > self.pairs:  # sentences that changing two places at a time, once each, would try
            return tokens, misfits
        pairs = list(combinations(range(len(self.places)), 2))
        for i, here in finalists.items():
            if int((misfits < _EXACT).sum()) >= count:
                break
            if float(misfits[i]) >= _EXACT:
                ends, misfit = self._descended(here, pairs, wanted[i])
                misfits[i], place = misfit.min(0)
                tokens[i] = ends[place]
        return tokens, misfits

    def _apart(self, sentences: Tensor, wanted: Tensor) -> Tensor:
        """(n, b) relative distances."""
        apart: Tensor = torch.cdist(self.features(sentences), wanted)
        share: Tensor = apart / wanted.norm(dim=1).clamp_min(1e-30)
        return share.nan_to_num(nan=math.inf)  # a sentence that a network has no answer to

    def _search(self, wanted: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """One place at a time from many starts: the best few (f, l), best first, and the smallest misfit."""
        generator = key.generator()
        drawn = [torch.randint(len(p), (self.starts,), generator=generator) for p in self.places]
        columns = [torch.tensor(p)[at] for p, at in zip(self.places, drawn, strict=True)]
        here = torch.stack(columns, 1)  # (starts, l)
        singles = [(place,) for place in range(len(self.places))]
        here, misfit = self._descended(here, singles, wanted)
        return here[misfit.argsort()[:_FINALISTS]], misfit.min()

    def _descended(
        self, here: Tensor, moves: Sequence[tuple[int, ...]], wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(n, l) sentences changed at the places of one move after the other, while that helps."""
        misfit = self._apart(here, wanted[None])[:, 0]
        for _ in range(_SWEEPS):
            before = misfit
            for places in moves:
                here, misfit = self._best_of(here, places, wanted)
                if float(misfit.min()) < _EXACT:
                    return here, misfit
            if bool((misfit >= before).all()):
                break
        return here, misfit

    def _best_of(
        self, here: Tensor, places: tuple[int, ...], wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Every sentence with the options at these places that fit best; what it has is among them."""
        options = torch.tensor(list(product(*(self.places[place] for place in places))))
        tried = here[:, None].repeat(1, len(options), 1)
        tried[:, :, list(places)] = options
        apart = self._apart(tried.flatten(0, 1), wanted[None])[:, 0].reshape(tried.shape[:2])
        misfit, best = apart.min(1)
        return tried[torch.arange(len(here)), best], misfit


def words_in(net: TextModel, values: Tensor) -> Tensor | None:
    """(p,) a gradient to the tokens (a,) with a row that is not zero; None where the rows do not tell."""
    rows = net.layout.split(values).get(net.embedding)
    if rows is None:
        return None
    touched = rows.abs().sum(1) > 0
    if not bool(touched.any()) or float(touched.double().mean()) > _DENSE:
        return None
    return touched.nonzero()[:, 0]


@dataclass(frozen=True)
class WordRows:
    """The list of words behind an update, in no order.

    Sees: `Gradient`, the embedding's rows.
    Assumes: a trained embedding that is not tied to the outputs, plain SGD, no noise.
    Guarantees: a row that is not zero was used by the batch. Words that are used but do not change
    anything (padding) are missed. Candidates are single tokens (1,).
    Reference: Melis et al. 2019.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        net = model_of_texts(knowledge, TextModel)

        def invert(values: Tensor, _: Tensor, __: int) -> BatchAnswer:
            words = words_in(net, values)
            if words is None:
                raise NotApplicable(
                    "the embedding does not tell which words occur: it is frozen, or most rows change",
                    ever=False,
                )
            rows = net.layout.split(values)[net.embedding]
            sizes = torch.linalg.vector_norm(rows, dim=1).double()
            return BatchAnswer(words[:, None], sizes[words])

        who, stage = "the list of words", "reading words"
        return EachGradient((1,), invert, who, stage, network=net, tokens=True)


def model_of_texts(knowledge: Knowledge, kind: type[Net]) -> Net:
    if not isinstance(knowledge.architecture, kind):
        raise NotApplicable(
            f"architecture: texts are read off a {kind.__name__}, not {knowledge.architecture}",
            ever=True,
        )
    return knowledge.architecture
