"""A vision transformer of a user's own, small enough for a test."""

from __future__ import annotations

import torch
from torch import nn

from exhume.models.own import ModuleArchitecture


class Vision(nn.Module):
    """Patches by a convolution or by a layer; the places' vectors trained, or not."""

    def __init__(
        self,
        *,
        width: int = 32,
        side: int = 8,
        patch: int = 2,
        layer: bool = False,
        places: bool = True,
        outputs: int = 10,
    ) -> None:
        super().__init__()
        self.patch, self.outputs = patch, outputs
        self.take = nn.Linear(patch * patch, width) if layer else nn.Conv2d(1, width, patch, patch)
        where = 0.1 * torch.randn(1, (side // patch) ** 2, width)
        self.where = nn.Parameter(where) if places else where
        self.block = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.out = nn.Linear(width, outputs)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        records = (records - 0.3) / 0.5  # the client's normalisation, in the model
        if isinstance(self.take, nn.Linear):
            cut = records.unfold(2, self.patch, self.patch).unfold(3, self.patch, self.patch)
            tokens = self.take(cut.flatten(4).flatten(1, 3))
        else:
            tokens = self.take(records).flatten(2).transpose(1, 2)
        return self.out(self.block(tokens + self.where).mean(1))


def vision(seed: int = 0, **options) -> ModuleArchitecture:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ModuleArchitecture.of(Vision(**options), (1, 8, 8))
