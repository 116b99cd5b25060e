"""Studies that vary one thing about the victim: activation, privacy, length of training, its start (Balle22).

Table III: a ReLU that is off gives its incoming weights no gradient from the record, so less of the record is
stored; the paper finds ReLU alone to be an outlier among twelve activations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from torch import Tensor

from exhume.attacks.informed.noise_aware import NoiseAware
from exhume.attacks.informed.reconn import RecoNN
from exhume.auditing import Game
from exhume.auditing.plan import Stage, reconn_stage
from exhume.core.contract import Attack, Key
from exhume.settings import DataSettings, VictimSettings
from exhume.studies.arms import BALLE22, BALLE22_CNN, Bench, arm_metrics
from exhume.studies.claims import Range, said_of
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.informed.sweeps import (
    Pooled,
    Sweep,
    difference,
    increases,
    interval_of,
    sweep,
)
from exhume.studies.plan import stand_in
from exhume.train.dp import noise_for_epsilon
from exhume.train.functional import accuracy

PAPER: dict[str, float] = said_of("informed-activations")["published"]
_RECONN = "reconn"
_RECONN_ON = ("relu", "leaky-relu", "elu", "sigmoid", "floor")
_RECONN_NEEDS = 10_000  # shadows

_ACTIVATION_SCALES: dict[Scale, Sweep[str]] = {
    "smoke": Sweep(
        DataSettings("mnist", 60, 60, 150, 50, 100),
        replace(BALLE22, steps=40),
        values=("relu", "elu", "identity"),
    ),
    "cpu": Sweep(
        DataSettings("mnist", 200, 100, 800, 500, 1000), BALLE22, values=tuple(PAPER), seeds=2
    ),
    "long": Sweep(
        DataSettings("mnist", 1000, 500, 10_000, 1000, 1000), BALLE22, values=tuple(PAPER)
    ),
    "paper": Sweep(
        DataSettings("mnist", 10_000, 999, 58_999, 1, 1),
        replace(BALLE22, rate=0.2),
        values=tuple(PAPER),
    ),
}


def _activated(setting: Sweep[str]) -> dict[str, VictimSettings]:
    return {name: replace(setting.victim, activation=name) for name in setting.values}


def _run_activations(run: Run[Sweep[str]]) -> Outcome:
    setting, variants = run.setting, _activated(run.setting)
    bench = Bench.of(run, setting.data, setting.victim)
    swept = sweep(bench, setting.seeds, variants, further=_published)
    found, said = judge_activations(swept, run.key.fold("claims"))
    said["sorted"] = sorted(variants, key=lambda name: -swept[name].mse)
    return Outcome(arm_metrics(swept) | found, said=said)


def _published(bench: Bench) -> dict[str, Attack]:
    """RecoNN, the paper's attack, where there are shadows enough to train it."""
    enough = bench.settings.data.shadows >= _RECONN_NEEDS
    drawn = bench.settings.victim.activation in _RECONN_ON
    return {_RECONN: RecoNN(chunk=bench.chunk)} if enough and drawn else {}


def judge_activations(
    arms: Mapping[str, Pooled], key: Key
) -> tuple[dict[str, float], dict[str, object]]:
    """Comparisons target by target, as metrics and as the claims ask for them."""
    reconn = {name: arms[f"{name}.{_RECONN}"] for name in PAPER if f"{name}.{_RECONN}" in arms}
    relu, names = arms["relu"], [name for name in arms if name in PAPER and name != "relu"]
    others = sorted(names, key=lambda name: arms[name].mse)
    gaps = {name: difference(relu, arms[name], key.fold(name)) for name in others}
    excess = interval_of([relu, *(arms[n] for n in others)], _gap_less_spread, key.fold("spread"))
    low, high = arms[others[0]].mse, arms[others[-1]].mse
    found = {f"{name}.below_relu_by_low": gap[0] for name, gap in gaps.items()}
    found |= {f"{name}.below_relu_by_high": gap[1] for name, gap in gaps.items()}
    found |= {"gap_less_spread_low": excess[0], "gap_less_spread_high": excess[1]}
    worse = {
        name: difference(reconn["relu"], arm, key.fold(_RECONN, name))
        for name, arm in reconn.items()
        if name != "relu"
    }
    drawn = {
        "reconn_gaps": list(worse.values()),
        "reconn_said": [f"{name} {arm.mse:.4f}" for name, arm in reconn.items()],
    }
    return found, {
        **(drawn if reconn else {}),
        **{"relu": relu.mse, "low": low, "high": high, "best": others[0], "worst": others[-1]},
        **{"spread": high - low, "gap": relu.mse - high, "gaps": list(gaps.values())},
        **{"certain": sum(g[0] > 0 for g in gaps.values()), "compared": len(gaps)},
    }


def _gap_less_spread(means: Tensor) -> Tensor:
    """(draws, 1 + others), ReLU first: its distance to the worst other, less the others' spread."""
    relu, others = means[:, 0], means[:, 1:]
    worst, best = others.max(1).values, others.min(1).values
    return (relu - worst) - (worst - best)


def _activation_stages(setting: Sweep[str]) -> list[Stage]:
    stages, variants = setting.stages(_activated(setting)), _activated(setting)
    for name in _RECONN_ON if setting.data.shadows >= _RECONN_NEEDS else ():
        recipe, shape, _ = stand_in(setting.data, variants[name])
        stages.append(reconn_stage(RecoNN(), recipe, setting.data, shape, f" ({name})"))
    return stages


ACTIVATIONS = Study(
    "informed-activations",
    _ACTIVATION_SCALES,
    _run_activations,
    on_device=True,
    stages=_activation_stages,
)


# Balle22, Fig. 14: how much privacy does it take to stop reconstruction, and what does it cost?
#
# DP gradient descent with clip 10 and the noise of a given epsilon (delta 1e-5), clipping alone, and neither.
# The adversary knows the clip and the noise level, not the draw of the victim's noise. Two of them: one
# trains its shadows with noise of its own, as in the paper; the other also without, and weighs the noise in.


_CLIP, _DELTA = 10.0, 1e-5  # Balle22
_NONE, _CLIPPED = "none", "clip_only"
_AWARE = "noise_aware"
_EPSILONS = tuple(10.0**power for power in range(7))
_PRIVACY_SCALES: dict[
    Scale, Sweep[float]
] = {  # the larger public set is trained on too, for its accuracy
    "smoke": Sweep(
        DataSettings("mnist", 60, 50, 150, 300, 200), replace(BALLE22, steps=40), (1.0, 1e6)
    ),
    "cpu": Sweep(DataSettings("mnist", 300, 200, 800, 10_000, 1000), BALLE22, _EPSILONS),
    "paper": Sweep(DataSettings("cifar10", 5000, 1000, 48_000, 5000, 1000), BALLE22_CNN, _EPSILONS),
}


def _run_privacy(run: Run[Sweep[float]]) -> Outcome:
    setting, variants = run.setting, _variants(run.setting)
    bench = Bench.of(run, setting.data, setting.victim)
    swept = sweep(bench, setting.seeds, variants, further=_noise_aware)
    larger = {name: _accuracy_of_more(bench.of_victim(v)) for name, v in variants.items()}
    found, said = judge_privacy(swept, setting.values)
    found |= {f"{name}.larger_test_accuracy": value for name, value in larger.items()}
    found |= {f"{name}.noise_multiplier": victim.dp_noise for name, victim in variants.items()}
    private = {f"epsilon {epsilon:,.0f}": _name(epsilon) for epsilon in setting.values}
    by_privacy = private | {"clip only": _CLIPPED, "no defence": _NONE}
    said |= {"private": private, "by_privacy": by_privacy}
    return Outcome(arm_metrics(swept) | found, said=said)


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


def judge_privacy(
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


PRIVACY = Study(
    "informed-dp",
    _PRIVACY_SCALES,
    _run_privacy,
    on_device=True,
    stages=lambda setting: setting.stages(_variants(setting)),
)


# Balle22, Fig. 15: does it help to train the released model longer?
#
# On CIFAR-10 the paper finds an error that grows slowly with the released model's epochs and jumps at 240 to
# 250 of them. One epoch is one step here, since every step sees every record. The jump is tested at the
# paper's scale only; below it the same sweep runs on the MNIST network.


_BEFORE, _AFTER = 230, 260  # epochs on either side of the paper's jump


_LENGTH_SCALES: dict[Scale, Sweep[int]] = {  # values: steps
    "smoke": Sweep(DataSettings("mnist", 60, 50, 150, 50, 200), BALLE22, (1, 10, 60)),
    "cpu": Sweep(
        DataSettings("mnist", 300, 100, 800, 500, 1000), BALLE22, (1, 3, 10, 30, 100, 200, 300), 2
    ),
    "long": Sweep(
        DataSettings("cifar10", 25, 100, 300, 500, 1000),
        BALLE22_CNN,
        (10, 60, 140, 200, _BEFORE, 240, 250, _AFTER),
    ),
    "paper": Sweep(
        DataSettings("cifar10", 5000, 999, 53_999, 1, 1),
        BALLE22_CNN,
        (1, 10, 50, 100, 150, 200, _BEFORE, 240, 250, _AFTER),
    ),
}


def _lengthened(setting: Sweep[int]) -> dict[str, VictimSettings]:
    return {f"steps_{count}": replace(setting.victim, steps=count) for count in setting.values}


def _run_lengths(run: Run[Sweep[int]]) -> Outcome:
    setting, variants = run.setting, _lengthened(run.setting)
    swept = sweep(Bench.of(run, setting.data, setting.victim), setting.seeds, variants)
    by_steps = {count: f"steps_{count}" for count in setting.values}
    arms = {count: swept[name] for count, name in by_steps.items()}
    found, said = judge_lengths(arms, run.key.fold("claims"))
    said["by_steps"] = by_steps
    return Outcome(arm_metrics(swept) | found, said=said)


def judge_lengths(
    arms: Mapping[int, Pooled], key: Key
) -> tuple[dict[str, float], dict[str, object]]:
    """arms: by the number of steps, increasing."""
    found, said = increases(arms, key)
    first, last = min(arms), max(arms)
    said |= {"first": first, "last": last}
    said["whole"] = Range(*difference(arms[last], arms[first], key.fold("whole")))
    said["above_chance"] = [arm.above_chance for arm in arms.values()]
    said["least"] = min(arm.success[0] for arm in arms.values())
    said["chance"] = max(arm.chance[1] for arm in arms.values())
    if {_BEFORE, _AFTER} <= set(arms):
        said["jump"] = arms[_AFTER].mse / arms[_BEFORE].mse
    return found, said


LENGTHS = Study(
    "informed-epochs",
    _LENGTH_SCALES,
    _run_lengths,
    on_device=True,
    stages=lambda setting: setting.stages(_lengthened(setting)),
)


# Balle22, Fig. 12: does it matter when the adversary first sees the model?
#
# The adversary knows the parameters at which the training it attacks begins: fresh ones, or a model trained
# before on other records. Nearer to convergence the unknown record changes the weights less and differently;
# the paper finds reconstruction harder there.


_STEPS = (0, 10, 100, 1000)  # of earlier training, on the public records
_START_SCALES: dict[Scale, Sweep[int]] = {
    "smoke": Sweep(
        DataSettings("mnist", 60, 50, 150, 300, 200), replace(BALLE22, steps=40), _STEPS[:3]
    ),
    "cpu": Sweep(DataSettings("mnist", 300, 100, 800, 10_000, 1000), BALLE22, _STEPS, seeds=2),
    "long": Sweep(
        DataSettings("mnist", 10_000, 500, 4000, 10_000, 1000),
        replace(BALLE22, rate=0.2),
        (0, 1000, 4000),
    ),
    "paper": Sweep(
        DataSettings("mnist", 10_000, 1000, 48_000, 10_000, 1000),
        replace(BALLE22, rate=0.2),
        _STEPS,
    ),
}


def _run_starts(run: Run[Sweep[int]]) -> Outcome:
    setting, sizes = run.setting, run.setting.data
    steps = {f"before_{count}": count for count in setting.values}
    swept = sweep(
        Bench.of(run, sizes, setting.victim),
        setting.seeds,
        dict.fromkeys(steps, setting.victim),
        start=lambda name, own: trained_before(own, steps[name]),
        look=_reached,
    )
    reached = {name: float(swept[name].seen["reached"].mean()) for name in steps}
    by_steps = {count: swept[name] for name, count in steps.items()}
    found, said = judge_starts(by_steps, run.key.fold("claims"))
    found |= {f"{name}.start_accuracy": value for name, value in reached.items()}
    said["by_accuracy"] = {value: name for name, value in reached.items()}
    return Outcome(arm_metrics(swept) | found, said=said)


def trained_before(bench: Bench, steps: int) -> Tensor:
    """(p,) parameters after so many steps on the public records alone."""
    recipe = bench.of_victim(replace(bench.settings.victim, steps=max(1, steps))).recipe
    public, begun = bench.parts.public, bench.initial
    if not steps:
        return begun
    return recipe.fit(begun, public, public.none_for(1), bench.key.fold("before"))[0]


def _reached(bench: Bench, game: Game) -> dict[str, Tensor]:
    """Test accuracy of the parameters at which training starts."""
    initial = game.knowledge.initial
    assert initial is not None  # the informed adversary has it
    return {"reached": accuracy(game.recipe.architecture, initial[None], bench.parts.test)}


def judge_starts(
    arms: Mapping[int, Pooled], key: Key
) -> tuple[dict[str, float], dict[str, object]]:
    """arms: by the steps of earlier training, increasing from 0."""
    found, said = increases(arms, key)
    fresh, late = min(arms), max(arms)
    low, high = difference(arms[late], arms[fresh], key.fold("whole"))
    found |= {"late_minus_fresh_low": low, "late_minus_fresh_high": high}
    said |= {"fresh": fresh, "late": late, "success": Range(*arms[late].success)}
    return found, said | {"chance": arms[late].chance[1], "above_chance": arms[late].above_chance}


STARTS = Study(
    "informed-start",
    _START_SCALES,
    _run_starts,
    on_device=True,
    stages=lambda s: s.stages({f"before_{count}": s.victim for count in s.values}),
)
