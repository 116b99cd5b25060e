"""Texts of a causal model, read from the first place to the last.

What a layer sees at a place depends on the tokens up to it: a prefix of some text of the batch lies in every
span, and any other does not. A prefix that nothing continues is a text that ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exhume.attacks.gradient.text.traces import Traces
from exhume.core.contract import NotApplicable

__all__ = ["read_forward"]

_STAGES = (1, 4, None)  # sites: what lies behind them is run for what is left
_FITTING = 300  # beginnings that may fit
_AT_ONCE = 200_000  # continuations of one place that are tried


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
