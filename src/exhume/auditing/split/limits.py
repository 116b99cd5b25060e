"""A channel in the audit: the best namer beside the bound for every attacker, and the alarm.

The namer knows the head and all inputs that come into question; only the noise is unknown to it. Where it is
certainly above the bound, the noise or the numbers are not what the channel states.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from exhume.attacks.split.namer import likeliest
from exhume.auditing.measured import Measured
from exhume.bounds.channel import bits, naming, success
from exhume.bounds.prior import ALARM_LEVEL, Certificate, certify
from exhume.core.contract import Cost, Key, Outcome, Records, Status
from exhume.core.results import AttackSpec, Findings, Section
from exhume.models.split.pipeline import Pipeline
from exhume.score.verdict import broken, not_audited

__all__ = ["audit_channel", "identified_at_most"]

_FEW = 10  # inputs on a short list
_REQUESTS = 2_000
_SPEC = AttackSpec(
    "channel-namer",
    "Naming the input, the head and all inputs known",
    "ours",
    "what the client sends, and everything but its noise",
)


def audit_channel(
    pipeline: Pipeline, inputs: Records, met: Sequence[Findings], key: Key
) -> Findings:
    """The section of the report. Naming a listed input is no reconstruction: only an alarm counts.

    inputs: those that come into question; met: the other attackers of the same channel.
    """
    started, pool = time.perf_counter(), inputs.inputs
    sigma, quiet = pipeline.client.sigma, replace(pipeline.client, sigma=0.0)
    words = replace(pipeline, client=quiet).released(pool)
    made = {}
    for count in sorted({min(_FEW, len(pool)), len(pool)}):
        right = _named(pipeline, pool, words, count, key.fold("among", count))
        game = f"the input named among {count:,}"
        made[_SPEC.name, game] = _certificate(right, count, words.shape[1], sigma)
    measured = Measured(made, _notes(words.shape[1], sigma, met))
    alarm, best = measured.alarm, next(iter(made.values()))
    metrics = {"named": best.rate, "guessing": best.kappa, "allowed": best.bound}
    section = Section(
        _SPEC,
        Status(Outcome.CONVERGED),
        ("candidates", "parts"),
        metrics,
        counts=bool(alarm),
        cost=Cost(time.perf_counter() - started),
        limits=measured.section(),
    )
    verdict = broken(alarm) if alarm else not_audited("naming reconstructs nothing")
    return Findings(section, verdict)


def identified_at_most(strangers: int, sigma: float) -> float:
    """Share of inputs that any attack may identify among so many strangers, by either of two measures."""
    return success(min(1.0, 2 / (strangers + 1)), sigma)


def _named(pipeline: Pipeline, pool: Tensor, words: Tensor, count: int, key: Key) -> Tensor:
    """(r,) bool: requests of inputs from lists of so many, each list drawn anew unless it is all of them."""
    draw = key.generator()
    if count == len(pool):
        which = torch.randint(count, (_REQUESTS,), generator=draw)
        sent = pipeline.released(pool[which], key.fold("noise"))
        return likeliest(sent, words)[0].cpu() == which
    lists = torch.stack(
        [torch.randperm(len(pool), generator=draw)[:count] for _ in range(_REQUESTS)]
    )
    sent = pipeline.released(pool[lists[:, 0]], key.fold("noise"))
    nearest = (sent[:, None] - words[lists]).norm(dim=2).argmin(1).cpu()
    named: Tensor = nearest == 0
    return named


def _certificate(right: Tensor, count: int, numbers: int, sigma: float) -> Certificate:
    bound = naming(count, numbers, sigma)
    total = int(right.sum()), len(right)
    return certify(*total, kappa=1 / count, bound=bound, comparisons=2, of="the channel")


def _notes(numbers: int, sigma: float, met: Sequence[Findings]) -> tuple[str, ...]:
    told, ten = bits(numbers, sigma), bits(numbers, sigma, 10)
    notes = [
        f"A request is {numbers} numbers of length at most 1 with fresh Gaussian noise of {sigma:.3g}: at "
        f"most {told:.3g} bits about its input, on average over inputs (not for each of them).",
        "The bound is min{1, (b + 1)/log2 K, Phi(Phi^-1(1/K) + 1/sigma)} for naming one of K. It holds for "
        "every attacker, whatever it knows of the network, if the noise is an ideal Gaussian, fresh for "
        "every request, and nothing else is sent.",
        f"Ten requests of the same input are worth {ten:.3g} bits; of ten different ones, {10 * told:.3g}.",
        f"An alarm means that the exact lower limit of the success, at {ALARM_LEVEL:g} over the number of "
        "rows, is above the bound.",
    ]
    rows = [one.section.lineup for one in met if one.section.lineup is not None]
    if rows:
        most = identified_at_most(min(row.strangers for row in rows), sigma)
        notes.append(
            f"In the line-ups of this channel, no attack can identify more than {most:.1%} of the inputs, on "
            "average."
        )
    return tuple(notes)
