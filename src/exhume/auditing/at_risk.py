"""Records at risk: what a model makes of each of its records, and the list of those that leak most.

The list goes into the run folder as CSV: row numbers, figures and reasons, nothing of a record's content.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from exhume.contract import Architecture, Records
from exhume.models.heads import margins
from exhume.report.folder import RunFolder
from exhume.score.risk import FACTORS, Risk, outlier_scores, risk_of
from exhume.train.functional import own_answers, record_gradients

__all__ = ["AT_RISK", "factors_of_one", "factors_of_own", "write_risk"]

AT_RISK = "records-at-risk.csv"
_NUMBERS = 1 << 24  # of gradients held at once


def factors_of_own(
    architecture: Architecture, parameters: Tensor, records: Records, others: Records
) -> dict[str, Tensor]:
    """(s, p) models, each on its own one of s records; others: what all were trained on besides."""
    own, outputs, norms = records.one_each(), [], []
    rows = max(1, _NUMBERS // parameters.shape[1])
    for start in range(0, len(records), rows):
        cut = slice(start, start + rows)
        answers, gradients = own_answers(architecture, parameters[cut], own[cut])
        outputs.append(answers[:, 0])
        norms.append(gradients.double().norm(dim=1))
    return {
        "margins": margins("multiclass", torch.cat(outputs), records.labels).double(),
        "gradient_norms": torch.cat(norms),
        "outliers": outlier_scores(records.inputs, others.inputs),
    }


def factors_of_one(
    architecture: Architecture, parameters: Tensor, records: Records, centre: Tensor
) -> dict[str, Tensor]:
    """(p,) one model on all records that it was trained on; centre: what inputs lose before they enter."""
    entering = Records(
        (records.inputs - centre).to(parameters.dtype), records.labels, records.classes
    )
    parts = []
    rows = max(1, _NUMBERS // len(parameters))
    for start in range(0, len(records), rows):
        each = record_gradients(architecture, parameters[None], entering[start : start + rows])
        parts.append(each[0].double().norm(dim=1))
    return {
        "gradient_norms": torch.cat(parts),
        "outliers": outlier_scores(records.inputs, records.inputs),
    }


def write_risk(
    folder: RunFolder,
    section: dict[str, Any],
    evidence: Mapping[str, Tensor],
    name: str = AT_RISK,
) -> None:
    """The list of all scored records, those that leak most first; the section says where it is."""
    risk = risk_of(evidence)
    if risk is None:
        return
    folder.write_text(name, _table(risk))
    section["at_risk"] = {"csv": name, "measure": risk.measure, "notes": risk.sentences()}


def _table(risk: Risk) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [FACTORS[name][0].replace(" ", "_") for name in risk.factors]
    writer.writerow(["rank", "row", "brought_back", "leak", *names, "why"])
    for rank, index in enumerate(risk.order, start=1):
        factors = [f"{float(values[index]):.6g}" for values in risk.factors.values()]
        leak, back = f"{float(risk.leak[index]):.6g}", "yes" if risk.back[index] else "no"
        writer.writerow([rank, int(risk.rows[index]), back, leak, *factors, risk.why(index)])
    return text.getvalue()
