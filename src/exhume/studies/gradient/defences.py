"""Which defence of an update stops which attack, and what it costs the update."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from exhume import data
from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.span.attack import SpanAttack
from exhume.contract import Attack, Gradient, Key, Knowledge, Progress, Records, ReleaseDefence
from exhume.defences.release import ClipRelease, NoiseRelease, PruneRelease, QuantiseRelease
from exhume.models.two_layer import TwoLayer
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.batches import score_batches
from exhume.score.intervals import clopper_pearson
from exhume.store import NullStore
from exhume.studies.gradient.start import unit_batches
from exhume.studies.study import Claim, Outcome, Scale, Study, remembered
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "8x8 digits of unit norm, even against odd, tanh.",
    "Utility is the cosine of the protected update with the true one: what is left of the step's direction. "
    "No model is trained with protected updates.",
    "DP-SGD's clipping of every record is not among the defences here.",
)
_DEFENCES: dict[str, ReleaseDefence] = {
    "none": NoiseRelease(),
    "noise.1e-4": NoiseRelease(1e-4),
    "noise.1e-2": NoiseRelease(1e-2),
    "noise.1e-1": NoiseRelease(1e-1),
    "noise.1": NoiseRelease(1.0),
    "clip.norm1e-3": ClipRelease(1e3),
    "bits.8": QuantiseRelease(8),
    "bits.4": QuantiseRelease(4),
    "bits.2": QuantiseRelease(2),
    "bits.1": QuantiseRelease(1),
    "prune.0.1": PruneRelease(0.1),
    "prune.0.5": PruneRelease(0.5),
    "prune.0.9": PruneRelease(0.9),
    "prune.0.99": PruneRelease(0.99),
}


@dataclass(frozen=True)
class _Setting:
    width: int
    batch: int
    batches: int
    defences: tuple[str, ...]
    local_steps: tuple[int, ...]
    larger: tuple[int, ...]  # batch sizes
    matching: GradientMatching | None


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(500, 2, 1, ("none", "noise.1", "prune.0.9"), (2,), (), None),
    "cpu": _Setting(
        2000,
        4,
        5,
        tuple(_DEFENCES),
        (2, 5),
        (8, 16),
        GradientMatching(steps=100, rate=0.05, restarts=2),
    ),
    "paper": _Setting(
        5000, 8, 50, tuple(_DEFENCES), (2, 5, 20), (16, 32), GradientMatching(steps=2000, rate=0.05)
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting, key = _SCALES[scale], Key.from_seed(seed)
    records = data.load("digits")
    network = TwoLayer(records.shape, setting.width, 1, "tanh")
    at = SpanAttack().query(network, key)
    batches = unit_batches(records, setting.batches, setting.batch, key.fold("records"))
    plain, _ = release_batches(network, at, batches)
    most = max((setting.batch, *setting.larger))  # a wider span is noise, not records
    attacks: dict[str, Attack] = {"span": SpanAttack(largest=most)}
    if setting.matching is not None:
        attacks["matching"] = setting.matching
    metrics: dict[str, float] = {}

    def measure(name: str, seen: Gradient, private: Records, steps: int = 1) -> None:
        progress(name, 0, 1)
        _, secret = release_batches(network, at, private, steps=steps)
        knowledge = Knowledge(architecture=network, batch_size=private.labels.shape[1])

        def scored() -> dict[str, float]:
            numbers = {}
            for attack_name, attack in attacks.items():
                found = attack.prepare(knowledge, key=key, store=NullStore()).run(seen)
                scores = score_batches(secret, found).metrics()
                for number in ("mean_cosine", "recovered"):
                    numbers[f"{name}.{attack_name}.{number}"] = scores[number]
            return numbers

        metrics.update(
            remembered(folder, key.fold("gradient-defences 4", repr(setting), name), scored)
        )
        progress(name, 1, 1)

    for name in setting.defences:
        seen = _DEFENCES[name].protect(plain, key.fold("defence"))
        assert isinstance(seen, Gradient)  # a defended gradient is one
        measure(name, seen, batches)
        metrics[f"{name}.utility"] = _utility(seen, plain)
    for steps in setting.local_steps:
        seen, _ = release_batches(network, at, batches, steps=steps, rate=10.0)
        measure(f"local_steps.{steps}", seen, batches, steps)
        metrics[f"local_steps.{steps}.utility"] = _utility(seen, plain)
    for size in setting.larger:
        private = unit_batches(records, setting.batches, size, key.fold("larger"))
        measure(f"batch.{size}", release_batches(network, at, private)[0], private)
    charts = [_chart(setting, metrics)]
    claims = _claims(setting, metrics)
    return Outcome(claims, metrics, deviations=list(DEVIATIONS), charts=charts)


def _utility(seen: Gradient, plain: Gradient) -> float:
    return float(torch.cosine_similarity(seen.values, plain.values, dim=1).mean())


def _claims(setting: _Setting, metrics: dict[str, float]) -> list[Claim]:
    records = setting.batch * setting.batches
    noisy, pruned = (
        clopper_pearson(round(metrics[f"{name}.span.recovered"] * records), records)
        for name in ("noise.1", "prune.0.9")
    )
    return [
        Claim(
            "noise",
            "Noise as large as the update does not stop the span attack",
            "adding noise does not help",
            f"{noisy[0]:.0%} to {noisy[1]:.0%} recovered at a utility of "
            f"{metrics['noise.1.utility']:.2f}",
            noisy[0] > 0.5,
        ),
        Claim(
            "pruning",
            "Keeping a tenth of the values stops the span attack",
            "not in the excerpt; later work prefers pruning to noise",
            f"{pruned[0]:.0%} to {pruned[1]:.0%} recovered at a utility of "
            f"{metrics['prune.0.9.utility']:.2f}",
            pruned[1] < 0.5,
        ),
    ]


def _chart(setting: _Setting, metrics: dict[str, float]) -> Chart:
    attacks = ["span", *(["matching"] if setting.matching is not None else [])]
    series = {
        attack: [Point(name, metrics[f"{name}.{attack}.mean_cosine"]) for name in setting.defences]
        for attack in attacks
    }
    series["utility"] = [Point(name, metrics[f"{name}.utility"]) for name in setting.defences]
    return Chart("Defences of an update", "defence", "mean cosine", series)


STUDY = Study(
    name="gradient-defences",
    title="Noise, clipping, quantising, pruning and local steps against the attacks on a gradient",
    paper="Wang23",
    run=_run,
)
