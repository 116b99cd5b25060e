"""What else would explain an update that the named records do not give. It is printed and used for nothing.

    sign          after - before was sent, or a multiple of it
    smoothing     the targets were (1 - e) y + e / c: linear in e
    focal         the loss was (1 - p)^gamma times the cross-entropy
    clip          the gradient of each record was clipped to a norm C before the mean
    order         the indices count the files of the folder as torchvision sorts them
    count         there are more or fewer records than is said

Each is a family of one number, whose best member must leave nothing over but rounding; clipping may leave
noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from exhume.auditing.kinds.update_files import ClientUpdate
from exhume.auditing.noise import is_noise
from exhume.core.contract import ExhumeError, Records
from exhume.models.own_texts import TextModel
from exhume.train.local import slope_at
from exhume.victims.gradient import release_updates

_LEFT = 1e-4  # share of the update's square that may stay unexplained: rounding, half precision
_CANNOT = (RuntimeError, ValueError, IndexError, ExhumeError)  # batch norm of one record
_NUMBERS = 5e7  # of the gradients of single records that are made at once
_CLIPS, _FINER = 60, 6  # norms that are tried at once, and how often between the best two
_SMOOTHED = (0.005, 0.6)  # label smoothing that is believed
_FOCAL = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)  # gammas that are tried
_DEVIATIONS = 4.0
_ALL = 0.99  # of the largest norm: above it nothing was clipped

Kind = Literal["sign", "smoothing", "focal", "clip", "order", "count"]


@dataclass(frozen=True)
class Cause:
    kind: Kind
    value: float
    sentence: str  # completes "The records named for client 3 …"


OTHER_ORDER = Cause(
    "order",
    0.0,
    "do not give this update, but those at the same places in torchvision's order of the folder do: it sorts "
    "10 before 2, folders are sorted naturally here; name the files instead",
)


def other_count(records: int, said: int) -> Cause:
    """The named records give the update, and another batch size is said."""
    sentence = f"give this update: the batch size is {records}, not {said} as is said"
    return Cause("count", float(records), sentence)


def cause_behind(update: ClientUpdate, records: Records) -> Cause | None:
    """The first that explains an update of one step on all named records; None: none of them does."""
    if update.steps.several or isinstance(update.architecture, TextModel):
        return None
    try:
        return _turned(update, records) or _other_loss(update, records) or _clipped(update, records)
    except _CANNOT:
        return None


# The sign


def _turned(update: ClientUpdate, records: Records) -> Cause | None:
    local = update.steps.still().of(update.architecture, "mean" if update.averaged else "sum")
    batch = Records(records.inputs[None], records.labels[None], records.classes)
    made = release_updates(local, update.start(), batch)[0].values[0]
    scale = _scale(update, made)
    if scale is None or scale > 0:
        return None
    times = "" if abs(scale + 1) < 0.01 else f" and times {-scale:.2g}"
    return Cause(
        "sign",
        scale,
        f"give this update with its sign turned{times}: after - before was sent; give before - after, "
        "divided by the rate",
    )


# Other losses


def _other_loss(update: ClientUpdate, records: Records) -> Cause | None:
    if update.steps.routine.loss != "cross-entropy" or update.steps.privacy.clips:
        return None

    def smoothed(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels, label_smoothing=1.0)

    hard, even = _slope(update, records, F.cross_entropy), _slope(update, records, smoothed)
    both, sent = torch.stack([hard, even - hard], 1), update.gradient.values[0].double()
    there = sent != 0
    whole, part = torch.linalg.lstsq(both[there], sent[there, None]).solution[:, 0].tolist()
    share = part / whole if whole else 0.0
    low, high = _SMOOTHED
    if low < share < high and _scale(update, both @ torch.tensor([whole, part]).to(both)):
        sentence = f"give this update only with label smoothing of {share:.2g}"
        return Cause("smoothing", share, f"{sentence}, which is not taken into account here")
    left = {g: _left(update, _slope(update, records, _focal(g))) for g in _FOCAL}
    gamma = min(left, key=lambda tried: left[tried])
    if left[gamma] > _LEFT:
        return None
    sentence = f"give this update only with a focal loss of gamma {gamma:g}"
    return Cause("focal", gamma, f"{sentence}, which is not taken into account here")


def _focal(gamma: float) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, labels, reduction="none")
        return ((1 - torch.exp(-each)).clamp_min(1e-12) ** gamma * each).mean()

    return loss


def _slope(
    update: ClientUpdate, records: Records, loss: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """(p,) the gradient of this loss of all records at the weights that the client was sent."""
    module, layout, start = update.architecture.build(), update.gradient.layout, update.start()
    inputs = records.inputs.to(start.dtype)
    module = module.to(start.dtype)

    def of(point: Tensor) -> Tensor:
        outputs: Tensor = functional_call(module, layout.split(point), (inputs,))
        return loss(outputs, records.labels)

    return slope_at(of, start).double()


# Clipping


def _clipped(update: ClientUpdate, records: Records) -> Cause | None:
    """The norm to which each record's gradient was clipped, if that alone explains the update.

    ||sent - mean_i min(1, C / ||g_i||) g_i|| is least at C; what is left over is rounding or noise.
    """
    steps, sent = update.steps, update.gradient.values[0].double()
    too_large = len(records) * len(sent) > _NUMBERS
    if steps.privacy.clips or not update.averaged or too_large:
        return None
    start = update.start().double()
    each, _ = release_updates(steps.of(update.architecture), start, records.one_each())
    slopes = each.values.double() / len(records)
    norms, gram, along = len(records) * slopes.norm(dim=1), slopes @ slopes.T, slopes @ sent
    if not float(norms.min()) > 0:
        return None
    tried = torch.logspace(-4, 0, _CLIPS, dtype=torch.float64) * norms.max()
    clip = 0.0
    for _ in range(_FINER):
        weights = (tried[:, None] / norms).clamp(max=1)
        misfit = (weights @ gram * weights).sum(1) - 2 * weights @ along
        best = int(misfit.argmin())
        clip = float(tried[best])
        low, high = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
        tried = torch.linspace(float(low), float(high), _CLIPS, dtype=torch.float64)
    made = (clip / norms).clamp(max=1) @ slopes
    if clip >= _ALL * float(norms.max()) or not _leaves_noise(update, sent, made):
        return None
    return Cause(
        "clip",
        clip,
        f"give this update only if each record's gradient was clipped to {clip:.3g}: if the client does "
        f"that, say --dp-clip {clip:.3g}",
    )


def _leaves_noise(update: ClientUpdate, sent: Tensor, made: Tensor) -> bool:
    """What is left over is rounding or noise, and does not hide what was made."""
    noise = float((sent - made).norm() / made.norm())
    along = abs(float(sent @ made / made.square().sum()))
    seen = along > _DEVIATIONS * noise / len(sent) ** 0.5
    return seen and (noise**2 < _LEFT or is_noise(update.gradient.layout, sent, made))


def _scale(update: ClientUpdate, made: Tensor) -> float | None:
    """By which the update is a multiple of what was made (p,), where it was sent; None: it is none."""
    if _left(update, made) > _LEFT:
        return None
    sent, there = update.gradient.values[0].double(), update.gradient.values[0] != 0
    return float(sent[there] @ made[there].double() / made[there].double().square().sum())


def _left(update: ClientUpdate, made: Tensor) -> float:
    """Share of the update's square that is not along what was made (p,), where the update was sent."""
    there = update.gradient.values[0] != 0
    sent, made = update.gradient.values[0][there].double(), made[there].double()
    return 1 - float(F.cosine_similarity(sent, made, dim=0)) ** 2
