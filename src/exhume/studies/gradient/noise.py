"""Noise against the paper's own method: the tensor method on dL/da, with the span attack beside it.

Noise as large as what it is added to: on the last layer alone, all that the tensor method reads, or on
the whole update. By neurons, activation, batch size and outputs; and images at a width that fills no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from exhume.attacks.gradient.span import SpanAttack
from exhume.attacks.gradient.tensor import DrawnRows, TensorAttack, blocks
from exhume.core.contract import Attack, Key, NotApplicable, Reconstruction, Records, Status
from exhume.core.contract import Outcome as Ended
from exhume.defences.release import NoiseRelease
from exhume.models.two_layer import TwoLayer
from exhume.score.batches import score_batches
from exhume.studies.claims import flattened, line, paired, prefixed, spread
from exhume.studies.framework import Chart, Claims, Outcome, Run, Scale, Stated, Study
from exhume.studies.gradient.batches import attacked, even_odd_batches, unit_vectors
from exhume.victims.gradient import keep_batches, release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "Random unit vectors; images once, of unit norm, even against odd.",
    "Errors are of unit vectors, up to sign for tanh; a record that was not found counts with sqrt(2).",
    "Noise has the deviation of what it is added to: of dL/da on the last layer, of all numbers on the whole "
    "update, where dL/dW has most of them and the smallest.",
    "Fitted: from the tensor estimate, dL/da is fitted by Levenberg-Marquardt, the slopes r_i in place of "
    "labels.",
)
_NOISE = {"none": NoiseRelease(), "last": NoiseRelease(1.0, ("fc2",)), "whole": NoiseRelease(1.0)}
_Row = dict[str, float]
_CLOSE = 0.25  # error of unit vectors: a cosine of .97


@dataclass(frozen=True)
class _Images:
    """Images of unit norm, at weights that are drawn block by block."""

    source: str
    width: int
    batch: int = 4


@dataclass(frozen=True)
class _Setting:
    widths: tuple[int, ...]  # m; at the first, also other attacks and several outputs
    fixed_width: int  # for the batch sizes
    batches: tuple[int, ...]  # B; the middle one for the widths
    outputs: int  # C, where they are several
    seeds: int
    images: _Images
    inputs: int = 50  # d
    activations: tuple[str, ...] = ("relu", "leaky-relu", "tanh", "sigmoid")

    @property
    def batch(self) -> int:
        return self.batches[len(self.batches) // 2]


@dataclass(frozen=True)
class _Arm:
    activation: str
    width: int
    inputs: int
    batch: int
    noise: str  # one of `_NOISE`
    seed: int
    outputs: int = 1
    jointly: bool = False


def _powers(first: int, last: int) -> tuple[int, ...]:
    """Of two, every second one."""
    return tuple(2**p for p in range(first, last + 1, 2))


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        _powers(12, 14), 2**12, (1, 2), 3, 1, _Images("digits", 2**13), 10, ("relu", "tanh")
    ),
    "cpu": _Setting(_powers(14, 18), 2**16, (2, 4, 8), 10, 5, _Images("mnist", 2**20)),
    "paper": _Setting(_powers(14, 22), 2**18, (2, 4, 8), 10, 20, _Images("mnist", 2**22)),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting = run.setting
    found = run.arms("tensor method under noise", _one, _arms(setting))
    rows: dict[str, list[_Row]] = {}
    for name, numbers in found.items():
        rows.setdefault(name.split(" ")[0], []).append(numbers)
    metrics, key = dict[str, float](), run.key.fold("bootstrap")
    for name, seeds in rows.items():
        for number in seeds[0]:
            each = torch.tensor([one[number] for one in seeds], dtype=torch.float64)
            metrics |= spread(f"{name}.{number}", each, key)
    images = setting.images
    pictures = run.arms("images", _of_images, {"last": 1.0})
    metrics |= prefixed(f"images.{images.source}.m{images.width}", flattened(pictures))
    claims = _claims(setting, metrics) | {"joint": _joint(setting, rows, key)}
    charts = [_chart(setting, metrics)]
    return Outcome(claims, metrics, deviations=list(DEVIATIONS), charts=charts)


def _arms(setting: _Setting) -> dict[str, _Arm]:
    """All, by name and seed."""
    fixed, batch, inputs = setting.fixed_width, setting.batch, setting.inputs
    found: dict[str, _Arm] = {}
    for name, seed in product(setting.activations, range(setting.seeds)):
        for m, noise in product(setting.widths, _NOISE):
            if noise == "whole" and m == max(setting.widths):
                continue  # it is a small part of this noise that falls on dL/da
            arm = _Arm(name, m, inputs, batch, noise, seed)
            found[f"{name}.m{m}.b{batch}.{noise} {seed}"] = arm
        for b in setting.batches:
            arm = _Arm(name, fixed, inputs, b, "last", seed)
            found.setdefault(f"{name}.m{fixed}.b{b}.last {seed}", arm)
        for way in ("combined", "joint"):
            several = (setting.outputs, way == "joint")
            arm = _Arm(name, setting.widths[0], inputs, batch, "last", seed, *several)
            found[f"{name}.{_first(setting)}.last.c{setting.outputs}.{way} {seed}"] = arm
    return found


def _one(run: Run[_Setting], arm: _Arm) -> _Row:
    """Mean errors over one batch, and whether its size was counted."""
    own = run.key.fold("noise", arm.seed)
    records = unit_vectors(arm.inputs, arm.batch, own, classes=max(2, arm.outputs))
    network = TwoLayer(records.shape, arm.width, arm.outputs, arm.activation)
    made, _ = release_batches(network, TensorAttack().query(network, own), records)
    seen = _NOISE[arm.noise].protect(made, own.fold("defence"))
    free = arm.activation == "tanh"
    tensor = TensorAttack(nonnegative=False, largest=2 * arm.batch, jointly=arm.jointly)
    attacks: dict[str, Attack] = {"error": tensor}
    if arm.width == min(run.setting.widths) and arm.outputs == 1:
        attacks["fitted_error"] = replace(tensor, refined=True)
        attacks["span_error"] = SpanAttack(nonnegative=False, largest=2 * arm.batch)
    scores = {
        name: attacked(attack, network, seen, records, own, up_to_sign=free)[1]
        for name, attack in attacks.items()
    }
    errors = {name: float(each.errors.mean()) for name, each in scores.items()}
    return errors | {"counted": float(scores["error"].sizes[0] == arm.batch)}


def _of_images(run: Run[_Setting], noise: float) -> _Row:
    """ReLU, one output. The weights are drawn afresh at every pass: no more than a block is ever held."""
    images, key = run.setting.images, run.key.fold("images")
    records = run.records(images.source)
    private = even_odd_batches(records, 1, images.batch, key.fold("images"))
    network = TwoLayer(private.shape, images.width, 1, "relu")
    rows = DrawnRows(key.fold("query"), images.width, network.inputs)
    seen = _last_layer(rows, private, network)
    drawn = torch.randn(seen.shape, dtype=seen.dtype, generator=key.fold("defence").generator())
    seen = seen + noise * seen.square().mean().sqrt() * drawn
    attack = TensorAttack(largest=2 * images.batch)
    try:
        records_found = attack.records_behind(network, rows, seen[None], key)
    except NotApplicable:  # nothing stands out from the noise
        records_found = torch.zeros(0, *network.input_shape)
    found = Reconstruction(
        records_found[None], torch.zeros(1, len(records_found)), Status(Ended.CONVERGED)
    )
    scores = score_batches(keep_batches(private), found)
    counted = float(scores.sizes[0] == images.batch)
    return {
        "error": float(scores.errors.mean()),
        "worst_error": float(scores.errors.max()),
        "counted": counted,
    }


def _last_layer(rows: DrawnRows, private: Records, network: TwoLayer) -> Tensor:
    """(m,) dL/da of the mean logistic loss at a_j = 1/m, in two passes over the neurons."""
    inputs = private.inputs[0].flatten(1)
    total = torch.zeros(len(inputs), dtype=torch.float64)
    for block in blocks(rows):
        total += network.sigma.apply(inputs @ block.T).double().sum(1)
    slopes = (torch.sigmoid(total / len(rows)) - private.labels[0]) / len(inputs)
    heights = (network.sigma.apply(inputs @ block.T).double() for block in blocks(rows))
    return torch.cat([slopes @ height for height in heights])


def _joint(setting: _Setting, rows: dict[str, list[_Row]], key: Key) -> Stated:
    def errors(way: str) -> Tensor:
        names = [
            f"{name}.{_first(setting)}.last.c{setting.outputs}.{way}"
            for name in setting.activations
        ]
        return torch.tensor([one["error"] for name in names for one in rows[name]])

    apart = paired(errors("joint"), errors("combined"), key.fold("joint"), "error")
    statement = f"Under noise, {setting.outputs} outputs decomposed jointly tell more than combined"
    return statement, "not in the excerpt", *apart.below()


def _claims(setting: _Setting, metrics: dict[str, float]) -> Claims:
    most, claims = max(setting.widths), Claims()
    for name in setting.activations:
        row = f"{name}.m{most}.b{setting.batch}"
        after = f"error {_interval(f'{row}.last.error', metrics)}"
        claims[f"tensor.{name}"] = (
            f"{name}: noise as large as dL/da does not stop the tensor method at {most:,} neurons",
            "adding noise does not help",
            f"{after}, without noise {metrics[f'{row}.none.error']:.3f}",
            metrics[f"{row}.last.error_high"] < _CLOSE,
        )
        beside = f"{name}.{_first(setting)}.last.span_error"
        claims[f"span.{name}"] = (
            f"{name}: noise on dL/da alone does not stop the span attack",
            "adding noise does not help",
            f"error {_interval(beside, metrics)} at {setting.widths[0]:,} neurons",
            metrics[f"{beside}_high"] < _CLOSE,
        )
    return claims


def _chart(setting: _Setting, metrics: dict[str, float]) -> Chart:
    series = {
        f"{name}{words}": line(
            {m: f"{name}.m{m}.b{setting.batch}.{noise}" for m in setting.widths}, "error", metrics
        )
        for name in setting.activations
        for noise, words in (("none", ""), ("last", ", noise on dL/da"))
    }
    title = f"The tensor method under noise, {setting.inputs} inputs, {setting.batch} records"
    return Chart(title, "neurons", "error", series, "log", "log")


def _first(setting: _Setting) -> str:
    return f"m{setting.widths[0]}.b{setting.batch}"


def _interval(name: str, metrics: dict[str, float]) -> str:
    return f"{metrics[name]:.3f} ({metrics[f'{name}_low']:.3f} to {metrics[f'{name}_high']:.3f})"


_TITLE = "Noise on an update against the tensor method"
STUDY = Study("gradient-noise", _TITLE, "Wang23", _SCALES, _run, threads={"smoke": 1, "cpu": 1})
