"""Which defence of an update stops which attack, and what it costs the update."""

from __future__ import annotations

from dataclasses import dataclass, replace

from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.span import SpanAttack
from exhume.core.contract import Attack, Gradient, ReleaseDefence
from exhume.defences.release import ClipRelease, NoiseRelease, PruneRelease, QuantiseRelease
from exhume.models.two_layer import TwoLayer
from exhume.studies.claims import flattened, line
from exhume.studies.framework import Chart, Claims, Outcome, Run, Scale, Study
from exhume.studies.gradient.batches import attacked, even_odd_batches, recovered_range, utility
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "8x8 digits of unit norm, even against odd, tanh.",
    "Utility is the cosine of the protected update with the true one: what is left of the step's direction. "
    "No model is trained with protected updates.",
    "DP-SGD's clipping of every record is not among the defences here.",
)
_MATCHING = GradientMatching(steps=2000, rate=0.05)
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
    source: str = "digits"

    @property
    def attacks(self) -> dict[str, Attack]:
        most = max((self.batch, *self.larger))  # a wider span is noise, not records
        span: dict[str, Attack] = {"span": SpanAttack(largest=most)}
        return span if self.matching is None else span | {"matching": self.matching}


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(500, 2, 1, ("none", "noise.1", "prune.0.9"), (2,), (), None),
    "cpu": _Setting(
        2000, 4, 5, tuple(_DEFENCES), (2, 5), (8, 16), replace(_MATCHING, steps=100, restarts=2)
    ),
    "paper": _Setting(5000, 8, 50, tuple(_DEFENCES), (2, 5, 20), (16, 32), _MATCHING),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting = run.setting
    jobs = {name: _Arm(_DEFENCES[name]) for name in setting.defences}
    jobs |= {f"local_steps.{steps}": _Arm(steps=steps) for steps in setting.local_steps}
    jobs |= {f"batch.{size}": _Arm(batch=size) for size in setting.larger}
    metrics = flattened(run.arms("defences", _one, jobs))
    names = {name: name for name in setting.defences}
    series = {attack: line(names, f"{attack}.mean_cosine", metrics) for attack in setting.attacks}
    series["utility"] = line(names, "utility", metrics)
    charts = [Chart("Defences of an update", "defence", "mean cosine", series)]
    claims = _claims(setting, metrics)
    return Outcome(claims, metrics, deviations=list(DEVIATIONS), charts=charts)


@dataclass(frozen=True)
class _Arm:
    defence: ReleaseDefence = NoiseRelease()
    steps: int = 1
    batch: int = 0  # another size than the setting's, of other records


def _one(run: Run[_Setting], arm: _Arm) -> dict[str, float]:
    setting, key = run.setting, run.key
    drawn, size = ("larger", arm.batch) if arm.batch else ("records", setting.batch)
    private = even_odd_batches(run.records(setting.source), setting.batches, size, key.fold(drawn))
    network = TwoLayer(private.shape, setting.width, 1, "tanh")
    at = SpanAttack().query(network, key)
    plain, _ = release_batches(network, at, private)
    made, _ = release_batches(network, at, private, steps=arm.steps, rate=10.0)
    seen = arm.defence.protect(made, key.fold("defence"))
    assert isinstance(seen, Gradient)  # a defended gradient is one
    numbers = {} if arm.batch else {"utility": utility(seen, plain)}
    for name, attack in setting.attacks.items():
        scores = attacked(attack, network, seen, private, key, size=size)[1].metrics()
        numbers |= {f"{name}.{n}": scores[n] for n in ("mean_cosine", "recovered")}
    return numbers


def _claims(setting: _Setting, metrics: dict[str, float]) -> Claims:
    def recovered(defence: str) -> tuple[str, float, float]:
        share, records = metrics[f"{defence}.span.recovered"], setting.batch * setting.batches
        low, high = recovered_range(share, records)
        worth = metrics[f"{defence}.utility"]
        return f"{low:.0%} to {high:.0%} recovered at a utility of {worth:.2f}", low, high

    (noisy, least, _), (pruned, _, most) = recovered("noise.1"), recovered("prune.0.9")
    noise = "Noise as large as the update does not stop the span attack"
    pruning = "Keeping a tenth of the values stops the span attack"
    later = "not in the excerpt; later work prefers pruning to noise"
    return {
        "noise": (noise, "adding noise does not help", noisy, least > 0.5),
        "pruning": (pruning, later, pruned, most < 0.5),
    }


_TITLE = "Noise, clipping, quantising, pruning and local steps against the attacks on a gradient"
STUDY = Study("gradient-defences", _TITLE, "Wang23", _SCALES, _run)
