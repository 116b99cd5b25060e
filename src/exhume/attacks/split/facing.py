"""Pictures or their negatives: which of the two is distributed like the server's own records?

A head that was only guessed may be right up to a sign: natural images resemble their negatives, so a
lookalike's features can be distributed as the client's are, and all that it decodes comes back with dark
and bright exchanged. Anyone who looks at it sees that. So does a machine, with many pictures at once:
along the principal directions of the server's own records, the decoded ones or their mirror images

    x' = 2·mean(own) - x,      the mean of a channel over all places

are nearer in distribution (skies are above and bright; few coordinates of natural images are symmetric).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_DIRECTIONS = 32  # principal ones that are compared
_EXAMPLES = 1000  # own records that give these
_LEVELS = 99  # quantiles of each
_CLEARLY = 0.5  # of the distance: where mirror images are that much nearer, they are the pictures
_AT_ONCE = 500


def faced(
    decoder: nn.Module, head: nn.Module, seen: Tensor, own: Tensor
) -> tuple[nn.Module, nn.Module, dict[str, float]]:
    """Decoder and head, or their mirror images if those turn features seen into records more like one's own.

    seen: (n, *features) that the client has sent; own: (m, *shape). Also how far either is.
    """
    with torch.no_grad():
        found = torch.cat([decoder(part) for part in torch.split(seen, _AT_ONCE)])
    mirror = _Mirror(_level(own))
    as_is, mirrored = _distances(found, own, mirror)
    observed = {"unlike_own": as_is, "unlike_own_mirrored": mirrored}
    if mirrored > _CLEARLY * as_is:
        return decoder, head, observed
    return nn.Sequential(decoder, mirror).eval(), nn.Sequential(mirror, head).eval(), observed


def _level(images: Tensor) -> Tensor:
    """Brightness of each channel; of numbers without places, the mean of each."""
    return images.mean((0, 2, 3), keepdim=True)[0] if images.ndim == 4 else images.mean(0)


@torch.no_grad()
def _distances(found: Tensor, own: Tensor, mirror: nn.Module) -> tuple[float, float]:
    """Squared Wasserstein distances along the principal directions, as it is and mirrored.

    Brightness and contrast are no matter.
    """
    spread = own.std() / found.std().clamp_min(1e-12)
    found = (found - _level(found)) * spread + _level(own)
    mean, flat = own.mean(0).flatten(), own.flatten(1)
    some = flat[:_EXAMPLES] - mean
    _, vectors = torch.linalg.eigh(some @ some.T)
    along = some.T @ vectors[:, -_DIRECTIONS:]
    along = along / ((flat - mean) @ along).std(0).clamp_min(1e-12)
    levels = torch.linspace(0, 1, _LEVELS + 2, device=own.device, dtype=own.dtype)[1:-1]

    def quantiles(images: Tensor) -> Tensor:
        return torch.quantile((images.flatten(1) - mean) @ along, levels, dim=0)

    wanted = quantiles(own)
    apart = [(quantiles(one) - wanted).square().mean() for one in (found, mirror(found))]
    return float(apart[0]), float(apart[1])


class _Mirror(nn.Module):
    def __init__(self, level: Tensor) -> None:
        super().__init__()
        self.register_buffer("level", level)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.get_buffer("level") - x
