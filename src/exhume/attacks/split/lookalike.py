"""Find the client's first layer from the features it sends, by their distribution alone.

The server knows the form of the head: a convolution, ReLU, perhaps max-pool, plus a fixed map of noise.

1. Noise. After a ReLU many features are exactly zero, so that what is sent there is the noise itself, the
   same number for different inputs. Where the smallest value seen occurs again and again, it is the noise,
   unless the mean that the layer found below gives disagrees (a white or black patch may recur, too).
2. Weights. On the server's own records, a layer of the same form must give features distributed as those
   seen. Windows of 3 x 3 features are compared by the sliced Wasserstein distance: for random directions p

       mean over p of  || sort(p · windows of layer(own records)) - sort(p · windows seen) ||²,

   lowered by Adam over the weights, in coordinates in which patches of pixels are white. The distance itself,
   which the server can observe, says which starts are best. Natural images resemble their negatives, so the
   best three and their mirror images go on with more windows, and the best of either side twice more, each
   time with the noise that its own means leave. Of the two, that counts whose means agree with the noise of 1
   at more places, or which is nearer.
3. A decoder of that layer, as in the paper, or its mirror image where it decodes to negatives
   (`resolve_contrast_sign`).

No body and no label is used, so that a secret choice of bodies is none of its concern. Several layers are
fitted at once. Without coordinates in which patches are white the flat directions hide the steep ones. The
max-pool is one of 3 with stride 2; batch norm in use is part of the weights and the bias. Windows do not
touch the border, where the padding shows.

Cost: some hundred steps on some thousand windows for each start; minutes on one core. Memory: small.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.attacks.split.inversion import FittedInversion, fit_decoder
from exhume.attacks.split.shadow import ServerSide, resolve_contrast_sign
from exhume.core.contract import (
    Cost,
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Store,
    silent,
)
from exhume.models.split.inverter import Decoder, halvings
from exhume.store.shards import address, cached, digest
from exhume.train.single import Schedule

_RECURS = 3  # how often a smallest value must be seen to count as noise
_OFTEN = 0.5  # share of a channel's places where it must do so
_UNLIKE = 0.5  # standard deviations by which places may differ in their means
_ERRORS = 5.0  # standard errors by which the means of a layer that was found may differ
_KEPT = 3  # starts that go on
_CLEARLY = 0.05  # of all places
_PATCHES = 50_000  # from which the whitening is taken
_FAINT = 0.05  # a channel that varies less than this share of all counts for less
_JUDGED = 2  # times the windows and directions of a step, to compare what it led to
_LARGEST = 3


@dataclass(frozen=True)
class Pass:
    """A descent: steps, windows and directions of a step, rate at the start (it falls as a cosine)."""

    steps: int
    windows: int
    directions: int = 64
    rate: float = 0.05


@dataclass(frozen=True)
class Lookalike:
    """A first layer whose features are distributed as the client's are, and a decoder of it.

    Sees: `Activations`, what the client sends for n inputs.
    Assumes: the form of the head, records of the training distribution, features that the client has sent
    before. No query, no body, no label.
    Guarantees: nothing about the truth is used; the start is chosen by the distance of the distributions.
    Deterministic from the key; a finished layer and every epoch of the decoder are kept.
    Reference: ours; Ensembler24 leaves it out.
    """

    kernel: int = 3  # of the convolution, odd
    starts: int = 6
    search: Pass = Pass(150, 1024, rate=0.1)
    compare: Pass = Pass(120, 2048, rate=0.05)
    refine: Pass = Pass(80, 4096, rate=0.03)
    decoder: Decoder = Decoder()
    decoder_schedule: Schedule = Schedule(epochs=10, rate=1e-3, optimiser="adam", weight_decay=0.0)

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.kernel % 2 == 0 or self.starts < 1:
            raise ExhumeError(f"kernel must be odd and starts at least 1: {self}")

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedInversion:
        held, features, seen = knowledge.require("a lookalike", "shadow", "features", "seen")
        server = ServerSide((), held, features, seen)
        started = time.perf_counter()
        layer, observed = self._layer(server, seen, key, store, progress)
        noise = layer.get_buffer("noise")
        weight, bias = layer.get_buffer("weight"), layer.get_buffer("bias")
        quiet = _quiet(weight, bias, noise, pooled=layer.pooled)
        decoder, left = fit_decoder(
            quiet,
            server,
            self.decoder,
            self.decoder_schedule,
            key=key.fold("decoder"),
            store=store,
            progress=progress,
        )
        whole: nn.Module = nn.Sequential(_Without(noise), decoder).eval()
        whole, head, facing = resolve_contrast_sign(whole, layer, seen, held.inputs)
        observed |= {"mse_on_own_features": left, **facing}
        cost = Cost(time.perf_counter() - started, models=self.starts + 1)
        return FittedInversion(whole, head, server, observed, cost)

    def _layer(
        self, server: ServerSide, seen: Tensor, key: Key, store: Store, progress: Progress
    ) -> tuple[ClientLayer, dict[str, float]]:
        """The best of the starts, refined, with its map of noise; and what can be observed of it."""
        images = server.records.inputs
        windows = Windows.between(server.records.shape, server.features, self.kernel)
        noise, _ = fixed_part(seen)
        settings = (self.kernel, self.starts, self.search, self.compare, self.refine)
        name = address(
            "lookalike of either sign",
            str(settings),
            (digest(server.records), digest(seen)),
            key,
            0,
        )
        fit = LayerFit(windows, images, seen - noise, key)
        kept = cached(store, name, lambda: self._found(fit, seen, progress))
        weight, bias = (kept[name].to(images.device) for name in ("weight", "bias"))
        quiet = _quiet(weight, bias, noise, pooled=windows.pooled)
        noise, certain = _agreed(quiet, images, seen)
        observed = {f"distance_{i}": float(d) for i, d in enumerate(kept["apart"])}
        observed |= {
            "distance": float(kept["end"]),
            "noise_certain": float(certain.double().mean()),
        }
        return ClientLayer(weight, bias, noise, pooled=windows.pooled), observed

    def _found(self, fit: LayerFit, seen: Tensor, progress: Progress) -> dict[str, Tensor]:
        layers = fit.start(self.starts)
        layers = fit.descend(layers, self.search, progress, "looking for the first layer")
        layers = nearest(layers, fit.judge(layers, self.compare), _KEPT)
        both = [torch.cat(pair) for pair in zip(layers, mirrored(layers), strict=True)]
        both = fit.descend(both, self.compare, progress, "comparing first layers")
        apart = fit.judge(both, self.compare)
        sides = [slice(0, len(apart) // 2), slice(len(apart) // 2, None)]
        last = [
            self._refined(fit, nearest([t[side] for t in both], apart[side], 1), seen, progress)
            for side in sides
        ]
        return {**_better(*last), "apart": apart}

    def _refined(
        self, fit: LayerFit, layers: list[Tensor], seen: Tensor, progress: Progress
    ) -> dict[str, Tensor]:
        for stage in ("refining the first layer", "refining it again"):
            weight, bias = fit.layer(layers)
            near = _quiet(weight[0], bias[0], seen[0], pooled=fit.windows.pooled)
            fit = fit.cleaned(seen - _agreed(near, fit.images, seen)[0])
            layers = fit.descend(layers, self.refine, progress, stage)
        weight, bias = fit.layer(layers)
        near = _quiet(weight[0], bias[0], seen[0], pooled=fit.windows.pooled)
        certain = _agreed(near, fit.images, seen)[1].double().mean()
        end = fit.judge(layers, self.compare)
        return {"weight": weight[0], "bias": bias[0], "end": end, "certain": certain}


def _better(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    """The layer whose means agree with the noise at clearly more places; else the nearer one."""
    more = float(other["certain"] - one["certain"])
    if abs(more) > _CLEARLY:
        return other if more > 0 else one
    return other if float(other["end"]) < float(one["end"]) else one


def _quiet(weight: Tensor, bias: Tensor, like: Tensor, *, pooled: bool) -> ClientLayer:
    """The layer without noise, for features of that shape."""
    return ClientLayer(weight, bias, torch.zeros_like(like), pooled=pooled)


def fixed_part(seen: Tensor) -> tuple[Tensor, Tensor]:
    """(n, c, h, w) to the map of noise, and where it is certain. Images are taken to be alike everywhere."""
    mean = seen.mean(0)
    return _reconciled(seen, mean - mean.mean((1, 2), keepdim=True), _UNLIKE * seen.std(0))


@torch.no_grad()
def _agreed(layer: ClientLayer, images: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Noise by a layer that is known to be near: it says what the means should be."""
    own = torch.stack([layer(part).sum(0) for part in torch.split(images, 500)]).sum(0)
    error = seen.std(0) * math.sqrt(1 / len(seen) + 1 / len(images))
    return _reconciled(seen, seen.mean(0) - own / len(images), _ERRORS * error)


def _reconciled(seen: Tensor, average: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """What recurs where the average agrees with it, and the average elsewhere.

    average: (c, h, w) the noise as the means have it; slack: how far what recurs may be from it, but for
    a constant over the channel, which belongs to the bias. In a channel that is seldom zero nothing counts.
    """
    least = seen.amin(0)
    recurs = (seen == least).sum(0) >= _RECURS
    recurs &= recurs.double().mean((1, 2), keepdim=True) >= _OFTEN
    apart = torch.where(recurs, least - average, torch.nan).flatten(1)
    shift = apart.nanmedian(1).values.nan_to_num()[:, None, None]
    rounding = 1e-5 * seen.abs().amax()
    certain = recurs & ((least - average - shift).abs() <= slack + rounding)
    return torch.where(certain, least, average + shift), certain


class _Without(nn.Module):
    def __init__(self, noise: Tensor) -> None:
        super().__init__()
        self.register_buffer("noise", noise)

    def forward(self, features: Tensor) -> Tensor:
        return features - self.get_buffer("noise")


class LayerFit:
    """s layers at once; of each the coordinates (f, d) of its weights in white patches and biases (f,)."""

    def __init__(self, windows: Windows, images: Tensor, seen: Tensor, key: Key) -> None:
        self.windows, self.images, self.seen, self.key = windows, images, seen, key
        self.scale = seen.std((0, 2, 3)).clamp_min(_FAINT * float(seen.std()) + 1e-12)  # (f,)
        generator = key.fold("patches").generator()
        patches = Windows(1, pooled=False, side=windows.kernel)
        flat = patches.of_images(images, _PATCHES, generator).flatten(1)
        self.mean = flat.mean(0)  # (d,)
        values, vectors = torch.linalg.eigh(torch.cov(flat.T.double()))
        floor = 1e-6 * float(values.max())
        self.white = (vectors * values.clamp_min(floor).rsqrt()).T.to(flat.dtype)  # (d, d)

    def cleaned(self, seen: Tensor) -> LayerFit:
        """This task with other features."""
        other = copy.copy(self)
        other.seen = seen
        return other

    def start(self, count: int) -> list[Tensor]:
        """Random weights that favour the directions in which patches vary most."""
        generator = self.key.fold("start").generator()
        channels, size = self.seen.shape[1], len(self.mean)
        drawn = torch.randn(count, channels, size, generator=generator)
        drawn = (drawn * torch.linspace(0.2, 1, size)).to(self.seen.device)
        level = 0.3 * self.seen.mean((0, 2, 3)) / self.scale
        return [drawn / drawn.norm(dim=2, keepdim=True), level.repeat(count, 1)]

    def layer(self, coordinates: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Weights (s, f, c, k, k) and biases (s, f) in pixels."""
        weight = self.scale[:, None] * (coordinates[0] @ self.white)
        bias = self.scale * coordinates[1] - weight @ self.mean
        kernel = self.windows.kernel
        shape = (*bias.shape, self.images.shape[1], kernel, kernel)
        return weight.reshape(shape), bias

    def descend(
        self, coordinates: list[Tensor], how: Pass, progress: Progress, stage: str
    ) -> list[Tensor]:
        coordinates = [tensor.clone().requires_grad_() for tensor in coordinates]
        optimiser = torch.optim.Adam(coordinates, how.rate)
        generator = self.key.fold(stage).generator()
        for step in range(how.steps):
            progress(stage, step, how.steps)
            for group in optimiser.param_groups:
                group["lr"] = how.rate * 0.5 * (1 + math.cos(math.pi * step / how.steps))
            apart = self._distance(coordinates, how.windows, how.directions, generator)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(apart.sum())
            optimiser.step()
        progress(stage, how.steps, how.steps)
        return [tensor.detach() for tensor in coordinates]

    @torch.no_grad()
    def judge(self, coordinates: list[Tensor], how: Pass) -> Tensor:
        """(s,) distances on the same windows and directions, more than a step of that pass has."""
        generator = self.key.fold("judge").generator()
        return self._distance(
            coordinates, _JUDGED * how.windows, _JUDGED * how.directions, generator
        )

    def _distance(
        self, coordinates: list[Tensor], count: int, directions: int, generator: torch.Generator
    ) -> Tensor:
        weight, bias = self.layer(coordinates)
        starts, channels = bias.shape
        inputs = self.windows.of_images(self.images, count, generator)
        made = self.windows.layer(inputs, weight.flatten(0, 1), bias.flatten())
        made = made.reshape(count, starts, channels, -1) / self.scale[:, None]
        sent = self.windows.of_features(self.seen, count, generator) / self.scale[:, None, None]
        # unit columns (size, directions), some dense, some with only a few entries
        drawn = torch.randn(sent[0].numel(), directions, generator=generator)
        share = 0.02 + 0.5 * torch.rand(directions, generator=generator)
        drawn = drawn * (torch.rand(drawn.shape, generator=generator) < share)
        along = (drawn / drawn.norm(dim=0).clamp_min(1e-12)).to(sent.device)
        wanted = (sent.flatten(1) @ along).sort(0).values
        have = (made.flatten(2) @ along).sort(0).values  # (m, s, directions)
        apart: Tensor = (have - wanted[:, None]).square().mean((0, 2))
        return apart


def nearest(found: list[Tensor], apart: Tensor, count: int) -> list[Tensor]:
    return [tensor[apart.argsort()[:count]] for tensor in found]


def mirrored(found: list[Tensor]) -> list[Tensor]:
    """Layers that see the negatives, 2·mean - patch, as these see the patches."""
    return [-found[0], found[1]]


class ClientLayer(nn.Module):
    """max-pool(ReLU(weight * x + bias)) + noise, as the client computes it."""

    def __init__(self, weight: Tensor, bias: Tensor, noise: Tensor, *, pooled: bool) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.register_buffer("noise", noise)
        self.pooled = pooled

    def forward(self, inputs: Tensor) -> Tensor:
        weight, bias, noise = (self.get_buffer(n) for n in ("weight", "bias", "noise"))
        inside = F.relu(F.conv2d(inputs, weight, bias, padding=weight.shape[-1] // 2))
        return (F.max_pool2d(inside, 3, 2, 1) if self.pooled else inside) + noise


@dataclass(frozen=True)
class Windows:
    """Where windows lie in images and in the features that a first layer makes of them."""

    kernel: int
    pooled: bool
    side: int  # features of a window, in each direction

    @classmethod
    def between(cls, shape: tuple[int, ...], features: tuple[int, ...], kernel: int) -> Windows:
        """Those of a layer from images of one shape to features of the other; 3 x 3 features if they fit."""
        if len(features) != 3:
            raise NotApplicable(
                f"features of {features} are no maps, so have no windows", ever=True
            )
        times = halvings(shape, features)
        if times > 1:
            raise NotApplicable(
                f"features of {features} halve images of {shape} {times} times; a first layer does so "
                "at most once",
                ever=True,
            )
        for side in range(_LARGEST, 0, -1):
            made = cls(kernel, bool(times), side)
            if min(made._places(size) for size in features[1:]) > 0:
                return made
        raise NotApplicable(f"features of {features} are too small for windows", ever=False)

    @property
    def _stride(self) -> int:
        return 2 if self.pooled else 1

    @property
    def _before(self) -> int:
        """Pixels of a window above its first feature's own, which is `_stride` times its index."""
        return self.kernel // 2 + (1 if self.pooled else 0)

    @property
    def pixels(self) -> int:
        return self._stride * (self.side - 1) + 1 + 2 * self._before

    @property
    def _first(self) -> int:
        return -(-self._before // self._stride)

    def _places(self, size: int) -> int:
        """How many windows fit in one direction of the features."""
        last = (self._stride * size - self.pixels + self._before) // self._stride
        return last - self._first + 1

    def layer(self, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """(m, c, pixels, pixels) to (m, f, side, side)."""
        inside = F.relu(F.conv2d(inputs, weight, bias))
        return F.max_pool2d(inside, 3, 2) if self.pooled else inside

    def of_images(self, images: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """(count, c, pixels, pixels): windows of images (n, c, h, w) drawn at random."""
        sizes = [size // self._stride for size in images.shape[2:]]
        which, *corner = self._draw(len(images), sizes, count, generator)
        down, across = (self._stride * at - self._before for at in corner)
        return _windows(images, which, down, across, self.pixels)

    def of_features(self, features: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """(count, f, side, side): windows of features (n, f, h, w) drawn at random."""
        sizes = list(features.shape[2:])
        which, down, across = self._draw(len(features), sizes, count, generator)
        return _windows(features, which, down, across, self.side)

    def _draw(
        self, maps: int, sizes: list[int], count: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        which = torch.randint(maps, (count,), generator=generator)
        down, across = (
            self._first + torch.randint(self._places(size), (count,), generator=generator)
            for size in sizes
        )
        return which, down, across


def _windows(maps: Tensor, which: Tensor, down: Tensor, across: Tensor, side: int) -> Tensor:
    which, down, across = (at.to(maps.device) for at in (which, down, across))
    inside = torch.arange(side, device=maps.device)
    rows = (down[:, None] + inside)[:, :, None]
    columns = (across[:, None] + inside)[:, None, :]
    return maps[which[:, None, None], :, rows, columns].permute(0, 3, 1, 2)
