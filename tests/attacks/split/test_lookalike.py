from __future__ import annotations

from dataclasses import replace

import pytest
import skimage.data
import torch
import torch.nn.functional as F

from exhume import readers
from exhume.attacks.split.lookalike import (
    ClientLayer,
    LayerFit,
    Lookalike,
    Pass,
    Windows,
    _better,
    fixed_part,
    mirrored,
)
from exhume.core.contract import (
    Activations,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Records,
    silent,
)
from exhume.models.split.inverter import Decoder
from exhume.store.shards import FolderStore, NullStore
from exhume.train.single import Schedule

CHANNELS = 8
ATTACK = Lookalike(
    starts=4,
    search=Pass(120, 512, 32, 0.1),
    compare=Pass(60, 1024, 32, 0.05),
    refine=Pass(60, 2048, 32, 0.02),
    decoder=Decoder(16),
    decoder_schedule=Schedule(6, 50, 1e-2, "adam", 0.0),
)


QUICK = replace(
    ATTACK,
    search=Pass(3, 64),
    compare=Pass(2, 64),
    refine=Pass(2, 64),
    decoder_schedule=Schedule(1, 50, 1e-2, "adam", 0.0),
)


def plant(own, before, private):
    """A layer drawn at random, mostly colours and a little structure, in front of photographs."""
    generator = Key.from_seed(3).generator()
    weight = torch.randn(CHANNELS, 3, 1, 1, generator=generator)
    weight = weight + 0.3 * torch.randn(CHANNELS, 3, 3, 3, generator=generator)
    bias = -F.conv2d(own[:200], weight).transpose(0, 1).flatten(1).median(1).values
    noise = 0.3 * torch.randn(CHANNELS, 16, 16, generator=generator)
    client = ClientLayer(weight, bias, noise, pooled=True)
    held = Records(own, torch.zeros(len(own), dtype=torch.long), ("one",))
    knowledge = Knowledge(shadow=held, features=tuple(noise.shape), seen=client(before))
    return client, knowledge, Activations(client(private), "first"), private


@pytest.fixture(scope="module")
def planted():
    """Pieces of four photographs, each half as large as it was."""
    photographs = (
        skimage.data.astronaut,
        skimage.data.coffee,
        skimage.data.cat,
        skimage.data.rocket,
    )
    generator, pieces = Key.from_seed(4).generator(), []
    for photograph in photographs:
        pixels = torch.from_numpy(photograph().copy()).permute(2, 0, 1)[None] / 255
        (small,) = F.avg_pool2d(pixels, 2)
        tops, lefts = (torch.randint(n - 31, (155,), generator=generator) for n in small.shape[1:])
        pieces += [
            small[:, y : y + 32, x : x + 32]
            for y, x in zip(tops.tolist(), lefts.tolist(), strict=True)
        ]
    shuffled = torch.stack(pieces)[torch.randperm(len(pieces), generator=generator)]
    return plant(*torch.split(shuffled, [300, 300, 20]))


def likeness(found: ClientLayer, client: ClientLayer, images: torch.Tensor) -> torch.Tensor:
    """(f,) correlation over images of what both layers compute, noise aside."""
    a, b = ((layer(images) - layer.noise).transpose(0, 1).flatten(1) for layer in (found, client))
    return torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(a, b, strict=True)])


@pytest.mark.slow
@pytest.mark.network
def test_the_layer_the_noise_and_the_inputs_are_found(key):
    images = readers.load("cifar10").inputs[:1620].clone()
    client, knowledge, release, private = plant(*torch.split(images, [800, 800, 20]))
    prepared = ATTACK.prepare(knowledge, key=key, store=NullStore())
    assert float(likeness(prepared.head, client, private).mean()) > 0.6
    assert float((prepared.head.noise - client.noise).abs().median()) < 1e-6
    found = prepared.run(release)
    null = (knowledge.shadow.inputs.mean(0) - private).square().mean()
    assert float((found.candidates[:, 0] - private).square().mean() / null) < 0.5
    assert found.observed["distance"] <= min(found.observed[f"distance_{i}"] for i in range(3))


def test_the_layer_is_nearer_than_those_around_it_and_descent_comes_nearer(planted, key):
    client, knowledge, _, _ = planted
    fit = LayerFit(
        Windows.between((3, 32, 32), client.noise.shape, 3),
        knowledge.shadow.inputs,
        knowledge.seen - client.noise,
        key,
    )
    weight = client.weight.flatten(1)
    truth = [
        (weight / fit.scale[:, None] @ torch.linalg.inv(fit.white))[None],
        ((client.bias + weight @ fit.mean) / fit.scale)[None],
    ]
    for found, wanted in zip(fit.layer(truth), (client.weight, client.bias), strict=True):
        torch.testing.assert_close(found[0], wanted, atol=1e-3, rtol=1e-3)
    off = 0.5 * truth[0].std() * torch.randn(truth[0].shape, generator=key.generator())
    near = [truth[0] + off, truth[1]]
    how = Pass(40, 256, 32, 0.05)
    ended = fit.descend(near, how, silent, "test")
    apart = [float(fit.judge(layer, how)) for layer in (truth, ended, near)]
    assert apart[0] < apart[1] < 0.5 * apart[2]


def test_a_mirrored_layer_sees_negatives_as_the_layer_sees_pictures(planted, key):
    _, knowledge, _, _ = planted
    images = knowledge.shadow.inputs
    fit = LayerFit(Windows(3, pooled=False, side=1), images, knowledge.seen, key)
    found = fit.start(2)
    patches = torch.rand(5, len(fit.mean), generator=key.generator())
    seen, mirror = (
        weight.flatten(2) @ side.T + bias[:, :, None]
        for (weight, bias), side in (
            (fit.layer(found), patches),
            (fit.layer(mirrored(found)), 2 * fit.mean - patches),
        )
    )
    torch.testing.assert_close(seen, mirror, atol=1e-3, rtol=1e-3)


def judged(end, certain):
    return {"end": torch.tensor([end]), "certain": torch.tensor(certain)}


def test_of_two_sides_that_counts_which_agrees_with_the_noise_or_else_is_nearer():
    near, far = judged(0.002, 0.70), judged(0.003, 0.71)
    agreeing = judged(0.003, 0.90)
    assert _better(near, far) is near
    assert _better(far, near) is near
    assert _better(near, agreeing) is agreeing
    assert _better(agreeing, near) is agreeing


def test_noise_is_what_recurs(planted):
    client, knowledge, _, _ = planted
    noise, certain = fixed_part(knowledge.seen)
    inside = (slice(None), slice(1, -1), slice(1, -1))  # at the border the padding shows
    assert float((noise == client.noise)[inside].double().mean()) > 0.95
    assert float(certain[inside].double().mean()) > 0.95


def test_where_nothing_recurs_the_mean_says_the_noise(key):
    quiet = torch.rand(2000, 2, 4, 4, generator=key.generator()) + 1
    noise = torch.randn(2, 4, 4, generator=key.fold("noise").generator())
    noise -= noise.mean((1, 2), keepdim=True)
    found, certain = fixed_part(quiet + noise)
    assert not bool(certain.any())
    torch.testing.assert_close(found, noise, atol=0.05, rtol=0)


def test_what_recurs_for_another_reason_is_not_taken_for_noise(key):
    """One place sees the same patch again and again and is never zero; its mean is as elsewhere."""
    quiet = torch.randn(500, 1, 4, 4, generator=key.generator()).clamp_min(0)
    quiet[:, 0, 2, 2] = 0.35 + 0.1 * torch.rand(500, generator=key.fold("lit").generator())
    quiet[:20, 0, 2, 2] = 0.35
    _, certain = fixed_part(quiet + 0.25)
    assert not bool(certain[0, 2, 2])
    assert int(certain.sum()) == 15


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("pooled", [True, False])
def test_windows_show_what_the_layer_makes_of_whole_images(kernel, pooled, key):
    generator = key.generator()
    images = torch.rand(3, 2, 16, 20, generator=generator)
    weight, bias = torch.randn(4, 2, kernel, kernel, generator=generator), torch.randn(4)
    size = (8, 10) if pooled else (16, 20)
    layer = ClientLayer(weight, bias, torch.zeros(4, *size), pooled=pooled)
    windows = Windows.between((2, 16, 20), (4, *size), kernel)
    assert windows.pooled is pooled
    of_images = windows.of_images(images, 60, key.fold("draw").generator())
    of_features = windows.of_features(layer(images), 60, key.fold("draw").generator())
    torch.testing.assert_close(windows.layer(of_images, weight, bias), of_features)


def test_the_same_bits_again_and_from_the_store(planted, key, tmp_path):
    _, knowledge, release, _ = planted
    store = FolderStore(tmp_path / "store")
    runs = [QUICK.prepare(knowledge, key=key, store=s) for s in (NullStore(), store, store)]
    found = [prepared.run(release).candidates for prepared in runs]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_what_does_not_fit_is_said(planted, key):
    _, knowledge, _, _ = planted
    with pytest.raises(NotApplicable, match="a lookalike needs to know: shadow, seen"):
        ATTACK.prepare(replace(knowledge, shadow=None, seen=None), key=key, store=NullStore())
    with pytest.raises(NotApplicable, match="a first layer does so at most once"):
        Windows.between((3, 16, 16), (4, 4, 4), 3)
    with pytest.raises(NotApplicable, match="too small for windows"):
        Windows.between((3, 4, 4), (4, 2, 2), 5)
    assert Windows.between((3, 4, 4), (4, 4, 4), 3).side == 2
    for illegal in ({"kernel": 2}, {"kernel": 0}, {"starts": 0}):
        with pytest.raises(ExhumeError, match="kernel must be odd and starts at least 1"):
            Lookalike(**illegal)
