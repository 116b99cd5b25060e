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

from exhume import data
from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.reconn import RecoNN
from exhume.auditing import Findings, Game, audit_informed, informed_game
from exhume.contract import Attack, Key, Progress, Records
from exhume.models.lpips import LPIPS, perceptual
from exhume.plan import resolve
from exhume.report.charts import Chart, Point
from exhume.report.folder import RunFolder
from exhume.score.intervals import bootstrap
from exhume.settings import DataSettings, MachineSettings, Settings, VictimSettings
from exhume.studies.arms import Arm, play
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned
from exhume.train.dp import noise_for_epsilon

__all__ = ["STUDY"]

_CLIP = 10.0  # Balle22 Fig. 14


@dataclass(frozen=True)
class _Setting:
    data: DataSettings
    private: DataSettings  # of the arms with private training, which costs twice as much
    epsilons: tuple[float, ...] = (1e4, 1e6)  # the paper: 10^0 to 10^6
    steps: tuple[int, ...] = (10, 100)  # of the released model; the last is that of all other arms
    epochs: int = 1000  # of the published reconstructor
    batch: int = 128
    rate: float = 1e-4
    threads: int = 0  # 0: one a core


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("cifar10", fixed=4, targets=10, shadows=60, public=100, test=20),
        DataSettings("cifar10", fixed=4, targets=4, shadows=8, public=20, test=20),
        epsilons=(1e4,),
        steps=(2, 12),
        epochs=1,
        batch=16,
        rate=1e-3,
        threads=1,
    ),
    "cpu": _Setting(
        DataSettings("cifar10", fixed=100, targets=50, shadows=120, public=1000, test=1000),
        DataSettings("cifar10", fixed=25, targets=30, shadows=50, public=500, test=1000),
        epochs=30,
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


@dataclass(frozen=True, eq=False)
class _Player:
    """Everything that the arms share."""

    setting: _Setting
    records: Records
    folder: RunFolder
    progress: Progress
    distance: LPIPS

    def game(self, settings: Settings) -> Game:
        return informed_game(
            settings, self.records, store=self.folder.store(), progress=self.progress
        )

    def play(self, game: Game, attack: Attack) -> Arm:
        return play(game, attack, store=self.folder.store(), progress=self.progress)

    def lpips(self, found: Tensor, truth: Tensor) -> Tensor:
        with torch.no_grad():
            distances: Tensor = self.distance(found.float(), truth.float())
        return distances

    def seen(self, arm: Arm) -> Tensor:
        """(t,) LPIPS of an arm's reconstructions."""
        evidence = arm.scores.evidence
        return self.lpips(evidence["reconstructions"], evidence["targets"])


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    records = data.load("cifar10", progress=progress)
    victim = VictimSettings(network="cnn", rate=0.01, steps=setting.steps[-1])
    machine = MachineSettings(threads=setting.threads)
    settings = resolve(Settings(seed, setting.data, victim, machine=machine), records)
    settings = pinned(settings, folder)
    player = _Player(setting, records, folder, progress, perceptual(progress=progress))
    game = player.game(settings)
    arms = _attacks(player, game, settings)
    shown = audit_informed(game, settings, store=folder.store(), progress=progress)
    folder.write_tensors("closed-form.safetensors", shown.evidence)
    shown.section["evidence"] = "closed-form.safetensors"
    arms |= _by_steps(player, settings) | _private(player, settings)
    metrics = _metrics(player, arms, shown)
    return Outcome(
        claims=_claims(player, arms, metrics, game.key.fold("claims")),
        metrics=metrics,
        attacks=[shown.section],
        classes=list(records.classes),
        deviations=_deviations(setting),
        charts=_charts(setting, arms),
    )


def _attacks(player: _Player, game: Game, settings: Settings) -> dict[str, Arm]:
    """Every reconstructor on the same released models, from the same shadows."""
    setting, chunk = player.setting, settings.machine.chunk
    full = RecoNN.convolutional(chunk=chunk)
    training = replace(full.training, epochs=setting.epochs, batch=setting.batch, rate=setting.rate)
    full = replace(full, training=training)
    pixels = replace(full, training=replace(training, perceptual=0.0, adversarial=0.0))
    attacks: dict[str, Attack] = {
        "closed_form": ClosedForm(chunk=chunk),
        "closed_form_per_label": ClosedForm(chunk=chunk, imprint=False),
        "reconn": full,
        "reconn_pixels": pixels,
        "mean_record": MeanRecord(),
    }
    return {name: player.play(game, attack) for name, attack in attacks.items()}


def _by_steps(player: _Player, settings: Settings) -> dict[str, Arm]:
    """Fig. 15: the closed form on models trained for another number of steps."""
    arms = {}
    for steps in player.setting.steps[:-1]:
        game = player.game(settings.with_values("victim", steps=steps))
        arms[f"steps_{steps}"] = player.play(game, ClosedForm(chunk=settings.machine.chunk))
    return arms


def _private(player: _Player, settings: Settings) -> dict[str, Arm]:
    """Fig. 14: the closed form on privately trained models, and on the same without clip and noise."""
    small = replace(
        settings, data=player.setting.private, machine=replace(settings.machine, chunk=0)
    )
    noises = {
        f"epsilon_{epsilon:g}": noise_for_epsilon(epsilon, settings.victim.steps)
        for epsilon in player.setting.epsilons
    }
    arms: dict[str, Arm] = {}
    for name, noise in {"not_private": 0.0, **noises}.items():
        clip = _CLIP if noise else 0.0
        hardened = small.with_values("victim", dp_clip=clip, dp_noise=noise)
        hardened = resolve(hardened, player.records)
        game = player.game(hardened)
        arms[f"dp.{name}"] = player.play(game, ClosedForm(chunk=hardened.machine.chunk))
        arms[f"dp.{name}"].scores.metrics["test_accuracy"] = float(game.facts["test_accuracy"])
        if not noise:
            arms["dp.mean_record"] = player.play(game, MeanRecord())
    return arms


def _metrics(player: _Player, arms: Mapping[str, Arm], shown: Findings) -> dict[str, float]:
    metrics = {name: value for arm in arms for name, value in arms[arm].metrics(arm).items()}
    for name, arm in arms.items():
        metrics[f"{name}.lpips"] = float(player.seen(arm).mean())
        metrics[f"{name}.ssim"] = arm.scores.metrics["ssim"]
        if "test_accuracy" in arm.scores.metrics:
            metrics[f"{name}.test_accuracy"] = arm.scores.metrics["test_accuracy"]
    evidence = arms["closed_form"].scores.evidence
    nearest = player.lpips(evidence["nearest"], evidence["targets"])
    return {
        **metrics,
        "oracle.mse": metrics["closed_form.oracle_mse"],
        "oracle.lpips": float(nearest.mean()),
        "closed_form.mse_on_shadows": shown.metrics["mse_on_shadows"],
        "test_accuracy": float(shown.victim["test_accuracy"]),
    }


def _charts(setting: _Setting, arms: Mapping[str, Arm]) -> list[Chart]:
    def point(x: str | float, name: str) -> Point:
        return Point(x, arms[name].mse, *arms[name].interval)

    oracle = arms["closed_form"].scores.metrics["oracle_mse"]
    kinds = {
        "closed form": "closed_form",
        "closed form, per label": "closed_form_per_label",
        "RecoNN": "reconn",
        "RecoNN, pixels alone": "reconn_pixels",
        "mean record": "mean_record",
    }
    steps = [
        point(count, "closed_form" if count == setting.steps[-1] else f"steps_{count}")
        for count in sorted(setting.steps)
    ]
    private = {"not private": "dp.not_private"} | {
        f"epsilon {epsilon:g}": f"dp.epsilon_{epsilon:g}"
        for epsilon in sorted(setting.epsilons, reverse=True)
    }
    return [
        Chart(
            "Attacks on the same released models",
            "attack",
            "mean squared error",
            {
                "ours": [point(shown, name) for shown, name in kinds.items()],
                "nearest-neighbour oracle": [Point(shown, oracle) for shown in kinds],
            },
        ),
        Chart(
            "Error against the released model's steps (Fig. 15)",
            "steps",
            "mean squared error",
            {"closed form": steps},
        ),
        Chart(
            "Error against privacy (Fig. 14)",
            "training",
            "mean squared error",
            {
                "closed form": [point(shown, name) for shown, name in private.items()],
                "mean record": [Point(shown, arms["dp.mean_record"].mse) for shown in private],
            },
        ),
    ]


def _deviations(setting: _Setting) -> list[str]:
    sizes, small = setting.data, setting.private
    return [
        f"|D-| = {sizes.fixed:,}, {sizes.shadows:,} shadows and {sizes.targets:,} targets (the paper: "
        "5,000, 54,000 and 1,000), one seed.",
        "RecoNN reads the standardised parameters projected onto the training shadows' span, which "
        "makes its first layer small; the paper's has 226M parameters.",
        f"RecoNN is trained for {setting.epochs:,} epochs in batches of {setting.batch} at rate "
        f"{setting.rate:g} (the paper: 1,000, 128, 1e-4); its epoch is chosen on held-out shadows.",
        "The closed form is ours. It chooses, by its error on the shadows, between a regression per "
        "label and one regression on the imprint in the first fully connected layer.",
        f"Private arms: |D-| = {small.fixed:,}, {small.shadows:,} shadows, {small.targets:,} targets, "
        "attacked by the closed form; the number of records counts as public.",
        "Initial weights are drawn from N(0, 1/fan_in) without truncation.",
    ]


def _paired(apart: Tensor, key: Key) -> tuple[float, float]:
    """Interval of the mean of (t,) differences; no difference at all is no share of successes."""
    return bootstrap(apart, key) if bool(apart.any()) else (0.0, 0.0)


def _claims(
    player: _Player, arms: Mapping[str, Arm], metrics: Mapping[str, float], key: Key
) -> list[Claim]:
    def gap(one: str, other: str) -> tuple[float, float]:
        """Interval of the mean difference in squared error, paired by target."""
        apart = arms[one].scores.attack.mse - arms[other].scores.attack.mse
        return _paired(apart, key.fold(one, other))

    def told(one: str, other: str) -> str:
        low, high = gap(one, other)
        return (
            f"MSE {arms[one].mse:.4f} against {arms[other].mse:.4f}, "
            f"paired difference {low:.4f} to {high:.4f}"
        )

    setting = player.setting
    weakest = f"dp.epsilon_{max(setting.epsilons):g}"
    first = f"steps_{setting.steps[0]}"
    closed = arms["closed_form"].scores.metrics
    clearer = _paired(
        player.seen(arms["reconn"]) - player.seen(arms["reconn_pixels"]), key.fold("lpips")
    )
    return [
        Claim(
            "beats-oracle",
            "CIFAR-10 records come back closer than the nearest record the adversary held",
            "shown with 54,000 shadows at |D-| = 5,000",
            f"{closed['success']:.1%} of the targets by the closed form, null "
            f"{closed['null_success']:.1%}",
            closed["success_low"] > 0.5,
        ),
        Claim(
            "reconn-learns",
            "The published reconstructor beats the mean record",
            "shown with 54,000 shadows at |D-| = 5,000",
            told("reconn", "mean_record"),
            gap("reconn", "mean_record")[1] < 0,
        ),
        Claim(
            "imprint",
            "Reading the imprint in the first fully connected layer beats a regression per label",
            "not in the paper",
            told("closed_form", "closed_form_per_label"),
            gap("closed_form", "closed_form_per_label")[1] < 0,
        ),
        Claim(
            "perceptual",
            "LPIPS and a discriminator in the loss make reconstructions perceptually closer",
            "used for CIFAR-10, not compared",
            f"LPIPS {metrics['reconn.lpips']:.3f} against {metrics['reconn_pixels.lpips']:.3f}, "
            f"paired difference {clearer[0]:.3f} to {clearer[1]:.3f}",
            clearer[1] < 0,
        ),
        Claim(
            "private",
            "Private training stops reconstruction even at a large epsilon",
            "Fig. 14, clip 10, delta 1e-5",
            f"epsilon {max(setting.epsilons):g}: {told(weakest, 'dp.mean_record')}; "
            f"not private: {told('dp.not_private', 'dp.mean_record')}",
            gap("dp.not_private", "dp.mean_record")[1] < 0 < gap(weakest, "dp.mean_record")[1],
        ),
        Claim(
            "steps",
            "The error grows with the number of steps the released model is trained for",
            "Fig. 15: slowly from 1 to 240 epochs, then a jump",
            f"{setting.steps[-1]} steps against {setting.steps[0]}: {told('closed_form', first)}",
            gap("closed_form", first)[0] > 0,
        ),
    ]


STUDY = Study(
    name="informed-cifar10",
    title="An informed adversary against a convolutional network on CIFAR-10",
    paper="Balle22",
    run=_run,
)
