"""How well and how fast: every reconstructor of the informed adversary, on the authors' notebook setting.

Error against the number of shadow models and against seconds, for the closed form, with and without a
network that corrects it, the published network, the Mnemonist's selection, and differentiating through
training, which needs no shadow model and no data of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, stdev

from exhume import data
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.mnemonist import Mnemonist
from exhume.attacks.informed.reconn import RecoNN
from exhume.attacks.informed.residual import Residual
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.auditing import Game, informed_game
from exhume.choices import resolve
from exhume.contract import Attack, Progress, Records, Store
from exhume.report.folder import RunFolder
from exhume.settings import DataSettings, Settings, VictimSettings
from exhume.studies.arms import Arm, play
from exhume.studies.informed.reconstructors_told import Large, Setting, charts, claims
from exhume.studies.study import Outcome, Scale, Study, pinned

__all__ = ["STUDY"]


_SCALES: dict[Scale, Setting] = {
    "smoke": Setting(
        DataSettings("mnist", fixed=100, targets=30, shadows=200, public=100, test=100),
        shadows=(100, 200),
        relu=100,
        reconn=100,
        through=2,
        relu_through=0,
        seeds=1,
        epochs=2,
        corrected=(200,),
        drawings=4_000,
        large=Large(
            DataSettings("mnist", fixed=150, targets=10, shadows=40, public=1, test=1), (20, 40)
        ),
    ),
    "cpu": Setting(
        DataSettings("mnist", fixed=1000, targets=500, shadows=8000, public=1000, test=1000),
        shadows=(500, 2000, 8000),
        relu=2000,
        reconn=2000,
        through=16,
        relu_through=0,  # its search does not end in minutes
        seeds=3,
        corrected=(2000,),
        large=Large(
            DataSettings("mnist", fixed=10_000, targets=100, shadows=1000, public=1, test=1),
            shadows=(250, 500, 1000),
        ),
    ),
    "paper": Setting(
        DataSettings("mnist", fixed=10_000, targets=999, shadows=58_999, public=1, test=1),
        shadows=(2000, 8000, 58_999),
        relu=58_999,
        reconn=58_999,
        through=999,
        relu_through=999,
        seeds=1,
        corrected=(8000, 58_999),
        drawings=600_000,
        rate=0.2,
    ),
}


def _measure(
    setting: Setting, settings: Settings, records: Records, folder: RunFolder, progress: Progress
) -> dict[str, Arm]:
    """All arms of one seed."""
    store, targets = folder.store(), setting.data.targets
    closed = ClosedForm(chunk=settings.machine.chunk)
    elu = informed_game(settings, records, store=store, progress=progress)
    relu = _bent(settings, records, store, progress)
    arms = {}
    for game, prefix, counts, better in (
        (elu, "", setting.shadows, setting.corrected),
        (relu, "relu.", (setting.relu,), (setting.relu,)),
    ):
        attacks: list[tuple[str, int, Attack]] = [("closed_form", n, closed) for n in counts]
        attacks += [("corrected", n, _corrected(setting, n, closed.chunk)) for n in better]
        for name, shadows, attack in attacks:
            arms[f"{prefix}{name}.{shadows}"] = play(
                game, attack, store=store, progress=progress, shadows=shadows, targets=targets
            )
    return arms


def _corrected(setting: Setting, shadows: int, chunk: int) -> Residual:
    """As much training whatever the number of shadows."""
    usual = Residual(chunk=chunk)
    epochs = max(1, setting.drawings // shadows)
    return replace(usual, training=replace(usual.training, epochs=epochs))


def _bent(settings: Settings, records: Records, store: Store, progress: Progress) -> Game:
    bent = settings.with_values("victim", activation="relu")
    return informed_game(bent, records, store=store, progress=progress)


def _once(
    setting: Setting, settings: Settings, records: Records, folder: RunFolder, progress: Progress
) -> dict[str, Arm]:
    """What is run on the first seed only."""
    store, chunk = folder.store(), settings.machine.chunk
    published = RecoNN(training=Training(epochs=setting.epochs), chunk=chunk)
    elu = informed_game(settings, records, store=store, progress=progress)
    arms = {}
    for name, attack in (("reconn", published), ("mnemonist", Mnemonist(published))):
        arms[f"{name}.{setting.reconn}"] = play(
            elu, attack, store=store, progress=progress, shadows=setting.reconn
        )
    arms["through_training"] = _exact(elu, setting.through, store, progress)
    if setting.relu_through:
        relu = _bent(settings, records, store, progress)
        arms["relu.through_training"] = _exact(relu, setting.relu_through, store, progress)
    return arms


def _exact(game: Game, targets: int, store: Store, progress: Progress) -> Arm:
    return play(game, ThroughTraining(), store=store, progress=progress, shadows=0, targets=targets)


def _paper_setting(
    large: Large, settings: Settings, records: Records, folder: RunFolder, progress: Progress
) -> dict[str, Arm]:
    """|D-| and rate of the paper, on one seed, with as many shadows as an hour allows."""
    store = folder.store()
    settings = resolve(
        replace(
            settings,
            data=large.data,
            victim=replace(settings.victim, rate=large.rate),
            machine=replace(settings.machine, chunk=0),
        ),
        records,
    )
    game = informed_game(settings, records, store=store, progress=progress)
    arms = {}
    for shadows in large.shadows:
        closed = ClosedForm(chunk=settings.machine.chunk)
        arms[f"paper_setting.closed_form.{shadows}"] = play(
            game, closed, store=store, progress=progress, shadows=shadows
        )
    if large.through:
        arms["paper_setting.through_training"] = _exact(game, large.through, store, progress)
    return arms


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
    metrics = _averaged([_metrics(arms) for arms in runs])
    metrics |= _metrics(_once(setting, settings, records, folder, progress))
    if setting.large:
        metrics |= _metrics(_paper_setting(setting.large, settings, records, folder, progress))
    return Outcome(
        claims=claims(setting, metrics),
        metrics=metrics,
        classes=list(records.classes),
        deviations=[
            f"Means over {setting.seeds} seeds; RecoNN, the Mnemonist and through training on the first "
            "seed only.",
            f"Through training attacks the first {setting.through} targets, the other arms all "
            f"{setting.data.targets}.",
            "Seconds include the shadow models, unless an earlier arm had trained them already.",
            "The paper's setting (|D-| = 10,000, rate 0.2) is run on the first seed only.",
        ],
        charts=charts(setting, metrics),
    )


def _metrics(arms: Mapping[str, Arm]) -> dict[str, float]:
    return {name: value for arm in arms for name, value in arms[arm].metrics(arm).items()}


def _averaged(runs: list[dict[str, float]]) -> dict[str, float]:
    metrics = {name: fmean(run[name] for run in runs) for name in runs[0]}
    if len(runs) > 1:
        sums = [name for name in runs[0] if name.endswith("mae_plus_mse")]
        metrics |= {f"{name}_std": stdev(run[name] for run in runs) for name in sums}
    return metrics


STUDY = Study(
    name="reconstructors",
    title="Closed form, network, or through training: error against shadows and seconds",
    paper="Balle22",
    run=_run,
)
