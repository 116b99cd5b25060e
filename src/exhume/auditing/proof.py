"""Whether an answer proves itself: without any record to compare with, by the update alone.

Training on the reconstructions gives the update back (its local steps included), and the update has more
numbers than the records have: then the records are those of the update. Tried are all candidates, those on
which several neurons agree, and those that the update itself selects: it is the mean of its records'
gradients, so that of all candidates with all labels only its records have a weight, and all the same.

That neurons agree proves nothing by itself: in a batch of one class they agree on mixtures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.func import functional_call

from exhume.attacks.gradient.local_steps import labels_of
from exhume.attacks.gradient.span import odd
from exhume.attacks.gradient.traces import as_trained
from exhume.auditing.case import Proof
from exhume.core.contract import Architecture, Gradient, Key, Reconstruction, Records
from exhume.models.mlp import MLP
from exhume.models.own_texts import LanguageModel, TextModel
from exhume.models.probes import before
from exhume.models.split.cost import multiply_adds
from exhume.models.two_layer import TwoLayer
from exhume.train.least_squares import least_norm
from exhume.train.local import LocalTraining, Steps
from exhume.train.order import rows_behind
from exhume.victims.gradient import release_updates

_EXPLAINED = 1e-3  # relative: rounding of fp32 states leaves 1e-5 to 1e-4
_AGREEING = 3  # neurons
_NUMBERS = 5e7  # of gradients that are weighed at once
_CHANGES, _SMALL = 24, 1e-4  # of records, to see whether the update shows them, and how large
_DETERMINED = 0.02  # residual over the least visible change: how far off the records may be
_EQUAL = 0.02  # relative: weights of records
_BLIND = 1e-7  # of the largest singular value: rounding of differences
_OPERATIONS = 2e10  # that singular values may take
_SUMS = 4  # that each number of an update enters: two that share one are told apart by the others


def proof_of(
    gradient: Gradient, architecture: Architecture, found: Reconstruction, steps: Steps, by: str
) -> Proof:
    """One release (1, p) of a mean loss and its candidates (1, k, *shape); `by` is the attack's id."""
    sent, residuals = _Sent(gradient, architecture, steps), []
    for chosen, labels in _selections(sent, found, by):
        if bool(chosen.any()):
            try:
                proof = _explained(sent, found.candidates[0], chosen, labels)
            except ValueError:  # batch norm of one record, in train mode
                continue
            if proof.records:
                return proof
            residuals += [] if proof.residual is None else [proof.residual]
    return Proof(0, "", min(residuals, default=None))


@dataclass(frozen=True, eq=False)
class _Sent:
    """An update, and how it was made."""

    gradient: Gradient  # (1, p)
    architecture: Architecture
    steps: Steps

    @property
    def values(self) -> Tensor:
        return self.gradient.values[0]

    @property
    def start(self) -> Tensor:
        return self.gradient.at if self.gradient.at.ndim == 1 else self.gradient.at[0]


def _selections(
    sent: _Sent, found: Reconstruction, by: str
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """(k,) bool candidates that may be the whole batch, and (k,) labels; the cheapest to select first."""
    real, labels = found.real[0], None if found.labels is None else found.labels[0]
    yield real, labels
    if by == "bias-ratio":
        yield real & (found.confidence[0] >= _AGREEING), labels
    yield _weighed(sent, found)


def _weighed(sent: _Sent, found: Reconstruction) -> tuple[Tensor, Tensor]:
    """(k,) bool candidates whose mean gradient is the update, and (k,) their labels; none: no such."""
    candidates, steps = found.found().to(sent.values.dtype), sent.steps
    chosen, labels = torch.zeros_like(found.real[0]), torch.full(found.real.shape[1:], -1)
    if steps.several or not len(candidates) or not isinstance(sent.architecture, MLP | TwoLayer):
        return chosen, labels  # the mean of several gradients is known of these alone
    classes = _classes(sent)
    count = len(classes) * len(candidates)
    if not 0 < count * len(sent.start) <= _NUMBERS:
        return chosen, labels
    every = classes.repeat(len(candidates))
    tried = Records(candidates.repeat_interleave(len(classes), 0), every, ())
    each, _ = release_updates(steps.of(sent.architecture), sent.start, tried.one_each())
    basis, inside = torch.linalg.qr(each.values.double().T)
    solved, _ = nnls(inside.numpy(), (basis.T @ sent.values.double()).numpy())
    weights = torch.from_numpy(solved)
    picked = (weights > _EQUAL * weights.max()).nonzero()[:, 0]
    even, places = weights[picked] * len(picked), picked // len(classes)
    if len(torch.unique(places)) == len(picked) and bool(((even - 1).abs() < _EQUAL).all()):
        rows = found.real[0].nonzero()[:, 0][places]
        chosen[rows], labels[rows] = True, every[picked]
    return chosen, labels


def _classes(sent: _Sent) -> Tensor:
    """Labels certainly in the batch: only these lower a bias of the last layer. None where it has none."""
    layout = sent.architecture.layout
    if len(layout.shapes[-1]) != 1:
        return torch.zeros(0, dtype=torch.long)
    slopes = layout.split(sent.values)[layout.names[-1]]
    if not bool(slopes.any()):  # frozen
        return torch.arange(max(2, len(slopes)))
    return torch.arange(2) if len(slopes) == 1 else (slopes < 0).nonzero()[:, 0]


def _explained(sent: _Sent, candidates: Tensor, chosen: Tensor, labels: Tensor | None) -> Proof:
    """Whether training on the chosen candidates (k,) gives the update back."""
    network, steps = sent.architecture, sent.steps
    records = candidates[chosen].to(sent.values.dtype)
    layers = network.build().modules()
    if len(records) == 1 and any(isinstance(x, nn.BatchNorm1d) and x.training for x in layers):
        return Proof(0)  # batch norm in train mode has no statistics of a single vector
    labels = None if labels is None else labels[chosen]
    if isinstance(network, LanguageModel):  # its texts are their own labels, or hide them
        records = as_trained(network, sent.values, sent.start, records)
        labels = torch.zeros(len(records), dtype=torch.int64)
    if labels is None or int(labels.min()) < 0 or steps.routine.loss == "mse":
        labels = labels_behind(sent.gradient, network, records, steps.routine.loss)
    if labels is None:
        return Proof(0)
    batch = Records(records[None], labels[None], ())
    # candidates have no order
    drawn = replace(steps, routine=replace(steps.routine, shuffled=True))
    order = order_behind(sent.gradient, network, batch, drawn)
    again = retrained(sent.gradient, steps.of(network), batch, order)
    residual = float((again - sent.values).norm() / sent.values.norm().clamp_min(1e-30))
    enough = network.layout.size > len(records) * math.prod(network.input_shape)
    if not residual < _EXPLAINED or not enough:
        return Proof(0, "", residual)
    seen = _visible(sent, batch, order)
    least = _least(sent, batch, order)
    if not residual < _DETERMINED * seen or (least is not None and least < _BLIND):
        return Proof(0, "", residual)
    sentence = (
        f"Training on {len(records)} reconstructions gives the update back up to {residual:.1e}"
    )
    if not isinstance(network, TextModel):
        sentence += (
            f"; every change of them that was tried would show (the least {seen:.0%} of the most)"
        )
        sentence += "" if least is None else f", with a condition number of {1 / least:.0e}"
    sign_open = isinstance(network, TwoLayer) and network.outputs <= 2 and odd(network.sigma)
    sentence += ", and so would the negative of each." if sign_open else "."
    known = labels if labels.ndim == 1 else None  # numbers are no classes
    return Proof(len(records), sentence, residual, chosen, known)


def order_behind(
    gradient: Gradient, architecture: Architecture, batch: Records, steps: Steps
) -> list[Tensor] | None:
    """Rows of one batch (1, n, *shape) that each step saw; None: all, or in their order."""
    sent = _Sent(gradient, architecture, steps)
    local = steps.of(architecture)
    return rows_behind(local, sent.start, batch.inputs[0], batch.labels[0], sent.values)


def retrained(
    gradient: Gradient, local: LocalTraining, batch: Records, order: list[Tensor] | None
) -> Tensor:
    """(p,) the update that one batch (1, n, *shape) gives at the same weights."""
    start = gradient.at if gradient.at.ndim == 1 else gradient.at[0]
    if isinstance(local.architecture, TextModel):
        return local.updates(start, batch, Key.from_seed(0), order=order)[0]
    return release_updates(local, start, batch, order=order)[0].values[0]


def _visible(sent: _Sent, batch: Records, order: list[Tensor] | None) -> float:
    """How well the update sees the change of the records that it sees least, relative to the best seen.

    Tried are random changes of single records, and opposite changes of two, which keep a mean: if some of
    them do not show, other records would give the same update. 1 for tokens: these do not change a little.
    """
    if isinstance(sent.architecture, TextModel):
        return 1.0
    exact = Records(batch.inputs.double(), batch.labels, batch.classes)
    count = exact.inputs.shape[1]
    generator = Key.from_seed(0).fold("directions").generator()
    moved = []
    for turn in range(_CHANGES):
        change = torch.zeros_like(exact.inputs)
        place = turn % count
        drawn = torch.randn(exact.inputs.shape[2:], generator=generator, dtype=torch.float64)
        change[0, place] = drawn
        if count > 1 and turn % 2:
            change[0, (place + 1 + turn // count % (count - 1)) % count] -= drawn
        moved.append(exact.inputs + _SMALL * change / change.norm())
    whole = torch.cat([exact.inputs, *moved])
    labels = exact.labels.expand(len(whole), *exact.labels.shape[1:])
    local, start = sent.steps.of(sent.architecture), sent.start.double()
    made, _ = release_updates(local, start, Records(whole, labels, ()), order=order)
    shown = (made.values[1:] - made.values[:1]).norm(dim=1)
    return float(shown.min() / shown.max().clamp_min(1e-300))


def _least(sent: _Sent, batch: Records, order: list[Tensor] | None) -> float | None:
    """Least singular value of the update's Jacobian by one record over the largest; of the worst record.

    None: there is none for tokens, or it takes too long. A column is a difference of two updates, of which
    random sums are kept, enough to tell the rank.
    """
    network, count = sent.architecture, batch.inputs.shape[1]
    size = math.prod(network.input_shape)
    if isinstance(network, TextModel):
        return None
    steps, each = len(sent.steps.rates(count)), multiply_adds(network.build(), network.input_shape)
    if 2 * size * count * (6 * steps * count * each + 30 * len(sent.values)) > _OPERATIONS:
        return None
    generator = Key.from_seed(0).fold("sums").generator()
    width, shape = 2 * size + 8, (_SUMS, len(sent.values))
    sums = torch.randint(width, shape, generator=generator) + width * torch.arange(_SUMS)[:, None]
    signs = 2.0 * torch.randint(2, shape, generator=generator).double() - 1
    local, start = sent.steps.of(network), sent.start.double()
    rows = max(1, int(_NUMBERS / (16 * max(len(start), count * size))))
    worst = 1.0
    for place in range(count):
        columns = torch.zeros(size, _SUMS * width, dtype=torch.float64)
        for some in torch.split(torch.arange(size), rows):
            moved = batch.inputs.double().flatten(2).repeat(2 * len(some), 1, 1)
            step = torch.tensor([_SMALL, -_SMALL]).double().repeat_interleave(len(some))
            moved[torch.arange(len(moved)), place, some.repeat(2)] += step
            inputs = moved.view(len(moved), *batch.inputs.shape[1:])
            labels = batch.labels.expand(len(moved), *batch.labels.shape[1:])
            made, _ = release_updates(local, start, Records(inputs, labels, ()), order=order)
            change = made.values[: len(some)] - made.values[len(some) :]
            for into, sign in zip(sums, signs, strict=True):
                columns[some] = columns[some].index_add_(1, into, change * sign)
        values = torch.linalg.svdvals(columns)
        worst = min(worst, float(values[-1] / values[0].clamp_min(1e-300)))
    return worst


def labels_behind(
    gradient: Gradient, architecture: Architecture, records: Tensor, loss: str = "cross-entropy"
) -> Tensor | None:
    """(b,) labels, given all records: dL/dW of the last layer is 1/b sum_i (p_i - y_i) h_i^T.

    Of the squared error (b, c) numbers.
    """
    module, layout = architecture.build(), architecture.layout
    seen: list[tuple[str, Tensor]] = []  # in the order of use
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    with before(module, linear, lambda n, given: seen.append((f"{n}.weight", given.detach()))):
        at = gradient.at if gradient.at.ndim == 1 else gradient.at[0]
        outputs = functional_call(module, layout.split(at), (records,))
    outputs = outputs.detach().double()
    if not seen or seen[-1][0] not in layout.names:
        return None
    name, heights = seen[-1][0], seen[-1][1].double()
    slope = layout.split(gradient.values[0])[name].double()
    if len(slope) != outputs.shape[1] or heights.ndim != 2 or heights.shape[1] < len(records):
        return None
    residuals = len(records) * least_norm(heights.T, slope.T)
    if loss == "mse":
        numbers: Tensor = outputs - outputs.shape[1] / 2 * residuals
        return numbers.to(records.dtype)
    return labels_of(outputs, residuals)
