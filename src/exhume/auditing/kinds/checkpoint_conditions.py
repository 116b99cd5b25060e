"""Whether an attack on weights can work on a checkpoint: what it needs and what was found.

The first rows are read off the weights. The last two need the training records: only their owner sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from exhume.attacks.gradient.chains import features_of
from exhume.attacks.margin.reading import GAP, LEFT, FeaturePremises, Premises
from exhume.auditing.kinds.checkpoint_records import Preprocessing
from exhume.core.contract import Records
from exhume.core.evidence import Condition
from exhume.models.heads import Head, margins
from exhume.models.matrices import DenseNetwork
from exhume.models.own import Convolved
from exhume.train.margin import stationarity

_MANY = 500  # records; the least squares behind the residual grows with the cube
_WELL = 0.9
FAR = 0.25  # residual at the truth: 0.1 to 0.15 from a small start, 0.35 to 0.7 from torch's own
_UNSURE = (
    "The training records do not explain the weights: without weight decay they never do, with it see "
    "whether --activation, --mean and --std are yours."
)


@dataclass(frozen=True, eq=False)
class Fit:
    """How the network does on what it is said to have been trained on."""

    records: int
    margins: Tensor | None = None
    right: float | None = None  # share of the records; None: could not be told
    residual: float | None = None  # share of the first layer that the records do not explain
    unfit: str = ""  # why one of the two could not be told
    notes: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, str | float]:
        known = {"train_accuracy": self.right, "residual_at_truth": self.residual}
        found = {name: value for name, value in known.items() if value is not None}
        return {"training_records": float(self.records), **found} if found else {}


def fit_of(
    mlp: DenseNetwork,
    parameters: Tensor,
    records: Records,
    preprocessing: Preprocessing,
    head: Head,
) -> Fit:
    """parameters: (p,); left unexplained: the residual of stationarity of the first layer."""
    network = mlp.matrices(parameters)
    inputs = preprocessing.entering(records.inputs).flatten(1).to(network.first.dtype)
    outputs = network.forward(inputs)[1]
    return fit_to(
        outputs,
        records.labels,
        head,
        lambda: stationarity(network, inputs, records.labels, head).first_layer,
    )


def fit_to(outputs: Tensor, labels: Tensor, head: Head, residual: Callable[[], float]) -> Fit:
    """outputs: (n, c) for the training records; residual: what is asked if the network does well on them."""
    count, classes = len(labels), outputs.shape[1]
    if int(labels.max()) >= max(2, classes):
        why = f"the training records have more classes than the network's {classes} outputs"
        return Fit(count, unfit=why, notes=(f"{why[0].upper()}{why[1:]}.",))
    found = margins(head, outputs, labels)
    right = float((found > 0).double().mean())
    if right < _WELL:
        note = (
            f"The network gets {right:.0%} of the training records right: check --activation, --mean and "
            "--std, the scale of the inputs and the order of the classes. Networks that do not fit their "
            "data leak less."
        )
        return Fit(count, found, right, notes=(note,))
    if count > _MANY:
        why = f"whether its weights are at the point the attack needs is checked up to {_MANY} records"
        return Fit(count, found, right, unfit=why)
    left = residual()
    unsure = () if left <= FAR else (_UNSURE,)
    return Fit(count, found, right, left, notes=unsure)


_LEFT_FIRST = 0.05  # of the first layer's
START_GONE = "Nothing is left of the random start"
EQUATIONS = "There are more equations than unknowns"
_COUNTS = "The weights show how many records they were trained on"
_COUNTED = 0.8  # of the records given
_RIGHT = 0.9  # of the training records
_LITTLE, _MOST = 1e-5, 0.1  # shares that are said in another way


def conditions_of(premises: Premises, fit: Fit | None) -> tuple[Condition, ...]:
    """In the order in which they are read; fit: None without training records."""
    read = (_counted(premises, fit), _start_gone(premises), _enough(premises))
    return read if fit is None else (*read, *of_the_owner(fit, "the first layer"))


def doubt_of(conditions: tuple[Condition, ...]) -> str:
    """Why silence of the attack says nothing; empty: all it needs is there."""
    return "; ".join(one.why for one in conditions if one.why)


def _counted(premises: Premises, fit: Fit | None) -> Condition:
    if premises.whole:
        return Condition(
            _COUNTS,
            f"no: all {premises.unknowns} directions of the first layer are in use",
            holds=False,
            why=f"the first layer uses all of its {premises.unknowns} directions, so that records cannot be "
            "counted: there are as many records as inputs or neurons, or its random start is still there, "
            "which only training with weight decay removes",
        )
    return counted("the first layer", premises.records, premises.fall, fit)


def counted(layer: str, count: int, fall: float, fit: Fit | None) -> Condition:
    """By a layer's spectrum. fall: from the last singular value that counts to the next."""
    if fall < GAP:
        return Condition(
            _COUNTS,
            f"no: {count} by {layer}'s spectrum, which then runs on without a gap",
            holds=False,
            why=f"{layer}'s spectrum runs into the noise of its random start without a gap, so that "
            "records cannot be counted",
        )
    behind = "rounding" if math.isinf(fall) else f"{_times(fall)} less"
    found = f"{count} by {layer}'s spectrum, behind them {behind}"
    if fit is not None and count < _COUNTED * fit.records:
        return Condition(
            _COUNTS,
            f"{found}; {fit.records} are given",
            holds=False,
            why=f"the weights show {count} records where {fit.records} were trained on: the others left no "
            "trace of their own",
        )
    return Condition(_COUNTS, found, holds=True)


def _start_gone(premises: Premises) -> Condition:
    """The layer that the attack reads, if it has lost its start; where no layer has, the second."""
    first, second = premises.left_first, premises.left_second
    if premises.whole:
        return Condition(START_GONE, "cannot be told where records cannot be counted", holds=False)
    if second is not None and (premises.spans or first > _LEFT_FIRST):
        left, most, layer = second, LEFT, "second"
    else:
        left, most, layer = first, _LEFT_FIRST, "first"
    found = f"{share_of(left)} of the {layer} layer lies outside what the records span, at most {most:.1%}"
    why = (
        f"the network keeps its random start ({share_of(left)} of the {layer} layer), and only training with "
        "weight decay until that is gone makes the weights a sum over the records"
    )
    holds = left <= most
    return Condition(START_GONE, found, holds=holds, why="" if holds else why)


def _enough(premises: Premises) -> Condition:
    if premises.spans:
        have, want = premises.equations, premises.unknowns
        found = f"{have:,} equations for the {want:,} unknowns of each record"
    else:
        have, want = premises.neurons, premises.records
        found = f"{have:,} neurons for {want:,} records"
    holds = have > want
    why = "" if holds else f"too many records for so few neurons: {found}"
    return Condition(EQUATIONS, found, holds=holds, why=why)


def of_the_owner(fit: Fit, layer: str) -> list[Condition]:
    """What only the training records tell. layer: the one that they must explain."""
    learnt = "The network has learnt its training records"
    if fit.right is None:
        return [Condition(learnt, fit.unfit, holds=False, why=fit.unfit)]
    right = Condition(
        learnt,
        f"it gets {fit.right:.0%} of {fit.records:,} right",
        holds=fit.right >= _RIGHT,
        why=""
        if fit.right >= _RIGHT
        else f"the network gets only {fit.right:.0%} of its training records right",
    )
    needs = "The training records explain the weights"
    if not right.holds:
        return [right]
    if fit.residual is None:
        return [right, Condition(needs, fit.unfit, holds=False, why=fit.unfit)]
    holds = fit.residual <= FAR
    why = (
        "this network is not at the point the attack needs: its training records leave "
        f"{fit.residual:.0%} of {layer} unexplained"
    )
    found = f"{share_of(1 - fit.residual)} of {layer}, at least {1 - FAR:.0%}"
    return [right, Condition(needs, found, holds=holds, why="" if holds else why)]


def share_of(value: float) -> str:
    """In percent, as exactly as it matters."""
    if value < _LITTLE:
        return f"less than {_LITTLE:.3%}"
    return f"{100 * value:.2g}%" if value < _MOST else f"{value:.0%}"


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.1f} times"


_ROUNDING = 1e-6  # share of the largest singular value


def feature_conditions(premises: FeaturePremises, fit: Fit | None) -> tuple[Condition, ...]:
    """In the order in which they are read; fit: None without training records."""
    layer = premises.layer
    read = (counted(layer, premises.records, premises.fall, fit), *_read(premises))
    return read if fit is None else (*read, *of_the_owner(fit, layer))


def feature_fit(
    network: Convolved, parameters: Tensor, layer: str, records: Records, head: Head
) -> Fit:
    """records: as they enter; unexplained: the layer's square outside the span of their features."""
    module, named = network.build(), network.layout.split(parameters)
    inputs = records.inputs.to(parameters)
    with torch.no_grad():
        outputs = torch.func.functional_call(module, named, (inputs,))
        features = features_of(module, named, layer, inputs).double()

    def outside() -> float:
        weights = named[f"{layer}.weight"].double()
        axes = torch.linalg.svd(features, full_matrices=False)
        basis = axes.Vh[_ROUNDING * axes.S[0] < axes.S]
        inside = (weights @ basis.T).square().sum()
        return float(1 - inside / weights.square().sum())

    return fit_to(outputs, records.labels, head, outside)


def _read(premises: FeaturePremises) -> tuple[Condition, Condition]:
    layer, left = premises.layer, premises.left
    gone, have, want = left <= LEFT, premises.equations, premises.unknowns
    start = Condition(
        START_GONE,
        f"{share_of(left)} of {layer} lies outside what the records span, at most {LEFT:.1%}",
        holds=gone,
        why=""
        if gone
        else f"{layer} keeps its random start ({share_of(left)} of it), and only training with weight decay "
        "until that is gone makes its weights a sum over the records",
    )
    found = f"{have:,} equations for the {want:,} pixels of each record"
    enough = Condition(
        EQUATIONS,
        found,
        holds=have > want,
        why="" if have > want else f"the convolutions leave too few features: {found}",
    )
    return start, enough
