"""Records at risk: what a model makes of each of its records, and the list of those that leak most.

The list goes into the run folder as CSV: row numbers, figures and reasons, nothing of a record's content.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from exhume.core.contract import Architecture, ExhumeError, Records
from exhume.core.results import AtRisk, Findings
from exhume.models.heads import margins
from exhume.report.folder import RunFolder
from exhume.score.risk import FACTORS, Risk, outlier_scores, risk_of
from exhume.train.functional import logits, own_answers, record_gradients

__all__ = ["AT_RISK", "factors_of_one", "factors_of_own", "with_risk"]

AT_RISK = "records-at-risk.csv"
_NUMBERS = 1 << 24  # of gradients held at once
_CANNOT = (RuntimeError, ValueError, ExhumeError)  # what batch norm raises, and our refusal of it


def factors_of_own(
    architecture: Architecture, parameters: Tensor, records: Records, others: Records
) -> dict[str, Tensor]:
    """(s, p) models, each on its own one of s records; others: what all were trained on besides.

    What cannot be computed is left out: of a network with batch norm the gradients, sometimes the margins.
    """
    outputs, norms = _own_outputs(architecture, parameters, records)
    found = {}
    if outputs is not None:
        found["margins"] = margins("multiclass", outputs, records.labels).double()
    if norms is not None:
        found["gradient_norms"] = norms
    return found | {"outliers": outlier_scores(records.inputs, others.inputs)}


def _own_outputs(
    architecture: Architecture, parameters: Tensor, records: Records
) -> tuple[Tensor | None, Tensor | None]:
    """(s, c) logits and (s,) norms of gradients; None where the network cannot be run record by record."""
    own, outputs, norms = records.one_each(), [], []
    rows = max(1, _NUMBERS // parameters.shape[1])
    try:
        for start in range(0, len(records), rows):
            cut = slice(start, start + rows)
            answers, gradients = own_answers(architecture, parameters[cut], own[cut])
            outputs.append(answers[:, 0])
            norms.append(gradients.double().norm(dim=1))
        return torch.cat(outputs), torch.cat(norms)
    except _CANNOT:
        return _outputs_alone(architecture, parameters, records), None


def _outputs_alone(
    architecture: Architecture, parameters: Tensor, records: Records
) -> Tensor | None:
    try:
        each = [
            logits(architecture, parameters[i : i + 1], records.inputs[i : i + 1])[0]
            for i in range(len(records))
        ]
    except _CANNOT:
        return None
    return torch.cat(each)


def factors_of_one(
    architecture: Architecture, parameters: Tensor, records: Records, centre: Tensor
) -> dict[str, Tensor]:
    """(p,) one model on all records that it was trained on; centre: what inputs lose before they enter.

    Without the gradients of a network that cannot be run record by record.
    """
    found = {"outliers": outlier_scores(records.inputs, records.inputs)}
    entering = Records(
        (records.inputs - centre).to(parameters.dtype), records.labels, records.classes
    )
    parts = []
    rows = max(1, _NUMBERS // len(parameters))
    try:
        for start in range(0, len(records), rows):
            each = record_gradients(architecture, parameters[None], entering[start : start + rows])
            parts.append(each[0].double().norm(dim=1))
    except _CANNOT:
        return found
    return {"gradient_norms": torch.cat(parts)} | found


def with_risk(
    found: Sequence[Findings], folder: RunFolder, kinds: Mapping[str, str]
) -> list[Findings]:
    """For each release, the list of its scored records by the strongest attack on all of them.

    The list is written into the folder; the attack's section says where it is. kinds: of the releases.
    """
    releases = list(dict.fromkeys(one.section.release for one in found))
    listed: dict[int, Findings] = {}
    for release in releases:
        own = [i for i, one in enumerate(found) if one.section.release == release and one.risk]
        best = max(own, key=lambda i: found[i].share, default=None)
        risk = risk_of(found[best].risk) if best is not None else None
        if best is None or risk is None:
            continue
        name = AT_RISK if not listed else f"{kinds[release]}-{AT_RISK}"
        folder.write_text(name, _table(risk))
        at_risk = AtRisk(name, risk.measure, tuple(risk.sentences()))
        listed[best] = replace(found[best], section=replace(found[best].section, at_risk=at_risk))
    return [listed.get(place, one) for place, one in enumerate(found)]


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
