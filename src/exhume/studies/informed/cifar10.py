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
from exhume.choices import resolve
from exhume.contract import Attack, Progress, Records
from exhume.models.lpips import LPIPS, perceptual
from exhume.report.folder import RunFolder
from exhume.settings import DataSettings, MachineSettings, Settings, VictimSettings
from exhume.studies.arms import Arm, play
from exhume.studies.informed.cifar10_told import Setting, charts, claims, deviations
from exhume.studies.study import Outcome, Scale, Study, pinned
from exhume.train.dp import noise_for_epsilon

__all__ = ["STUDY"]

_CLIP = 10.0  # Balle22 Fig. 14


_SCALES: dict[Scale, Setting] = {
    "smoke": Setting(
        DataSettings("cifar10", fixed=4, targets=10, shadows=60, public=100, test=20),
        DataSettings("cifar10", fixed=4, targets=4, shadows=8, public=20, test=20),
        epsilons=(1e4,),
        steps=(2, 12),
        epochs=1,
        batch=16,
        rate=1e-3,
        threads=1,
    ),
    "cpu": Setting(
        DataSettings("cifar10", fixed=25, targets=50, shadows=300, public=1000, test=1000),
        DataSettings("cifar10", fixed=25, targets=30, shadows=50, public=500, test=1000),
        epochs=30,
        batch=16,
        rate=1e-3,
    ),
    "paper": Setting(
        DataSettings("cifar10", fixed=5000, targets=998, shadows=53_000, public=1000, test=1),
        DataSettings("cifar10", fixed=5000, targets=998, shadows=53_000, public=1000, test=1),
        epsilons=(1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6),
        steps=(1, 20, 60, 140, 220, 240, 260, 100),
    ),
}


@dataclass(frozen=True, eq=False)
class _Player:
    """Everything that the arms share."""

    setting: Setting
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
    arms |= _by_steps(player, settings) | _private(player, settings) | _crowded(player, settings)
    seen = {name: player.seen(arm) for name, arm in arms.items()}
    metrics = _metrics(player, arms, seen, shown)
    return Outcome(
        claims=claims(setting, arms, metrics, seen, game.key.fold("claims")),
        metrics=metrics,
        attacks=[shown.section],
        classes=list(records.classes),
        deviations=deviations(setting),
        charts=charts(setting, arms),
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


def _crowded(player: _Player, settings: Settings) -> dict[str, Arm]:
    """The closed form where there are more fixed records for the unknown one to hide among."""
    sizes = player.setting.crowded
    if sizes is None:
        return {}
    machine = replace(settings.machine, chunk=0)
    many = resolve(replace(settings, data=sizes, machine=machine), player.records)
    arm = player.play(player.game(many), ClosedForm(chunk=many.machine.chunk))
    return {f"fixed_{sizes.fixed}": arm}


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


def _metrics(
    player: _Player, arms: Mapping[str, Arm], seen: Mapping[str, Tensor], shown: Findings
) -> dict[str, float]:
    metrics = {name: value for arm in arms for name, value in arms[arm].metrics(arm).items()}
    for name, arm in arms.items():
        metrics[f"{name}.lpips"] = float(seen[name].mean())
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


STUDY = Study(
    name="informed-cifar10",
    title="An informed adversary against a convolutional network on CIFAR-10",
    paper="Balle22",
    run=_run,
)
