"""Weights that are trained as the user trains: one model for each private record that is tried."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from exhume.attacks.informed.prior_aware import PriorAware
from exhume.attacks.informed.residual import Residual
from exhume.attacks.informed.through_any_training import through_training_of
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.auditing.controls import Ladder
from exhume.auditing.estimate import network_seconds, seconds_per_model
from exhume.auditing.fixes import Fix
from exhume.auditing.plan import AttackOption
from exhume.auditing.release import AuditedRelease, Inputs, Load
from exhume.auditing.training.claimed_privacy import stated_by
from exhume.auditing.training.cost import game_stages
from exhume.auditing.training.game import (
    CLOSED_FORM,
    CORRECTED,
    DEVIATIONS,
    NOISE_AWARE,
    THROUGH_TRAINING,
    Game,
    attack_first,
    attack_targets,
    informed_game,
    split_roles,
    start_of,
)
from exhume.auditing.training.limits import PRIOR_AWARE, audit_limits
from exhume.auditing.training.stored import attack_stored
from exhume.choices import Trains, recipe_for, resolve, sized
from exhume.core.contract import Key, NotApplicable, Progress, Records, Store
from exhume.core.results import AttackSpec, Findings
from exhume.models.activations import activation
from exhume.readers import Reading
from exhume.report.folder import RunFolder
from exhume.settings import Brief, Settings
from exhume.store.memory import size_of
from exhume.store.scale import Cores, Here, where_now, workers_for
from exhume.train.dp import ClaimedPrivacy
from exhume.train.fleet import fleet_work
from exhume.train.recipe import FullBatch
from exhume.train.unrolled import free_gates

__all__ = ["TrainingRelease", "read_training"]

_STORED = 40  # targets of which what training stores is looked at
_USUAL = 300  # trainings of a target that is differentiated matrix-free, without kinks
_READ = 1e8  # bytes of the adjoint that take a target a second: it reads them some hundred times
_GATES = 4  # trainings for each input that a target with kinks takes besides
_EXACT = 8  # targets that are differentiated through training, if there is room
_FEWEST_EXACT = 2  # and at least, if there is not
_INFORMED = "sees the weights; knows the training, its start, and every record but one"
_LISTED = "as above; is told ten records, one of which it is"


def read_training(brief: Brief, load: Load) -> TrainingRelease | None:
    if not brief.weights:
        return None
    records = load(brief.settings.data.source, Reading())
    settings = resolve(brief.settings, records)  # refuses what cannot be
    return TrainingRelease(settings, records, recipe_for(settings, records))


@dataclass(eq=False)
class TrainingRelease(AuditedRelease):
    settings: Settings  # resolved
    records: Records
    recipe: Trains
    per_model: float = 0.0  # seconds
    claimed: ClaimedPrivacy | NotApplicable | None = (
        None  # its privacy, or why there is no certificate
    )
    _game: Game | None = field(default=None, repr=False)
    _found: list[Findings] = field(default_factory=list, repr=False)  # on all targets

    @property
    def title(self) -> str:
        return "the trained weights"

    @property
    def deviations(self) -> tuple[str, ...]:
        return DEVIATIONS

    def choose(self, brief: Brief, store: Store) -> Brief:
        """Sizes that the budget allows, where they are left open."""
        settings = resolve(brief.settings, self.records)
        if brief.budget.seconds is not None:
            seconds = self._per_model(settings, store)
            asked = sized(brief.settings, len(self.records), seconds, brief.budget.seconds)
            settings = resolve(asked, self.records)
        return brief.with_settings(settings)

    def chosen(self, brief: Brief, store: Store) -> TrainingRelease:
        settings = brief.settings
        recipe, key = recipe_for(settings, self.records), Key.from_seed(settings.seed)
        claimed = stated_by(
            settings.victim,
            recipe,
            split_roles(settings, self.records).fixed,
            start_of(settings, recipe, key),
            key=key,
            store=store,
        )
        seconds = self._per_model(settings, store)
        return TrainingRelease(settings, self.records, recipe, seconds, claimed)

    def _per_model(self, settings: Settings, store: Store) -> float:
        recipe, key = recipe_for(settings, self.records), Key.from_seed(settings.seed)
        return seconds_per_model(
            recipe,
            split_roles(settings, self.records).fixed,
            threads=settings.machine.threads,
            initial=start_of(settings, recipe, key),
            key=key,
            store=store,
        )

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
        )

    def _size(self) -> str:
        """How many records a model sees, and what the others are for."""
        fixed, every = self.settings.data.fixed, len(self.records)
        if fixed == min(1000, every // 4):
            cap = "at most 1,000" if fixed == 1000 else "a quarter"
            why = f"by default {cap}: shadow models, targets and strangers need others; --fixed says more"
        else:
            why = "--fixed says so, besides the one that is attacked"
        return f"{every:,} records; models are trained on {fixed + 1:,} each ({why})"

    def _takes(self) -> str:
        """In words, what training and fitting take."""
        shape, classes = self.records.shape, len(self.records.classes)
        stages = game_stages(self.recipe, self.settings.data, shape, classes)
        counted = [one.operations for one in stages if one.operations is not None]
        known = "" if len(counted) < len(stages) else f"{sum(counted):.1e} operations, "
        memory = size_of(max(one.memory for one in stages))
        return f"takes {known}{memory} of memory at most, {size_of(sum(one.disk for one in stages))} on disk"

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

    def game(self, store: Store, progress: Progress) -> Game:
        """Trained once, attacked by all."""
        if self._game is None:
            self._game = informed_game(self.settings, self.records, store=store, progress=progress)
        return self._game

    def fixes(self) -> list[Fix]:
        from exhume.auditing.training.fixes import training_fixes  # it goes on from this class

        return training_fixes(self)

    def ladder(self) -> Ladder | None:
        from exhume.auditing.training.ladder import training_ladder  # it goes on from this class

        return training_ladder(self)

    def options(self) -> list[AttackOption]:
        sizes = self.settings.data
        both, fitted = sizes.targets + sizes.shadows, 5e-3 * sizes.shadows
        closed = self._option(CLOSED_FORM, self.per_model * both + fitted)
        options = [replace(closed, models=both)]
        if self.settings.victim.dp_noise and self.ours:
            seconds = self.per_model * sizes.shadows + fitted
            aware = self._option(NOISE_AWARE, seconds)
            options.append(replace(aware, models=sizes.shadows))
        if self.claimed is not None:
            options.append(self._naming())
        return [*options, self._corrected(), self._exact()]

    @property
    def ours(self) -> bool:
        """Trained by our engines, which can also leave the noise out."""
        return isinstance(self.recipe, FullBatch)

    def _option(self, spec: AttackSpec, seconds: float) -> AttackOption:
        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            store = folder.store()
            game = self.game(store, progress)
            found = attack_targets(spec, game, self.settings, store=store, progress=progress)
            self._found.append(found)
            if spec is not CLOSED_FORM or not game.doubt:
                return [found]
            targets = split_roles(self.settings, self.records).target[:_STORED]
            return [found, attack_stored(game, targets, progress=progress)]

        targets = self.settings.data.targets
        return AttackOption(spec.id, spec.name, _INFORMED, seconds, run, records=targets)

    def _corrected(self) -> AttackOption:
        option = self._option(CORRECTED, self._correction())
        if self.settings.victim.dp_noise and self.ours:
            why = "private training has an attack of its own"
            return replace(option, run=None, why_not=why)
        return replace(option, asked=False, needs=CLOSED_FORM.id)

    def _correction(self) -> float:
        usual = Residual()
        classes = len(self.records.classes)
        network = usual.network.build(classes, self.records.shape, Key.from_seed(0))
        width = self.records.inputs[0].numel() + classes
        rounds = 3 * usual.training.epochs * self.settings.data.shadows
        return rounds * network_seconds(network, (width,), self.settings.machine.threads)

    def _exact(self) -> AttackOption:
        asked, targets = self.settings.attack.exact, self.settings.data.targets
        count = asked or min(_EXACT, targets)
        option = replace(self._through(count), asked=asked > 0)
        if self.settings.victim.batch and self.settings.victim.batch_order != "known":
            return replace(option, run=None, why_not="the order of the batches is not known")
        try:
            attack = through_training_of(self.recipe)
        except NotApplicable as why:
            return option if asked else replace(option, run=None, why_not=why.why)
        if isinstance(attack, ThroughTraining):
            mlp, descent = attack.applies_to(self.recipe)
            anchors = attack.anchors_of(len(self.records.classes), mlp.layout.size)
            before = 1.4 * attack.questions * mlp.sizes[0] + anchors * len(self.records.classes)
            gates = _GATES * mlp.sizes[0] if activation(mlp.activation).curve is None else 0
            each = (150 + gates) * self.per_model + attack.bytes_of(mlp, descent) / _READ
        else:
            size = self.recipe.architecture.layout.size
            before = attack.cost(len(self.records.classes), 0, size)
            kinks = free_gates(self.recipe.architecture.build())[1]
            each = (attack.trainings if kinks else _USUAL) * self.per_model

        def costing(option: AttackOption) -> AttackOption:
            return replace(option, seconds=self.per_model * before + each * option.records)

        def within(seconds: float) -> AttackOption | None:
            fewer = int((seconds - self.per_model * before) / each)
            return costing(self._through(fewer)) if fewer >= _FEWEST_EXACT else None

        return replace(costing(option), within=None if asked else within)

    def _through(self, count: int) -> AttackOption:
        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            store = folder.store()
            game = self.game(store, progress)
            return [attack_first(game, count, store=store, progress=progress)]

        return AttackOption(
            THROUGH_TRAINING.id,
            THROUGH_TRAINING.name,
            _INFORMED,
            0.0,
            run,
            needs=CLOSED_FORM.id,  # the released models are those
            records=count,
        )

    def _naming(self) -> AttackOption:
        """What the claimed privacy allows, beside what the attacks before it reached."""

        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            game, store = self.game(folder.store(), progress), folder.store()
            found = audit_limits(
                game,
                split_roles(self.settings, self.records).target,
                self._found,
                chunk=self.settings.machine.chunk,
                store=store,
                draws=self.settings.victim.batch_order == "known",
                stated=self.claimed if isinstance(self.claimed, ClaimedPrivacy) else None,
                progress=progress,
            )
            return [found]

        targets = self.settings.data.targets
        seconds = self.per_model * (4 * targets + PriorAware.draws)
        option = AttackOption(
            PRIOR_AWARE.id,
            PRIOR_AWARE.name,
            _LISTED,
            seconds,
            run,
            needs=CLOSED_FORM.id,
            records=targets,
            tests=0,
        )
        if isinstance(self.claimed, NotApplicable):
            return replace(option, run=None, why_not=self.claimed.why)
        return option if self.ours else replace(option, seconds=0.0)  # trains nothing more
