"""Erasure requests: the erased record in the difference of two versions, of linear models and of a network.

Each person is in versions of its own: a model that was trained with it, and what it became without it. The
linear models are fitted again; the network is trained on for a few steps. Bertran et al. 2024 (2405.20272)
attack linear models so; a network after unlearning is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from exhume.auditing.attack import attack_case
from exhume.auditing.judge import holm_adjust
from exhume.auditing.kinds.versions import VersionsCase
from exhume.core.contract import Recipe, Records
from exhume.core.results import Findings
from exhume.models.glm import softmax_regression
from exhume.models.mlp import MLP
from exhume.readers.fitted import records_of_fitted
from exhume.settings import VersionsSettings
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.train.glm import Optimum, Penalty
from exhume.train.linear import LinearFit
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

_KINDS = ("ridge", "softmax", "network")


@dataclass(frozen=True)
class _Setting:
    linear: int  # persons erased from a linear model
    network: int  # and from a network
    fixed: int  # behind both versions
    steps: int  # of the network's training
    onwards: int  # and without the person
    search: int  # steps of gradient matching
    source: str = "digits"


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(5, 4, 60, 20, 3, 50),
    "cpu": _Setting(50, 30, 100, 50, 5, 200),
    "paper": _Setting(50, 200, 200, 100, 5, 2000),
}


def _run(run: Run[_Setting]) -> Outcome:
    found = {kind: _attacked(run, kind) for kind in _KINDS}
    metrics: dict[str, float] = {}
    for kind, answers in found.items():
        for one in answers:
            section, row = one.section, one.section.lineup
            names = {f"{kind}.{section.spec.id}.{n}": v for n, v in section.metrics.items()}
            if row is not None:
                names[f"{kind}.{section.spec.id}.identified"] = row.identified / row.targets
                names[f"{kind}.{section.spec.id}.identified_low"] = section.metrics["success_low"]
                names[f"{kind}.{section.spec.id}.identified_high"] = section.metrics["success_high"]
                names[f"{kind}.{section.spec.id}.chance"] = row.chance
                names[f"{kind}.{section.spec.id}.p"] = row.p
            metrics |= names
    return Outcome(metrics, attacks=[one for answers in found.values() for one in answers])


def _attacked(run: Run[_Setting], kind: str) -> list[Findings]:
    setting, key = run.setting, run.key.fold("versions", kind)
    records, recipe = _system(run, kind)
    count = setting.network if kind == "network" else setting.linear
    order = torch.randperm(len(records), generator=key.generator())
    parts = order[setting.fixed + count :].tensor_split(2)
    case = VersionsCase(
        VersionsSettings(made=count, steps=setting.onwards, search_steps=setting.search),
        recipe,
        records[order[: setting.fixed]],
        records[parts[0]],
        records[parts[1]],
        key.seed(),
        setting.source,
        drawn=records[order[setting.fixed : setting.fixed + count]],
    ).made(run.folder, run.progress)
    rows = case.rows()
    tests = sum(row.tests for row in rows)
    return holm_adjust(attack_case(case, rows, run.store, run.progress, tests=tests), tests)


def _system(run: Run[_Setting], kind: str) -> tuple[Records, Recipe]:
    if kind == "ridge":  # 442 patients, 10 columns and the course of their diabetes
        inputs, course = load_diabetes(return_X_y=True, scaled=False)
        records = records_of_fitted(Ridge().fit(inputs, course), inputs, course)
        return records, LinearFit(MLP((inputs.shape[1],), (), 1), Penalty.of_sum(1.0))
    records = run.records(run.setting.source)
    if kind == "softmax":
        exact = Records(records.inputs.double(), records.labels, records.classes)
        network = softmax_regression(records.shape, len(records.classes))
        return exact, Optimum(network, Penalty.of_sum(1.0))
    network = MLP(records.shape, (32,), len(records.classes))
    return records, FullBatch(network, Descent(run.setting.steps, 0.1))


STUDY = Study("versions", _SCALES, _run)
