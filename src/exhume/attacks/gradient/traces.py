"""What the texts of a batch leave in a language model's gradient: a span at every site.

Local sites tell which token may stand at which place; the others, whether the places before (or all places)
can stand together. The vectors of a candidate are computed by the network itself.

The rows of a linear layer's gradient, dL/dW = sum_t delta_t x_t^T, span the vectors x_t it has seen while
these are fewer than its width; what lies outside was not seen. The rank is read off the spectrum: of the
gradient, every row at norm 1, since rounding is relative to a row.

Of an adapter W + s B A the gradient of B shows the span of s A x, of its rank at most.

Where the texts do not say which tokens the model was asked for, its outputs do: the loss

    L = 1/N sum_i log sum_v exp z_iv - z_iy(i)

is linear in what each place i is asked for. Of a place whose target is open, the row y of the output weight
has the gradient -h_i/N, h_i being what that weight is multiplied with. Where the weight is the embedding too,
the tokens that were fed have another gradient there; so the answer is put in, and what is left is read again.
Where no output weight is trained, what is left is compared with what each token would leave in all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from exhume.core.contract import Key, NotApplicable
from exhume.models.own_texts import NO_TARGET, LanguageModel, Site
from exhume.train.local import half_precision

_CHUNK = 1024  # sequences that go through the network at once
_INDEPENDENT = 1e-6  # relative: vectors that differ by more than rounding
_LOST = 50  # one vector of so many may be too weak to show at a site
_NOISE = 2.0  # roundings, over the largest singular value: what lies below is rounding
_SPARE = 4  # directions that must be left over: norms take away one or two
_GAP = 8.0  # ratio of neighbouring singular values that separates vectors from noise
_WIDEST = 0.1  # of the tolerance, with such noise
_LEAST, _MOST = 3e-5, 3e-3  # of the tolerance, in single precision
_COARSE = (5.0, 20.0)  # the same in roundings, where values are coarser
_ROUNDS = 8  # of putting targets in and reading what is left
_NUMBERS = 1e8  # of slopes that are solved for at once
_DRAWN = 16  # directions by which the sizes of rows are measured
_ENOUGH = 1e-3  # relative: what may be left of the output weight's gradient
_LIKELY = 8  # tokens of a place that are tried last
_SURE = 0.8  # weight of a token, 1 where it was asked for


@dataclass(frozen=True, eq=False)
class Traces:
    net: LanguageModel
    at: Tensor  # (p,)
    local: tuple[tuple[Site, SiteSpan], ...]
    mixed: tuple[tuple[Site, SiteSpan], ...]  # in the order of use

    def allowed(self) -> list[Tensor]:
        """For each place the tokens that may stand there, without padding."""
        every = torch.arange(self.net.vocabulary)
        fits = torch.ones(self.net.length, len(every), dtype=torch.bool)
        if self.local:
            alone = every[:, None].expand(-1, self.net.length)
            fits = (self.worst(alone, self.local) <= 1).T.clone()
        if self.net.padding is not None:
            fits[:, self.net.padding] = False
        return [every[row] for row in fits]

    def outside(self, tokens: Tensor, sites: Sequence[tuple[Site, SiteSpan]]) -> Tensor:
        """(n, l) to (s, n, l): distances from the spans of these sites, over their tolerance."""
        parts = []
        for part in torch.split(tokens, _CHUNK):
            seen = self.net.seen(self.at, part, [site for site, _ in sites])
            each = zip(sites, seen, strict=True)
            parts.append(torch.stack([span.outside(some) for (_, span), some in each]))
        return torch.cat(parts, 1)

    def worst(self, tokens: Tensor, sites: Sequence[tuple[Site, SiteSpan]]) -> Tensor:
        """(n, l) to (n, l): the largest over the sites; up to 1, every site may have seen it."""
        return self.outside(tokens, sites).amax(0)

    def filled(self, tokens: Tensor) -> bool:
        """Whether the vectors of these texts (n, l) make up all that the sites have seen."""
        fill = self.net.padding  # leaves no trace
        real = torch.ones_like(tokens).bool() if fill is None else tokens != fill
        site, span = self.mixed[-1]
        (seen,) = self.net.seen(self.at, tokens, [site])
        inside = seen[real].double() @ span.basis
        values = torch.linalg.svdvals(inside / inside.norm(dim=1, keepdim=True).clamp_min(1e-30))
        rank = int((values > _INDEPENDENT * values[0]).sum())
        return rank >= span.rank


def traces_of(net: LanguageModel, values: Tensor, at: Tensor) -> Traces:
    """One gradient (p,), taken at (p,). Raises `NotApplicable` where no site tells anything."""
    parts = net.layout.split(values)
    spans = [(site, span_of(site.slopes(parts))) for site in net.sites]
    told = [(site, span) for site, span in spans if span is not None]
    local = tuple((site, span) for site, span in told if site.local)
    mixed = [(site, span) for site, span in told if not site.local]
    if not any(bool(slope.any()) for site in net.sites for slope in site.slopes(parts)):
        raise NotApplicable(
            "every value of the update is zero at the layers that see texts", ever=False
        )
    if not mixed:
        width = min(site.slopes(parts)[0].shape[1] for site in net.sites)
        raise NotApplicable(
            f"the batch has as many places as its layers are wide ({width}; adapters are as wide as their "
            "rank), or more: their vectors fill the span, so that no text can be told from another; which "
            "tokens occur is told by the embedding's rows, where it is trained",
            ever=False,
        )
    most = max(span.rank for _, span in mixed)
    return Traces(
        net,
        at,
        local,
        tuple((site, span) for site, span in mixed if span.rank >= most - most // _LOST),
    )


@dataclass(frozen=True, eq=False)
class SiteSpan:
    basis: Tensor  # (d, r)
    tolerance: float  # relative distance up to which a vector counts as inside

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    def outside(self, vectors: Tensor) -> Tensor:
        """(..., d) to (...): relative distance, over the tolerance: up to 1 is inside."""
        basis = self.basis.to(vectors.dtype)
        left = vectors - (vectors @ basis) @ basis.T
        sizes = vectors.norm(dim=-1).clamp_min(1e-30)
        relative: Tensor = left.norm(dim=-1) / sizes / self.tolerance
        return relative


def span_of(slopes: Sequence[Tensor]) -> SiteSpan | None:
    """(m, d) gradients by weights that see the same; None: they tell nothing, or not everything.

    Nothing where the vectors fill the whole width; not everything where there are fewer rows than vectors.
    """
    rows = torch.cat([slope.double() for slope in slopes])
    sizes = rows.norm(dim=1)
    rows = rows[sizes > 0]
    if not len(rows):
        return None
    rounding = max(half_precision(s) or torch.finfo(s.dtype).eps for s in slopes)
    return _cut(rows / sizes[sizes > 0, None], rounding) or _cut(rows, rounding, gap=_GAP)


def _cut(rows: Tensor, rounding: float, gap: float = 0.0) -> SiteSpan | None:
    """The span of the singular values above rounding; gap: above the largest gap, if it is so large.

    The difference of two states has an error of its own, the same in every row.
    """
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    most = min(rows.shape) - _SPARE
    if most < 1:
        return None
    floor = _NOISE * rounding * float(values[0])
    rank = int((values > floor).sum())
    if gap:
        ratios = values[:most] / values[1 : most + 1].clamp_min(floor)
        rank = int(ratios.argmax()) + 1
        if float(ratios.max()) < gap:
            return None
    if not 0 < rank <= most:
        return None
    noise = max(float(values[rank]), rounding * float(values[0]) / 4)
    tolerance = noise / float(values[rank - 1])  # what noise turns the weakest vector by
    least, widest = max(_LEAST, _COARSE[0] * rounding), max(_MOST, _COARSE[1] * rounding)
    if gap:
        widest = _WIDEST
    return SiteSpan(right[:rank].T.contiguous(), min(widest, max(least, tolerance)))


@dataclass(frozen=True, eq=False)
class TokenTargets:
    targets: Tensor  # (n, l) tokens, or `NO_TARGET`
    sure: Tensor  # (n,) bool: the open ones stand out
    residual: float  # relative: of the gradient that these texts and targets give


def asked_for(
    net: LanguageModel, values: Tensor, at: Tensor, fed: Tensor, targets: Tensor, *, opened: Tensor
) -> TokenTargets:
    """One gradient (p,) and all its texts (n, l), with their targets where `opened` (n, l) is False."""
    targets = targets.masked_fill(opened, NO_TARGET)
    count = int((targets != NO_TARGET).sum() + opened.sum())
    named = {n: t.detach().clone().requires_grad_() for n, t in net.layout.split(at).items()}
    outputs = functional_call(net.module, named, (fed,))
    wanted = net.layout.split(values).get(net.output)
    places = opened.nonzero()
    sure = ~opened.any(1)
    if len(places):
        if wanted is None:
            tokens, certain = _through_layers(net, values, named, (fed, targets, opened))
        elif len(places) > wanted.shape[1]:
            return TokenTargets(targets, sure, float("inf"))
        else:
            known = _Known(net, fed, targets, opened, outputs, named[net.output], wanted, count)
            tokens, certain = known.solved()
        targets = _filled(targets, places, tokens)
        sure = torch.ones(len(fed), dtype=torch.bool)
        sure[places[~certain, 0]] = False
    loss = _summed(outputs, targets, torch.zeros_like(opened)) / count
    slopes = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    each = zip(named.values(), slopes, strict=True)
    again = torch.cat([(torch.zeros_like(p) if s is None else s).flatten() for p, s in each])
    size = values.norm().clamp_min(1e-30)
    return TokenTargets(targets, sure, float((again - values).norm() / size))


@dataclass(frozen=True, eq=False)
class _Known:
    """Everything but what the open places are asked for."""

    net: LanguageModel
    fed: Tensor  # (n, l)
    targets: Tensor
    opened: Tensor
    outputs: Tensor  # (n, l, v)
    weight: Tensor  # (v, d) of the outputs
    wanted: Tensor  # (v, d) its gradient
    count: int  # places that are asked for a token

    def solved(self) -> tuple[Tensor, Tensor]:
        """(u,) tokens, and whether each stands out."""
        places = self.opened.nonzero()
        basis = heights(self.outputs, self.weight, places, self.fed)
        never = torch.tensor([n for n in (self.net.mask, self.net.padding) if n is not None]).long()
        shared = self.net.output == self.net.embedding
        used = torch.unique(self.fed) if shared else never
        nobody = torch.full((len(places),), -1)
        weights = self._weights(basis, nobody)
        rest = weights.index_fill(1, torch.cat([used, never]), -1.0)  # exact where nothing was fed
        clear = rest.amax(1) > _SURE
        answers = torch.where(clear, rest.argmax(1), nobody)
        for _ in range(_ROUNDS):
            weights = self._weights(basis, answers)
            better = weights.index_fill(1, never, -1.0).argmax(1)
            better = torch.where(clear, answers, better)
            if torch.equal(better, answers):
                break
            answers = better
        likely = weights.index_fill(1, never, -1.0).topk(min(_LIKELY, weights.shape[1]), 1).indices
        answers = self._refined(answers, (~clear).nonzero()[:, 0], likely)
        certain = self._weights(basis, answers).gather(1, answers[:, None])[:, 0] > _SURE
        return answers, certain

    def _left(self, answers: Tensor) -> Tensor:
        """(v, d) what the rows lack with these answers; -1: none yet."""
        goals = _filled(self.targets, self.opened.nonzero(), answers)
        loss = _summed(self.outputs, goals, self.opened) / self.count
        (slope,) = torch.autograd.grad(loss, self.weight, retain_graph=True)
        return self.count * (slope - self.wanted).double()

    def _weights(self, basis: Tensor, answers: Tensor) -> Tensor:
        """(u, v) how much of each token every open place was asked for: 1 or 0."""
        solved = torch.linalg.lstsq(basis.T, self._left(answers).T).solution
        given = F.one_hot(answers.clamp_min(0), len(self.weight)) * (answers >= 0)[:, None]
        weights: Tensor = (solved + given)[:, : self.net.vocabulary]
        return weights

    def _refined(self, answers: Tensor, doubtful: Tensor, likely: Tensor) -> Tensor:
        """Single answers changed to another likely one (u, k), while that leaves less of the gradient."""
        left = float(self._left(answers).norm())
        enough = _ENOUGH * self.count * float(self.wanted.double().norm())
        for place in doubtful.tolist():
            for token in likely[place].tolist():
                if left < enough:
                    return answers
                tried = answers.clone()
                tried[place] = token
                apart = float(self._left(tried).norm())
                if apart < left:
                    answers, left = tried, apart
        return answers


def _through_layers(
    net: LanguageModel,
    values: Tensor,
    named: dict[str, Tensor],
    texts: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """(u,) what open places were asked for, and whether each stands out, where no output weight is trained.

    What is left of the gradient is -1/N sum_i J_i^T e_y(i), J_i the Jacobian of the outputs of place i. Each
    place takes the token whose row of J_i points most along it, once what the others took is out of it; then
    all places share these tokens out by least squares.
    texts: as fed, their targets, and which places are open.
    """
    fed, targets, opened = texts
    places = opened.nonzero()
    count = int((targets != NO_TARGET).sum()) + len(places)
    at = {name: tensor.detach() for name, tensor in named.items()}
    never = torch.tensor([n for n in (net.mask, net.padding) if n is not None]).long()

    def outputs(parameters: dict[str, Tensor]) -> Tensor:
        given: Tensor = functional_call(net.module, parameters, (fed,))
        return given

    def left(answers: Tensor) -> Tensor:
        """(p,) of the gradient, times N, with these answers; -1: none yet."""
        goals = _filled(targets, places, answers)
        slopes = grad(lambda here: _summed(outputs(here), goals, opened))(at)
        rest: Tensor = net.layout.join(slopes) - count * values
        return rest

    def along(direction: Tensor) -> Tensor:
        """(u, v) every row of every J_i, times a direction (p,)."""
        moved = jvp(outputs, (at,), (net.layout.split(direction),))[1]
        rows: Tensor = moved[places[:, 0], places[:, 1], : net.vocabulary]
        return rows

    generator = Key.from_seed(0).fold("directions").generator()
    with sdpa_kernel(SDPBackend.MATH):  # the other kernels have no derivative forward
        drawn = [torch.randn(values.shape, generator=generator).to(values) for _ in range(_DRAWN)]
        sizes = torch.stack([along(one).square() for one in drawn]).mean(0).sqrt()
        sizes = sizes.clamp_min(1e-30).index_fill(1, never, torch.inf)
        answers = torch.full((len(places),), -1)
        for _ in range(_ROUNDS):
            before = answers.clone()
            for place in range(len(places)):
                answers[place] = -1
                answers[place] = (along(left(answers))[place] / sizes[place]).argmax()
            if torch.equal(before, answers):
                break
        tokens = torch.unique(answers)
        if len(places) * len(tokens) * len(values) > _NUMBERS:
            return answers, torch.zeros_like(answers).bool()
        # the same tokens, each where it belongs: places of like texts are alike
        each = [(text, place, token) for text, place in places.tolist() for token in tokens]
        rows = [net.layout.join(grad(lambda here, i=i: outputs(here)[i])(at)) for i in each]
        wanted = left(torch.full_like(answers, -1)).double()
    weights = torch.linalg.lstsq(torch.stack(rows, 1).double(), wanted[:, None]).solution
    weights = weights.reshape(len(places), len(tokens))
    return tokens[weights.argmax(1)], weights.amax(1) > _SURE


def as_trained(net: LanguageModel, values: Tensor, at: Tensor, fed: Tensor) -> Tensor:
    """(n, l) texts as fed to those that were trained on: with what their masks hide."""
    texts = fed.long()
    if net.loss != "masked":
        return fed
    opened = torch.isin(texts, torch.tensor([net.mask]))
    asked = asked_for(net, values, at, texts, torch.full_like(texts, NO_TARGET), opened=opened)
    hidden = torch.where(asked.targets >= 0, asked.targets + net.vocabulary, texts)
    return hidden.to(fed.dtype)


def _summed(outputs: Tensor, targets: Tensor, opened: Tensor) -> Tensor:
    """() the loss of all places that have a target, and of open ones what does not depend on it."""
    flat, goals = outputs.flatten(0, 1), targets.flatten()
    known = F.cross_entropy(flat, goals, reduction="sum", ignore_index=NO_TARGET)
    rest = opened.flatten() & (goals == NO_TARGET)
    return known + torch.logsumexp(flat[rest], 1).sum()


def _filled(targets: Tensor, places: Tensor, answers: Tensor) -> Tensor:
    filled = targets.clone()
    there = answers >= 0
    filled[places[there, 0], places[there, 1]] = answers[there]
    return filled


def heights(outputs: Tensor, weight: Tensor, places: Tensor, fed: Tensor) -> Tensor:
    """(u, d) what the output weight is multiplied with at places (u, 2): the slope of an unused row."""
    used = set(fed.flatten().tolist())
    row = next((v for v in range(outputs.shape[2]) if v not in used), 0)
    vectors = []
    for text, place in places.tolist():
        (slope,) = torch.autograd.grad(outputs[text, place, row], weight, retain_graph=True)
        vectors.append(slope[row].double())
    return torch.stack(vectors)
