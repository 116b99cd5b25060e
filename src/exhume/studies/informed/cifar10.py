"""Balle22 on CIFAR-10: the Table V network, reconstructors of Table VI, and Figs 14 and 15 in small.

One shadow model at the paper's |D-| = 5,000 takes some 4 TFLOP, so the scale for two cores has few
fixed records and few shadows. The published reconstructor is trained with and without its perceptual
and adversarial terms and scored by LPIPS as well; private training and fewer steps are attacked by the
closed form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.reconn import RecoNN
from exhume.auditing.plan import Stage, game_stages, reconn_stage
from exhume.core.contract import Attack, Key
from exhume.models.lpips import LPIPS, perceptual
from exhume.settings import DataSettings
from exhume.studies.arms import BALLE22_CNN, Arm, Bench, arm_metrics
from exhume.studies.claims import Comparison, paired
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.plan import stand_in
from exhume.train.dp import noise_for_epsilon

_CLIP = 10.0  # Balle22 Fig. 14
_LARGE = 100.0  # the least epsilon that is called large


@dataclass(frozen=True)
class _Setting:
    data: DataSettings
    private: DataSettings  # of the arms with private training, which costs twice as much
    epsilons: tuple[float, ...]
    steps: tuple[int, ...]  # of the released model; the last is that of all other arms
    epochs: int = 1000  # of the published reconstructor
    batch: int = 128
    rate: float = 1e-4


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("cifar10", fixed=4, targets=10, shadows=60, public=100, test=20),
        DataSettings("cifar10", fixed=4, targets=4, shadows=8, public=20, test=20),
        epsilons=(1e4,),
        steps=(2, 12),
        epochs=1,
        batch=16,
        rate=1e-3,
    ),
    "cpu": _Setting(
        DataSettings("cifar10", fixed=25, targets=50, shadows=300, public=1000, test=1000),
        DataSettings("cifar10", fixed=25, targets=30, shadows=50, public=500, test=1000),
        epsilons=(1e4, 1e6),
        steps=(10, 100),
        epochs=30,
        batch=16,
        rate=1e-3,
    ),
    "long": _Setting(
        DataSettings("cifar10", fixed=25, targets=100, shadows=1000, public=1000, test=1000),
        DataSettings("cifar10", fixed=25, targets=50, shadows=200, public=500, test=1000),
        epsilons=(1e2, 1e4, 1e6),
        steps=(10, 100),
        epochs=200,
        batch=16,
        rate=1e-3,
    ),
    "paper": _Setting(
        DataSettings("cifar10", fixed=5000, targets=998, shadows=53_000, public=1000, test=1),
        DataSettings("cifar10", fixed=5000, targets=998, shadows=53_000, public=1000, test=1),
        epsilons=(1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6),
        steps=(1, 20, 60, 140, 220, 240, 260, 100),
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting = run.setting
    bench = Bench.of(run, setting.data, replace(BALLE22_CNN, steps=setting.steps[-1]))
    distance, game = perceptual(progress=run.progress), bench.game()
    attacks = _attacks(setting, bench.chunk)
    arms = {name: bench.play(game, attack) for name, attack in attacks.items()}
    shown = bench.audited(game)
    private, accuracies = _private(bench, setting)
    arms |= _by_steps(bench, setting) | private
    seen = {name: _lpips(distance, arm, "reconstructions") for name, arm in arms.items()}
    metrics = arm_metrics(arms) | accuracies
    for name, arm in arms.items():
        metrics[f"{name}.lpips"] = float(seen[name].mean())
        metrics[f"{name}.ssim"] = arm.scores.metrics["ssim"]
    metrics |= {
        "oracle.mse": metrics["closed_form.oracle_mse"],
        "oracle.lpips": float(_lpips(distance, arms["closed_form"], "nearest").mean()),
        "closed_form.mse_on_shadows": shown.metrics["mse_on_shadows"],
        "test_accuracy": float(shown.facts["test_accuracy"]),
    }
    return Outcome(
        said=compared(setting, arms, seen, game.key.fold("claims")),
        metrics=metrics,
        attacks=[shown],
        classes=list(bench.records.classes),
    )


def _lpips(distance: LPIPS, arm: Arm, what: str) -> Tensor:
    """(t,) LPIPS of an arm's reconstructions, or of the nearest records held."""
    evidence = arm.scores.evidence
    with torch.no_grad():
        found: Tensor = distance(evidence[what].cpu().float(), evidence["targets"].cpu().float())
    return found


def _attacks(setting: _Setting, chunk: int) -> dict[str, Attack]:
    """Every reconstructor for the same released models and shadows."""
    full = RecoNN.convolutional(chunk=chunk)
    training = replace(full.training, epochs=setting.epochs, batch=setting.batch, rate=setting.rate)
    pixels = replace(training, perceptual=0.0, adversarial=0.0)
    return {
        "closed_form": ClosedForm(chunk=chunk),
        "closed_form_per_label": ClosedForm(chunk=chunk, imprint=False),
        "reconn": replace(full, training=training),
        "reconn_pixels": replace(full, training=pixels),
        "mean_record": MeanRecord(),
    }


def _by_steps(bench: Bench, setting: _Setting) -> dict[str, Arm]:
    """Fig. 15: the closed form on models trained for another number of steps."""
    victim = bench.settings.victim
    others = {n: bench.of_victim(replace(victim, steps=n)) for n in setting.steps[:-1]}
    return {f"steps_{n}": other.play(other.game()) for n, other in others.items()}


def _private(bench: Bench, setting: _Setting) -> tuple[dict[str, Arm], dict[str, float]]:
    """Fig. 14: the closed form on privately trained models, and on the same without clip and noise.

    Beside the arms, the accuracy of their models.
    """
    victim = bench.settings.victim
    noises = {f"epsilon_{e:g}": noise_for_epsilon(e, victim.steps) for e in setting.epsilons}
    arms, accuracies = {}, {}
    for name, noise in {"not_private": 0.0, **noises}.items():
        hardened = replace(victim, dp_clip=_CLIP if noise else 0.0, dp_noise=noise)
        small = bench.of_victim(hardened).rechunked(setting.private)
        game = small.game()
        arms[f"dp.{name}"] = small.play(game)
        accuracies[f"dp.{name}.test_accuracy"] = float(game.facts["test_accuracy"])
        if not noise:
            arms["dp.mean_record"] = small.play(game, MeanRecord())
    return arms, accuracies


def compared(
    setting: _Setting, arms: Mapping[str, Arm], seen: Mapping[str, Tensor], key: Key
) -> dict[str, object]:
    """What the claims and deviations ask for. seen: (t,) LPIPS of each arm's reconstructions."""
    mse = Comparison(lambda name: arms[name].errors, "MSE", key, digits=4)
    closed, most = arms["closed_form"].scores.metrics, max(setting.epsilons)
    large = min(epsilon for epsilon in setting.epsilons if epsilon >= _LARGE)
    return {
        "closed": (closed["success_low"], closed["success_high"]),
        "reconn": mse("reconn", "mean_record"),
        "imprint": mse("closed_form", "closed_form_per_label"),
        "perceptual": paired(seen["reconn"], seen["reconn_pixels"], key.fold("lpips"), "LPIPS"),
        **{"large": large, "most": most},
        "hidden": mse(f"dp.epsilon_{large:g}", "dp.mean_record"),
        "hidden_at_most": mse(f"dp.epsilon_{most:g}", "dp.mean_record"),
        "plain": mse("dp.not_private", "dp.mean_record"),
        "by_steps": {n: f"steps_{n}" for n in sorted(setting.steps)}
        | {setting.steps[-1]: "closed_form"},
        "by_privacy": {"not private": "not_private"}
        | {f"epsilon {e:g}": f"epsilon_{e:g}" for e in sorted(setting.epsilons)[::-1]},
        **{"longest": setting.steps[-1], "fewest": setting.steps[0]},
        "longer": mse("closed_form", f"steps_{setting.steps[0]}"),
    }


def _stages(setting: _Setting) -> list[Stage]:
    """The game at its full length with all attacks, then Figs 15 and 14."""
    victim = replace(BALLE22_CNN, steps=setting.steps[-1])
    recipe, shape, classes = stand_in(setting.data, victim)
    stages = game_stages(recipe, setting.data, shape, classes)
    for name, attack in _attacks(setting, 1).items():
        if isinstance(attack, RecoNN):
            stages.append(reconn_stage(attack, recipe, setting.data, shape, f" ({name})"))
    for steps in setting.steps[:-1]:
        own, *_ = stand_in(setting.data, replace(victim, steps=steps))
        stages += game_stages(own, setting.data, shape, classes, f" ({steps} steps)")
    private = replace(victim, dp_clip=_CLIP, dp_noise=1.0)
    arms = {"not private": victim} | {f"epsilon {e:g}": private for e in setting.epsilons}
    for name, other in arms.items():
        own, *_ = stand_in(setting.private, other)
        stages += game_stages(own, setting.private, shape, classes, f" ({name})")
    return stages


STUDY = Study(
    "informed-cifar10", _SCALES, _run, on_device=True, threads={"smoke": 1}, stages=_stages
)
