"""What a brief says is released, each with the attacks that could be run against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from exhume.attacks.informed.prior_aware import PriorAware
from exhume.attacks.informed.residual import Residual
from exhume.attacks.informed.through_training import ThroughTraining
from exhume.auditing.at_risk import AT_RISK, write_risk
from exhume.auditing.checkpoint.attack import (
    WEIGHTS_DEVIATIONS,
    Opened,
    WeightsSettings,
    attack_checkpoint,
)
from exhume.auditing.estimate import (
    forward_operations,
    network_seconds,
    seconds_of,
    text_seconds,
)
from exhume.auditing.findings import Findings, Named
from exhume.auditing.plan import Offer
from exhume.auditing.training.game import (
    CLOSED_FORM,
    CORRECTED,
    DEVIATIONS,
    NOISE_AWARE,
    THROUGH_TRAINING,
    Game,
    audit_corrected,
    audit_exact,
    audit_informed,
    audit_private,
    dealt,
    informed_game,
)
from exhume.auditing.training.private import PRIOR_AWARE, audit_limits
from exhume.auditing.updates.attack import (
    DEVIATIONS as UPDATE_DEVIATIONS,
)
from exhume.auditing.updates.attack import (
    attack_updates,
    facts_of_updates,
)
from exhume.auditing.updates.found import Found, Truth
from exhume.auditing.updates.reading import Case
from exhume.auditing.updates.settings import UpdateSettings
from exhume.contract import Key, NotApplicable, Progress, Recipe, Records, Store
from exhume.models.homogeneous import HomogeneousMLP
from exhume.models.own.text import TextModel
from exhume.report.folder import RunFolder
from exhume.settings import Settings
from exhume.train.claimed_privacy import Stated
from exhume.train.recipe import FullBatch

__all__ = ["Act", "CheckpointAct", "TrainingAct", "UpdateAct"]

_INFORMED = "sees the weights; knows the training, its start, and every record but one"
_LISTED = "as above; is told ten records, one of which it is"
_ALONE = "sees the weights; knows nothing else"
_SERVER = "sees a client's update; knows the weights it was sent"
_TEXTS = "Texts from updates: rows of the embedding, ratios, sentences that fit"


@runtime_checkable
class Act(Protocol):
    """One thing that is released."""

    @property
    def title(self) -> str: ...
    @property
    def classes(self) -> list[str]: ...
    @property
    def deviations(self) -> tuple[str, ...]: ...
    def offers(self) -> list[Offer]: ...


@dataclass(eq=False)
class TrainingAct:
    """Weights that are trained as the user trains: one model for each private record that is tried."""

    settings: Settings  # resolved
    records: Records
    recipe: Recipe
    per_model: float  # seconds
    stated: Stated | NotApplicable | None = None  # its privacy, or why there is no certificate
    _game: Game | None = field(default=None, repr=False)
    _found: list[Findings] = field(default_factory=list, repr=False)  # on all targets

    @property
    def title(self) -> str:
        return "the trained weights"

    @property
    def classes(self) -> list[str]:
        return list(self.records.classes)

    @property
    def deviations(self) -> tuple[str, ...]:
        return DEVIATIONS

    def game(self, store: Store, progress: Progress) -> Game:
        """Trained once, attacked by all."""
        if self._game is None:
            self._game = informed_game(self.settings, self.records, store=store, progress=progress)
        return self._game

    def write_risk(self, folder: RunFolder) -> None:
        """Which records leak most to the strongest attack on all of them."""
        best = max(self._found, key=lambda f: f.metrics.get("success", -1.0), default=None)
        if best is not None:
            write_risk(folder, best.section, best.evidence)

    def offers(self) -> list[Offer]:
        settings, sizes = self.settings, self.settings.data
        trained = self.per_model * (sizes.targets + sizes.shadows)
        fitted = 5e-3 * sizes.shadows
        offers = [self._offer(CLOSED_FORM, trained + fitted, audit_informed)]
        if settings.victim.dp_noise and self.ours:
            offers.append(
                self._offer(NOISE_AWARE, self.per_model * sizes.shadows + fitted, audit_private)
            )
        if self.stated is not None:
            offers.append(self._naming())
        return [*offers, self._corrected(), self._exact()]

    @property
    def ours(self) -> bool:
        """Trained by our engines, which can also leave the noise out."""
        return isinstance(self.recipe, FullBatch)

    def _corrected(self) -> Offer:
        offer = self._offer(CORRECTED, self._correction(), audit_corrected)
        if self.settings.victim.dp_noise and self.ours:
            why = "private training has an attack of its own"
            return replace(offer, run=None, why_not=why)
        return replace(offer, asked=False, needs=CLOSED_FORM.id)

    def _correction(self) -> float:
        usual = Residual()
        network = usual.network.build(len(self.classes), self.records.shape, Key.from_seed(0))
        width = self.records.inputs[0].numel() + len(self.classes)
        rounds = 3 * usual.training.epochs * self.settings.data.shadows
        return rounds * network_seconds(network, (width,), self.settings.machine.threads)

    def _exact(self) -> Offer:
        asked, targets = self.settings.attack.exact, self.settings.data.targets
        count = asked or min(8, targets)
        attack = ThroughTraining()

        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            game = self.game(folder.store(), progress)
            told = self.settings.with_values("attack", exact=count)
            return [audit_exact(game, told, store=folder.store(), progress=progress)]

        offer = Offer(
            THROUGH_TRAINING.id,
            THROUGH_TRAINING.name,
            _INFORMED,
            0.0,
            run,
            asked=asked > 0,
            needs=CLOSED_FORM.id,  # the released models are those
        )
        try:
            mlp, _ = attack.applies_to(self.recipe)
        except NotApplicable as why:
            return offer if asked else replace(offer, run=None, why_not=why.why)
        questions = attack.questions * mlp.sizes[0]
        return replace(offer, seconds=self.per_model * (1.4 * questions + 150 * count))

    def _offer(self, named: Named, seconds: float, how: Callable[..., Findings]) -> Offer:
        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            game = self.game(folder.store(), progress)
            found = how(game, self.settings, store=folder.store(), progress=progress)
            self._found.append(found)
            return [found]

        return Offer(named.id, named.name, _INFORMED, seconds, run)

    def _naming(self) -> Offer:
        """What the stated privacy allows, beside what the attacks before it reached."""

        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            game, store = self.game(folder.store(), progress), folder.store()
            targets = dealt(self.settings, self.records).target
            chunk = self.settings.machine.chunk
            found = audit_limits(
                game,
                targets,
                self._found,
                chunk=chunk,
                store=store,
                draws=self.settings.victim.batch_order == "known",
                stated=self.stated if isinstance(self.stated, Stated) else None,
                progress=progress,
            )
            return [found]

        seconds = self.per_model * (4 * self.settings.data.targets + PriorAware.draws)
        offer = Offer(PRIOR_AWARE.id, PRIOR_AWARE.name, _LISTED, seconds, run, needs=CLOSED_FORM.id)
        if isinstance(self.stated, NotApplicable):
            return replace(offer, run=None, why_not=self.stated.why)
        return offer if self.ours else replace(offer, seconds=0.0)  # trains nothing more


@dataclass(frozen=True, eq=False)
class CheckpointAct:
    """One file of weights, as it is."""

    settings: WeightsSettings
    released: Opened

    @property
    def title(self) -> str:
        return "the checkpoint"

    @property
    def classes(self) -> list[str]:
        return self.released.classes

    @property
    def deviations(self) -> tuple[str, ...]:
        return WEIGHTS_DEVIATIONS

    def offers(self) -> list[Offer]:
        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            judged = attack_checkpoint(
                self.settings, self.released, folder, progress, at_risk=f"checkpoint-{AT_RISK}"
            )
            judged.section["metrics"] = {**judged.section["metrics"], **judged.metrics}
            return [Findings(judged.section, {}, judged.victim, judged.verdict)]

        offer = Offer("weights-alone", "Training images from weights alone", _ALONE, 0.0, run)
        if self.released.checkpoint is None:
            assert self.released.why is not None  # one or the other
            return [replace(offer, run=None, why_not=self.released.why.why)]
        return [replace(offer, seconds=self._seconds(self.released.checkpoint.architecture))]

    def _seconds(self, mlp: HomogeneousMLP) -> float:
        given = self.released.given
        candidates = 2 * min(len(given.trained) if given else 100, 1000)
        rounds = self.settings.restarts * self.settings.steps
        return seconds_of(rounds * candidates * 3 * forward_operations(mlp))


@dataclass(frozen=True, eq=False)
class UpdateAct:
    """What clients send, from files or made here."""

    settings: UpdateSettings
    cases: list[Case]
    truth: Truth | None
    names: list[str]  # of the classes

    @property
    def title(self) -> str:
        return "the updates of clients"

    @property
    def classes(self) -> list[str]:
        return self.names

    @property
    def deviations(self) -> tuple[str, ...]:
        return UPDATE_DEVIATIONS

    @property
    def seconds(self) -> float:
        """Of all attacks on all updates, estimated: gradient matching, and the exact ones."""
        net = self.cases[0].architecture
        if isinstance(net, TextModel):
            return sum(text_seconds(net, case.batch_size or 1) for case in self.cases)
        return self.settings.budget + 5.0 * len(self.cases)

    def offers(self) -> list[Offer]:
        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            found = attack_updates(self.settings, self.cases, self.truth, folder, progress)
            facts = facts_of_updates(self.settings, self.cases, found)
            return [self._as_findings(one, facts) for one in found if one.ran or len(found) == 1]

        return [
            Offer(
                "updates",
                _TEXTS
                if isinstance(self.cases[0].architecture, TextModel)
                else "Records from updates: ratios, span, tensor, gradient matching",
                _SERVER,
                self.seconds,
                run,
            )
        ]

    def _as_findings(self, one: Found, facts: dict[str, str | float]) -> Findings:
        metrics = {
            "detectable_rate": 0.0,
            **one.section["metrics"],
            "success": one.share(self.cases),
        }
        section = {**one.section, "metrics": metrics if one.ran else {}}
        return Findings(section, one.evidence, facts, one.verdict)

    @staticmethod
    def of(
        settings: UpdateSettings,
        gathered: tuple[list[Case], Truth | None],
        names: list[str],
        budget: float | None,
    ) -> UpdateAct:
        """budget: seconds of the whole audit; gradient matching may take half of it."""
        cases, truth = gathered
        if budget is not None:
            settings = replace(settings, budget=min(settings.budget, budget / 2))
        if not settings.search_steps and not isinstance(cases[0].architecture, TextModel):
            settings = replace(settings, search_steps=_steps(settings, cases))
        return UpdateAct(settings, cases, truth, names)


def _steps(settings: UpdateSettings, cases: list[Case]) -> int:
    """Of gradient matching, within its budget: counted, not timed, so that the plan is the same anywhere."""
    batch = max(case.batch_size or 1 for case in cases)
    forward = forward_operations(cases[0].architecture)
    step = settings.restarts * (
        seconds_of(9 * batch * forward) + 2e-3
    )  # two passes back, and overhead
    return max(50, min(2000, int(settings.budget / len(cases) / step)))
