"""Mnemonist23's table: RecoNN on all parameters, on those it relied on, and on as many random ones.

ReLU victims on MNIST, one hidden layer of 10 and of 100, several seeds. Beside it the evidence from
training: are the rows that are kept those whose neurons were active on the record?
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import torch
from scipy.stats import spearmanr
from torch import Tensor

from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.mnemonist import FittedMnemonist, Mnemonist, permutation_importance
from exhume.attacks.informed.reconn import FEWEST, RecoNN, split_shadows
from exhume.attacks.informed.shadows import Shadows, train_shadows
from exhume.core.contract import Key, Records
from exhume.models.activations import Activation, activation
from exhume.models.mlp import MLP
from exhume.models.reconstructors import Dense
from exhume.score.intervals import bootstrap
from exhume.settings import DataSettings
from exhume.studies.arms import BALLE22, Bench, scored
from exhume.studies.claims import flattened, mean_of, prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch, descend

ARMS = ("all", "mnemonist", "random")
MEASURED = ("mse", "mae_plus_mse", "success", "parameters_read", "epoch")


@dataclass(frozen=True)
class _Setting:
    data: DataSettings
    widths: tuple[int, ...]
    reconn: RecoNN
    seeds: int
    watched: int  # models whose training is watched for active neurons
    rate: float = 0.1  # of the victim's training
    share: float = 0.5


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        DataSettings("mnist", fixed=50, targets=30, shadows=80, public=1, test=1),
        widths=(10, 12),
        reconn=RecoNN(Dense((32, 32)), Training(batch=32, epochs=3)),
        seeds=2,
        watched=20,
    ),
    "cpu": _Setting(
        DataSettings("mnist", fixed=200, targets=200, shadows=1600, public=1, test=1),
        widths=(10, 100),
        reconn=RecoNN(Dense((300, 300)), Training(batch=64, epochs=40, patience=10)),
        seeds=4,
        watched=256,
    ),
    "long": _Setting(
        DataSettings("mnist", fixed=1000, targets=500, shadows=10_000, public=1, test=1),
        widths=(10, 100),
        reconn=RecoNN(training=Training(patience=10)),
        seeds=2,
        watched=1000,
    ),
    "paper": _Setting(
        DataSettings("mnist", fixed=10_000, targets=999, shadows=58_999, public=1, test=1),
        widths=(10, 100),
        reconn=RecoNN(),
        seeds=4,
        watched=1000,
        rate=0.2,
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting = run.setting
    jobs = {
        f"width {width}, seed {index + 1}": (width, index)
        for width in setting.widths
        for index in range(setting.seeds)
    }
    found = run.arms("widths and seeds", _one, jobs)
    metrics: dict[str, float] = {}
    by_width = []
    for width in setting.widths:
        runs = [found[name] for name, job in jobs.items() if job[0] == width]
        seeds = flattened({f"seed_{i}": one for i, one in enumerate(runs)})
        metrics |= prefixed(f"width_{width}", mean_of(runs, runs[0]) | seeds)
        by_width.append(compared(width, runs, run.key.fold("claims", width)))
    classes = list(run.records(setting.data.source).classes)
    return Outcome(metrics, classes=classes, said={"by_width": by_width})


def _one(run: Run[_Setting], job: tuple[int, int]) -> dict[str, float]:
    """All arms on one victim: the same shadows, split and targets."""
    (width, index), setting = job, run.setting
    victim = replace(BALLE22, hidden=(max(setting.widths),), activation="relu", rate=setting.rate)
    bench = Bench.of(run, setting.data, victim).of_victim(replace(victim, hidden=(width,)))
    bench = bench.seeded(index, f"width {width}, seed {index + 1} of {setting.seeds}")
    game = bench.game()
    game = replace(game, knowledge=replace(game.knowledge, public=None))
    own = game.key.fold("attack")
    working, chunk = bench.run.working(own), bench.chunk
    shadows = train_shadows(game.knowledge, "Mnemonist", fewest=FEWEST, chunk=chunk, **working)
    measured: dict[str, float] = {}
    fitted: dict[str, FittedMnemonist] = {}
    for arm in ARMS:
        attack = Mnemonist(setting.reconn, setting.share, selection=arm)
        fitted[arm] = attack.fit(shadows, **working)
        played = scored(game, fitted[arm].run(game.victim[0]))
        found = {**played.scores.metrics, **played.found.observed}
        measured |= {f"{arm}.{name}": found[name] for name in MEASURED}
    return measured | _evidence(setting, fitted, shadows, _activity(bench, setting.watched), own)


def _activity(bench: Bench, watched: int) -> Tensor:
    """(w, k): share of the steps in which each hidden neuron was active on each model's own record."""
    recipe, records = bench.recipe, bench.parts.shadow[:watched]
    assert isinstance(recipe, FullBatch)  # as the scales of this study have it
    mlp, descent = recipe.architecture, recipe.descent
    assert isinstance(mlp, MLP)
    assert isinstance(descent, Descent)
    initial = bench.initial
    shares = []
    for start in range(0, len(records), bench.chunk):
        extra = records[start : start + bench.chunk].one_each()
        shares.append(active_share(mlp, descent, initial, bench.parts.fixed, extra)[0][0])
    return torch.cat(shares).cpu()


def active_share(
    mlp: MLP, descent: Descent, initial: Tensor, fixed: Records, extra: Records
) -> tuple[list[Tensor], Tensor]:
    """Share of the steps in which each hidden neuron was active, R'(h) != 0, on the model's own record.

    initial: (p,) or (s, p); extra: (s, 1, *shape). Returns one (s, k) per hidden layer, and the (s, p)
    trained parameters, which are those of `descend`.
    """
    act = activation(mlp.activation)
    records = extra.inputs[:, 0].flatten(1)
    counts = [records.new_zeros(len(records), width) for width in mlp.hidden]

    def look(parameters: Tensor) -> None:
        layers = list(mlp.layout.split(parameters).values())
        for count, slope in zip(counts, _slopes(layers, records, act), strict=True):
            count.add_(slope != 0)

    trained = descend(mlp, descent, initial, fixed, extra, watch=look)
    return [count / descent.steps for count in counts], trained


def _slopes(parameters: list[Tensor], records: Tensor, act: Activation) -> list[Tensor]:
    """(s, d) own records to the derivative of every hidden activation, (s, k) each."""
    slopes, signal = [], records
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        before = torch.einsum("skd,sd->sk", weight, signal) + bias
        signal = act.apply(before)
        slopes.append(act.slope(before, signal))
    return slopes


def _evidence(
    setting: _Setting,
    fitted: dict[str, FittedMnemonist],
    shadows: Shadows,
    activity: Tensor,
    key: Key,
) -> dict[str, float]:
    neurons = activity.shape[1]
    kept = fitted["mnemonist"].chosen[:neurons].cpu()
    importance = fitted["mnemonist"].importance[:neurons].cpu()
    held = split_shadows(len(shadows.records), setting.reconn.held_out, key).choose
    whole = fitted["all"]
    check = permutation_importance(
        whole.reconstructor,
        whole.rows,
        shadows.parameters[held],
        shadows.records.inputs[held],
        key.fold("check"),
    )[:neurons].cpu()
    return {
        "never_reached": float((activity == 0).double().mean()),
        "active_kept": float(activity[:, kept].mean()),
        "active_dropped": float(activity[:, ~kept].mean()),
        "importance_and_activity": _rank_correlation(importance, activity.mean(0)),
        "importance_and_permutation": _rank_correlation(importance, check),
    }


def _rank_correlation(left: Tensor, right: Tensor) -> float:
    """Spearman's; 0 where one of them does not vary."""
    if float(left.std()) == 0 or float(right.std()) == 0:
        return 0.0
    return float(spearmanr(left.numpy(), right.numpy()).statistic)


def compared(width: int, runs: list[dict[str, float]], key: Key) -> dict[str, object]:
    """The selection against each other arm, and how active the rows are that it keeps, run by run."""
    said: dict[str, object] = {"width": width, "runs": len(runs)}
    for arm in ("all", "random"):
        pairs = [(run["mnemonist.mae_plus_mse"], run[f"{arm}.mae_plus_mse"]) for run in runs]
        gains = torch.tensor([1 - ours / theirs for ours, theirs in pairs], dtype=torch.float64)
        low, high = bootstrap(gains, key.fold(arm))
        wins, gain = int((gains > 0).sum()), float(gains.mean())
        said[arm] = {"wins": wins, "gain": gain, "low": low, "high": high}
        said[f"{arm}_gain"] = (low, high)
    said |= {end: fmean(run[f"active_{end}"] for run in runs) for end in ("kept", "dropped")}
    more = torch.tensor([run["active_kept"] - run["active_dropped"] for run in runs])
    return said | {"more_active": bootstrap(more.double(), key.fold("active"))}


STUDY = Study("mnemonist", _SCALES, _run, on_device=True)
