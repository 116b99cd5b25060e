"""Everything of a split network follows its inputs to another device.

The other device is `meta`, where nothing is computed, in a mode in which a tensor of one device that meets a
tensor of another is an error for every operation: on `meta` alone, products and convolutions are silent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from exhume.attacks.split.as_sent import _Shown
from exhume.attacks.split.cipher import unplaced
from exhume.attacks.split.lookalike import Windows
from exhume.attacks.split.shadow import moment_distance, moments
from exhume.core.contract import Key, Records
from exhume.models.split.channel import ChannelNetwork, FreshNoise, likeliest
from exhume.models.split.cut import cut
from exhume.models.split.inverter import Decoder, OwnForm, ShadowHead
from exhume.models.split.networks import VGG16, ResNet18
from exhume.models.split.pipeline import SplitClient
from exhume.models.split.seq2seq import Translator, sinusoids
from exhume.train.single import apply_dropout, augmented_images, translate

KEY = Key.from_seed(0)
OTHER = torch.device("meta")  # whose tensors say so, and that is all they do
NET = ResNet18((1, 8, 8), outputs=3, width=4)
WORDS = Translator(20, 20, width=8, heads=2, layers=1, hidden=8)


def moved(make: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    """What is made here, with weights that are there."""
    with unset_fake_temporarily():
        module = make()
    for owner in module.modules():
        for kind in (owner._parameters, owner._buffers):
            for name, held in kind.items():
                if held is not None:
                    there = torch.empty_like(held, device=device)
                    weight = kind is owner._parameters
                    kind[name] = nn.Parameter(there, requires_grad=False) if weight else there
    return module


def images(device, n=4):
    return torch.zeros(n, 1, 8, 8, device=device)


def plain():
    return cut(NET.module(KEY), "conv1", "pool").whole.eval()


def a_client(device):
    """With fixed noise, and the whole way through the body."""
    parts = moved(plain, device)
    noise = torch.zeros_like(parts["head"](images(device))[0])
    client = SplitClient(parts["head"], noise, (0,), parts["tail"])
    return client.finish([parts["body"](client.send(images(device)))])


def a_channel(device):
    network = ChannelNetwork(NET, "conv1", "pool", 4)

    def made():
        return cut(network.module(KEY), "encode", "body").whole.eval()

    parts = moved(made, device)
    sent = FreshNoise(0.5)(parts["head"](images(device)), KEY.generator())
    return parts["tail"](parts["body"](sent))


def a_vgg(device):
    vgg = moved(lambda: VGG16((1, 32, 32), outputs=3, width=2).module(KEY).eval(), device)
    return vgg(torch.zeros(2, 1, 32, 32, device=device))


def a_shadow_and_a_decoder(device):
    head = moved(lambda: ShadowHead(4).module((1, 8, 8), (4, 4, 4), KEY), device)
    decoder = moved(lambda: Decoder(4).module((4, 4, 4), (1, 8, 8), KEY), device)
    return decoder(head(images(device)))


def an_own_form(device):
    form = OwnForm(NET, "conv1", "pool")
    with unset_fake_temporarily():
        shape = cut(NET.module(KEY), "conv1", "pool").feature_shape((1, 8, 8))
    return moved(lambda: form.module((1, 8, 8), shape, KEY), device)(images(device))


def a_translator(device):
    words, body = (moved(partial(f, KEY), device) for f in (WORDS.words, WORDS.body))
    source = torch.ones(3, 5, dtype=torch.long, device=device)
    noise = torch.zeros(5, 8)  # drawn where keys are
    words.send(source, noise)
    return translate(words, body, source, 4)


def positions(device):
    return unplaced(torch.ones(2, 5, 8, device=device), sinusoids(5, 8, device))


def dropout(device):
    return apply_dropout(images(device), 0.5, KEY.generator())


def augmentation(device):
    return augmented_images(images(device), KEY.generator())


def matched_moments(device):
    a, b = torch.zeros(4, 3, 5, 5, device=device), torch.zeros(4, 3, 5, 5, device=device)
    vectors = torch.zeros(4, 6, 3, device=device)
    return moment_distance(moments(a), moments(b)) + moments(vectors)[0].sum()


def a_look(device):
    held = Records(images(device), torch.zeros(4, dtype=torch.long, device=device), ("a",))
    seen = torch.zeros(6, 3, 4, 4, device=device)
    return _Shown(held, (3, 4, 4), seen).answer(seen)[0]


def a_namer(device):
    named = likeliest(torch.zeros(4, 6, device=device), torch.zeros(9, 6, device=device))
    return named[1]


def windows(device):
    drawn = Windows.between((1, 8, 8), (4, 8, 8), 3)
    return drawn.of_images(images(device), 5, KEY.generator())


PARTS = {
    one.__name__: one
    for one in (
        a_client,
        a_channel,
        a_vgg,
        a_shadow_and_a_decoder,
        an_own_form,
        a_translator,
        positions,
        dropout,
        augmentation,
        matched_moments,
        a_look,
        a_namer,
        windows,
    )
}


def test_a_mix_of_devices_is_noticed():
    """Or the tests below would show nothing."""
    layer = nn.Linear(3, 2)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        here, there = torch.zeros(3), torch.zeros(3, device=OTHER)
        with pytest.raises(RuntimeError, match="device"):
            _ = here + there
        with pytest.raises(RuntimeError, match="device"):
            layer(there)
        assert moved(lambda: layer, OTHER)(there).device == OTHER


@pytest.mark.parametrize("part", PARTS)
def test_it_stays_on_the_device_of_its_inputs(part):
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        assert PARTS[part](OTHER).device == OTHER
