"""The imprint: the unknown record's features, as the first fully connected layer keeps them (ours).

The gradient of that layer's weights W is a sum of a_j x f(x_j) over the records: f the features that
enter the layer, a the signal that comes back to it. What an unknown record z changes is therefore

    theta(z) - theta_base  =  a x f(z)  +  what the fixed records do differently because of z

and the last term lies where the fixed records' own features lie, which the adversary knows. With
their span projected out, the change is close to rank one: its right factor is the direction of f(z),
up to the sign. The sign is the label's: raising its score asks for a positive <a, W_next[label]>.
Where labels of different sign are both likely, the direction is shortened accordingly, so that the
regression answers with something closer to the mean record.

Features of records the adversary holds cost a forward pass and no training, so the map from features
to records is learned from these as well as from shadow models. It needs no regression per label.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from exhume.attacks.informed.ridge import Mapping, fit_mapping
from exhume.core.contract import Architecture, Layout, Records
from exhume.models.probes import inputs_of

__all__ = ["MOST_READ", "Imprint", "ImprintReader", "find_imprint", "fit_imprint"]

_ROOM = 4  # inputs of the layer a fixed record: their features, taken twice, fill half at most
MOST_READ = 1500  # shadows, and further records, in the regression
_RANK = 1e-5  # singular values below this share of the largest count as zero
_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Imprint:
    """Where the record is written in the weights, and how to read it there."""

    architecture: Architecture
    initial: Tensor  # (p,)
    base: Tensor  # (p,) the model trained without the unknown record
    layer: str
    taken: Tensor  # (f, q) orthonormal: the span of the fixed records' features, fp64
    towards: Tensor  # (c, k) what raising each label's score asks of the layer's outputs, fp64

    def read(self, parameters: Tensor, scores: Tensor) -> Tensor:
        """(m, p) models and a label reader's scores (m, c) to vectors (m, f) of at most unit length."""
        layout = self.architecture.layout
        change = layout.split(parameters - self.base)[f"{self.layer}.weight"].double()
        left, _, right = torch.linalg.svd(self._free(change), full_matrices=False)
        signs = torch.sign(left[:, :, 0] @ self.towards.T)  # (m, c)
        likely = F.normalize(scores.double().clamp(0, 1), p=1, dim=1)
        found: Tensor = (likely * signs).sum(1, keepdim=True) * right[:, 0]
        return found

    def features(self, inputs: Tensor) -> Tensor:
        """(n, *shape) records to the unit vectors (n, f) that `read` should find for them.

        Taken at the initial parameters: a record's gradient is largest early in training.
        """
        entering = _entering(self.architecture, self.initial, inputs, self.layer)
        return F.normalize(self._free(entering), dim=1)

    def _free(self, rows: Tensor) -> Tensor:
        return rows - (rows @ self.taken) @ self.taken.T


def find_imprint(
    architecture: Architecture, initial: Tensor, base: Tensor, fixed: Records
) -> Imprint | None:
    """None where there is none to read: no trained chain of fully connected layers that ends in the
    outputs, or the fixed records fill it.
    """
    dense = [
        (name, layer)
        for name, layer in architecture.build().named_modules()
        if isinstance(layer, nn.Linear) and f"{name}.weight" in architecture.layout.names
    ]
    if not dense or dense[0][1].in_features < _ROOM * len(fixed):
        return None
    fits = all(one.out_features == next_.in_features for (_, one), (_, next_) in pairwise(dense))
    name = dense[0][0]
    known = [_entering(architecture, flat, fixed.inputs, name) for flat in (initial, base)]
    seen_once = all(rows.ndim == 2 and len(rows) == len(fixed) for rows in known)
    if not (fits and seen_once and dense[-1][1].out_features == len(fixed.classes)):
        return None
    towards = _towards(architecture.layout, base, [name for name, _ in dense])
    return Imprint(architecture, initial, base, name, _span(torch.cat(known)), towards)


@dataclass(frozen=True, eq=False)
class ImprintReader:
    """Fitted: from a model and the scores of its unknown record's label to the record."""

    imprint: Imprint
    regression: Mapping

    @property
    def held_out_error(self) -> float:
        return self.regression.held_out_error

    def apply(self, parameters: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """(m, p), (m, c) to records (m, q) and their expected squared errors (m,)."""
        return self.regression.apply(self.imprint.read(parameters, scores))


def fit_imprint(
    imprint: Imprint,
    parameters: Tensor,
    scores: Tensor,
    shadow: Records,
    further: Records | None,
) -> ImprintReader:
    """parameters: (s, p) of the shadows; further: records without a shadow model.

    scores: (s, c) as the label reader gives them to a shadow that it was not fitted on, so that
    the error counts what a wrong label does. The error is that of the shadows alone. Their own features
    are left out: with them, leaving a shadow out would not leave its record out.
    """
    shadow, parameters, scores = shadow[:MOST_READ], parameters[:MOST_READ], scores[:MOST_READ]
    read, records = imprint.read(parameters, scores), shadow.inputs
    if further is not None and len(further):
        read = torch.cat([read, imprint.features(further.inputs[:MOST_READ])])
        records = torch.cat([records, further.inputs[:MOST_READ]])
    regression = fit_mapping(
        read,
        records.flatten(1).double(),
        low=float(shadow.inputs.min()),
        high=float(shadow.inputs.max()),
        judged=len(shadow),
    )
    return ImprintReader(imprint, regression)


@torch.no_grad()
def _entering(architecture: Architecture, flat: Tensor, inputs: Tensor, layer: str) -> Tensor:
    """(n, *shape) to what enters a layer of one model, (n, f) in fp64; nothing if it is not called."""
    module, named = architecture.build(), architecture.layout.split(flat)
    with inputs_of(module, layer) as seen:
        for part in torch.split(inputs, _AT_ONCE):
            functional_call(module, named, (part,))
    return torch.cat([part.double() for part in seen]) if seen else torch.zeros(0)


def _towards(layout: Layout, base: Tensor, dense: list[str]) -> Tensor:
    """(c, k): the later layers as one linear map, each label against the mean of all."""
    named = layout.split(base.double())
    first = named[f"{dense[0]}.weight"]
    through = torch.eye(len(first), dtype=first.dtype, device=first.device)
    for name in dense[1:]:
        through = named[f"{name}.weight"] @ through
    return through - through.mean(0)


def _span(rows: Tensor) -> Tensor:
    """(n, f) to an orthonormal basis (f, q) of what the rows span."""
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    basis: Tensor = right[values > _RANK * values[0]].T
    return basis
