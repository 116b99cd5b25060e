"""A picture from the update of a vision transformer: every patch at its place, exactly, for a batch of one.

    z_t = W p_t + b + e_t       dL/dW = sum_t g_t p_t^T       dL/de_t = g_t

e_t is the trained vector of place t, so that its gradient is what comes back to the patch there. With no more
places than numbers in a vector the g_t are independent, and the patches p_t solve a linear system with more
equations than unknowns: what is left over says whether the answer is right. Of a batch the g_t are sums over
its records, and nothing is solved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp

from exhume.attacks.releases import BatchAnswer, EachGradient, architecture_of
from exhume.core.contract import (
    Architecture,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Store,
    silent,
)
from exhume.models.probes import after, inputs_of
from exhume.train.least_squares import least_norm

_SAME = 1e-4  # relative: two gradients that are one
_EXPLAINED = 0.005  # of dL/dW left over, at most: rounding to half precision leaves less


@dataclass(frozen=True)
class PatchAttack:
    """Read all patches of one picture off the gradients of their projection and of their places.

    Sees: `Gradient` of the layer that takes the patches and of the places' vectors.
    Assumes: the architecture; trained vectors of places, added to what the layer gives; no more places than
    numbers in such a vector; a batch of one.
    Guarantees: exact; confidence is minus the share of dL/dW that is left over, and a batch of several is
    refused by it.
    Reference: after APRIL (Lu et al. 2022), which solves for the input of the first attention; the patches
    themselves, and finding the two parameters by a probe, are ours.
    """

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> EachGradient:
        architecture = architecture_of(knowledge, "reading patches")

        def invert(gradient: Tensor, parameters: Tensor, _: int) -> BatchAnswer:
            seen = {n: g.double() for n, g in architecture.layout.split(gradient).items()}
            places = _places(architecture, parameters, key)
            slopes = seen[f"{places.layer}.weight"].flatten(1)  # (d, q)
            back = seen[places.vectors].reshape(-1, len(slopes))[places.rows]  # (t, d)
            if len(back) > len(slopes):
                raise NotApplicable(
                    f"{len(back)} places, but {places.vectors} has only {len(slopes)} numbers for each",
                    ever=False,
                )
            patches = least_norm(back.T, slopes)
            left = float((slopes - back.T @ patches).norm() / slopes.norm().clamp_min(1e-300))
            if left > _EXPLAINED:
                raise NotApplicable(
                    f"the places' gradients leave {left:.0%} of {places.layer}'s unexplained: there are "
                    "several records behind the update, and places tell a batch of one",
                    ever=False,
                )
            record = _pasted(architecture, parameters.double(), places.layer, patches)
            observed = {"batch_size": 1.0, "left_over": left}
            return BatchAnswer(record.to(gradient.dtype), torch.tensor([-left]), observed)

        shape, stage = tuple(architecture.input_shape), "reading patches"
        return EachGradient(shape, invert, stage, stage, progress)


@dataclass(frozen=True)
class _Places:
    layer: str  # takes patches
    vectors: str  # parameter that is added at every place
    rows: Tensor  # (t,) its row at each place


def _places(architecture: Architecture, parameters: Tensor, key: Key) -> _Places:
    """The layer and the parameter whose gradients are one and the same, for a random record and loss."""
    module, known = architecture.build(), architecture.layout.split(parameters.detach())
    named = {n: p.clone().requires_grad_(True) for n, p in known.items()}
    probe = torch.rand(1, *architecture.input_shape, generator=key.fold("probe").generator())
    probe = probe.repeat_interleave(2, 0)  # batch norm in train mode does not take a single one
    caught: dict[str, Tensor] = {}
    layers = [
        name
        for name, layer in module.named_modules()
        if f"{name}.weight" in named
        and (
            isinstance(layer, nn.Linear)
            or (
                isinstance(layer, nn.Conv2d)
                and (layer.stride, layer.groups, layer.dilation) == (layer.kernel_size, 1, (1, 1))
            )
        )
    ]
    with after(module, layers, lambda name, _, given: caught.setdefault(name, given)):
        outputs = functional_call(module, named, (probe.to(parameters.dtype),))
    drawn = torch.randn(outputs.shape, generator=key.fold("loss").generator()).to(outputs)
    wanted = [*caught.values(), *named.values()]
    slopes = torch.autograd.grad((outputs * drawn).sum(), wanted, allow_unused=True)
    backs, parameter_slopes = slopes[: len(caught)], slopes[len(caught) :]
    for layer, given in zip(caught, backs, strict=True):
        if given is None:
            continue
        whole = given.sum(0)  # of a convolution (d, h, w), or of a layer (t, d)
        back = whole.flatten(1).T if given.ndim == 4 else whole.reshape(-1, given.shape[-1])
        for name, slope in zip(named, parameter_slopes, strict=True):
            fits = slope is not None and slope.numel() >= back.numel()
            if fits and slope.shape[-1] == back.shape[1]:
                rows = _rows(back, slope.reshape(-1, back.shape[1]))
                if rows is not None:
                    return _Places(layer, name, rows)
    raise NotApplicable(
        f"{architecture}: no trained vectors of places are added to what a layer makes of patches",
        ever=False,
    )


def _rows(back: Tensor, slopes: Tensor) -> Tensor | None:
    """(t,) the row of the parameter's gradient that each place's is, if all are."""
    if len(back) < 2:
        return None
    apart = torch.cdist(back.double(), slopes.double())
    least, rows = apart.min(1)
    size = back.norm(dim=1).double()
    same = bool((least <= _SAME * size.mean()).all()) and bool((size > 0).any())
    return rows if same and len(set(rows.tolist())) == len(rows) else None


def _pasted(architecture: Architecture, parameters: Tensor, layer: str, patches: Tensor) -> Tensor:
    """(1, *shape) the record whose patches these are; what is done to it before (a scale, a shift) undone.

    A pixel is in one patch, so that A of patches = A x + shift has orthogonal columns.
    """
    module, named = architecture.build().double(), architecture.layout.split(parameters)
    taker = module.get_submodule(layer)

    def taken(record: Tensor) -> Tensor:
        """(t, q) the patches of a record (1, *shape)."""
        with inputs_of(module, layer) as caught:
            functional_call(module, named, (record.repeat_interleave(2, 0),))
        if isinstance(taker, nn.Conv2d):
            side = taker.weight.shape[2:]
            return F.unfold(caught[0], side, stride=side)[0].T
        return caught[0][0].reshape(patches.shape)

    zeros = torch.zeros(1, *architecture.input_shape, dtype=torch.float64)
    shift, pull = vjp(taken, zeros)[:2]
    size = pull(taken(zeros + 1) - shift)[0]
    if not bool((size > 0).all()):
        raise NotApplicable(f"{layer} does not see every pixel", ever=False)
    record: Tensor = pull(patches - shift)[0] / size
    if float((taken(record) - patches).norm()) > _SAME * float(patches.norm()):
        raise NotApplicable(f"{layer} takes no plain patches of the record", ever=False)
    return record
