"""Features that the client of a split network sends: depths, attackers, a defence, and its fixes.

The network is cut at several depths and attacked at each, by everyone at the depth in use and by a few at
the others. A defence, where one is named, is trained at the depth in use, beside a plain network trained the
same way, attacked again, and kept in the run folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from exhume.auditing.controls import Ladder
from exhume.auditing.fixes import Fix, Tried
from exhume.auditing.plan import AttackOption
from exhume.auditing.release import AuditedRelease, Inputs, Load
from exhume.auditing.split.attackers import (
    FEW,
    HEAD_KNOWN,
    models_of,
    names_for,
)
from exhume.auditing.split.cut import AttackedCut, CutAudit, Images, Kind, joined
from exhume.auditing.split.defended import (
    Defended,
    check_defence,
    check_trainable,
    defended,
    keep,
    secret_key,
)
from exhume.auditing.split.ladder import (
    fewer_targets,
    shallower_cuts,
    where_defended,
    without_defence,
)
from exhume.auditing.split.limits import audit_channel
from exhume.auditing.split.reading import LoadedSplit, read_network, read_split
from exhume.auditing.split.seconds import Seconds
from exhume.auditing.split.texts import TEXT_FEW, TEXT_NAMES, Texts
from exhume.auditing.split.words import charts, facts, notes_on
from exhume.choices import device_named, threads_for
from exhume.core.contract import Key, Progress, Records, Store
from exhume.core.results import Chart, Findings
from exhume.models.lpips import perceptual
from exhume.models.split.inverter import OwnForm
from exhume.models.split.pipeline import Pipeline
from exhume.readers import Reading
from exhume.report.folder import RunFolder
from exhume.score.features import Distance
from exhume.score.verdict import verdict_on
from exhume.settings import Brief, SplitSettings

__all__ = ["SplitRelease", "read_split_release"]

_THREAT = "sees the features; knows the server's part of the network and records like yours"
_HEAD = "the client's head"
_CONTROLLED = ("shadow", "matched")  # what two attackers on an easier version take, roughly
_FIXES = {
    "channel": "a channel of at most {bits:g} bits a request",
}
_DEVIATIONS = (
    "The attackers' shadow and decoder are trained for a fixed number of epochs; longer ones may get more.",
    "At fewer than 8 epochs the searches (the lookalike's, the likelihood's) take fewer steps, too.",
    "At depths that are not in use only a look, two shadows and the adversary who knows the head are tried.",
    "A defended network is trained from scratch by our schedule, and compared with a plain one trained the "
    "same way; the owner's own training may do better.",
    "A channel's bound is an average over inputs, for ideal Gaussian noise, one request of an input and "
    "nothing else sent. Its noise is repeatable in an audit and comes from the system's randomness in use.",
    "A defended network's key comes from the system's randomness and stays in the run folder: a selector "
    "that follows from a seed is no secret. Another folder gives other numbers.",
    "Accuracy of the network as given may be measured on records that it was trained on.",
    "Records are taken to lie in [0, 1]: put the client's normalisation into the model.",
)


def read_split_release(brief: Brief, load: Load) -> SplitRelease | None:
    settings = brief.split
    if settings is None:
        return None
    device_named(settings.device or "cpu")
    network = read_network(settings)
    if settings.defend:
        check_defence(settings)
    reading = Reading(settings.vocabulary, settings.length, settings.padding)
    records = load(settings.data, reading)
    owned = read_split(settings, records, network)
    if settings.defend:
        check_trainable(settings, owned)
    return SplitRelease(settings, records, owned)


@dataclass(frozen=True, eq=False)
class _Attacked:
    """Depth by depth, and the defended network if there is one."""

    depths: dict[str, AttackedCut]
    guarded: AttackedCut | None
    defence: Defended | None

    @property
    def cuts(self) -> list[AttackedCut]:
        return [*self.depths.values(), *([self.guarded] if self.guarded else [])]

    @property
    def in_use(self) -> AttackedCut:
        """What the verdict is about: the defended network, else the split in use."""
        return self.guarded or next(iter(self.depths.values()))


@dataclass(eq=False)
class SplitRelease(AuditedRelease):
    settings: SplitSettings
    records: Records
    owned: LoadedSplit
    _attacked: _Attacked | None = field(default=None, repr=False)

    @property
    def title(self) -> str:
        return "the features of the split network"

    @property
    def deviations(self) -> tuple[str, ...]:
        return (*_DEVIATIONS, *self.owned.notes)

    def digests(self) -> dict[str, str]:
        return {"weights_digest": self.owned.fingerprint()}

    def choose(self, brief: Brief, store: Store) -> Brief:
        settings = replace(self.settings, threads=threads_for(self.settings.threads))
        return replace(brief, split=settings)

    def chosen(self, brief: Brief, store: Store) -> SplitRelease:
        assert brief.split is not None  # or it would not have been read
        return SplitRelease(brief.split, self.records, self.owned)

    def inputs(self) -> Inputs:
        given = self.settings
        return Inputs(given.data, given.seed, given.threads, tuple(self.records.classes))

    def options(self) -> list[AttackOption]:
        """One, with all attackers of the split in use; elsewhere only a few are tried."""
        guarded, names = bool(self.settings.defend), _names(self.settings, self.owned)
        few = _few(self.owned)
        others = len(self.owned.first) - (not guarded)
        bodies, selected = _bodies(self.settings)
        takes = self._seconds()
        elsewhere = self.owned.first[not guarded :]
        seconds = takes.attack(names) + sum(takes.attack(few, first) for first in elsewhere)
        models = sum(models_of(name, bodies, selected) for name in names)
        models += others * sum(models_of(name, 1, 1) for name in few)
        return [
            AttackOption(
                "split",
                "Inputs from a split network's features",
                _THREAT,
                seconds + guarded * takes.training(),
                self._run,
                records=len(self.owned.parts.target),
                models=models,
                tests=len(names),
            )
        ]

    def ladder(self) -> Ladder | None:
        """Shallower cuts of the same network; for a defended one the plain one trained beside it."""
        few = replace(self.owned, parts=fewer_targets(self.owned.parts))
        seconds = self._seconds().attack(_few(self.owned) if self.owned.text else _CONTROLLED)

        def audit_of(folder: RunFolder, progress: Progress) -> CutAudit:
            kind = _kind(self.settings, few, None)
            tests = len(_names(self.settings, few))
            store = folder.store()
            return CutAudit.of(
                self.settings, few.parts, tests, kind=kind, store=store, progress=progress
            )

        def plain() -> Pipeline:
            assert self._attacked is not None  # controls come after the attacks
            assert self._attacked.defence is not None
            return self._attacked.defence.plain

        if self.settings.defend:
            return without_defence(self.settings, few, audit_of, plain, seconds)
        return shallower_cuts(few, audit_of, seconds)

    def charts(self, found: Sequence[Findings]) -> list[Chart]:
        if self._attacked is None:
            return []
        texts = self.owned.text is not None
        return charts(self._attacked.depths, self._attacked.guarded, texts=texts)

    def fixes(self) -> list[Fix]:
        """Defences of the split in use; each is trained, and attacked by everyone who applies."""
        if self.settings.defend:
            return []
        return [self._fix(name, words) for name, words in _FIXES.items()]

    def _run(self, folder: RunFolder, progress: Progress) -> list[Findings]:
        attacked = self._attacked = _attack(self.settings, self.owned, folder, progress)
        about = facts(self.settings, self.owned, attacked.defence)
        in_use = attacked.in_use
        first = in_use.strongest or next(iter(in_use.found.values()))
        notes = notes_on(attacked.depths, in_use, attacked.defence)
        found = []
        for cut in attacked.cuts:
            for name, one in cut.found.items():
                own = replace(one, facts=about)
                if one is first:
                    section = replace(one.section, notes=(*one.section.notes, *notes))
                    own = replace(own, section=section)
                found.append(_deciding(own, name) if cut is in_use else _beside(own, name))
        if attacked.defence is not None and attacked.defence.pipeline.client.sigma:
            found.append(replace(self._limits(attacked.defence, in_use), facts=about))
        return found

    def _limits(self, made: Defended, met: AttackedCut) -> Findings:
        """What a channel allows any attacker, beside the best namer of all inputs that are not trained on."""
        parts = self.owned.parts
        pool = joined(joined(parts.target, parts.test), parts.public).to(made.job.device)
        key = Key.from_seed(self.settings.seed).fold("channel")
        return audit_channel(made.pipeline, pool, list(met.found.values()), key)

    def _fix(self, name: str, words: str) -> Fix:
        settings = replace(
            self.settings, defend=name, first=self.owned.first[:1], second=self.owned.second
        )
        guarded = replace(self, settings=settings)
        takes = guarded._seconds()
        seconds = takes.training() + takes.attack(_names(settings, self.owned))

        def run(folder: RunFolder, progress: Progress) -> Tried:
            owned = read_split(settings, self.records)  # dealt anew: some are for training
            check_trainable(settings, owned)
            attacked = _attack(settings, owned, folder, progress)
            assert attacked.defence is not None  # the settings ask for one
            guarded = attacked.in_use
            best = guarded.strongest
            return Tried(
                [_deciding(one, name) for name, one in guarded.found.items()],
                best.section.leak if best else None,
                attacked.defence.accuracy,
                attacked.defence.plain_accuracy,
                guarded.name_of(best) if best else "",
                attacked.defence.request_sentence(),
            )

        said = words.format(**vars(settings))
        promised = f"{settings.bits:g} bits a request on average, for any attacker"
        return Fix(f"split-{name}", said, promised, "accuracy", seconds, run)

    def _seconds(self) -> Seconds:
        return Seconds(self.settings, self.owned, *_bodies(self.settings))


def _deciding(one: Findings, name: str) -> Findings:
    """At the split in use: all count, but for the one who knows more than the assumed adversary."""
    known = name == HEAD_KNOWN
    section = replace(one.section, counts=not known, knows_more=_HEAD if known else "")
    return replace(one, section=section, verdict=verdict_on(section))


def _beside(one: Findings, name: str) -> Findings:
    """At another depth: shown, and no test of the audit."""
    section = replace(one.section, counts=False)
    if name != HEAD_KNOWN:
        return replace(one, section=section, verdict=verdict_on(section))
    verdict = verdict_on(replace(section, knows_more=_HEAD))
    return replace(one, section=replace(section, lineup=None), verdict=verdict)  # this word stays


def _bodies(settings: SplitSettings) -> tuple[int, int]:
    """Of the split in use: how many there are, and how many count."""
    if settings.defend == "ensembler":
        return settings.bodies, settings.selected
    return (settings.bodies, settings.bodies) if settings.defend == "dropout-ensemble" else (1, 1)


def _names(settings: SplitSettings, owned: LoadedSplit) -> tuple[str, ...]:
    """Attackers of the split in use."""
    return TEXT_NAMES if owned.text else names_for(_bodies(settings)[0])


def _few(owned: LoadedSplit) -> tuple[str, ...]:
    """Those of them who are tried elsewhere."""
    return TEXT_FEW if owned.text else FEW


def _kind(settings: SplitSettings, owned: LoadedSplit, distance: Distance | None) -> Kind:
    if owned.text is None:
        return Images(settings, owned.shape, owned.second, distance)
    return Texts(settings, owned.text, owned.shape, owned.second)


def _attack(
    settings: SplitSettings, owned: LoadedSplit, folder: RunFolder, progress: Progress
) -> _Attacked:
    """All attackers at the split in use; at other depths, and where a defence is, only a few."""
    distance: Distance | None = None
    if settings.lpips and owned.shape[0] == 3:
        distance = perceptual(progress=progress)
    names = _names(settings, owned)
    audit = CutAudit.of(
        settings,
        owned.parts,
        len(names),
        kind=_kind(settings, owned, distance),
        store=folder.store(),
        progress=progress,
    )
    depths = {}
    for place, first in enumerate(owned.first):
        progress("attacking depths", place, len(owned.first))
        tried = names if not (place or settings.defend) else _few(owned)
        depths[first] = audit.attack(owned.pipeline(first), f"after {first}", tried)
    progress("attacking depths", len(owned.first), len(owned.first))
    if not settings.defend:
        return _Attacked(depths, None, None)
    key, store = secret_key(folder), folder.store()
    made = defended(settings, owned, key=key, store=store, progress=progress)
    keep(made, folder)
    where = where_defended(settings, owned)
    guarded = audit.attack(made.pipeline, where, names, _form(made))
    return _Attacked(depths, guarded, made)


def _form(made: Defended) -> OwnForm:
    return OwnForm(made.job.network, made.job.first, made.job.second)
