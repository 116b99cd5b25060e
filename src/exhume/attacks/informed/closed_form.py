"""The closed-form reconstructor: one ridge regression per label from the change of the weights to the record.

Balle22 trains a network (RecoNN) to map released weights to the missing record. Given the record's
label and the direction of the change it made, that map is close to linear, so it can be fitted in
closed form in seconds, from a fifth of the shadow models, and every setting can be chosen by exact
leave-one-out error on the shadows.

    delta_i = what is read off theta_i - theta_base, of unit size          i a shadow model
    z_hat   = mean_y + sum_{i: y_i = y} A_i (<delta, delta_i> + const)     y the inferred label

*Reading.* A neuron's incoming row stores a scaled copy of the record, if the neuron was active on it
(Mnemonist23); the scale differs from neuron to neuron and carries little about the record. Dividing
each row by a power of its size lets every row that holds a copy speak, however faint the copy is:

    r_j -> r_j ||r_j||^(power - 1)      j a neuron; a row that did not change stays zero

Then each layer's rows together get unit size, and the layers after the first a smaller say: they hold
what the first layer made of the record. The other reading is the whole change as it is. What the labels have
in common is learned from all of them, see ridge.py.

*Label.* A linear reading of the last layer's change is right about 9 times in 10; the map from change to
label is quadratic rather than linear (the sign of the change depends on what the model already believed),
and a Gaussian kernel on the same few numbers is right about 99 times in 100.

*Imprint* (ours), where the fixed records leave room in the first fully connected layer. The gradient of
its weights is a sum of a_j x f(x_j) over the records: f the features that enter the layer, a the signal that
comes back to it. What an unknown record z changes is therefore

    theta(z) - theta_base  =  a x f(z)  +  what the fixed records do differently because of z

and the last term lies where the fixed records' own features lie, which the adversary knows. With
their span projected out, the change is close to rank one: its right factor is the direction of f(z),
up to the sign. The sign is the label's: raising its score asks for a positive <a, W_next[label]>.
Where labels of different sign are both likely, the direction is shortened accordingly, so that the
regression answers with something closer to the mean record. Features of records the adversary holds cost a
forward pass and no training, so this map is learned from them as well as from shadow models.

Memory: `closed_form_bytes` of auditing/plan.py. s shadows of p parameters and what is read off them are held
whole where they are few; otherwise they lie in a file and are read in blocks, and 8·s²/c bytes of kernels
are the most.
Cost: the shadow models; then s·p·n + n³ + 34·n²·q operations a label, for records of q values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from exhume.attacks.baseline import holdings
from exhume.attacks.informed.mnemonist import rows_of
from exhume.attacks.informed.ridge import (
    Anchors,
    Basis,
    HeldRows,
    Mapping,
    Regression,
    Ridge,
    Sample,
    basis_of,
    fit_mapping,
    fit_ridge,
    gaussian_kernel,
    regress,
)
from exhume.attacks.informed.shadows import (
    LIMITS,
    Shadows,
    align_shadows,
    row_blocks,
    train_shadows,
)
from exhume.attacks.releases import OneEach, read_weights
from exhume.core.contract import (
    Architecture,
    Cost,
    Key,
    Knowledge,
    Layout,
    NotApplicable,
    Progress,
    Reconstruction,
    Records,
    Release,
    Store,
    Weights,
    silent,
)
from exhume.models.hidden_units import HiddenUnits
from exhume.models.probes import inputs_of
from exhume.train.functional import accuracy

_SAMPLE = 50
_FEWEST = 2  # shadows a label needs for a regression of its own
_TRIAL = 300  # shadows a label gives to the choice of the reading
_FITTING = "fitting the reconstructor"
_LATER = 0.5  # say of all layers after the first together; 1.0 is worse on ELU and ReLU shadows
_LATER_POWER = 0.5
MOST_ANCHORS = 4000  # an eigendecomposition of this size takes seconds; more shadows add little
_LABEL_WIDTHS = (1.0, 3.0, 10.0)  # of the kernel, times the median squared distance
_ROOM = 4  # inputs of the layer a fixed record: their features, taken twice, fill half at most
MOST_READ = 1500  # shadows, and further records, in the regression
_RANK = 1e-5  # singular values below this share of the largest count as zero
_AT_ONCE = 256


@dataclass(frozen=True)
class ClosedForm:
    """Reconstruct the one unknown training record from released weights.

    Sees: `Weights`, r models, each trained on the fixed set and one unknown record.
    Assumes: the training recipe, the initial parameters, the fixed set, and records of the same
    distribution to train shadow models on.
    Guarantees: nothing about the truth is used; labels, penalties and kernel widths are chosen by
    leave-one-out error on the shadows. Deterministic given the shadows.
    Reference: Balle22 (setting); the closed form and the label reader are ours.
    """

    chunk: int = 64  # shadow models trained at once; fixes the bits, see train.fleet
    imprint: bool = True  # may it read the imprint instead, where that does better on the shadows?

    def prepare(
        self, knowledge: Knowledge, *, key: Key, store: Store, progress: Progress = silent
    ) -> FittedClosedForm:
        trained = train_shadows(
            knowledge,
            "the closed form",
            fewest=_FEWEST,
            chunk=self.chunk,
            key=key,
            store=store,
            progress=progress,
        )
        started = time.perf_counter()
        recipe, initial, fixed = knowledge.require("the closed form", "recipe", "initial", "fixed")
        units, shadow = align_shadows(trained, recipe.architecture), trained.records
        reader = read_labels(
            trained.parameters, shadow.labels, trained.base, trained.layout, len(shadow.classes)
        )
        fitted = _fit(trained, holdings(knowledge), progress)
        read: ImprintReader | None = None
        plain = (
            fixed.shape == recipe.architecture.input_shape
        )  # no regression's, which hold the target
        imprint = None
        if self.imprint and plain:
            imprint = find_imprint(recipe.architecture, initial, trained.base, fixed)
        if imprint is not None:
            some, scores = trained.parameters[reader.rows[:MOST_READ]], reader.ridge.held_out
            read = fit_imprint(imprint, some, scores, shadow[reader.rows], knowledge.public)
            if read.regression.held_out_error >= _error_as_inferred(fitted, trained, reader):
                read = None
        observed = {} if units is None else {"units_aligned": 1.0}
        network, held = knowledge.architecture, knowledge.public
        if plain and network is not None and held is not None and len(held):
            shares = accuracy(network, trained.parameters[:_SAMPLE], held)
            observed["shadow_accuracy"] = float(shares.mean())
        cost = Cost(trained.seconds + time.perf_counter() - started, models=len(shadow) + 1)
        return FittedClosedForm(
            trained.base, trained.layout, reader, fitted, shadow.shape, cost, observed, read, units
        )


def _error_as_inferred(fitted: _Fitted, trained: Shadows, reader: LabelReader) -> float:
    """Mean squared error on the reader's shadows, each answered by the label inferred with it left out."""
    shadow = trained.records[reader.rows]
    usable = torch.tensor(sorted(fitted.regressions), device=trained.base.device)
    inferred = usable[reader.ridge.held_out[:, usable].argmax(1)]
    truth, total = shadow.inputs.flatten(1).double(), 0.0
    for label, regression in fitted.regressions.items():
        wrong = ((inferred == label) & (shadow.labels != label)).nonzero()[:, 0]
        models = trained.parameters[reader.rows[wrong]]
        read = fitted.reading.apply(models, trained.base, trained.layout)
        drawn, _ = regression.apply(read)
        total += float((drawn - truth[wrong]).square().mean(1).sum())
        right = int(((inferred == label) & (shadow.labels == label)).sum())
        total += right * regression.held_out_error
    return total / len(truth)


def _fit(trained: Shadows, held: Records, progress: Progress) -> _Fitted:
    """Every label's regression, by the reading with the smallest leave-one-out error."""
    shadow, classes = trained.records, len(trained.records.classes)
    rows = {label: (shadow.labels == label).nonzero()[:, 0] for label in range(classes)}
    rows = {label: own for label, own in rows.items() if len(own) >= _FEWEST}
    if not rows:
        raise NotApplicable("shadow: no label has two records", ever=True)
    basis = basis_of(held)
    trial = {label: own[:_TRIAL] for label, own in rows.items()}
    best: _Fitted | None = None
    for step, reading in enumerate(READINGS):
        progress(_FITTING, step, len(READINGS) + 1)
        fitted = _fit_reading(reading, trained, trial, basis)
        if best is None or fitted.held_out_error < best.held_out_error:
            best = fitted
    assert best is not None  # READINGS is not empty
    if any(len(own) > _TRIAL for own in rows.values()):
        progress(_FITTING, len(READINGS), len(READINGS) + 1)
        best = _fit_reading(best.reading, trained, rows, basis)
    progress(_FITTING, len(READINGS) + 1, len(READINGS) + 1)
    return best


def _fit_reading(
    reading: WeightReading, trained: Shadows, rows: dict[int, Tensor], basis: Basis
) -> _Fitted:
    """rows: which shadows each label's regression is fitted on."""
    records, every = trained.records.inputs, sum(len(own) for own in rows.values())
    models, base, layout = trained.parameters, trained.base, trained.layout
    whole = 8 * every * len(base) <= LIMITS.whole

    def anchors(own: Tensor) -> Anchors:
        if whole:
            return HeldRows(reading.apply(models[own], base, layout))
        return ReadRows(reading, models, own, base, layout)

    samples = {label: Sample(anchors(own), records[own].flatten(1)) for label, own in rows.items()}
    regressions, error = regress(samples, basis)
    return _Fitted(reading, regressions, error)


@dataclass(frozen=True, eq=False)
class _Fitted:
    reading: WeightReading
    regressions: dict[int, Regression]
    held_out_error: float  # mean squared leave-one-out error over the shadows


@dataclass(frozen=True, eq=False)
class FittedClosedForm:
    """Good for every release of the same recipe, start and fixed set."""

    base: Tensor  # (p,) the model trained without the unknown record
    layout: Layout
    reader: LabelReader
    fitted: _Fitted
    shape: tuple[int, ...]
    cost: Cost
    trained: dict[str, float]  # how well the shadow models are
    imprint: ImprintReader | None = None  # read instead of the regressions per label
    units: HiddenUnits | None = None  # like which releases are read, where shadows are

    def run(self, releases: Release) -> Reconstruction:
        who, whose, size = "the closed form", "the shadow models have", len(self.base)
        return read_weights(
            releases, self.shape, size, self._answer, self.cost, who=who, whose=whose
        )

    def _answer(self, releases: Weights) -> OneEach:
        parameters = releases.parameters
        if self.units is not None:
            parameters = self.units.aligned(parameters)
        scores = self.reader.scores(parameters)
        usable = torch.tensor(sorted(self.fitted.regressions), device=scores.device)
        labels = usable[scores[:, usable].argmax(1)]
        if self.imprint is not None:
            records, expected = self.imprint.apply(parameters, scores)
        else:
            every = len(parameters), math.prod(self.shape)
            records = scores.new_zeros(*every, dtype=torch.float64)
            expected = scores.new_zeros(len(parameters), dtype=torch.float64)
            for label, regression in self.fitted.regressions.items():
                rows = (labels == label).nonzero()[:, 0]
                read = self.fitted.reading.apply(parameters[rows], self.base, self.layout)
                records[rows], expected[rows] = regression.apply(read)
        judged = self.imprint.regression if self.imprint else self.fitted
        observed = {
            "label_accuracy_on_shadows": self.reader.held_out_accuracy,
            "mse_on_shadows": judged.held_out_error,
            **self.trained,
        }
        return records.to(parameters.dtype), -expected, labels, observed


@dataclass(frozen=True)
class WeightReading:
    name: str
    power: float | None  # of a row's size, in the first layer; None: the whole change as it is

    def apply(self, parameters: Tensor, base: Tensor, layout: Layout) -> Tensor:
        """(s, p) parameters to (s, p) numbers in fp64; a model that did not change gives zeros."""
        change = (parameters - base).double()
        if self.power is None:
            return F.normalize(change, dim=1)
        rows = rows_of(layout)
        of = rows.of.to(change.device)
        sizes = rows.sum(change.square()).sqrt()
        powers = torch.full((rows.count,), _LATER_POWER, dtype=change.dtype, device=change.device)
        powers[: rows.sizes[0]] = self.power
        factors = torch.where(sizes > 0, sizes.clamp_min(1e-300) ** (powers - 1), 0.0)
        change *= factors[:, of]
        say = _LATER / math.sqrt(max(1, len(rows.sizes) - 1))
        ends = torch.tensor(rows.sizes).cumsum(0).tolist()
        starts = [0, *(int((rows.of < end).sum()) for end in ends)]  # of each layer's parameters
        for layer, (start, stop) in enumerate(pairwise(starts)):
            block = F.normalize(change[:, start:stop], dim=1)
            change[:, start:stop] = block if layer == 0 else say * block
        return change


@dataclass(frozen=True, eq=False)
class ReadRows:
    """What is read off some shadows, in blocks: read anew whenever it is needed, and never held whole."""

    reading: WeightReading
    parameters: Tensor  # (s, p)
    rows: Tensor  # (n,)
    base: Tensor  # (p,)
    layout: Layout

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Where a block's rows are, and the (b, p) numbers read there."""
        for part in row_blocks(len(self.rows), len(self.base)):
            models = self.parameters[self.rows[part]]
            yield part, self.reading.apply(models, self.base, self.layout)

    def gram(self) -> Tensor:
        """(n, n) inner products."""
        count = len(self.rows)
        grams = self.base.new_zeros(count, count, dtype=torch.float64)
        for here, left in self.blocks():
            later = replace(self, rows=self.rows[here.start :])
            for there, right in later.blocks():
                columns = slice(here.start + there.start, here.start + there.stop)
                product = left @ right.T
                grams[here, columns], grams[columns, here] = product, product.T
        return grams

    def cross(self, read: Tensor) -> Tensor:
        """(m, p) of other models to (m, n) inner products."""
        return torch.cat([read @ block.T for _, block in self.blocks()], dim=1)


READINGS = (
    WeightReading("whole", None),
    WeightReading("rows", 0.0),
    WeightReading("rows, damped", 0.5),
)


@dataclass(frozen=True, eq=False)
class LabelReader:
    """Fitted on shadows, where the labels are known to the adversary."""

    base: Tensor  # (p,)
    layout: Layout
    centre: Tensor  # (f,)
    scale: Tensor  # (f,)
    anchors: Tensor  # (a, f)
    width: float
    ridge: Ridge
    rows: Tensor  # (a,) the shadows that are anchors
    held_out_accuracy: float  # leave-one-out, over the shadows

    def scores(self, parameters: Tensor) -> Tensor:
        """(r, p) to (r, c): about 1 for the label, about 0 elsewhere."""
        features = _decision_features(parameters, self.base, self.layout)
        cross = gaussian_kernel((features - self.centre) / self.scale, self.anchors, self.width)
        return self.ridge.predict(cross)


def read_labels(
    parameters: Tensor, labels: Tensor, base: Tensor, layout: Layout, classes: int
) -> LabelReader:
    """parameters: (s, p) shadows; labels: (s,) of their targets."""
    keep = torch.linspace(0, len(labels) - 1, min(len(labels), MOST_ANCHORS)).long()
    labels = labels[keep]
    features = _decision_features(parameters, base, layout, keep)
    centre, scale = features.mean(0), features.std(0).clamp_min(1e-12)
    anchors = (features - centre) / scale
    onehot = F.one_hot(labels, classes).double()
    sample = anchors[:: max(1, len(anchors) // 500)]
    typical = float(torch.pdist(sample).square().median()) if len(sample) > 1 else 1.0
    best: LabelReader | None = None
    for factor in _LABEL_WIDTHS:
        width = factor * max(typical, 1e-12)
        kernel = gaussian_kernel(anchors, anchors, width)
        ridge = fit_ridge(
            kernel, onehot, lambda held_out: float((held_out - onehot).square().mean())
        )
        accuracy = float((ridge.held_out.argmax(1) == labels).double().mean())
        if best is None or accuracy > best.held_out_accuracy:
            best = LabelReader(base, layout, centre, scale, anchors, width, ridge, keep, accuracy)
    assert best is not None  # _LABEL_WIDTHS is not empty
    return best


def _decision_features(
    parameters: Tensor, base: Tensor, layout: Layout, rows: Tensor | slice = slice(None)
) -> Tensor:
    """(s, f): the direction of the change of the last layer and of every bias, of these rows.

    The gradient of the last bias is softmax minus the label's one-hot vector, so this is where the
    label is written; the first layer's weights, where the record itself is, are left out.
    """
    parts, known = layout.split(parameters), layout.split(base)
    matrices = [
        name for name, shape in zip(layout.names, layout.shapes, strict=True) if len(shape) > 1
    ]
    chosen = [
        (part[rows] - known[name]).double().reshape(len(part[rows]), -1)
        for (name, part), shape in zip(parts.items(), layout.shapes, strict=True)
        if name in matrices[-1:] or len(shape) <= 1
    ]
    return F.normalize(torch.cat(chosen, dim=1), dim=1)


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
        directions: Tensor = (likely * signs).sum(1, keepdim=True) * right[:, 0]
        return directions

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
    fits = all(
        lower.out_features == upper.in_features for (_, lower), (_, upper) in pairwise(dense)
    )
    name = dense[0][0]
    known = [_entering(architecture, flat, fixed.inputs, name) for flat in (initial, base)]
    seen_once = all(rows.ndim == 2 and len(rows) == len(fixed) for rows in known)
    if not (fits and seen_once and dense[-1][1].out_features == len(fixed.classes)):
        return None
    _, values, right = torch.linalg.svd(torch.cat(known), full_matrices=False)
    taken = right[values > _RANK * values[0]].T
    named = architecture.layout.split(base.double())
    first = named[f"{name}.weight"]
    through = torch.eye(len(first), dtype=first.dtype, device=first.device)
    for later, _ in dense[1:]:  # as one linear map, each label against the mean of all
        through = named[f"{later}.weight"] @ through
    return Imprint(architecture, initial, base, name, taken, through - through.mean(0))


@dataclass(frozen=True, eq=False)
class ImprintReader:
    """Fitted: from a model and the scores of its unknown record's label to the record."""

    imprint: Imprint
    regression: Mapping

    def apply(self, parameters: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """(m, p), (m, c) to records (m, q) and their expected squared errors (m,)."""
        return self.regression.apply(self.imprint.read(parameters, scores))


def fit_imprint(
    imprint: Imprint, parameters: Tensor, scores: Tensor, shadow: Records, further: Records | None
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
