"""Balle22, Fig. 14: how much privacy does it take to stop reconstruction, and what does it cost?

DP gradient descent with clip 10 and the noise of a given epsilon (delta 1e-5), clipping alone, and neither.
The adversary knows the clip and the noise level, not the draw of the victim's noise. Two of them: one
trains its shadows with noise of its own, as in the paper; the other also without, and weighs the noise in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from exhume.attacks.informed.noise_aware import NoiseAware
from exhume.core.contract import Attack
from exhume.core.results import Chart, Point
from exhume.settings import DataSettings, VictimSettings
from exhume.studies.arms import BALLE22, BALLE22_CNN, Bench, arm_metrics
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.informed.sweeps import Pooled, Sweep, Swept, error_chart, ridge_on, sweep
from exhume.train.dp import noise_for_epsilon
from exhume.train.functional import accuracy

__all__ = ["STUDY"]

_CLIP, _DELTA = 10.0, 1e-5  # Balle22
_NONE, _CLIPPED = "none", "clip_only"
_AWARE = "noise_aware"
_EPSILONS = tuple(10.0**power for power in range(7))
_SCALES: dict[Scale, Sweep[float]] = {  # the larger public set is trained on too, for its accuracy
    "smoke": Sweep(
        DataSettings("mnist", 60, 50, 150, 300, 200), replace(BALLE22, steps=40), (1.0, 1e6)
    ),
    "cpu": Sweep(DataSettings("mnist", 300, 200, 800, 10_000, 1000), BALLE22, _EPSILONS),
    "paper": Sweep(DataSettings("cifar10", 5000, 1000, 48_000, 5000, 1000), BALLE22_CNN, _EPSILONS),
}


def _run(run: Run[Sweep[float]]) -> Outcome:
    setting, variants = run.setting, _variants(run.setting)
    bench = Bench.of(run, setting.data, setting.victim)
    swept = sweep(bench, setting.seeds, variants, further=_noise_aware)
    larger = {name: _accuracy_of_more(bench.of_victim(v)) for name, v in variants.items()}
    found, said = judge(swept, setting.values)
    found |= {f"{name}.larger_test_accuracy": value for name, value in larger.items()}
    found |= {f"{name}.noise_multiplier": victim.dp_noise for name, victim in variants.items()}
    return Outcome(
        said=said,
        metrics=arm_metrics(swept) | found,
        deviations=_deviations(setting),
        charts=_charts(swept, larger, setting),
    )


def _name(epsilon: float) -> str:
    return f"epsilon_{epsilon:.0f}"


def _variants(setting: Sweep[float]) -> dict[str, VictimSettings]:
    clipped = replace(setting.victim, dp_clip=_CLIP)
    noises = {e: noise_for_epsilon(e, clipped.steps, delta=_DELTA) for e in setting.values}
    private = {_name(e): replace(clipped, dp_noise=noise) for e, noise in noises.items()}
    return {**private, _CLIPPED: clipped, _NONE: setting.victim}


def _noise_aware(bench: Bench) -> dict[str, Attack]:
    return {_AWARE: NoiseAware(chunk=bench.chunk)} if bench.settings.victim.dp_noise else {}


def _accuracy_of_more(bench: Bench, models: int = 4) -> float:
    """Test accuracy of the same training on the public records, which are more than the fixed ones."""
    recipe, public, key = bench.recipe, bench.parts.public, bench.key
    trained = recipe.fit(bench.initial, public, public.none_for(models), key.fold("larger"))
    return float(accuracy(recipe.architecture, trained, bench.parts.test).mean())


def judge(
    arms: Mapping[str, Pooled], epsilons: Sequence[float]
) -> tuple[dict[str, float], dict[str, object]]:
    """epsilons: increasing. The largest at which, and below which, nothing leaks decides."""
    bare, clipped = arms[_NONE], arms[_CLIPPED]
    plain = {epsilon: arms[_name(epsilon)] for epsilon in epsilons}
    aware = {epsilon: arms[f"{_name(epsilon)}.{_AWARE}"] for epsilon in epsilons}
    hidden, seen = _safe(plain), _safe(aware)
    safe, usual = min(hidden, seen), bare.measured["test_accuracy"]
    found = {
        "largest_epsilon_without_leak": safe,
        "largest_epsilon_without_leak.noisy_shadows": hidden,
        "largest_epsilon_without_leak.noise_aware": seen,
    }
    if safe:
        found["accuracy_cost"] = usual - arms[_name(safe)].measured["test_accuracy"]
    return found, {
        **{"bare": bare.spoken, "clipped": clipped.spoken, "usual": usual},
        "chance": max(bare.chance[1], clipped.chance[1]),
        "above_chance": [bare.above_chance, clipped.above_chance],
        "where": _where(plain, aware, safe),
    }


def _safe(arms: Mapping[float, Pooled]) -> float:
    """The largest epsilon at which, and below which, nothing leaks; 0 if there is none."""
    return max(takewhile(lambda epsilon: not arms[epsilon].leaks, arms), default=0.0)


def _where(plain: Mapping[float, Pooled], aware: Mapping[float, Pooled], safe: float) -> str:
    def rates(epsilon: float) -> str:
        return (
            f"{aware[epsilon].spoken} noise-aware, {plain[epsilon].spoken} with noisy shadows, by "
            f"chance {max(aware[epsilon].chance[1], plain[epsilon].chance[1]):.1%} or less"
        )

    parts = [f"nothing leaks up to epsilon {safe:,.0f}: success {rates(safe)}"] if safe else []
    above = [epsilon for epsilon in plain if epsilon > safe]
    if above:
        parts.append(f"it leaks at {above[0]:,.0f}: {rates(above[0])}")
    return "; ".join(parts)


def _deviations(setting: Sweep[float]) -> list[str]:
    sizes = setting.data
    return [
        *ridge_on(sizes),
        f"{sizes.shadows:,} shadow models for each epsilon; under noise the change is taken from "
        "the shadows' mean. Beside them an attack of ours, from as many shadows without noise.",
        f"{sizes.targets} targets on {setting.seeds} seed; every released model has its own noise.",
    ]


def _charts(swept: Swept, larger: Mapping[str, float], setting: Sweep[float]) -> list[Chart]:
    epsilons = {_name(epsilon): f"epsilon {epsilon:,.0f}" for epsilon in setting.values}
    places = {**epsilons, _CLIPPED: "clip only", _NONE: "no defence"}
    plain = {x: swept[name] for name, x in places.items()}
    aware = {x: swept[f"{name}.{_AWARE}"] for name, x in epsilons.items()}
    errors = {"noise-aware": [arm.point(x) for x, arm in aware.items()]}
    shares = {
        "closed form": [Point(x, arm.rate, *arm.success) for x, arm in plain.items()],
        "noise-aware": [Point(x, arm.rate, *arm.success) for x, arm in aware.items()],
        "closed form, unrelated records": [
            Point(x, arm.null_rate, *arm.chance) for x, arm in plain.items()
        ],
    }
    accuracies = {
        f"|D-| = {setting.data.fixed:,} (attacked)": [
            Point(x, arm.measured["test_accuracy"]) for x, arm in plain.items()
        ],
        f"|D-| = {setting.data.public:,} (not attacked)": [
            Point(places[name], value) for name, value in larger.items()
        ],
    }
    return [
        error_chart(swept, "Error by privacy", "epsilon", places, beside=errors),
        Chart("Records better than the oracle", "epsilon", "share of the targets", shares),
        Chart("Accuracy by privacy", "epsilon", "test accuracy", accuracies),
    ]


STUDY = Study("informed-dp", _SCALES, _run, on_device=True)
