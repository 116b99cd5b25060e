"""Gradient matching from noise against matching from the tensor estimate (Wang23, its last step)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import torch

from exhume import data
from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.tensor.attack import TensorAttack
from exhume.contract import Attack, Key, Knowledge, Progress, Records
from exhume.models.two_layer import TwoLayer
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.batches import score_batches
from exhume.score.intervals import bootstrap
from exhume.store import NullStore
from exhume.studies.study import Claim, Outcome, Scale, Study
from exhume.victims.gradient import cut_batches, release_batches

__all__ = ["STUDY", "unit_batches"]

DEVIATIONS = (
    "8x8 digits of unit norm, two classes (even, odd), one output.",
    "Both starts get the same number of steps; noise gets several restarts, the estimate one.",
    "Matching sees dL/da and dL/dW, the tensor estimate dL/da alone.",
)

_PAIRS = {"better-start": ("tensor_start", "noise_start"), "polish": ("tensor_start", "tensor")}


@dataclass(frozen=True)
class _Setting:
    width: int
    batch: int
    batches: int
    matching: GradientMatching


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(8000, 2, 1, GradientMatching(steps=20, rate=0.02, restarts=2)),
    "cpu": _Setting(20_000, 3, 8, GradientMatching(steps=150, rate=0.02, restarts=2)),
    "paper": _Setting(160_000, 4, 50, GradientMatching(steps=2000, rate=0.02, restarts=8)),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed)
    records = data.load("digits")
    network = TwoLayer(records.shape, setting.width, 1, "relu")
    tensor = TensorAttack(largest=2 * setting.batch)
    arms: dict[str, Attack] = {
        "tensor": tensor,
        "noise_start": setting.matching,
        "tensor_start": replace(setting.matching, start=tensor),
    }
    chosen = unit_batches(records, setting.batches, setting.batch, key.fold("records"))
    store, rows = folder.store(), []
    for i in range(setting.batches):
        progress("matching", i, setting.batches)
        own = key.fold("batch", i)
        address = own.fold("gradient-start 2", repr(setting)).digest
        kept = store.load(address)
        if kept is None:
            parameters = tensor.query(network, own)
            release, secret = release_batches(network, parameters, chosen[i : i + 1])
            known = Knowledge(architecture=network, batch_size=setting.batch)
            kept = {}
            for name, attack in arms.items():
                found = attack.prepare(known, key=own, store=NullStore()).run(release)
                kept[name] = score_batches(secret, found).cosines[0]
            store.save(address, kept)
        rows.append(kept)
    progress("matching", setting.batches, setting.batches)
    metrics = {
        f"{name}.mean_cosine": fmean(float(row[name].mean()) for row in rows) for name in arms
    }
    metrics |= {
        f"{name}.recovered": fmean(float((row[name] >= 0.99).double().mean()) for row in rows)
        for name in arms
    }
    for name, (after, before) in _PAIRS.items():
        gains = torch.stack([row[after].mean() - row[before].mean() for row in rows])
        low, high = bootstrap(gains, key.fold("bootstrap"))
        metrics |= {f"{name}.gain_low": low, f"{name}.gain_high": high}
    charts = [_chart(metrics, list(arms))]
    return Outcome(_claims(metrics), metrics, deviations=list(DEVIATIONS), charts=charts)


def _chart(metrics: dict[str, float], arms: list[str]) -> Chart:
    points = [Point(name.replace("_", " "), metrics[f"{name}.mean_cosine"]) for name in arms]
    return Chart("How close each comes", "attack", "mean cosine", {"ReLU, digits": points})


def unit_batches(records: Records, batches: int, size: int, key: Key) -> Records:
    """(batches, size, *shape) of unit norm; even and odd classes."""
    picked = torch.randperm(len(records), generator=key.generator())[: batches * size]
    inputs = records.inputs[picked].float()
    norms = inputs.flatten(1).norm(dim=1).reshape(-1, *([1] * (inputs.ndim - 1)))
    chosen = Records(inputs / norms, records.labels[picked] % 2, ("even", "odd"))
    return cut_batches(chosen, size)


def _claims(metrics: dict[str, float]) -> list[Claim]:
    statements = {
        "better-start": "Matching ends closer to the records from the tensor estimate than from noise",
        "polish": "Matching improves the tensor estimate",
    }
    found = []
    for name, (after, before) in _PAIRS.items():
        low, high = metrics[f"{name}.gain_low"], metrics[f"{name}.gain_high"]
        found.append(
            Claim(
                name,
                statements[name],
                "the estimate can be used as initialisation",
                f"mean cosine {metrics[f'{after}.mean_cosine']:.3f} against "
                f"{metrics[f'{before}.mean_cosine']:.3f} (difference {low:.3f} to {high:.3f})",
                low > 0,
            )
        )
    return found


STUDY = Study(
    name="gradient-start",
    title="Gradient matching from noise and from the tensor estimate",
    paper="Wang23",
    run=_run,
)
