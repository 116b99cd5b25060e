"""Balle22, Fig. 14: how much privacy does it take to stop reconstruction, and what does it cost?

DP gradient descent with clip 10 and the noise of a given epsilon (delta 1e-5), clipping alone, and neither.
The adversary knows the clip and the noise level, not the draw of the victim's noise. Two of them: one
trains its shadows with noise of its own, as in the paper; the other also without, and weighs the noise in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from exhume import data
from exhume.attacks.informed.noise_aware import NoiseAware
from exhume.auditing import dealt
from exhume.choices import recipe_for, resolve
from exhume.contract import Attack, Key, Progress, Records
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.intervals import clopper_pearson
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.informed.sweeps import Pooled, error_series, sweep, sweep_metrics
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned
from exhume.train.dp import noise_for_epsilon
from exhume.train.functional import accuracy

__all__ = ["STUDY"]

_CLIP, _DELTA = 10.0, 1e-5  # Balle22
_LARGE = 100.0  # an epsilon from which on the formal guarantee says practically nothing
_LITTLE = 0.05  # of accuracy
_NONE, _CLIPPED = "none", "clip_only"
_AWARE = "noise_aware"


@dataclass(frozen=True)
class _Setting:
    data: DataSettings  # `public` is the larger training set whose accuracy is measured too
    victim: VictimSettings
    epsilons: tuple[float, ...]  # increasing
    seeds: int = 1


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=60, targets=50, shadows=150, public=300, test=200),
        VictimSettings(steps=40),
        epsilons=(1.0, 1e6),
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=300, targets=200, shadows=800, public=10_000, test=1000),
        VictimSettings(),
        epsilons=(1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6),
    ),
    "paper": _Setting(
        DataSettings("cifar10", fixed=5000, targets=1000, shadows=48_000, public=5000, test=1000),
        VictimSettings(network="cnn", rate=0.01),
        epsilons=(1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6),
    ),
}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    records = data.load(setting.data.source, progress=progress)
    settings = pinned(
        resolve(Settings(seed=seed, data=setting.data, victim=setting.victim), records), folder
    )
    variants = _variants(setting)

    def further(_: str, chosen: Settings) -> dict[str, Attack]:
        noisy = chosen.victim.dp_noise > 0
        return {_AWARE: NoiseAware(chunk=settings.machine.chunk)} if noisy else {}

    arms = sweep(
        variants, settings, setting.seeds, records, folder, progress=progress, further=further
    )
    larger = {
        name: _accuracy_of_more(replace(settings, victim=victim), records)
        for name, victim in variants.items()
    }
    claims, found = judge(arms, setting.epsilons)
    found |= {f"{name}.larger_test_accuracy": value for name, value in larger.items()}
    found |= {f"{name}.noise_multiplier": victim.dp_noise for name, victim in variants.items()}
    return Outcome(
        claims=claims,
        metrics=sweep_metrics(arms) | found,
        classes=list(records.classes),
        deviations=_deviations(setting),
        charts=_charts(arms, larger, setting),
    )


def _name(epsilon: float) -> str:
    return f"epsilon_{epsilon:.0f}"


def _variants(setting: _Setting) -> dict[str, VictimSettings]:
    clipped = replace(setting.victim, dp_clip=_CLIP)
    private = {
        _name(epsilon): replace(
            clipped, dp_noise=noise_for_epsilon(epsilon, clipped.steps, delta=_DELTA)
        )
        for epsilon in setting.epsilons
    }
    return {**private, _CLIPPED: clipped, _NONE: setting.victim}


def _accuracy_of_more(settings: Settings, records: Records, models: int = 4) -> float:
    """Test accuracy of the same training on the public records, which are more than the fixed ones."""
    key, parts = Key.from_seed(settings.seed), dealt(settings, records)
    recipe = recipe_for(settings, records)
    initial = recipe.architecture.initial(key.fold("victim")).to(parts.public.inputs.device)
    trained = recipe.fit(initial, parts.public, parts.public.none_for(models), key.fold("larger"))
    return float(accuracy(recipe.architecture, trained, parts.test).mean())


def judge(
    arms: Mapping[str, Pooled], epsilons: Sequence[float]
) -> tuple[list[Claim], dict[str, float]]:
    """epsilons: increasing. The largest at which, and below which, nothing leaks decides."""
    bare, clipped = arms[_NONE], arms[_CLIPPED]
    plain = {epsilon: arms[_name(epsilon)] for epsilon in epsilons}
    aware = {epsilon: arms[f"{_name(epsilon)}.{_AWARE}"] for epsilon in epsilons}
    hidden, seen = _safe(plain), _safe(aware)
    safe = min(hidden, seen)
    claims = [
        Claim(
            "without",
            "Without noise the records come back, clipped or not",
            "without a defence they do (CIFAR-10)",
            f"success {_rate(bare)} without a defence, {_rate(clipped)} with clipping alone; by chance "
            f"{max(bare.chance[1], clipped.chance[1]):.1%} or less",
            bare.leaks and clipped.leaks,
        ),
        Claim(
            "stops",
            f"Even a large epsilon (at least {_LARGE:g}) stops reconstruction",
            "a large epsilon does; 10^0 to 10^6 were tried (CIFAR-10)",
            _where(plain, aware, safe),
            safe >= _LARGE,
        ),
    ]
    found = {
        "largest_epsilon_without_leak": safe,
        "largest_epsilon_without_leak.noisy_shadows": hidden,
        "largest_epsilon_without_leak.noise_aware": seen,
    }
    if safe:
        cost = bare.measured["test_accuracy"] - arms[_name(safe)].measured["test_accuracy"]
        found["accuracy_cost"] = cost
        claims.append(
            Claim(
                "cost",
                f"and costs little accuracy (at most {_LITTLE:.0%})",
                "little",
                f"{cost:.1%} of {bare.measured['test_accuracy']:.1%} at epsilon {safe:,.0f}",
                cost <= _LITTLE,
            )
        )
    claims.append(
        Claim(
            "noise-aware",
            "Shadows trained without the noise see through noise that hides the record from noisy ones",
            "not tried: its shadows are trained with noise",
            f"the largest epsilon without a leak is {seen:,.0f}, with noisy shadows {hidden:,.0f}",
            seen < hidden,
        )
    )
    return claims, found


def _rate(arm: Pooled) -> str:
    return f"{arm.successes / arm.trials:.1%} ({arm.success[0]:.1%} to {arm.success[1]:.1%})"


def _safe(arms: Mapping[float, Pooled]) -> float:
    """The largest epsilon at which, and below which, nothing leaks; 0 if there is none."""
    safe = 0.0
    for epsilon, arm in arms.items():
        if arm.leaks:
            break
        safe = epsilon
    return safe


def _where(plain: Mapping[float, Pooled], aware: Mapping[float, Pooled], safe: float) -> str:
    def told(epsilon: float) -> str:
        return (
            f"{_rate(aware[epsilon])} noise-aware, {_rate(plain[epsilon])} with noisy shadows, by "
            f"chance {max(aware[epsilon].chance[1], plain[epsilon].chance[1]):.1%} or less"
        )

    parts = [f"nothing leaks up to epsilon {safe:,.0f}: success {told(safe)}"] if safe else []
    above = [epsilon for epsilon in plain if epsilon > safe]
    if above:
        parts.append(f"it leaks at {above[0]:,.0f}: {told(above[0])}")
    return "; ".join(parts)


def _deviations(setting: _Setting) -> list[str]:
    mnist = [
        f"MNIST and the MLP, |D-| = {setting.data.fixed:,}; the paper: CIFAR-10 and a CNN, 5,000."
    ]
    return [
        *(mnist if setting.data.source == "mnist" else []),
        "The reconstructor is a ridge regression per label in closed form instead of a network.",
        f"{setting.data.shadows:,} shadow models for each epsilon; under noise the change is taken from "
        "the shadows' mean. Beside them an attack of ours, from as many shadows without noise.",
        f"{setting.data.targets} targets on {setting.seeds} seed; every released model has its own noise.",
    ]


def _charts(
    arms: Mapping[str, Pooled], larger: Mapping[str, float], setting: _Setting
) -> list[Chart]:
    epsilons = {_name(epsilon): f"epsilon {epsilon:,.0f}" for epsilon in setting.epsilons}
    shown = {**epsilons, _CLIPPED: "clip only", _NONE: "no defence"}
    plain = {x: arms[name] for name, x in shown.items()}
    aware = {x: arms[f"{name}.{_AWARE}"] for name, x in epsilons.items()}
    errors = {
        **error_series(arms, shown),
        "noise-aware": [arm.point(x) for x, arm in aware.items()],
    }
    shares = {
        "closed form": [_share(x, arm.successes, arm.trials) for x, arm in plain.items()],
        "noise-aware": [_share(x, arm.successes, arm.trials) for x, arm in aware.items()],
        "closed form, unrelated records": [
            _share(x, arm.lucky, arm.trials) for x, arm in plain.items()
        ],
    }
    accuracies = {
        f"|D-| = {setting.data.fixed:,} (attacked)": [
            Point(x, arm.measured["test_accuracy"]) for x, arm in plain.items()
        ],
        f"|D-| = {setting.data.public:,} (not attacked)": [
            Point(shown[name], value) for name, value in larger.items()
        ],
    }
    return [
        Chart("Error by privacy", "epsilon", "mean squared error", errors, y_scale="log"),
        Chart("Records better than the oracle", "epsilon", "share of the targets", shares),
        Chart("Accuracy by privacy", "epsilon", "test accuracy", accuracies),
    ]


def _share(x: str, count: int, trials: int) -> Point:
    return Point(x, count / trials, *clopper_pearson(count, trials))


STUDY = Study(
    name="informed-dp",
    title="How much differential privacy stops reconstruction (Fig. 14)",
    paper="Balle22",
    run=_run,
)
