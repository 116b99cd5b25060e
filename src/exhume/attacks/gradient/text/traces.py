"""What the texts of a batch leave in a language model's gradient: a span at every site.

Local sites tell which token may stand at which place; the others, whether the places before (or all places)
can stand together. The vectors of a candidate are computed by the network itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.text.spans import Span, span_of
from exhume.core.contract import NotApplicable
from exhume.models.own.language import LanguageModel, Site

__all__ = ["Traces", "traces_of"]

_CHUNK = 1024  # sequences that go through the network at once
_INDEPENDENT = 1e-6  # relative: vectors that differ by more than rounding
_LOST = 50  # one vector of so many may be too weak to show at a site


@dataclass(frozen=True, eq=False)
class Traces:
    net: LanguageModel
    at: Tensor  # (p,)
    local: tuple[tuple[Site, Span], ...]
    mixed: tuple[tuple[Site, Span], ...]  # in the order of use

    def allowed(self) -> list[Tensor]:
        """For each place the tokens that may stand there, without padding."""
        every = torch.arange(self.net.vocabulary)
        if not self.local:
            fits = torch.ones(self.net.length, len(every), dtype=torch.bool)
        else:
            parts = [
                self.worst(part[:, None].expand(-1, self.net.length), self.local) <= 1
                for part in torch.split(every, _CHUNK)
            ]
            fits = torch.cat(parts).T.clone()
        if self.net.padding is not None:
            fits[:, self.net.padding] = False
        return [every[row] for row in fits]

    def outside(self, tokens: Tensor, sites: Sequence[tuple[Site, Span]]) -> Tensor:
        """(n, l) to (s, n, l): distances from the spans of these sites, over their tolerance."""
        parts = []
        for part in torch.split(tokens, _CHUNK):
            seen = self.net.seen(self.at, part, [site for site, _ in sites])
            each = zip(sites, seen, strict=True)
            parts.append(torch.stack([span.outside(some) for (_, span), some in each]))
        return torch.cat(parts, 1)

    def worst(self, tokens: Tensor, sites: Sequence[tuple[Site, Span]]) -> Tensor:
        """(n, l) to (n, l): the largest over the sites; up to 1, every site may have seen it."""
        return self.outside(tokens, sites).amax(0)

    def filled(self, tokens: Tensor, real: Tensor | None = None) -> bool:
        """Whether the vectors of these texts (n, l) make up all that the sites have seen.

        real: (n, l) places that leave a trace; None: all but padding.
        """
        if real is None:
            fill = self.net.padding
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
    if not any(not site.local for site in net.sites):
        raise NotApplicable(
            f"{net}: no trained linear layer sees what attention has mixed", ever=False
        )
    if not any(bool(one.any()) for site in net.sites for one in site.slopes(parts)):
        raise NotApplicable(
            "every value of the update is zero at the layers that see texts", ever=False
        )
    if not mixed:
        width = min(site.slopes(parts)[0].shape[1] for site in net.sites)
        raise NotApplicable(
            f"the batch has as many places as its layers are wide ({width}), or more: their vectors fill "
            "the span, so that no text can be told from another; which tokens occur is told by their rows",
            ever=False,
        )
    most = max(span.rank for _, span in mixed)
    return Traces(
        net,
        at,
        local,
        tuple((site, span) for site, span in mixed if span.rank >= most - most // _LOST),
    )
