"""How well and how fast: every reconstructor of the informed adversary, on the authors' notebook setting.

Error against the number of shadow models and against seconds, for the closed form, the published
network, and differentiating through training, which needs no shadow model and no data of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from exhume import data
from exhume.attacks.baseline import holdings
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.reconn import RecoNN
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.auditing import Game, informed_game
from exhume.contract import Attack, Progress, Records, Store
from exhume.plan import resolve
from exhume.report.folder import RunFolder
from exhume.score.targets import TargetScores, score_targets
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.study import Claim, Outcome, Scale, Study, pinned
from exhume.victims.informed import first_of

__all__ = ["STUDY"]


@dataclass(frozen=True)
class _Setting:
    data: DataSettings
    shadows: tuple[int, ...]  # of the closed form, ELU; the largest is data.shadows
    relu: int  # shadows of the closed form, ReLU
    reconn: int  # shadows of the published network, first seed only
    through: int  # targets differentiated through training
    seeds: int
    epochs: int = 100
    rate: float = 0.1


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=100, targets=30, shadows=200, public=100, test=100),
        shadows=(100, 200),
        relu=100,
        reconn=100,
        through=2,
        seeds=1,
        epochs=2,
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=1000, targets=500, shadows=8000, public=1000, test=1000),
        shadows=(500, 2000, 8000),
        relu=2000,
        reconn=2000,
        through=16,
        seeds=3,
    ),
    "paper": _Setting(
        DataSettings("mnist", fixed=10_000, targets=999, shadows=58_999, public=1, test=1),
        shadows=(2000, 8000, 58_999),
        relu=58_999,
        reconn=58_999,
        through=999,
        seeds=1,
        rate=0.2,
    ),
}


@dataclass(frozen=True, eq=False)
class _Table:
    """A game, and what is needed to play it several times."""

    game: Game
    store: Store
    progress: Progress

    def play(self, attack: Attack, shadows: int, targets: int) -> tuple[TargetScores, float]:
        """Attack the first targets with the first shadows; the scores and the attack's seconds."""
        knowledge, key = self.game.knowledge, self.game.key
        pool = holdings(knowledge)
        shadow = knowledge.shadow[:shadows] if knowledge.shadow else None
        prepared = attack.prepare(
            replace(knowledge, shadow=shadow),
            key=key.fold("attack"),
            store=self.store,
            progress=self.progress,
        )
        release, secret = first_of(self.game.victim, targets)
        found = prepared.run(release)
        scores = score_targets(secret, found, pool, key.fold("score"), baselines={})
        return scores, found.cost.seconds


def _table(settings: Settings, records: Records, store: Store, progress: Progress) -> _Table:
    game = informed_game(settings, records, store=store, progress=progress)
    return _Table(game, store, progress)


def _measure(
    setting: _Setting, settings: Settings, records: Records, folder: RunFolder, progress: Progress
) -> dict[str, float]:
    """All arms of one seed."""
    store, chunk, targets = folder.store(), settings.machine.chunk, setting.data.targets
    elu = _table(settings, records, store, progress)
    found: dict[str, float] = {}
    for shadows in setting.shadows:
        arm = elu.play(ClosedForm(chunk=chunk), shadows, targets)
        found |= _named(f"closed_form.{shadows}", *arm)
    found |= _named("through_training", *elu.play(ThroughTraining(), 0, setting.through))
    relu = settings.with_values("victim", activation="relu")
    arm = _table(relu, records, store, progress).play(
        ClosedForm(chunk=chunk), setting.relu, targets
    )
    found |= _named(f"relu.closed_form.{setting.relu}", *arm)
    return found


def _named(arm: str, scores: TargetScores, seconds: float) -> dict[str, float]:
    kept = ("mse", "mae", "mae_plus_mse", "label_accuracy", "success", "null_success", "targets")
    named = {f"{arm}.{name}": scores.metrics[name] for name in kept if name in scores.metrics}
    return {**named, f"{arm}.seconds": seconds}


def _run(scale: Scale, seed: int, folder: RunFolder, progress: Progress) -> Outcome:
    setting = _SCALES[scale]
    records = data.load("mnist", progress=progress)
    victim = VictimSettings(rate=setting.rate)
    settings = pinned(
        resolve(Settings(seed=seed, data=setting.data, victim=victim), records), folder
    )
    runs = [
        _measure(setting, settings.with_seed(seed + i), records, folder, progress)
        for i in range(setting.seeds)
    ]
    metrics = {name: fmean(run[name] for run in runs) for name in runs[0]}
    if len(runs) > 1:
        sums = [name for name in runs[0] if name.endswith("mae_plus_mse")]
        metrics |= {f"{name}_std": stdev(run[name] for run in runs) for name in sums}
    published = RecoNN(training=Training(epochs=setting.epochs), chunk=settings.machine.chunk)
    table = _table(settings, records, folder.store(), progress)
    arm = table.play(published, setting.reconn, setting.data.targets)
    metrics |= _named(f"reconn.{setting.reconn}", *arm)
    return Outcome(
        claims=_claims(setting, metrics),
        metrics=metrics,
        classes=list(records.classes),
        deviations=[
            f"Means over {setting.seeds} seeds; RecoNN on the first seed only.",
            f"Through training attacks the first {setting.through} targets of each seed, the other "
            f"arms all {setting.data.targets}.",
            "Seconds include the shadow models, unless an earlier arm had trained them already.",
        ],
    )


def _claims(setting: _Setting, metrics: Mapping[str, float]) -> list[Claim]:
    few, many = setting.shadows[0], setting.shadows[-1]
    middle = setting.reconn if setting.reconn in setting.shadows else few
    exact, network = (
        metrics["through_training.mse"],
        metrics[f"reconn.{setting.reconn}.mae_plus_mse"],
    )
    closed = metrics[f"closed_form.{middle}.mae_plus_mse"]
    return [
        Claim(
            "exact",
            "Differentiating through training returns the records exactly, without shadows or data",
            "average MSE 0.0089 with 59,000 shadows at |D-| = 10,000",
            f"MSE {exact:.1e}, labels {metrics['through_training.label_accuracy']:.1%}",
            exact < 1e-4,
        ),
        Claim(
            "closed-form",
            "The closed form beats the published network at the same number of shadows",
            "held-out MAE + MSE 0.0583 with 10,000 shadows",
            f"{closed:.4f} against {network:.4f} at {middle:,} shadows",
            closed < network,
        ),
        Claim(
            "shadows",
            "More shadow models, smaller error",
            "shown for the network",
            f"MSE {metrics[f'closed_form.{few}.mse']:.4f} at {few:,}, "
            f"{metrics[f'closed_form.{many}.mse']:.4f} at {many:,}",
            metrics[f"closed_form.{many}.mse"] < metrics[f"closed_form.{few}.mse"],
        ),
    ]


STUDY = Study(
    name="reconstructors",
    title="Closed form, network, or through training: error against shadows and seconds",
    paper="Balle22",
    run=_run,
)
