"""Two versions of a model that one person separates: before and after an erasure request, or an addition.

The versions are fitted linear models in files, with the person and everybody else named; or networks made
here, one pair for each of several persons: trained with the person, then trained on without. Everybody's
line-up is among strangers, and beside it stands the answer to a pair that never saw the person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from exhume.attacks.gradient.analytic import BiasRatio
from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.attacks.informed.versions import VersionDifference
from exhume.auditing.case import Answer, Case, Inputs, Kind, Load, Question, Row, Scored, Seats
from exhume.auditing.kinds.fitted import FittedCase
from exhume.auditing.plan import seconds_of
from exhume.choices import recipe_for
from exhume.core.contract import (
    Architecture,
    ExhumeError,
    Gradient,
    Key,
    Knowledge,
    Progress,
    Recipe,
    Records,
    Store,
    Weights,
)
from exhume.core.evidence import Premise
from exhume.core.notation import rows_in
from exhume.core.results import AttackSpec
from exhume.readers import TextReading
from exhume.readers.fitted import release_of_fitted
from exhume.report.folder import RunFolder
from exhume.score.measures import mse, nearest
from exhume.score.places import Places, places_for
from exhume.settings import Brief, FittedSettings, VersionsSettings
from exhume.store.shards import digest
from exhume.train.fleet import forward_operations
from exhume.train.glm import Optimum
from exhume.train.linear import LinearFit
from exhume.train.recipe import FullBatch

_EXACT = 1e-6  # of a column's deviation
_SEES = "two versions of the model"
_KNOWN = AttackSpec("remaining", "The difference, knowing everybody else", "ours", _SEES)
_LIKE = AttackSpec("difference", "The difference, knowing people like them", "Bertran24", _SEES)
_RATIO = AttackSpec("ratio", "Ratio of the first layer's changes", "Phong17", _SEES)
_MATCHING = AttackSpec("matching", "Gradient matching on the difference", "Geiping20", _SEES)
_THROUGH = AttackSpec("through-training", "Through training", "ours", "the version with the person")
_SHARE = 0.5  # of those in neither version, held by the adversary; the others are strangers


@dataclass(frozen=True, eq=False)
class Pairs:
    """Versions (r, p) with a person each, and without; the last pair is that of a stranger."""

    within: Tensor
    without: Tensor
    persons: Records  # r - 1 of them
    stranger: Records  # of the last pair
    initial: Tensor | None = None  # (p,) where training began


def read_versions(brief: Brief, load: Load) -> VersionsCase | None:
    settings = brief.versions
    if settings is None:
        return None
    source = brief.settings.data.source
    records = load(source, TextReading())
    if records.vocabulary is not None:
        raise ExhumeError("data: token sequences; versions are of models that take numbers")
    if settings.made:
        return _made_case(brief, settings, records)
    inputs = records.inputs.flatten(1).double()
    records = Records(inputs, records.labels, records.classes, columns=records.columns)
    files = [settings.before, settings.after]
    within, without = files if settings.change == "erased" else files[::-1]
    release, recipe = release_of_fitted(Path(within), records.shape)
    other, again = release_of_fitted(Path(without), records.shape)
    if recipe != again:
        raise ExhumeError(
            f"before, after: {recipe} and {again}: only a person may differ between the versions"
        )
    person = torch.tensor(rows_in(settings.person, "person"))
    apart = torch.tensor(rows_in(settings.others, "others"))
    every = torch.cat([person, apart])
    if (
        len(person) != 1
        or int(every.max()) >= len(records)
        or len(set(every.tolist())) < len(every)
    ):
        raise ExhumeError(
            f"person, others: one row and different others of the {len(records)} records are needed"
        )
    stays = torch.ones(len(records), dtype=torch.bool)
    stays[person], stays[apart] = False, False
    remaining, others = records[stays], records[apart]
    seen = release.parameters.double(), other.parameters.double()
    alike, strangers = _cut(others, brief.settings.seed)
    never = recipe.fit(seen[1][0], remaining, alike[:1].one_each(), Key.from_seed(0))
    pairs = Pairs(torch.cat([seen[0], never]), seen[1].expand(2, -1), records[person], alike[:1])
    return VersionsCase(
        settings, recipe, remaining, alike, strangers, brief.settings.seed, source, pairs
    )


def _made_case(brief: Brief, settings: VersionsSettings, records: Records) -> VersionsCase:
    recipe = recipe_for(brief.settings, records)
    if not isinstance(recipe, FullBatch):
        raise ExhumeError(
            "versions: pairs are made with full-batch training: optimiser gd, no batch"
        )
    seed = brief.settings.seed
    order = torch.randperm(len(records), generator=Key.from_seed(seed).fold("versions").generator())
    fixed = brief.settings.data.fixed or len(records) // 4
    if fixed + settings.made + 20 > len(records):
        raise ExhumeError(f"made: {settings.made} persons and {fixed} records leave no strangers")
    remaining = records[order[:fixed]]
    persons = records[order[fixed : fixed + settings.made]]
    alike, strangers = _cut(records[order[fixed + settings.made :]], seed)
    source = brief.settings.data.source
    return VersionsCase(settings, recipe, remaining, alike, strangers, seed, source, None, persons)


def _cut(others: Records, seed: int) -> tuple[Records, Records]:
    """What the adversary holds of those in neither version, and strangers."""
    draw = Key.from_seed(seed).fold("people like them").generator()
    order = torch.randperm(len(others), generator=draw)
    held = max(1, int(_SHARE * len(others)))
    return others[order[:held]], others[order[held:]]


@dataclass(frozen=True, eq=False)
class VersionsCase(Case):
    kind_name = "versions"
    title = "two versions of the model"

    settings: VersionsSettings
    recipe: Recipe
    remaining: Records  # behind both versions
    alike: Records  # held by an adversary who knows nobody in them
    strangers: Records
    seed: int
    source: str = ""
    pairs: Pairs | None = None  # None: not made yet
    drawn: Records | None = None  # persons whose pairs are made here
    threads: int = 0

    def digests(self) -> dict[str, str]:
        if self.drawn is not None or self.pairs is None:
            return {}
        return {"versions": digest(torch.cat([self.pairs.within, self.pairs.without]))[:16]}

    def resolved(self, brief: Brief, store: Store) -> VersionsCase:
        return replace(self, threads=brief.settings.machine.threads)

    @property
    def key(self) -> Key:
        return Key.from_seed(self.seed).fold("versions")

    @property
    def network(self) -> Architecture:
        return self.recipe.architecture

    @property
    def persons(self) -> Records:
        persons = self.drawn if self.pairs is None else self.pairs.persons
        assert persons is not None  # drawn, or behind the pairs
        return persons

    def inputs(self) -> Inputs:
        change = self.settings.change
        uses = (
            (len(self.remaining), "behind both versions"),
            (len(self.persons), f"{change}, each in versions of its own"),
            (len(self.alike), "held by the adversary"),
            (len(self.strangers), "strangers"),
        )
        classes, columns = tuple(self.remaining.classes), self.remaining.columns
        return Inputs(self.source, self.seed, self.threads, classes, uses, columns)

    def rows(self) -> list[Row]:
        everybody = "sees both versions; knows the training and everybody but this person"
        alike = "sees both versions; knows the training and people like those in them"
        count, known = len(self.persons), len(self.remaining)
        if isinstance(self.recipe, Optimum | LinearFit):
            seconds = seconds_of(4.0 * (count + 1) * self.remaining.inputs.numel())
            attack = VersionDifference(known)
            return [
                Row(_LIKE, attack, alike, seconds, count),
                Row(_KNOWN, attack, everybody, seconds, count),
            ]
        step = seconds_of(9.0 * forward_operations(self.network)) + 2e-3
        ratio = BiasRatio(tolerance=0.3)
        images = len(self.network.input_shape) == 3
        matching = GradientMatching(
            steps=self.settings.search_steps, restarts=1, signed=images, falls=1e-3
        )
        through = seconds_of(6.0 * forward_operations(self.network) * known * 150 * count)
        return [
            Row(_RATIO, ratio, "sees both versions", 0.1 * count, count),
            Row(_MATCHING, matching, "sees both versions", matching.steps * step * count, count),
            Row(_THROUGH, ThroughTraining(), everybody, 20 * through, count),
        ]

    def made(self, folder: RunFolder, progress: Progress) -> VersionsCase:
        """With each person, and without: a network is trained on, a linear model is fitted again."""
        return self if self.pairs is not None else replace(self, pairs=self._trained(progress))

    def _trained(self, progress: Progress) -> Pairs:
        assert self.drawn is not None  # or there were pairs
        recipe, stage = self.recipe, "two versions for each person"
        progress(stage, 0, 1)
        initial = self.network.initial(self.key.fold("start"))
        together = Records.joined([self.drawn, self.alike[:1]])
        within = recipe.fit(initial, self.remaining, together.one_each(), self.key)
        if isinstance(recipe, FullBatch):
            recipe = replace(recipe, descent=replace(recipe.descent, steps=self.settings.steps))
        nobody = self.remaining.none_for(len(together))
        without = recipe.fit(within, self.remaining, nobody, self.key.fold("without"))
        progress(stage, 1, 1)
        return Pairs(within, without, self.drawn, self.alike[:1], initial)

    def questions(self, row: Row) -> list[Question]:
        """One for all pairs, that of the stranger last."""
        pairs = self.pairs
        assert pairs is not None  # made by now
        layout = self.network.layout
        known = Knowledge(architecture=self.network, recipe=self.recipe, public=self.alike)
        if row.id == _THROUGH.id:
            known = replace(known, public=None, fixed=self.remaining, initial=pairs.initial)
            return [Question(Weights(pairs.within, layout), known, self.key.fold(row.id))]
        if row.id == _KNOWN.id:
            known = replace(known, public=None, fixed=self.remaining)
        elif row.id in (_RATIO.id, _MATCHING.id):
            known = Knowledge(architecture=self.network, batch_size=1)
        # the version without has taken a step along the person's own gradient; the sign is free
        difference = pairs.within - pairs.without
        if row.id in (_RATIO.id, _MATCHING.id):
            difference = -difference
        return [Question(Gradient(difference, layout, pairs.without), known, self.key.fold(row.id))]

    # Judge

    def _places(self) -> Places:
        """Every person has versions of its own; what the adversary holds is nobody's stranger."""
        held, key = Records.joined([self.remaining, self.alike]), self.key.fold("line-up")
        release = torch.arange(len(self.persons))
        return places_for(self.persons, release, self.strangers, key, held=held)

    def seats(self, row: Row, answers: Sequence[Answer]) -> Seats | None:
        """Who is between versions in files was chosen by the user, so that a placebo comes first."""
        found, places = answers[0].found, self._places()
        chosen = None if self.drawn is not None else (places, self.key.fold("placebo"), None)
        return Seats(
            places,
            [found.found(place) for place in range(len(self.persons))],
            self.key.fold("line-up"),
            placebo=chosen,
            confidence=[found.sure(place) for place in range(len(self.persons))],
            groups=self.persons.class_names(),
        )

    def score(self, row: Row, answers: Sequence[Answer], ranks: Tensor | None) -> Scored:
        """The first answer to each pair, and the answer to the stranger's pair beside it."""
        found, persons = answers[0].found, self.persons
        truth = persons.inputs.flatten(1).double()
        spread = self.remaining.inputs.flatten(1).double().std(0).clamp_min(1e-12)
        spread = torch.where(spread > 1e-9, spread, torch.ones_like(spread))
        middle = self.remaining.inputs.flatten(1).double().mean(0)
        first = [
            found.found(place)[0].flatten().double() if len(found.found(place)) else middle
            for place in range(len(persons) + 1)
        ]
        best = torch.stack(first[:-1])
        apart = ((best - truth) / spread).abs().amax(1)
        place, _ = nearest(persons.inputs, self.remaining)
        error, by_nobody = mse(best, truth), mse(first[-1].expand_as(truth), truth)
        premise = self.premise()
        linear = isinstance(self.recipe, Optimum | LinearFit)
        proved = int((apart <= _EXACT).sum()) if linear and premise and premise.holds else 0
        notes = []
        if proved:
            notes.append(
                f"{proved} of {len(persons)} answers are the {self.settings.change} record to {_EXACT:g} of "
                "every column's deviation, and each version follows from its records."
            )
        return Scored(
            {
                "mse": float(error.mean()),
                "largest_error_median": float(apart.median()),
                "largest_error_worst": float(apart.max()),
                "exact": float((apart <= _EXACT).sum()),
                "never_saw_mse": float(by_nobody.mean()),
                "mean_record_mse": float(mse(middle.expand_as(truth), truth).mean()),
            },
            {
                "targets": persons.inputs,
                "reconstructions": best.reshape(persons.inputs.shape),
                "nearest": self.remaining.inputs[place],
                "labels": persons.labels,
                **({"rank": ranks} if ranks is not None else {}),
            },
            tuple(notes),
            {
                "model": str(self.network),
                "training": str(self.recipe),
                "change": self.settings.change,
                "remaining": float(len(self.remaining)),
            },
            ({"name": "versions that never saw the person", "mse": float(by_nobody.mean())},),
            proved=proved,
            members=len(persons),
        )

    def premise(self) -> Premise | None:
        """Whether both versions in files are at the optimum of their records; the worse of the two."""
        if self.drawn is not None or not isinstance(self.recipe, Optimum | LinearFit):
            return None
        assert self.pairs is not None  # read from the files
        everybody = Records.joined([self.remaining, self.pairs.persons])
        checked = []
        for values, records in (
            (self.pairs.within[:1], everybody),
            (self.pairs.without[:1], self.remaining),
        ):
            release = Weights(values, self.network.layout)
            case = FittedCase(FittedSettings(), records, (release, self.recipe), self.seed)
            checked.append(case.premise())
        return max((one for one in checked if one is not None), key=lambda one: one.value)


VERSIONS = Kind(VersionsCase, "What two versions of a model give away together", read_versions)
