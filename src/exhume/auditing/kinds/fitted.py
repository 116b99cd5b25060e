"""A fitted linear model of scikit-learn's, as it is: each of its training records in turn is the unknown one.

At the optimum the gradients of all records cancel, so whoever has all but one knows that one's gradient, and
from it the record (Balle22). No model is trained for this: it is the owner's own release that is attacked.

Of a regression the unknown record is a whole row, inputs and target. Its gradient has as many numbers as the
row, so that it proves nothing by itself: there a row counts that is the true one to a millionth, where the
owner has checked that the true rows, and not others in their places, are what the model was fitted on.

Strangers must be in nothing that enters an answer, and every other record does, other targets included. So a
line-up needs records that the model was not fitted on, and when it moves records among places, each answer is
worked out anew from those that then were fitted on. Without them only a proof speaks. Silence never does:
where the model is at its optimum the attack is exact, and where it is not, it is not about this model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from scipy.stats import binom
from torch import Tensor

from exhume.attacks.baseline import MeanRecord
from exhume.attacks.informed.glm import GlmClosedForm, LinearClosedForm, read_record, read_row
from exhume.auditing.case import Answer, Case, Inputs, Kind, Load, Question, Row, Scored, Seats
from exhume.auditing.plan import seconds_of
from exhume.core.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Reconstruction,
    Records,
    Store,
    Weights,
)
from exhume.core.evidence import Premise
from exhume.core.results import NOT_JUDGED, AttackSpec
from exhume.models.glm import onehot, probabilities
from exhume.readers import TextReading
from exhume.readers.fitted import release_of_fitted
from exhume.score.lineup import measures_of
from exhume.score.places import Places, places_for
from exhume.score.targets import TargetScores, score_targets
from exhume.score.verdict import not_audited
from exhume.settings import Brief, FittedSettings
from exhume.store.shards import NullStore, digest
from exhume.train.glm import Optimum, as_matrix, augmented
from exhume.train.linear import LinearFit
from exhume.victims import secret_of

_EXPLAINED = 1e-3  # relative: an answer's own gradient against the missing one
_BY_CHANCE = 0.01  # share of answers that come so near to it for no reason: ten times what was seen
_ONCE = 1e-4  # how often so many may do that
_AT_OPTIMUM = 0.1  # of a record's own gradient: what all records may leave over
_LINEAR = AttackSpec(
    "linear", "The missing record of a linear model", "Balle22", "the fitted coefficients"
)
_REGRESSION = AttackSpec(
    "regression", "The missing row of a linear regression", "Balle22", "the fitted coefficients"
)
_EXACT = 1e-6  # of a column's deviation: a row of a regression that came back
_FEW, _MANY = 200, 1000  # records that are tried
_LINED_UP = 100  # of them where there are strangers, as every permutation is worked out
_DRAWS, _CLASS = 2e3, 400  # permutations, and strangers of a class, in a line-up
_SECONDS = 60.0  # that they may take
_SCALES = [1.05**power for power in range(-30, 31)]  # of the logits, from .23 to 4.3
_NEARER = 0.1  # what a scale must leave of the mismatch to be named
_THREAT = "sees the fitted model; knows its penalty and every record but one"


def read_fitted(brief: Brief, load: Load) -> FittedCase | None:
    if brief.fitted is None:
        return None
    source = brief.settings.data.source
    others = load(brief.fitted.others, TextReading()) if brief.fitted.others else None
    records = load(source, TextReading())
    return fitted_case(brief.fitted, records, brief.settings.seed, source, others=others)


def fitted_case(
    settings: FittedSettings,
    records: Records,
    seed: int,
    source: str = "",
    model: object | None = None,
    *,
    others: Records | None = None,
) -> FittedCase:
    """model: in memory; None: the file of the settings. others: that it was not fitted on."""
    if others is not None and others.shape != records.shape:
        raise ExhumeError(
            f"others: records of shape {others.shape}, those of the fit have {records.shape}"
        )
    if records.vocabulary is not None:
        raise ExhumeError(
            "data: token sequences; a fitted linear model is attacked with what it was fitted on, numbers"
        )
    released = model if model is not None else Path(settings.file)
    inputs = records.inputs.flatten(1).double()
    columns = records.columns if sum(c.width for c in records.columns) == inputs.shape[1] else ()
    records = Records(inputs, records.labels, records.classes, columns=columns)
    try:
        release, recipe = release_of_fitted(released, records.shape)
    except NotApplicable as why:
        return FittedCase(settings, records, why, seed, source)
    if others is not None:
        others = replace(others, inputs=others.inputs.flatten(1).double(), columns=columns)
    return FittedCase(settings, records, (release, recipe), seed, source, others=others)


@dataclass(frozen=True, eq=False)
class FittedCase(Case):
    kind_name = "fitted"

    settings: FittedSettings
    records: Records  # what the model was fitted on, as it sees them
    fitted: tuple[Weights, Optimum | LinearFit] | NotApplicable  # or why it cannot be attacked
    seed: int
    source: str = ""
    threads: int = 0
    others: Records | None = None  # that it was not fitted on

    @property
    def title(self) -> str:
        return "the fitted model"

    @property
    def release(self) -> Weights:
        return self._given[0]

    @property
    def recipe(self) -> Optimum | LinearFit:
        return self._given[1]

    @property
    def _given(self) -> tuple[Weights, Optimum | LinearFit]:
        if isinstance(self.fitted, NotApplicable):
            raise self.fitted
        return self.fitted

    def digests(self) -> dict[str, str]:
        """A model in memory has no file, so the coefficients count."""
        refused = isinstance(self.fitted, NotApplicable)
        return {} if refused else {"fitted": digest(self.release.parameters)[:16]}

    def resolved(self, brief: Brief, store: Store) -> FittedCase:
        return replace(self, threads=brief.settings.machine.threads)

    def inputs(self) -> Inputs:
        records = self.records
        uses = ((len(records), "the model was fitted on"), (len(self.others or ()), "strangers"))
        return Inputs(
            self.source, self.seed, self.threads, tuple(records.classes), uses, records.columns
        )

    @property
    def deviations(self) -> tuple[str, ...]:
        return (
            "Every target is the unknown record of the same released model; the adversary holds all "
            "the others.",
        )

    def rows(self) -> list[Row]:
        each = max(1e-6, seconds_of(12.0 * self.records.inputs.numel() * len(self.records.classes)))
        affordable = max(_FEW, min(_MANY, int(_SECONDS / each)))
        if self.others is not None:
            affordable = _LINED_UP
        targets = min(self.settings.targets or affordable, len(self.records))
        why = self.fitted.why if isinstance(self.fitted, NotApplicable) else ""
        seconds = targets * each
        if self.others is not None:  # every permutation works all answers out anew
            lined = min(len(self.others), _CLASS * len(self.records.classes)) + targets
            seconds += seconds_of(2.0 * _DRAWS * targets * lined * self.records.shape[0])
        if not why and isinstance(self.recipe, LinearFit):
            return [Row(_REGRESSION, LinearClosedForm(), _THREAT, seconds, targets)]
        return [Row(_LINEAR, GlmClosedForm(), _THREAT, seconds, targets, why_not=why)]

    def questions(self, row: Row) -> list[Question]:
        """One for each target: the same release, and everything but its record."""
        recipe, key = self.recipe, Key.from_seed(self.seed)
        asked = []
        for target in self._targets(row).tolist():
            fixed = self.records[torch.arange(len(self.records)) != target]
            known = Knowledge(architecture=recipe.architecture, recipe=recipe, fixed=fixed)
            asked.append(Question(self.release, known, key, str(target)))
        return asked

    def _targets(self, row: Row) -> Tensor:
        """Rows of the records."""
        draw = Key.from_seed(self.seed).fold("targets").generator()
        return torch.randperm(len(self.records), generator=draw)[: row.records]

    def seats(self, row: Row, answers: Sequence[Answer]) -> Seats | None:
        if self.others is None:
            return None
        key, rows = Key.from_seed(self.seed).fold("line-up"), self._targets(row)
        held = torch.ones(len(self.records), dtype=torch.bool)
        held[rows] = False
        targets, fixed = self.records[rows], self.records[held]
        release = torch.arange(len(rows))
        places = places_for(targets, release, self.others, key.fold("places"), held=fixed)
        gone = torch.ones(len(rows), dtype=torch.bool)  # who stands nowhere stays fitted on
        gone[places.target[places.target >= 0]] = False
        labels = places.stratum.clamp(
            max=len(targets.classes) - 1
        )  # of another class nobody is moved
        staying = self._slopes(Records.joined([fixed, targets[gone]]))
        theta = as_matrix(self.recipe.architecture, self.release.parameters)
        kappa = self.recipe.penalty.diagonal(len(self.records), theta.shape[2] - 1)
        refitted = _Refitted(
            places,
            self._slopes(replace(targets, inputs=places.inputs, labels=labels)),
            -kappa * theta[0] - staying.sum(0),
            partial(read_row, theta) if isinstance(self.recipe, LinearFit) else _read_inputs,
        )
        return Seats(
            places,
            [answer.found.found() for answer in answers],
            key,
            redealt=refitted if places.targets else None,
            placebo=(places, key.fold("placebo"), None),
            groups=targets.class_names(),
        )

    def score(self, row: Row, answers: Sequence[Answer], ranks: Tensor | None) -> Scored:
        targets, key = self._targets(row), Key.from_seed(self.seed)
        found = [answer.found for answer in answers]
        mismatch = torch.cat([-one.confidence for one in found])
        every = Reconstruction(
            torch.cat([one.candidates for one in found]),
            -mismatch,
            found[0].status,
            labels=_labels_of(found),
        )
        mean = MeanRecord().prepare(Knowledge(fixed=self.records), key=key, store=NullStore())
        many = Weights(self.release.parameters.expand(len(targets), -1), self.release.layout)
        scores = score_targets(
            secret_of(self.records[targets]),
            every,
            self.records,
            key.fold("score"),
            baselines={"mean record": mean.run(many)},
            own=targets,
        )
        if isinstance(self.recipe, LinearFit):
            proved, notes = self._exact_rows(every.candidates[:, 0], targets, scores)
            certificates = {"certified": float(proved)}
        else:
            proved, notes = _certified(mismatch[:, 0])
            certificates = {
                "certificate_median": float(mismatch.median()),
                "certified": float(proved),
            }
        return Scored(
            scores.metrics | certificates,
            scores.evidence,
            tuple(notes),
            {
                "model": self._model,
                "training": str(self.recipe),
                "records": float(len(self.records)),
            },
            scores.beside,
            verdict=NOT_JUDGED if proved else not_audited(self._at_optimum.why),
            proved=proved,
            members=len(targets),
        )

    @property
    def _model(self) -> str:
        architecture = self.recipe.architecture
        inputs = architecture.sizes[0]
        if isinstance(self.recipe, LinearFit):
            plural = "s" if architecture.outputs > 1 else ""
            return f"linear regression, {inputs:,} inputs, {architecture.outputs} target{plural}"
        kind = "softmax" if architecture.outputs > 1 else "logistic"
        return f"{kind} regression, {inputs:,} inputs, {len(self.records.classes):,} classes"

    def _exact_rows(
        self, found: Tensor, targets: Tensor, scores: TargetScores
    ) -> tuple[int, list[str]]:
        """Rows (t, d) that are the true ones, and what is said of them; none unless the premise says so."""
        spread = self.records.inputs.std(0).clamp_min(1e-12)
        apart = ((found - self.records.inputs[targets]) / spread).abs().amax(1)
        exact = (apart <= _EXACT) & (scores.attack.mse < scores.oracle.mse)
        premise = self._at_optimum
        informative = premise.stranger is not None and premise.stranger > premise.limit
        count = int(exact.sum()) if premise.holds and informative else 0
        if not count:
            return 0, []
        return count, [
            f"{count} of {len(targets)} answers are the true row, inputs and target, to {_EXACT:g} of a "
            "column's deviation, and closer than any other record: with them the fit gives the release back, "
            "and not with another record in their place."
        ]

    def doubt(self, row: Row, answers: Sequence[Answer], metrics: Mapping[str, float]) -> str:
        return "" if metrics["certified"] else self._at_optimum.why

    def premise(self) -> Premise | None:
        return None if isinstance(self.fitted, NotApplicable) else self._at_optimum

    @cached_property
    def _at_optimum(self) -> Premise:
        """All gradients together, in units of one record's own; `why` is what silence would be worth."""
        penalty, records = self.recipe.penalty, self.records
        inputs, wanted, means = self._equations(records)
        theta = as_matrix(self.recipe.architecture, self.release.parameters)[0]
        logits = (theta @ inputs.T)[None]  # (1, c, n)
        kappa = penalty.diagonal(len(records), inputs.shape[1] - 1)

        def left(scale: float) -> Tensor:
            """(c, d + 1) what the records leave over, were the released logits times so much."""
            return (means(scale * logits)[0] - wanted) @ inputs

        errors = means(logits)[0] - wanted
        own = max(float((errors.norm(dim=0) * inputs.norm(dim=1)).median()), 1e-300)
        data = left(1.0)
        ratio = float((data + kappa * theta).norm()) / own
        moved = inputs[-1] - inputs[0]  # the last record's inputs in the place of the first's
        swapped = errors[:, :1] * moved
        if isinstance(self.recipe, LinearFit):  # the target too
            swapped = errors[:, -1:] * inputs[-1] - errors[:, :1] * inputs[0]
        stranger = float((data + swapped + kappa * theta).norm()) / own
        statistic = "what all gradients together leave over, in units of one record's own"
        if ratio <= _AT_OPTIMUM:
            return Premise(
                statistic,
                ratio,
                _AT_OPTIMUM,
                True,
                stranger,
                "The coefficients are at the optimum of their penalty with these records.",
                "the model is at its optimum, but too few answers explain the missing gradient; silence of "
                "a linear model is no evidence",
            )
        cause = self._cause(left, data, kappa * theta, ratio * own, own)
        why = (
            "the released coefficients are not at the optimum of this penalty with these records (together "
            f"their gradients leave {ratio:.2g} times a single record's own): {cause}"
        )
        sentence = f"{why[0].upper()}{why[1:]}."
        return Premise(statistic, ratio, _AT_OPTIMUM, False, stranger, sentence, why)

    def _slopes(self, records: Records) -> Tensor:
        """(n, c, d + 1) gradients of records at the released coefficients."""
        inputs, wanted, means = self._equations(records)
        theta = as_matrix(self.recipe.architecture, self.release.parameters)[0]
        errors = means((theta @ inputs.T)[None])[0] - wanted
        return errors.T[:, :, None] * inputs[:, None]

    def _equations(self, records: Records) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """Inputs (n, d + 1), what outputs should be (c, n), and what the model makes of its logits."""
        recipe = self.recipe
        if isinstance(recipe, LinearFit):
            inputs, targets = recipe.parts(records)
            return inputs, targets.T, torch.clone
        wanted = onehot(records.labels, recipe.architecture.outputs)
        return augmented(records.inputs, 1), wanted, probabilities

    @staticmethod
    def _cause(
        left: Callable[[float], Tensor], data: Tensor, pull: Tensor, size: float, own: float
    ) -> str:
        """What would explain it, of one parameter; size: of what is left over."""
        slope = float(pull.square().sum())
        factor = -float((data * pull).sum()) / slope if slope else 1.0
        if factor > 0 and float((data + factor * pull).norm()) <= _AT_OPTIMUM * own:
            return (
                f"they are with a penalty {factor:.3g} times as strong, which is what a weight of "
                f"{1 / factor:.3g} for each record does"
            )
        fits = {s: float((left(s) + s * pull).norm()) for s in _SCALES}
        best = min(fits, key=fits.__getitem__)
        if fits[best] < _NEARER * size:
            return f"they nearly are with all logits times {best:.2g}"
        return "lower `tol`, or see whether they are the records, columns and weights of the fit"


FITTED = Kind(FittedCase, "What the fitted model gives away", read_fitted)


@dataclass(frozen=True, eq=False)
class _Refitted:
    """Answers of line-ups in which targets have changed places with strangers, who then were fitted on."""

    places: Places
    slopes: Tensor  # (n, c, d + 1) gradients of the records at places
    rest: Tensor  # (c, d + 1) what the penalty and everybody who has no place leave over
    read: Callable[[Tensor], Tensor]  # (r, c, d + 1) missing gradients to records (r, d)
    depends, entered = True, True

    @property
    def records(self) -> int:
        return len(self.slopes)

    def each(self, seated: Tensor) -> Iterator[tuple[int, Tensor, tuple[Tensor, ...]]]:
        own = (self.places.release >= 0).nonzero()[:, 0]
        (alike,) = measures_of(self.places.inputs)
        every = self.rest.expand(len(seated), -1, -1).clone()
        for place in own:
            every -= self.slopes[seated[:, place]]
        for place in own:
            found = self.read(every + self.slopes[seated[:, place]])
            near = alike(found).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
            yield int(self.places.release[place]), torch.arange(len(seated)), (near,)


def _read_inputs(gradient: Tensor) -> Tensor:
    return read_record(gradient)[0]


def _labels_of(found: Sequence[Reconstruction]) -> Tensor | None:
    labels = [one.labels for one in found if one.labels is not None]
    return torch.cat(labels) if labels else None


def _certified(mismatch: Tensor) -> tuple[int, list[str]]:
    """Answers (t,) that prove themselves, and what is said of them."""
    proved = _proved(mismatch)
    notes = [
        "Exact only where fitting stopped at the optimum: lower `tol` to see what could leak; the "
        "certificate says how far each answer is from explaining the missing gradient."
    ]
    if proved:
        notes.append(
            f"{proved} of {len(mismatch)} answers explain what the other records leave over of the "
            f"gradient, up to {_EXPLAINED:g} of it: with them the fit gives the release back."
        )
    return proved, notes


def _proved(mismatch: Tensor) -> int:
    """Answers (t,) that prove themselves: so many come near to the missing gradient that it is no chance."""
    count = int((mismatch <= _EXPLAINED).sum())
    return count if float(binom.sf(count - 1, len(mismatch), _BY_CHANCE)) <= _ONCE else 0
