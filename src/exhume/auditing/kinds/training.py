"""Weights that are trained as the user trains: one model for each private record that is tried (Balle22)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from exhume.attacks.baseline import MeanRecord, holdings, snap_to_holdings
from exhume.attacks.informed.closed_form import ClosedForm
from exhume.attacks.informed.noise_aware import NoiseAware
from exhume.attacks.informed.prior_aware import PriorAware
from exhume.attacks.informed.residual import Residual
from exhume.attacks.informed.through_training import ThroughAnyTraining, through_training_of
from exhume.auditing.at_risk import factors_of_own
from exhume.auditing.attack import attack_case
from exhume.auditing.case import (
    RUNG_TARGETS,
    Answer,
    Case,
    Fix,
    Inputs,
    Kind,
    Ladder,
    Load,
    Question,
    Row,
    Rung,
    Scored,
    Seats,
    another_seed,
    relevant,
)
from exhume.auditing.kinds.training_fixes import fixes_of
from exhume.auditing.kinds.training_game import (
    Game,
    informed_game,
    model_seconds,
    rounded,
    split_roles,
    start_of,
    without_start,
)
from exhume.auditing.limits import PRIOR_AWARE, audit_limits, claimed_privacy
from exhume.auditing.look import (
    FEWEST,
    STORED,
    look_at,
    looked,
    score_look,
    seats_of,
    seconds_of_looks,
)
from exhume.auditing.plan import game_stages, network_seconds
from exhume.choices import ENOUGH, Trains, ignored_beside_own, recipe_for, resolve, sized
from exhume.core.contract import (
    Attack,
    Key,
    NotApplicable,
    Progress,
    Records,
    Store,
    Weights,
)
from exhume.core.evidence import Premise
from exhume.core.results import AttackSpec, Facts, Findings
from exhume.defences.rounding import Rounding
from exhume.readers import TextReading
from exhume.report.folder import RunFolder
from exhume.score.places import Places, places_for
from exhume.score.targets import TargetScores, score_targets
from exhume.settings import Brief, Settings
from exhume.store.memory import size_of
from exhume.store.scale import Cores, Here, where_now, workers_for
from exhume.store.shards import NullStore
from exhume.train.dp import ClaimedPrivacy
from exhume.train.fleet import fleet_work
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch
from exhume.victims.informed import first_of

_WEIGHTS = "the released weights"
CLOSED_FORM = AttackSpec("closed-form", "Closed-form per-label reconstructor", "Balle22", _WEIGHTS)
CORRECTED = AttackSpec("corrected", "Closed form, corrected by a network", "Balle22", _WEIGHTS)
NOISE_AWARE = AttackSpec("noise-aware", "Noise-aware reconstructor", "Balle22", _WEIGHTS)
THROUGH_TRAINING = AttackSpec(
    "through-training", "Differentiating through training", "Balle22", _WEIGHTS
)
DEVIATIONS = (
    "The reconstructor is a ridge regression per label in closed form instead of a neural network.",
    "The record's label is inferred from the release; Balle22 leaves it to the network.",
    "Initial weights are drawn from N(0, 1/fan_in) without truncation.",
)

_LOOKED_AT = 40  # targets of which what training stores is looked at
_EXACT = 8  # targets that are differentiated through training, if there is room
_FEWEST_EXACT = 2  # and at least, if there is not
_INFORMED = "sees the weights; knows the training, its start, and every record but one"
_LISTED = "as above; is told ten records, one of which it is"
_MEAN, _SNAPPED = "mean record", "held record nearest to the reconstruction"
_SHARES = (1 / 64, 1 / 16, 1 / 4)  # of the user's noise, on its ladder
_HARDLY = 1e-3  # noise multiplier that hides nothing
_COPIES = (256, 64, 16, 8, 4, 2)  # times that a record counts


def read_training(brief: Brief, load: Load) -> TrainingCase | None:
    if not brief.weights:
        return None
    of_numbers = brief.settings.victim.loss == "mse"
    records = load(brief.settings.data.source, TextReading(targets=of_numbers))
    settings = resolve(brief.settings, records)  # refuses what cannot be
    return TrainingCase(settings, records, recipe_for(settings, records))


def attack_targets(game: Game, settings: Settings, store: Store, progress: Progress) -> Findings:
    """The closed form on all targets of a game, as the audit has it."""
    recipe = game.recipe
    assert isinstance(recipe, Trains)  # games are played with what settings can say
    case = TrainingCase(settings, game.strangers, recipe, game=game)
    rows = [row for row in case.rows() if row.id == CLOSED_FORM.id]
    (findings,) = attack_case(case, rows, store, progress, tests=4)
    return findings


@dataclass(frozen=True, eq=False)
class TrainingCase(Case):
    kind_name = "weights"

    settings: Settings  # resolved
    records: Records
    recipe: Trains
    per_model: float = 0.0  # seconds
    claimed: ClaimedPrivacy | NotApplicable | None = None  # or why there is no certificate
    game: Game | None = None  # the released models, once they are trained
    copies: int = 1  # times that a record is trained on
    rounding: Rounding | None = None  # of the weights before they are released
    hides_start: bool = False  # the adversary does not know it

    # Read and plan

    @property
    def title(self) -> str:
        return "the trained weights"

    @property
    def deviations(self) -> tuple[str, ...]:
        return DEVIATIONS

    @property
    def played(self) -> Game:
        assert self.game is not None  # its releases are made
        return self.game

    def resolve_settings(self, brief: Brief, store: Store) -> Brief:
        """Sizes that the budget allows, where they are left open."""
        settings = resolve(brief.settings, self.records)
        if brief.budget.seconds is not None:
            seconds = model_seconds(settings, self.records, store)
            asked = sized(brief.settings, len(self.records), seconds, brief.budget.seconds)
            settings = resolve(asked, self.records)
        return brief.with_settings(settings)

    def resolved(self, brief: Brief, store: Store) -> TrainingCase:
        settings = brief.settings
        recipe, key = recipe_for(settings, self.records), Key.from_seed(settings.seed)
        fixed = split_roles(settings, self.records).fixed
        start = start_of(settings, recipe, key)
        claimed = claimed_privacy(settings.victim, recipe, fixed, start, key=key, store=store)
        seconds = model_seconds(settings, self.records, store)
        return TrainingCase(settings, self.records, recipe, seconds, claimed)

    def inputs(self) -> Inputs:
        given, sizes = self.settings, self.settings.data
        uses = (
            (sizes.fixed, "known to the adversary"),
            (sizes.targets, "attacked"),
            (sizes.shadows, "for shadow models"),
            (sizes.public, "held by the adversary besides"),
            (sizes.test, "to measure accuracy"),
        )
        return Inputs(
            sizes.source,
            given.seed,
            given.machine.threads,
            tuple(self.records.classes),
            uses,
            self.records.columns,
            self._place(),
            self._size(),
            self._takes(),
            tuple(filter(None, [ignored_beside_own(given)])),
        )

    def _size(self) -> str:
        """How many records a model sees; shadow models, targets and strangers need others."""
        fixed, every = self.settings.data.fixed, len(self.records)
        share = " (a quarter)" if fixed == every // 4 else ""
        return (
            f"{every:,} records; each model sees {fixed:,} known records{share} and 1 target; change with "
            "--fixed"
        )

    def _takes(self) -> str:
        """In words, what training and fitting take, where that is much."""
        shape, classes = self.records.shape, len(self.records.classes)
        stages = game_stages(self.recipe, self.settings.data, shape, classes)
        memory, disk = max(one.memory for one in stages), sum(one.disk for one in stages)
        much = max(memory, disk) > _MUCH
        return f"takes {size_of(memory)} of memory at most, {size_of(disk)} on disk" if much else ""

    def _place(self) -> str:
        """In words, where the shadow models are trained; the released ones are fewer."""
        sizes, machine = self.settings.data, self.settings.machine
        work = fleet_work(self.recipe, sizes.fixed, sizes.shadows, machine.chunk)
        if work.seconds is None:
            work = replace(work, seconds=self.per_model * machine.threads * sizes.shadows)
        count = workers_for(work, machine.threads)
        if count > 1:
            return f"in {count} processes with one thread each"
        return "in this process, in one thread" if isinstance(where_now(), Here | Cores) else ""

    @property
    def ours(self) -> bool:
        """Trained by our engines, which can also leave the noise out."""
        return isinstance(self.recipe, FullBatch)

    @property
    def fitting(self) -> float:
        """Seconds of fitting the closed form."""
        return 3e-3 * self.settings.data.shadows

    def rows(self) -> list[Row]:
        sizes, chunk = self.settings.data, self.settings.machine.chunk
        both, fitted = sizes.targets + sizes.shadows, self.fitting
        seconds = self.per_model * both + fitted
        rows = [self._fitted(CLOSED_FORM, ClosedForm(chunk=chunk), seconds, both)]
        if isinstance(self.recipe, OwnTraining):
            few = min(_LOOKED_AT, sizes.targets)
            layout = self.recipe.architecture.layout
            tensors = dict(zip(layout.names, layout.shapes, strict=True))
            size = math.prod(self.records.shape)
            takes = self.per_model * few + seconds_of_looks(tensors, size, few, sizes.test + few)
            rows.append(Row(STORED, None, _INFORMED, takes, few, needs=CLOSED_FORM.id, look=_look))
        private = bool(self.settings.victim.dp_noise) and self.ours
        if private:
            seconds = self.per_model * sizes.shadows + fitted
            rows.append(self._fitted(NOISE_AWARE, NoiseAware(chunk=chunk), seconds, sizes.shadows))
        if self.claimed is not None:
            rows.append(self._naming())
        why = "private training has an attack of its own" if private else ""
        corrected = self._fitted(CORRECTED, Residual(chunk=chunk), self._correction(), 0)
        corrected = replace(corrected, when="extra", why_not=why, needs=CLOSED_FORM.id)
        return [*rows, corrected, self._through_training()]

    def _fitted(self, spec: AttackSpec, attack: Attack, seconds: float, models: int) -> Row:
        targets = self.settings.data.targets
        return Row(spec, attack, _INFORMED, seconds, targets, models, stream="attack")

    def _correction(self) -> float:
        usual = Residual()
        classes = len(self.records.classes)
        network = usual.network.build(classes, self.records.shape, Key.from_seed(0))
        width = self.records.inputs[0].numel() + classes
        rounds = 3 * usual.training.epochs * self.settings.data.shadows
        return rounds * network_seconds(network, (width,), self.settings.machine.threads)

    def _through_training(self) -> Row:
        asked, targets = self.settings.attack.exact, self.settings.data.targets
        row = Row(
            THROUGH_TRAINING,
            ThroughAnyTraining(),  # where none applies, it says why
            _INFORMED,
            records=asked or min(_EXACT, targets),
            needs=CLOSED_FORM.id,  # the released models are those
            when="always" if asked else "extra",
            stream="through training",
        )
        if self.settings.victim.batch and self.settings.victim.batch_order != "known":
            return replace(row, why_not="the order of the batches is not known")
        if self.copies > 1:
            return replace(row, why_not="it takes a record to be trained on once")
        try:
            attack = through_training_of(self.recipe)
        except NotApplicable as why:
            return row if asked else replace(row, why_not=why.why)
        before, each = attack.seconds(self.recipe, len(self.records.classes), self.per_model)

        def costing(count: int) -> Row:
            return replace(row, attack=attack, seconds=before + each * count, records=count)

        def fewer(seconds: float) -> Row | None:
            count = int((seconds - before) / each)
            return costing(count) if count >= _FEWEST_EXACT else None

        return replace(costing(row.records), fewer=None if asked else fewer)

    def _naming(self) -> Row:
        """What the claimed privacy allows, beside what the attacks before it reached."""
        targets = self.settings.data.targets
        seconds = self.per_model * (4 * targets + PriorAware.draws) if self.ours else 0.0
        why = self.claimed.why if isinstance(self.claimed, NotApplicable) else ""
        return Row(
            PRIOR_AWARE,
            None,
            _LISTED,
            seconds,
            targets,
            role="beside",
            why_not=why,
            needs=CLOSED_FORM.id,
            certify=_certify,
        )

    # Attack

    def made(self, folder: RunFolder, progress: Progress) -> TrainingCase:
        """With its released models trained."""
        return self.trained(folder.store(), progress)

    def trained(self, store: Store, progress: Progress) -> TrainingCase:
        game = informed_game(
            self.settings, self.records, store=store, progress=progress, copies=self.copies
        )
        if self.rounding is not None:
            game = rounded(game, self.rounding)
        if self.hides_start:
            game = without_start(game)
        return replace(self, game=game)

    def questions(self, row: Row) -> list[Question]:
        game = self.played
        release, _ = first_of(game.victim, row.records)
        known = game.knowledge
        if row.id == THROUGH_TRAINING.id:  # it needs no shadow models
            known = replace(known, shadow=None, public=None)
        return [Question(release, known, game.key.fold(row.stream))]

    # Judge

    def seats(self, row: Row, answers: Sequence[Answer]) -> Seats | None:
        places = self.places_of(row.records)
        if row.look is not None:
            return seats_of(answers, places, self.played.key.fold("line-up"))
        candidates = [a.found.found(i) for a in answers for i in range(len(a.found.candidates))]
        sure = [a.found.sure(i) for a in answers for i in range(len(a.found.candidates))]
        _, secret = first_of(self.played.victim, row.records)
        own = isinstance(self.recipe, FullBatch)  # noise and draws of each model are its own
        return Seats(
            places,
            candidates,
            self.played.key.fold("line-up"),
            confidence=sure,
            groups=secret.open().class_names(),
            game="independent" if own else "shared",
        )

    @property
    def _targets(self) -> int:
        return len(self.played.rows)

    @cached_property
    def places(self) -> Places:
        return self._places(self._targets)

    def places_of(self, count: int) -> Places:
        """Places of the first so many targets."""
        return self.places if count == self._targets else self._places(count)

    def _places(self, count: int) -> Places:
        """Every target has a release of its own, so that other targets are strangers, too."""
        game = self.played
        key, (_, secret) = game.key.fold("line-up"), first_of(game.victim, count)
        held = holdings(game.knowledge)
        return places_for(secret.open(), torch.arange(count), game.strangers, key, held=held)

    def score(self, row: Row, answers: Sequence[Answer], ranks: Tensor | None) -> Scored:
        game = self.played
        release, secret = first_of(game.victim, row.records)
        if row.look is not None:
            return score_look(secret.open(), answers, ranks)
        found, known = answers[0].found, game.knowledge
        mean = MeanRecord().prepare(known, key=game.key, store=NullStore()).run(release)
        others = {_MEAN: mean, _SNAPPED: snap_to_holdings(found, known)}
        pool = holdings(known)
        scores = score_targets(secret, found, pool, game.key.fold("score"), baselines=others)
        simpler = {
            "mean_record_mse": float(scores.baselines[_MEAN].mse.mean()),
            "nearest_mse": float(scores.baselines[_SNAPPED].mse.mean()),
        }
        notes = [f"The adversary held {scores.metrics['pool']:,.0f} records of its own."]
        if scores.metrics["duplicates"]:
            notes.append(
                f"{scores.metrics['duplicates']:.0f} targets have a near-duplicate among the adversary's "
                "records. Nothing can be learned from attacking these; the rates leave them out."
            )
        evidence = {**scores.evidence, **self._factors(release, scores)}
        evidence |= {"rows": game.rows[: row.records]} | ({} if ranks is None else {"rank": ranks})
        return Scored(
            {**scores.metrics, **found.observed, **simpler},
            evidence,
            tuple(notes),
            baselines=scores.beside,
            risk=evidence if row.records == self._targets else {},
        )

    def _factors(self, release: Weights, scores: TargetScores) -> dict[str, Tensor]:
        """What each released model makes of its own target."""
        fixed, truth = self.played.knowledge.fixed, scores.evidence
        assert fixed is not None  # the game is about what the adversary lacks of it
        own = Records(truth["targets"], truth["labels"], fixed.classes)
        return factors_of_own(self.recipe.architecture, release.parameters, own, fixed)

    def facts(self) -> Facts:
        return self.played.facts

    def premise(self) -> Premise:
        return self.played.premise

    def doubt(self, row: Row, answers: Sequence[Answer], metrics: Mapping[str, float]) -> str:
        status = answers[0].found.status
        if self.played.doubt or status.converged:
            return self.played.doubt
        return f"{row.spec.name} did not arrive: {status.reason or 'it stopped early'}"

    # Controls

    def ladders(self) -> list[Ladder]:
        """This training with less of its noise; and with a record that counts more than once."""
        return [*self._less_noise(), *self._counted()]

    def _less_noise(self) -> list[Ladder]:
        noise = self.settings.victim.dp_noise
        if not noise or not self.ours:
            return []
        rungs = []
        for share in (min(_SHARES[0], _HARDLY / noise), *_SHARES):
            less = float(f"{share * noise:.2g}")
            settings = self.settings.with_values("victim", dp_noise=less)
            recipe = recipe_for(settings, self.records)
            easier = replace(self, settings=settings, recipe=recipe)
            rungs.append(easier._rung(f"{less:g}", f"with a noise multiplier of {less:g}"))
        return [Ladder("noise multiplier", f"{noise:g}", f"with your {noise:g}", tuple(rungs))]

    def _counted(self) -> list[Ladder]:
        """What records count for the attack to see them; all else, post-processing too, stays as it is."""
        records = self.settings.data.fixed
        rungs = []
        for copies in _COPIES:
            if 2 * copies <= records:
                rung = replace(self, copies=copies)._rung(
                    f"{copies}", f"where a record counts {copies} times"
                )
                earns = relevant(copies, records)
                rungs.append(replace(rung, counts=copies, earns=earns))
        if not any(rung.earns for rung in rungs):
            return []
        return [Ladder("times that a record counts", "once", "where it counts once", tuple(rungs))]

    def _rung(self, value: str, words: str) -> Rung:
        targets = min(RUNG_TARGETS, self.settings.data.targets)
        settings = self.settings.with_values("data", targets=targets)
        settings = settings.with_values("attack", exact=targets)
        easier = replace(self, settings=settings, game=None)
        seconds = self.per_model * (targets + settings.data.shadows)
        return Rung(value, words, seconds, easier.made)

    # Fixes

    def with_more(self, times: int) -> tuple[TrainingCase, dict[str, int]]:
        """More targets, where there were few, and more shadow models, if records allow half as many more."""
        sizes = self.settings.data
        targets = max(sizes.targets, min(ENOUGH, len(self.records) // 5))
        left = len(self.records) - sizes.fixed - targets - sizes.public - sizes.test
        options = {"targets": targets, "shadows": min(times * sizes.shadows, left)}
        if times > 1 and options["shadows"] < 1.5 * sizes.shadows:
            return self, {}
        settings = self.settings.with_values("data", **options)
        return replace(self, settings=settings, game=None), options

    def redealt(self) -> TrainingCase:
        settings = self.settings.with_seed(another_seed(self.settings.seed))
        return replace(self, settings=settings, game=None)

    def fixes(self) -> list[Fix]:
        return fixes_of(self)


_MUCH = 1e9  # bytes of memory or disk that a plan speaks of

TRAINING = Kind(TrainingCase, "What the trained weights give away", read_training)


# What is released holds more than an attack reads: a model that stores its records hides nothing


def _look(case: TrainingCase, progress: Progress) -> list[Answer]:
    """Every released parameter, and what training leaves outside them where it changes that."""
    game = case.played
    recipe, known = game.recipe, game.knowledge
    assert isinstance(recipe, OwnTraining)  # ours store nothing but what they learn
    assert known.initial is not None  # an informed adversary has both
    assert known.fixed is not None
    size = math.prod(case.records.shape)
    if size < FEWEST:
        return []
    targets = split_roles(case.settings, case.records).target[:_LOOKED_AT]
    places, layout = case.places_of(len(targets)), recipe.architecture.layout
    answers, stage = [], "looking at what is stored"
    for place in range(len(targets)):
        progress(stage, place, len(targets))
        tensors = layout.split(game.victim[0].parameters[place])
        if game.doubt:
            records = known.fixed.with_extra(targets[place : place + 1].one_each(case.copies), 0)
            key = game.key.fold("stored", place)
            tensors |= recipe.outside(known.initial, records, key)
        seen = look_at(tensors, places, [place], 1 / len(targets))
        answers.append(looked(seen, Question(game.victim[0], known, game.key)))
    progress(stage, len(targets), len(targets))
    return answers


def _certify(
    case: TrainingCase, found: Sequence[Findings], store: Store, progress: Progress
) -> Findings:
    every = [one for one in found if one.risk]  # the attacks on all targets
    return audit_limits(
        case.played,
        split_roles(case.settings, case.records).target,
        every,
        chunk=case.settings.machine.chunk,
        store=store,
        draws=case.settings.victim.batch_order == "known",
        stated=case.claimed if isinstance(case.claimed, ClaimedPrivacy) else None,
        progress=progress,
    )
