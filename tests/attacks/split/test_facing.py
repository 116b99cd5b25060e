"""Pictures from their negatives, told by the server's own records."""

import pytest
import torch
from torch import nn

from exhume import readers
from exhume.attacks.split.shadow import resolve_contrast_sign


class Linear(nn.Module):
    """brightness + contrast · x"""

    def __init__(self, brightness, contrast):
        super().__init__()
        self.brightness, self.contrast = brightness, contrast

    def forward(self, x):
        return self.brightness + self.contrast * x


@pytest.fixture(scope="module")
def images():
    records = readers.load("digits").inputs
    return records[:400], records[400:600]


@pytest.mark.parametrize(("brightness", "contrast"), [(0.0, 1.0), (0.3, 0.2)])
def test_what_is_upright_stays(images, brightness, contrast):
    own, sent = images
    decoder, head, observed = resolve_contrast_sign(
        Linear(brightness, contrast), nn.Identity(), sent, own
    )
    assert torch.equal(decoder(sent), brightness + contrast * sent)
    assert isinstance(head, nn.Identity)
    assert observed["unlike_own"] < observed["unlike_own_mirrored"]


@pytest.mark.parametrize(("brightness", "contrast"), [(1.0, -1.0), (0.6, -0.2)])
def test_negatives_are_mirrored_and_so_is_the_head(images, brightness, contrast):
    own, sent = images
    head = Linear(-brightness / contrast, 1 / contrast)  # undoes the decoder
    decoder, mirrored, observed = resolve_contrast_sign(
        Linear(brightness, contrast), head, sent, own
    )
    found = decoder(sent)
    apart = (found - found.mean(0)).flatten() @ (sent - sent.mean(0)).flatten()
    assert apart > 0
    assert torch.allclose(mirrored(found), sent, atol=1e-5)
    assert observed["unlike_own_mirrored"] < observed["unlike_own"]
