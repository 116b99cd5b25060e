"""What clients send in federated learning: updates from files, or made here of the user's records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from exhume.attacks.gradient.features import FeatureDecoding
from exhume.auditing.controls import Ladder
from exhume.auditing.estimate import (
    forward_operations,
    language_seconds,
    seconds_of,
    text_seconds,
)
from exhume.auditing.fixes import Fix, Tried
from exhume.auditing.plan import AttackOption
from exhume.auditing.release import AuditedRelease, Inputs, Load
from exhume.auditing.updates.agreement import Agreement, agreements_of
from exhume.auditing.updates.attacks import (
    Answer,
    UpdateAttack,
    attack_all,
    attacks_on_language,
    attacks_on_records,
    attacks_on_texts,
)
from exhume.auditing.updates.found import found_by
from exhume.auditing.updates.lineups import Truth
from exhume.auditing.updates.made import made_updates
from exhume.auditing.updates.reading import (
    Case,
    cases_for,
    model_for,
    private_records,
    reading_of,
)
from exhume.auditing.updates.server import SERVER, chosen_weights
from exhume.choices import recipe_for, threads_for
from exhume.core.contract import (
    Architecture,
    Gradient,
    Key,
    Progress,
    Records,
    ReleaseDefence,
    Store,
)
from exhume.core.results import Facts, Findings, strongest
from exhume.defences.release import NoiseRelease, PruneRelease, QuantiseRelease
from exhume.models.mlp import MLP
from exhume.models.own_texts import LanguageModel, TextModel
from exhume.models.two_layer import TwoLayer
from exhume.report.folder import RunFolder
from exhume.settings import Brief, UpdateSettings
from exhume.store.shards import digest
from exhume.train.local import Steps

__all__ = ["UpdateRelease", "attack_updates", "read_updates"]

_THREAT = "sees a client's update; knows the weights it was sent"
_RECORDS = "Records from updates: ratios, span, gates, features, tensor, gradient matching"
_TEXTS = "Texts from updates: rows of the embedding, ratios, sentences that fit"
_FEWEST, _MOST = 50, 2000  # steps of gradient matching
_FEW = 100  # steps of a search that is asked to be short: decoding follows it
_DEVIATIONS = (
    "Of several local steps most attacks see the average of their gradients; local-steps and gradient "
    "matching simulate them. Of an adapter, A is taken as it ended.",
    "Records are taken to lie in [0, 1] by gradient matching: put the client's normalisation into the model.",
)


def read_updates(brief: Brief, load: Load) -> UpdateRelease | None:
    settings = brief.update
    if settings is None:
        return None
    records = load(settings.data, reading_of(settings)) if settings.data else None
    built_in = None
    if settings.made and not settings.model and records is not None:
        built_in = recipe_for(brief.settings, records).architecture
    cases, truth = gathered(settings, records, built_in)
    classes = tuple(records.classes) if records is not None else ()
    return UpdateRelease(settings, cases, truth, classes)


def gathered(
    settings: UpdateSettings, records: Records | None, architecture: Architecture | None = None
) -> tuple[list[Case], Truth | None]:
    """The updates, from files or made here, and the records behind them where they are known.

    architecture: of updates that are made here; None: the user's own model.
    """
    if settings.made:
        assert records is not None  # the settings see to it
        if architecture is None:
            architecture = model_for(settings, records)
        return made_updates(settings, architecture, records, Key.from_seed(settings.seed))
    cases = cases_for(settings, records)
    if records is None:
        return cases, None
    named, others = private_records(settings, records, [case.client for case in cases])
    return agreed(cases, Truth(named, others, chosen=True))


def agreed(cases: Sequence[Case], truth: Truth) -> tuple[list[Case], Truth]:
    """What the named records give beside what was sent: its noise is known then, or that they are wrong."""
    found = {one.client: one for one in agreements_of(cases, truth.private)}
    wrong = {name: one.sentence for name, one in found.items() if one.wrong}
    fits = {name for name, one in found.items() if one.exact or one.noise_like}
    doubts = dict.fromkeys(d for case in cases if case.client not in fits for d in case.doubts)
    truth = replace(
        truth,
        wrong=next(iter(wrong.values()), "").rstrip("."),
        strange=frozenset(wrong),
        doubt="; ".join(doubts),
    )
    return [_with_noise(case, found.get(case.client)) for case in cases], truth


def _with_noise(case: Case, found: Agreement | None) -> Case:
    if found is None or found.exact or not found.noise_like or not math.isfinite(found.noise):
        return case
    return replace(case, noise=found.noise, unexplained=1 - found.cosine)


@dataclass(frozen=True, eq=False)
class UpdateRelease(AuditedRelease):
    settings: UpdateSettings
    cases: list[Case]
    truth: Truth | None
    classes: tuple[str, ...]

    @property
    def title(self) -> str:
        return "the updates of clients"

    @property
    def deviations(self) -> tuple[str, ...]:
        return _DEVIATIONS

    @property
    def of_texts(self) -> bool:
        return isinstance(self.cases[0].architecture, TextModel)

    def digests(self) -> dict[str, str]:
        sent = torch.cat([case.gradient.values.flatten().double() for case in self.cases])
        return {"update_digest": digest(sent)[:16]}

    def choose(self, brief: Brief, store: Store) -> Brief:
        """The budget turned into steps of gradient matching, which may take half of it."""
        settings, budget = self.settings, brief.budget.seconds
        if budget is not None:
            settings = replace(settings, search_seconds=min(settings.search_seconds, budget / 2))
        if not settings.search_steps and not self.of_texts:
            settings = replace(settings, search_steps=_steps(settings, self.cases))
        settings = replace(settings, threads=threads_for(settings.threads))
        return replace(brief, update=settings)

    def chosen(self, brief: Brief, store: Store) -> UpdateRelease:
        assert brief.update is not None  # or it would not have been read
        return replace(self, settings=brief.update)

    def inputs(self) -> Inputs:
        given = self.settings
        return Inputs(given.data, given.seed, given.threads, self.classes)

    def attacks(self) -> list[UpdateAttack]:
        if isinstance(self.cases[0].architecture, LanguageModel):
            return attacks_on_language()
        if self.of_texts:
            return attacks_on_texts(_steps_of(self.cases))
        images = len(self.cases[0].architecture.input_shape) == 3
        return attacks_on_records(
            self.settings,
            images=images,
            averaged=self.cases[0].averaged,
            decoding=_decoding_steps(self.settings, self.cases),
            steps=_steps_of(self.cases),
        )

    @property
    def seconds(self) -> float:
        """Of all attacks on all updates, estimated: gradient matching, and the exact ones."""
        net = self.cases[0].architecture
        if isinstance(net, LanguageModel):
            return sum(language_seconds(net, case.batch_size or 1) for case in self.cases)
        if isinstance(net, TextModel):
            return sum(text_seconds(net, case.batch_size or 1) for case in self.cases)
        steps = self.settings.search_steps * _step_seconds(self.settings, self.cases)
        return (steps + _decoding_seconds(self.settings, self.cases) + 5.0) * len(self.cases)

    def options(self) -> list[AttackOption]:
        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            return attack_updates(self, folder, progress)

        options = [
            AttackOption(
                "updates",
                _TEXTS if self.of_texts else _RECORDS,
                _THREAT,
                self.seconds,
                run,
                records=sum(case.batch_size or 0 for case in self.cases),
                steps=self.settings.search_steps,
                tests=len(self.attacks()),
            )
        ]
        return options + ([self._server()] if self.settings.server == "chooses" else [])

    def _server(self) -> AttackOption:
        """Beside the verdict: no line-up that it is judged by."""

        def run(folder: RunFolder, progress: Progress) -> list[Findings]:
            assert self.truth is not None  # updates are made here, of records
            key = Key.from_seed(self.settings.seed).fold("server")
            network = self.cases[0].architecture
            return [chosen_weights(network, self.truth, key, folder, progress)]

        records, seconds = sum(case.batch_size or 0 for case in self.cases), 5.0 * len(self.cases)
        threat = "sees a client's update at weights that it chose itself"
        return AttackOption(SERVER.id, SERVER.name, threat, seconds, run, records=records, tests=0)

    def ladder(self) -> Ladder | None:
        from exhume.auditing.updates.ladder import update_ladder  # it goes on from this class

        return update_ladder(self)

    def fixes(self) -> list[Fix]:
        if self.truth is None:
            return []
        return [_fix(self, *one) for one in _FIXES]


def _step_seconds(settings: UpdateSettings, cases: Sequence[Case]) -> float:
    """Of one step of all restarts: two passes back, and overhead. Counted, not timed."""
    batch = max(case.batch_size or 1 for case in cases)
    forward = forward_operations(cases[0].architecture)
    return settings.restarts * (seconds_of(9 * batch * forward) + 2e-3)


def _decoding_seconds(settings: UpdateSettings, cases: Sequence[Case]) -> float:
    """Of features, behind convolutions."""
    if isinstance(cases[0].architecture, MLP | TwoLayer):
        return 0.0
    return _decoding_steps(settings, cases) * _decoding_step(cases)


def _decoding_step(cases: Sequence[Case]) -> float:
    """Seconds of a pass forward and back of the largest batch."""
    batch = max(case.batch_size or 1 for case in cases)
    return seconds_of(3 * batch * forward_operations(cases[0].architecture)) + 2e-3


def _decoding_steps(settings: UpdateSettings, cases: Sequence[Case]) -> int:
    """As many as decoding wants, within the budget of a search; few where few are asked for."""
    within = int(settings.search_seconds / len(cases) / _decoding_step(cases))
    wanted = FeatureDecoding.steps if settings.search_steps >= _FEW else settings.search_steps
    return max(1, min(wanted, max(_FEWEST, within)))


def _steps(settings: UpdateSettings, cases: Sequence[Case]) -> int:
    """Of gradient matching, within its budget."""
    within = settings.search_seconds / len(cases) / _step_seconds(settings, cases)
    return max(_FEWEST, min(_MOST, int(within)))


def attack_updates(
    release: UpdateRelease,
    folder: RunFolder,
    progress: Progress,
    *,
    only: Sequence[str] | None = None,
) -> list[Findings]:
    """Every attack on every update, attack by attack. only: their ids; None: all."""
    cases, attacks = release.cases, release.attacks()
    attacks = [one for one in attacks if only is None or one.id in only]
    key = Key.from_seed(release.settings.seed)
    answers: list[dict[str, Answer]] = []
    for place, case in enumerate(cases):
        progress("attacking updates", place, len(cases))
        own = key.fold("update", case.client, case.round)
        answers.append(attack_all(case, attacks, key=own, store=folder.store(), progress=progress))
    progress("attacking updates", len(cases), len(cases))
    ran = {name for some in answers for name in some}
    facts = _facts(release, [one.spec.name for one in attacks if one.id not in ran])
    return [
        found_by(
            attack,
            [some[attack.id] for some in answers if attack.id in some],
            release.truth,
            key.fold("score"),
            facts,
            tests=len(release.attacks()),
        )
        for attack in attacks
        if attack.id in ran
    ]


def _facts(release: UpdateRelease, spared: Sequence[str]) -> Facts:
    """spared: attacks that were not needed any more."""
    settings, cases = release.settings, release.cases
    sizes = sorted({case.batch_size for case in cases if case.batch_size})
    facts: Facts = {
        "architecture": str(cases[0].architecture),
        "loss": f"{settings.loss}, {settings.reduction} over the batch",
        "updates": len(cases),
        "clients": len({case.client for case in cases}),
        "local_steps": max(_count(case) for case in cases),
        "batch_size": ", ".join(map(str, sizes)) or "not given",
        "checked": ", ".join(dict.fromkeys(name for case in cases for name in case.checked)),
    }
    if how := str(_steps_of(cases).routine):
        facts["local_training"] = how
    if cases[0].notes:
        facts["read_as"] = " ".join(cases[0].notes)
    if spared:
        facts["not_run"] = f"{', '.join(spared)}: every record is proved already"
    return facts


def _steps_of(cases: Sequence[Case]) -> Steps:
    """How the clients trained: of one that made several steps, if there is such."""
    return next((case.steps for case in cases if case.steps.several), cases[0].steps)


def _count(case: Case) -> int:
    """Local steps behind an update, as far as the number of records is known."""
    known = case.batch_size or max(1, case.steps.routine.local_batch)
    return len(case.steps.rates(known))


# Fixes

_FIXES: tuple[tuple[str, str, ReleaseDefence], ...] = (
    ("noise-0.01", "noise of 1% of the update's size", NoiseRelease(0.01)),
    ("noise-1", "noise as large as the update", NoiseRelease(1.0)),
    ("4-bit", "updates in 4 bits", QuantiseRelease(4)),
    ("pruned", "only the largest 1% of the update's values", PruneRelease(0.99)),
)


def _fix(release: UpdateRelease, name: str, words: str, defence: ReleaseDefence) -> Fix:
    def run(folder: RunFolder, progress: Progress) -> Tried:
        return _protected(release, name, defence, folder, progress)

    likeness = "likeness to the true update"
    return Fix(name, words, "none", likeness, release.seconds, run, short=name)


def _protected(
    release: UpdateRelease,
    name: str,
    defence: ReleaseDefence,
    folder: RunFolder,
    progress: Progress,
) -> Tried:
    key = Key.from_seed(release.settings.seed).fold("fix", name)
    cases, alike = [], []
    for place, case in enumerate(release.cases):
        safer = defence.protect(case.gradient, key.fold(place))
        assert isinstance(safer, Gradient)  # a defence keeps the kind of release
        pair = safer.values[0], case.gradient.values[0]
        alike.append(float(torch.cosine_similarity(*pair, dim=0)))
        cases.append(replace(case, gradient=safer, unexplained=1 - alike[-1]))
    found = attack_updates(replace(release, cases=cases), folder, progress)
    best = strongest([one.section for one in found])
    return Tried(found, best.leak if best else None, sum(alike) / len(alike), 1.0)
