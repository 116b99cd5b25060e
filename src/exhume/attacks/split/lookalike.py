"""Find the client's first layer from the features it sends, by their distribution alone.

The server knows the form of the head: a convolution, ReLU, perhaps max-pool, plus a fixed map of noise.

1. Noise. After a ReLU many features are exactly zero, so that what is sent there is the noise itself, the
   same number for different inputs. Where the smallest value seen occurs again and again, it is the noise.
   (A white or black patch may also recur; the mean that the layer found below gives shows it.)
2. Weights. On the server's own records, a layer of the same form must give features distributed as those
   seen. Windows of 3 x 3 features are compared by the sliced Wasserstein distance: for random directions p

       mean over p of  || sort(p · windows of layer(own records)) - sort(p · windows seen) ||²,

   lowered by Adam over the weights, in coordinates in which patches of pixels are white. Several starts;
   the distance itself, which the server can observe, says which are best. Natural images resemble their
   negatives, so the best three and their mirror images go on with more windows, and the best of either
   side twice more, each time with the noise that its own means leave. Of the two, that counts whose means
   agree with the noise of 1 at more places, or which is nearer.
3. A decoder of that layer, as in the paper, or its mirror image where it decodes to negatives (facing.py).

No body and no label is used, so that a secret choice of bodies is none of its concern.

Cost: some hundred steps on some thousand windows for each start; minutes on one core. Memory: small.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from exhume.attacks.split.facing import faced
from exhume.attacks.split.inversion import FittedInversion, fit_decoder
from exhume.attacks.split.layer_fit import LayerFit, Pass, mirrored, nearest
from exhume.attacks.split.shadow import Server
from exhume.attacks.split.windows import FirstLayer, Windows
from exhume.core.contract import Cost, ExhumeError, Key, Knowledge, Progress, Store, silent
from exhume.models.split.inverter import Decoder
from exhume.store.shards import address, cached, digest
from exhume.train.single import Schedule

_RECURS = 3  # how often a smallest value must be seen to count as noise
_OFTEN = 0.5  # share of a channel's places where it must do so
_UNLIKE = 0.5  # standard deviations by which places may differ in their means
_ERRORS = 5.0  # standard errors by which the means of a layer that was found may differ
_KEPT = 3  # starts that go on
_CLEARLY = 0.05  # of all places


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
        knowledge.require("a lookalike", "shadow", "features", "seen")
        assert knowledge.shadow is not None
        assert knowledge.features is not None
        assert knowledge.seen is not None
        server = Server((), knowledge.shadow, knowledge.features, knowledge.seen)
        started = time.perf_counter()
        layer, observed = self._layer(server, knowledge.seen, key, store, progress)
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
        whole, head, facing = faced(whole, layer, knowledge.seen, server.records.inputs)
        observed |= {"mse_on_own_features": left, **facing}
        cost = Cost(time.perf_counter() - started, models=self.starts + 1)
        return FittedInversion(whole, head, server, observed, cost)

    def _layer(
        self, server: Server, seen: Tensor, key: Key, store: Store, progress: Progress
    ) -> tuple[FirstLayer, dict[str, float]]:
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
        return FirstLayer(weight, bias, noise, pooled=windows.pooled), observed

    def _found(self, fit: LayerFit, seen: Tensor, progress: Progress) -> dict[str, Tensor]:
        found = fit.start(self.starts)
        found = fit.descend(found, self.search, progress, "looking for the first layer")
        found = nearest(found, fit.judge(found, self.compare), _KEPT)
        both = [torch.cat(pair) for pair in zip(found, mirrored(found), strict=True)]
        both = fit.descend(both, self.compare, progress, "comparing first layers")
        apart = fit.judge(both, self.compare)
        sides = [slice(0, len(apart) // 2), slice(len(apart) // 2, None)]
        last = [
            self._refined(fit, nearest([t[side] for t in both], apart[side], 1), seen, progress)
            for side in sides
        ]
        return {**_better(*last), "apart": apart}

    def _refined(
        self, fit: LayerFit, found: list[Tensor], seen: Tensor, progress: Progress
    ) -> dict[str, Tensor]:
        for stage in ("refining the first layer", "refining it again"):
            weight, bias = fit.layer(found)
            near = _quiet(weight[0], bias[0], seen[0], pooled=fit.windows.pooled)
            fit = fit.cleaned(seen - _agreed(near, fit.images, seen)[0])
            found = fit.descend(found, self.refine, progress, stage)
        weight, bias = fit.layer(found)
        near = _quiet(weight[0], bias[0], seen[0], pooled=fit.windows.pooled)
        certain = _agreed(near, fit.images, seen)[1].double().mean()
        end = fit.judge(found, self.compare)
        return {"weight": weight[0], "bias": bias[0], "end": end, "certain": certain}


def _better(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    """The layer whose means agree with the noise at clearly more places; else the nearer one."""
    more = float(other["certain"] - one["certain"])
    if abs(more) > _CLEARLY:
        return other if more > 0 else one
    return other if float(other["end"]) < float(one["end"]) else one


def _quiet(weight: Tensor, bias: Tensor, like: Tensor, *, pooled: bool) -> FirstLayer:
    """The layer without noise, for features of that shape."""
    return FirstLayer(weight, bias, torch.zeros_like(like), pooled=pooled)


def fixed_part(seen: Tensor) -> tuple[Tensor, Tensor]:
    """(n, c, h, w) to the map of noise, and where it is certain. Images are taken to be alike everywhere."""
    mean = seen.mean(0)
    return _reconciled(seen, mean - mean.mean((1, 2), keepdim=True), _UNLIKE * seen.std(0))


@torch.no_grad()
def _agreed(layer: FirstLayer, images: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
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
