"""Balle22's exact case: the missing record of a softmax regression on MNIST, solved for.

The victims are fitted in fp64, to more than one gradient norm, and by scikit-learn as it comes; the attack is
the same, and the table says what each digit of the fit is worth to the adversary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from exhume.attacks.baseline import MeanRecord, holdings, snap_to_holdings
from exhume.attacks.informed.glm import GlmClosedForm
from exhume.choices import moved
from exhume.core.contract import Knowledge, Records
from exhume.core.results import AttackSpec, Findings, Section
from exhume.models.glm import softmax_regression
from exhume.readers import RecordsByRole, Sizes, split
from exhume.score.targets import TargetScores, score_targets
from exhume.studies.arms import mounted
from exhume.studies.claims import share_range
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.train.fleet import chunk_for
from exhume.train.functional import accuracy
from exhume.train.glm import Optimum, Penalty
from exhume.victims.informed import release_one_each, release_one_sklearn_each

_C = 1.0  # scikit-learn's default penalty, the same for all victims
_ASKED = 1e-12  # the gradient norm that the claim is about
_MEMORY = 2**31
_SPEC = AttackSpec("glm", "Closed form of linear models", "Balle22", "the released weights")


@dataclass(frozen=True)
class _Setting:
    fixed: int
    targets: int
    tolerances: tuple[float, ...]
    sklearn: int  # of the targets, how many scikit-learn fits a model for
    source: str = "mnist"


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(200, 10, (1e-8, _ASKED), 3),
    "cpu": _Setting(2000, 100, (1e-8, _ASKED), 10),
    "paper": _Setting(10_000, 1000, (1e-8, _ASKED, 1e-14), 100),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting, loaded = run.setting, run.records(run.setting.source)
    records = Records(loaded.inputs.double(), loaded.labels, loaded.classes)
    sizes = Sizes(setting.fixed, setting.targets, test=1000)
    parts = split(records, sizes, run.key.fold("split"))
    there = moved(parts, run.device)  # scikit-learn stays here
    fitted = {tolerance: _fitted(run, there, tolerance) for tolerance in setting.tolerances}
    metrics = {f"largest_error_{t:.0e}": one.metrics["largest_error"] for t, one in fitted.items()}
    metrics |= fitted[_ASKED].metrics | _by_sklearn(run, parts)
    return Outcome(
        said={"asked": _ASKED, "sklearn": share_range(metrics["sklearn_success"], setting.sklearn)},
        metrics=metrics,
        attacks=[fitted[_ASKED]],
        classes=list(records.classes),
    )


def _fitted(run: Run[_Setting], parts: RecordsByRole, tolerance: float) -> Findings:
    """Victims fitted to this gradient norm, attacked and scored."""
    network = softmax_regression(parts.fixed.shape, len(parts.fixed.classes))
    recipe, key = Optimum(network, Penalty.of_sum(_C), tolerance), run.key
    started = time.perf_counter()
    working = run.part(f"to {tolerance:g}").working(key)
    chunk = chunk_for(recipe.bytes_per_model(len(parts.fixed)), _MEMORY)
    release, secret = release_one_each(
        recipe, network.initial(key), parts.fixed, parts.target, chunk=chunk, **working
    )
    fit_seconds = time.perf_counter() - started
    knowledge = Knowledge(architecture=network, recipe=recipe, fixed=parts.fixed)
    found = mounted(GlmClosedForm(), knowledge, release, key.fold("attack"))
    mean = mounted(MeanRecord(), knowledge, release, key)
    others = {"mean record": mean, "held record nearest": snap_to_holdings(found, knowledge)}
    scores = score_targets(secret, found, holdings(knowledge), key.fold("score"), baselines=others)
    extra = {
        "largest_error": float(_largest_errors(scores).max()),
        "attack_seconds": found.cost.seconds,
        "fit_seconds": fit_seconds,
        "test_accuracy": float(accuracy(network, release.parameters[:10], parts.test).mean()),
        "mean_record_mse": float(scores.baselines["mean record"].mse.mean()),
        "nearest_mse": float(scores.baselines["held record nearest"].mse.mean()),
    }
    section = Section(
        _SPEC,
        found.status,
        knowledge.known(),
        {**scores.metrics, **found.observed, **extra},
        scores.leak,
        baselines=scores.beside,
        cost=found.cost,
    )
    return Findings(section, evidence=scores.evidence)


def _largest_errors(scores: TargetScores) -> Tensor:
    """(t,) error of each target's worst pixel."""
    apart = scores.evidence["reconstructions"] - scores.evidence["targets"]
    return apart.abs().flatten(1).amax(1)


def _by_sklearn(run: Run[_Setting], parts: RecordsByRole) -> dict[str, float]:
    """The attack on scikit-learn's own optimum, at its default tolerance and iterations."""
    count, key = run.setting.sklearn, run.key
    release, recipe, secret = release_one_sklearn_each(
        LogisticRegression(C=_C), parts.fixed, parts.target[:count], progress=run.progress
    )
    knowledge = Knowledge(architecture=recipe.architecture, recipe=recipe, fixed=parts.fixed)
    found = mounted(GlmClosedForm(), knowledge, release, key.fold("attack"))
    pool = holdings(knowledge)
    scores = score_targets(secret, found, pool, key.fold("score sklearn"), baselines={})
    errors = _largest_errors(scores)
    return {
        "sklearn_targets": float(count),
        "sklearn_median_largest_error": float(torch.median(errors)),
        "sklearn_largest_error": float(errors.max()),
        "sklearn_success": scores.metrics["success"],
        "sklearn_label_accuracy": scores.metrics["label_accuracy"],
        "sklearn_certificate_median": found.observed["certificate_median"],
    }


STUDY = Study("informed-glm", _SCALES, _run, on_device=True)
