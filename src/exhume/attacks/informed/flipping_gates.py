"""A step along the guess's own training, with every gate near its kink as an unknown of its own.

Near the truth the weights of a network with kinks differ from those of a guess less by the guess's own error
dz than by gates of *known* records that flip somewhere in training (jumping_gates.py). What a flip does is
known, too: a push of that gate, carried through the rest of training. With questions c about the weights
and the answers a of train/influence.py along the guess's own path,

    <c, theta - theta(z)>  ≈  sum_t <a_t, df_t/dz dz> / (n + 1)  +  sum_g <a_t(g), push_g> flip_g,

where gates do not flip in the Hessians, since they do so one by one. dz is estimated with the flips as
noise whose covariance is known: the likelier a gate flips, the less is learned from where its push leads.
How likely, and how exact the equations are, is not known; several answers are given, and training on
them tells which is right.

Cost: a training for each question, of which there are as many as unknowns: inputs and gates in doubt.
Memory: 4·p bytes a gate in doubt, at most `_MOST` of them, and 8·q² bytes for the equations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from exhume.attacks.informed.record_jacobian import record_pushes
from exhume.core.contract import Key, Progress, Records
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.train.influence import backward, pushes
from exhume.train.optimisers import Descent

_WIDTHS = (0.5, 1.0, 2.0)  # of how far gates move, tried
_NOISES = (0.01, 0.03, 0.1)  # of the residual that the equations leave out, tried
_DOUBT = 1e-4  # how likely a gate must flip to be an unknown
_MOST = 8000  # gates in doubt, the likeliest
_CHUNK = 64  # questions at once


@dataclass(frozen=True, eq=False)
class Own:
    """A guess and its own training."""

    record: Tensor  # (d,)
    label: Tensor  # ()
    path: Tensor  # (steps, p)
    moved: Tensor  # (steps, p) the path of a training that is as far off as the release
    missing: Tensor  # (p,) theta - theta(z)
    deviation: float  # how far off the record is thought to be


@dataclass(frozen=True, eq=False)
class _Doubts:
    """Gates that may flip, in the order of their steps."""

    pushes: list[Tensor]  # (gates of the step, p) a step
    closeness: Tensor  # (g,) distances from the kink, over how far gates move
    pairs: int  # a record's unit that is in doubt in some step, or several

    def likely(self, width: float) -> Tensor:
        """(g,) how likely they flip."""
        likely: Tensor = torch.special.ndtr(-self.closeness.double() / width)
        return likely


@dataclass(frozen=True, eq=False)
class FlippingGates:
    mlp: MLP
    descent: Descent
    fixed: Records
    questions: float  # at most, for each input
    key: Key
    progress: Progress

    @property
    def needed(self) -> bool:
        """Whether the network has kinks at all."""
        return activation(self.mlp.activation).curve is None

    def steps(self, own: Own) -> Tensor:
        """(m, d) changes of the record that may bring it to the truth."""
        inputs = torch.cat([self.fixed.inputs, own.record.view(1, *self.fixed.shape)])
        labels = torch.cat([self.fixed.labels, own.label[None]])
        records = Records(inputs, labels, self.fixed.classes)
        doubts = _in_doubt(_Gates(self.mlp, records), own)
        d = len(own.record)
        count = min(int(self.questions * d), d + doubts.pairs)
        drawn = torch.randn(
            count, self.mlp.layout.size, generator=self.key.fold("own questions").generator()
        )
        questions = drawn.to(own.path) / self.mlp.layout.size**0.5
        by_record, by_gates = self._asked(own, records, doubts, questions)
        return torch.stack(list(_solved(questions @ own.missing, by_record, by_gates, doubts, own)))

    def _asked(
        self, own: Own, records: Records, doubts: _Doubts, questions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The questions' answers by record, (q, d), and by gate, (q, g)."""
        onehot = F.one_hot(own.label, self.mlp.outputs).to(own.path).expand(len(own.path), 1, -1)
        made = record_pushes(self.mlp, own.path[:, None], own.record[None], pushes, onehot)
        errors, d_errors, d_rest, weights = (part[:, 0] for part in made)
        found, total = [], len(records)
        for done in range(0, len(questions), _CHUNK):
            self.progress("differentiating through its own training", done, len(questions))
            some = questions[done : done + _CHUNK]
            by_record = some.new_zeros(len(some), len(own.record))
            by_gates = list[Tensor]()
            for t, pushed in backward(self.mlp, self.descent, own.path, records, some, blur=0.0):
                rest = torch.cat([a.flatten(1) for a in pushed[1:]], 1)
                through = (pushed[0] @ own.record) @ d_errors[t] + rest @ d_rest[t]
                by_record += torch.einsum("qkd,k->qd", pushed[0], errors[t]) + through @ weights[t]
                by_gates.append(torch.cat([pushed[0].flatten(1), rest], 1) @ doubts.pushes[t].T)
            found.append((by_record / total, torch.cat(by_gates[::-1], 1) / total))
        self.progress("differentiating through its own training", len(questions), len(questions))
        return torch.cat([one for one, _ in found]), torch.cat([one for _, one in found])


def _in_doubt(gates: _Gates, own: Own) -> _Doubts:
    """Gates that may flip between the guess's training and the release's."""
    where, low, high = gates.act.kink
    near, widest = [], _widest()
    for t, (here, there) in enumerate(zip(own.path, own.moved, strict=True)):
        before, other = gates.entering(here), gates.entering(there)
        first = gates.layers(here)[0][0].norm(dim=1)
        for layer, (x, y) in enumerate(zip(before, other, strict=True)):
            moves = (
                (x - y).square().mean(1, keepdim=True).sqrt().clamp_min(1e-30).repeat(1, len(x.T))
            )
            if not layer:  # the record itself moves, too
                moves[:, -1] += own.deviation * first
            close = (x - where).abs() / moves
            unit, record = (close < widest).nonzero().T
            place = torch.tensor([[t, layer]], device=x.device).expand(len(unit), 2)
            near.append(
                (close[unit, record], torch.cat([place, unit[:, None], record[:, None]], 1))
            )
    closeness = torch.cat([close for close, _ in near])
    places = torch.cat([place for _, place in near])
    if len(closeness) > _MOST:
        kept = closeness.topk(_MOST, largest=False).indices.sort().values
        closeness, places = closeness[kept], places[kept]
    found = [
        (high - low) * gates.opened(weights, places[places[:, 0] == t])
        for t, weights in enumerate(own.path)
    ]
    return _Doubts(found, closeness, len(torch.unique(places[:, 1:], dim=0)))


@dataclass(frozen=True, eq=False)
class _Gates:
    """The gates of all records in one model after the other."""

    mlp: MLP
    records: Records

    @cached_property
    def act(self) -> Activation:
        return activation(self.mlp.activation)

    @cached_property
    def _inputs(self) -> Tensor:
        return self.records.inputs.flatten(1).T.contiguous()

    def layers(self, weights: Tensor) -> list[tuple[Tensor, Tensor]]:
        parts = list(self.mlp.layout.split(weights).values())
        return list(zip(parts[::2], parts[1::2], strict=True))

    def entering(self, weights: Tensor) -> list[Tensor]:
        """What enters the activations, (k, n) for each hidden layer."""
        signal, found = self._inputs, []
        for weight, bias in self.layers(weights)[:-1]:
            found.append(weight @ signal + bias[:, None])
            signal = self.act.apply(found[-1])
        return found

    def opened(self, weights: Tensor, places: Tensor) -> Tensor:
        """What the sum of all gradients gains if a gate's slope rises by 1: (g, p).

        places: (g, 4) step, layer, unit, record.
        """
        layers, before = self.layers(weights), self.entering(weights)
        outputs = [self._inputs, *(self.act.apply(x) for x in before)]
        slopes = [self.act.slope(x, y) for x, y in zip(before, outputs[1:], strict=True)]
        weight, bias = layers[-1]
        logits = weight @ outputs[-1] + bias[:, None]
        error = torch.softmax(logits, 0) - F.one_hot(self.records.labels, self.mlp.outputs).T
        found = weights.new_zeros(len(places), self.mlp.layout.size)
        for layer in range(len(before) - 1, -1, -1):
            back = layers[layer + 1][0].T @ error
            rows = (places[:, 1] == layer).nonzero()[:, 0]
            unit, record = places[rows, 2:].T
            raised = F.one_hot(unit, len(back)) * back[unit, record][:, None]
            below = [one[:, record].T for one in slopes[:layer]]
            seen = [one[:, record].T for one in outputs[: layer + 1]]
            behind = sum(one.numel() for pair in layers[layer + 1 :] for one in pair)
            mine = _carried(raised, layers, seen, below)
            found[rows] = F.pad(mine, (0, behind))
            error = back * slopes[layer]
        return found


def _carried(
    error: Tensor, layers: list[tuple[Tensor, Tensor]], seen: list[Tensor], slopes: list[Tensor]
) -> Tensor:
    """(g, k) errors at a layer to the gradients of it and of all below. seen: what enters each of them."""
    parts = list[Tensor]()
    for layer in range(len(seen) - 1, -1, -1):
        parts = [torch.einsum("gk,gd->gkd", error, seen[layer]).flatten(1), error, *parts]
        if layer:
            error = (error @ layers[layer][0]) * slopes[layer - 1]
    return torch.cat(parts, 1)


def _widest() -> float:
    """How many widths from its kink a gate may be to be in doubt at all."""
    certain = torch.special.ndtri(torch.tensor(_DOUBT, dtype=torch.float64))
    return float(-certain * max(_WIDTHS))


def _solved(
    asked: Tensor, by_record: Tensor, by_gates: Tensor, doubts: _Doubts, own: Own
) -> Iterator[Tensor]:
    """The record's change under each width and noise: the mean given the answers, flips being noise."""
    right, steep, gates = asked.double(), by_record.double(), by_gates.double()
    eye = torch.eye(len(right), dtype=torch.float64, device=right.device)
    signal = own.deviation**2 * steep @ steep.T
    for width in _WIDTHS:
        spread = signal + (gates * doubts.likely(width)) @ gates.T
        for noise in _NOISES:
            unexplained = noise**2 * float(right.square().mean())
            factor = torch.linalg.cholesky(spread + unexplained * eye)
            weighed = torch.cholesky_solve(right[:, None], factor)[:, 0]
            yield (own.deviation**2 * steep.T @ weighed).to(own.record)
