"""Features that the client of a split network sends: depths, attackers, a defence, and its fixes.

The network is cut at several depths and attacked at each, by everyone at the depth in use and by a few at
the others. A defence, where one is named, is trained at the depth in use, beside a plain network trained the
same way, attacked again, and kept in the run folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from scipy.stats import binom
from torch import Tensor

from exhume import readers
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
    Safer,
    Scored,
    Seats,
    another_seed,
)
from exhume.auditing.judge import holm_adjust
from exhume.auditing.kinds.split_attackers import (
    FEW,
    HEAD_KNOWN,
    SHADOWLESS,
    TEXT_FEW,
    TEXT_NAMES,
    Attacker,
    Images,
    Seconds,
    Texts,
    models_of,
    names_for,
)
from exhume.auditing.kinds.split_defence import (
    Defended,
    check_defence,
    check_trainable,
    defended,
    keep,
    secret_key,
)
from exhume.auditing.kinds.split_files import LoadedNetwork, LoadedSplit, read_network, read_split
from exhume.auditing.kinds.split_words import AttackedCut, charts, facts, notes_on
from exhume.auditing.limits import audit_channel
from exhume.choices import device_named, moved, threads_for
from exhume.core.contract import (
    Activations,
    Key,
    Progress,
    Reconstruction,
    Records,
    Shard,
    Store,
)
from exhume.core.results import AttackSpec, Chart, Facts, Findings
from exhume.models.lpips import perceptual
from exhume.models.split.inverter import OwnForm
from exhume.models.split.pipeline import Pipeline
from exhume.readers import TextReading
from exhume.report.folder import RunFolder
from exhume.score.features import Distance
from exhume.score.lineup import LEVEL
from exhume.score.places import Places, places_for
from exhume.score.verdict import verdict_on
from exhume.settings import Brief, SplitSettings
from exhume.victims.split import release_features, server_knowledge

_THREAT = "sees the features; knows the server's part of the network and records like yours"
_HEAD = "the client's head"
_CONTROLLED = ("shadow", "matched")  # what two attackers on an easier version take, roughly
_FIXES = {"channel": "a channel of at most {bits:g} bits a request"}
_LEARNED = (
    0.5  # of the way from chance to the network's accuracy: less, and a shadow has not learned
)
_BOUND = "It was given the client's head: its success means that a secret protects, not the split."
_ALONE = (
    "no adversary who knows the client's head was tried, so nobody knows what the features hold"
)
_NAMER = "channel-namer"
_DEVIATIONS = (
    "The attackers' shadow and decoder are trained for a fixed number of epochs; longer ones may get more.",
    "At fewer than 8 epochs the lookalike's searches take fewer steps, too.",
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


def read_released_split(brief: Brief, load: Load) -> SplitCase | None:
    settings = brief.split
    if settings is None:
        return None
    device_named(settings.device or "cpu")
    network = read_network(settings)
    if settings.defend:
        check_defence(settings)
    records = load(
        settings.data, TextReading(settings.vocabulary, settings.length, settings.padding)
    )
    owned = read_split(settings, records, network)
    if settings.defend:
        check_trainable(settings, owned)
    return SplitCase(settings, records, owned)


@dataclass(frozen=True, eq=False)
class Cut:
    """The network cut at one depth, or with a defence there: what is sent, and who could read it."""

    where: str
    pipeline: Pipeline
    form: OwnForm | None  # of the client's head; None: the network's own, cut
    parts: readers.RecordsByRole  # on the device
    sent: Activations
    accuracy: float
    untrained: str  # why silence of anybody says nothing


@dataclass(frozen=True, eq=False)
class SplitCase(Case):
    kind_name = "split"

    settings: SplitSettings
    records: Records
    owned: LoadedSplit
    places: Places | None = None  # every input is a release of its own
    cut: Cut | None = None  # what is attacked, once it is made
    defence: Defended | None = None
    called: str = ""  # where the split in use is, by which attacks on an easier version are called
    distance: Distance | None = None  # LPIPS, where it is asked for
    about: Facts = field(default_factory=dict)  # the network, for the page

    # Read and plan

    @property
    def title(self) -> str:
        return "the features of the split network"

    @property
    def deviations(self) -> tuple[str, ...]:
        return (*_DEVIATIONS, *self.owned.notes)

    @property
    def key(self) -> Key:
        return Key.from_seed(self.settings.seed)

    @property
    def where(self) -> str:
        """The split in use."""
        defence = f" with {self.settings.defend}" if self.settings.defend else ""
        return f"after {self.owned.first[0]}{defence}"

    @property
    def bodies(self) -> int:
        """How many the split in use has."""
        several = self.settings.defend in ("ensembler", "dropout-ensemble")
        return self.settings.bodies if several else 1

    @property
    def kind(self) -> Images | Texts:
        settings, owned = self.settings, self.owned
        if owned.text is None:
            return Images(settings, owned.shape, owned.second, self.distance)
        return Texts(settings, owned.text, owned.shape, owned.second)

    def digests(self) -> dict[str, str]:
        return {"weights_digest": self.owned.fingerprint()}

    def resolve_settings(self, brief: Brief, store: Store) -> Brief:
        settings = replace(self.settings, threads=threads_for(self.settings.threads))
        return replace(brief, split=settings)

    def resolved(self, brief: Brief, store: Store) -> SplitCase:
        assert brief.split is not None  # or it would not have been read
        return SplitCase(brief.split, self.records, self.owned)

    def inputs(self) -> Inputs:
        given = self.settings
        records = self.records
        classes = tuple(records.classes)
        return Inputs(given.data, given.seed, given.threads, classes, columns=records.columns)

    def rows(self) -> list[Row]:
        """Everyone at the split in use; a few at other depths, and at its own without its defence."""
        names = TEXT_NAMES if self.owned.text else names_for(self.bodies)
        few = TEXT_FEW if self.owned.text else FEW
        guarded = bool(self.settings.defend)
        in_use = [self._row(name, self.called or self.where) for name in names]
        if guarded:
            training = self._seconds().training()
            in_use[0] = replace(in_use[0], seconds=in_use[0].seconds + training)
        if self.called:
            return in_use
        others = [
            self._row(name, f"after {first}", first)
            for first in self.owned.first[not guarded :]
            for name in few
        ]
        every = [*others, *in_use] if guarded else [*in_use, *others]
        if self.settings.defend == "channel":
            every.append(self._namer())
        return every

    def _row(self, name: str, where: str, first: str = "") -> Row:
        """first: a depth that is not in use."""
        attacker = None if self.cut is None else self._attacker(name, first)
        if attacker is None:  # a plan needs no more than what it takes
            attacker = self.kind.attacker(
                name, self.owned.pipeline(first or self.owned.first[0]), None
            )
        known = name == HEAD_KNOWN
        spec = AttackSpec(
            f"{slug(where)}-{name}",
            f"{attacker.name}, {where}",
            attacker.paper,
            "the features that the client sends",
        )
        row = Row(
            spec,
            attacker.attack,
            _THREAT,
            self._seconds().attack([name], first),
            len(self.owned.parts.target),
            models_of(name),
            role="knows more" if known else "decides",
            knows=_HEAD if known else "",
            why_not="" if attacker.why_not is None else attacker.why_not.why,
            stream=name,
        )
        if not first:
            return row
        return replace(row, role="beside", view=lambda case, *_: case.at_depth(first))

    def _attacker(self, name: str, first: str) -> Attacker:
        if first:
            return self.kind.attacker(name, self.owned.pipeline(first), None)
        assert self.cut is not None  # asked before
        return self.kind.attacker(name, self.cut.pipeline, self.cut.form)

    def _namer(self) -> Row:
        """What the channel allows any attacker."""
        spec = AttackSpec(_NAMER, "Naming the input, the head and all inputs known", "ours")
        return Row(spec, None, _THREAT, 1.0, role="beside", certify=_certify)

    def _seconds(self) -> Seconds:
        return Seconds(self.settings, self.owned, self.bodies)

    # Attack

    def made(self, folder: RunFolder, progress: Progress) -> SplitCase:
        """With its cut made, and its defence trained."""
        settings, distance = self.settings, None
        if settings.lpips and self.owned.shape[0] == 3:
            distance = perceptual(progress=progress)
        case = replace(self, places=self._seating(), distance=distance)
        if not settings.defend:
            cut = case._cut(case.where, self.owned.pipeline(self.owned.first[0]))
            return replace(case, cut=cut)._told()
        key, store = secret_key(folder), folder.store()
        defence = defended(settings, self.owned, key=key, store=store, progress=progress)
        keep(defence, folder)
        job = defence.job
        form = OwnForm(job.network, job.first, job.second)
        cut = case._cut(case.where, defence.pipeline, form)
        return replace(case, cut=cut, defence=defence)._told()

    def _told(self) -> SplitCase:
        return replace(self, about=facts(self.settings, self.owned, self.defence))

    def at_depth(self, first: str) -> SplitCase:
        """This network cut elsewhere."""
        return replace(self, cut=self._cut(f"after {first}", self.owned.pipeline(first)))

    def _seating(self) -> Places:
        """Every input is a release of its own, so that other targets are strangers, too."""
        parts, padding = self.owned.parts, self.kind.padding
        release, held = (
            torch.arange(len(parts.target)),
            Records.joined([parts.shadow, parts.public]),
        )
        key = self.key.fold("places")
        return places_for(parts.target, release, parts.test, key, held=held, padding=padding)

    def _cut(self, where: str, pipeline: Pipeline, form: OwnForm | None = None) -> Cut:
        device = device_named(self.settings.device or "cpu")
        pipeline, parts = pipeline.to(device), moved(self.owned.parts, device)
        requests, test = self._requests(where), parts.test
        sent, _ = release_features(pipeline, parts.target, requests.fold("targets"))
        accuracy = pipeline.accuracy(test.inputs, test.labels, requests.fold("test"))
        doubt = untrained(pipeline, test, accuracy, where)
        return Cut(where, pipeline, form, parts, sent, accuracy, doubt)

    def _requests(self, where: str) -> Key:
        """Fresh noise, where there is some."""
        return self.key.fold("requests", where)

    def questions(self, row: Row) -> list[Question]:
        cut = self._made
        known = server_knowledge(
            cut.pipeline,
            cut.parts.shadow,
            earlier=cut.parts.public,
            with_head=row.stream == HEAD_KNOWN,
            key=self._requests(cut.where).fold("earlier"),
        )
        return [Question(cut.sent, known, self.key.fold("attack", cut.where))]

    @property
    def _made(self) -> Cut:
        assert self.cut is not None  # its releases are made
        return self.cut

    def as_records(self, row: Row, question: Question, found: Reconstruction) -> Reconstruction:
        """Scored where the records are read, wherever the attack ran."""
        labels = None if found.labels is None else found.labels.cpu()
        candidates, confidence = found.candidates.cpu(), found.confidence.cpu()
        return replace(found, candidates=candidates, confidence=confidence, labels=labels)

    # Judge

    def seats(self, row: Row, answers: Sequence[Answer]) -> Seats | None:
        found, places = answers[0].found, self.places
        assert places is not None  # its releases are made
        candidates = [found.found(place) for place in range(len(self.owned.parts.target))]
        return Seats(
            places,
            candidates,
            self.key.fold("line-up"),
            self.kind.alike,
            confidence=[found.sure(place) for place in range(len(candidates))],
            groups=self.owned.parts.target.class_names(),
        )

    def score(self, row: Row, answers: Sequence[Answer], ranks: Tensor | None) -> Scored:
        found = answers[0].found
        scored = self.kind.score(self.owned.parts, found)
        own = {f"own_{figure}": value for figure, value in found.observed.items()}
        own["own_network_accuracy"] = self._made.accuracy
        notes = scored.evidence.notes if isinstance(scored.evidence, Shard) else {}
        beside = {} if ranks is None else {"rank": ranks}
        return replace(
            scored,
            metrics={**scored.metrics, **own},
            evidence=Shard({**scored.evidence, **beside}, notes),
            notes=scored.notes + (_BOUND,) * (row.stream == HEAD_KNOWN),
        )

    def facts(self) -> Facts:
        return self.about

    def doubt(self, row: Row, answers: Sequence[Answer], metrics: Mapping[str, float]) -> str:
        return self._made.untrained

    def together(self, found: Sequence[Findings]) -> list[Findings]:
        """Doubts about all shadows of a cut; words for other depths; notes beside the strongest attacker."""
        if self.called:
            return list(found)
        new = {id(one): one for one in found}
        cuts = self._cuts(found)
        for where, cut in cuts.items():
            doubt = self._unlearned(list(cut.found.values()), where)
            missing = _ALONE if where == self.where and not _knowing(cut) else ""
            judged = holm_adjust(
                [_doubted(one, name, doubt, missing) for name, one in cut.found.items()], 0
            )
            if where != self.where:
                judged = [
                    _at_other_depth(one, name) for name, one in zip(cut.found, judged, strict=True)
                ]
            for old, one in zip(cut.found.values(), judged, strict=True):
                new[id(old)] = one
            cuts[where] = AttackedCut(where, dict(zip(cut.found, judged, strict=True)))
        in_use = cuts.get(self.where)
        if in_use is not None:
            depths = {
                name.removeprefix("after "): c for name, c in cuts.items() if self._plain(name)
            }
            first = in_use.strongest or next(iter(in_use.found.values()))
            notes = notes_on(depths, in_use, self.defence)
            for place, one in new.items():
                if one.section.spec.id == first.section.spec.id:
                    section = replace(one.section, notes=(*one.section.notes, *notes))
                    new[place] = replace(one, section=section)
        return [new[id(one)] for one in found]

    def _plain(self, where: str) -> bool:
        return not (self.settings.defend and where == self.where)

    def _cuts(self, found: Sequence[Findings]) -> dict[str, AttackedCut]:
        """What was found, by where it was sent; the split in use first among those without a defence."""
        wheres = [f"after {first}" for first in self.owned.first]
        wheres += [self.where] * (self.where not in wheres)
        cuts = {}
        for where in wheres:
            ending = f", {where}"
            own = {
                one.section.spec.id.removeprefix(f"{slug(where)}-"): one
                for one in found
                if one.section.spec.name.endswith(ending)
            }
            if own:
                cuts[where] = AttackedCut(where, own)
        return cuts

    def _unlearned(self, found: Sequence[Findings], where: str) -> str:
        """Why silence of attackers with a shadow says nothing: not even the best one classifies."""
        shadows = (one.metrics.get("own_shadow_accuracy") for one in found)
        best = max((share for share in shadows if share is not None), default=1.0)
        accuracy = max((one.metrics.get("own_network_accuracy", 0.0) for one in found), default=0.0)
        chance = 1 / len(self.owned.parts.test.classes)
        if best >= chance + _LEARNED * (accuracy - chance):
            return ""
        return (
            f"{where}, the attackers' shadows name {best:.0%} of held-out records where the network names "
            f"{accuracy:.0%}, so they are no attackers; raise --attack-epochs or --held"
        )

    # Controls

    def ladders(self) -> list[Ladder]:
        """Shallower cuts of the same network; for a defended one the plain one trained beside it.

        Only behind a layer of the user's own that mixes: an attack on the input as it is proves nothing.
        """
        takes = TEXT_FEW if self.owned.text else _CONTROLLED
        seconds = self._seconds().attack(takes)
        if self.settings.defend:
            name, first = self.settings.defend, self.owned.first[0]
            if not self.owned.mixed(first):
                return []  # without the defence the input would be sent
            where = f"after {first} without {name}"
            rung = Rung("none", "without the defence", seconds, lambda *_: self._plainly(where))
            return [Ladder("defence", name, f"with {name}", (rung,))]
        own = f"after {self.owned.first[0]}"
        rungs = tuple(self._shallower(name, seconds) for name in self.owned.shallower())
        if not rungs:
            return []
        return [Ladder("last layer of the client's head", self.owned.first[0], own, rungs)]

    def _shallower(self, name: str, seconds: float) -> Rung:
        where = f"after {name}"

        pipeline = self.owned.pipeline(name)
        return Rung(name, where, seconds, lambda *_: self._easier(where, pipeline))

    def _plainly(self, where: str) -> SplitCase:
        assert self.defence is not None  # it is trained when the releases are made
        return self._easier(where, self.defence.plain)

    def _easier(self, where: str, pipeline: Pipeline) -> SplitCase:
        """On the first few targets; the others are strangers. Attacks keep their names."""
        few = replace(self.owned, parts=fewer_targets(self.owned.parts))
        case = replace(self, owned=few, called=self.where, cut=None, distance=None)
        case = replace(case, places=case._seating())
        return replace(case, cut=case._cut(where, pipeline))

    # Fixes

    def redealt(self) -> SplitCase:
        settings = replace(self.settings, seed=another_seed(self.settings.seed))
        owned = self.owned
        network = LoadedNetwork(owned.module, owned.first, owned.second, owned.notes)
        return SplitCase(settings, self.records, read_split(settings, self.records, network))

    def fixes(self) -> list[Fix]:
        """Defences of the split in use; each is trained, and attacked by everyone who applies."""
        if self.settings.defend:
            return []
        return [self._fix(name, words) for name, words in _FIXES.items()]

    def _fix(self, name: str, words: str) -> Fix:
        first, second = self.owned.first[:1], self.owned.second
        settings = replace(self.settings, defend=name, first=first, second=second)
        guarded = replace(self, settings=settings, cut=None)
        seconds = sum(row.seconds for row in guarded.rows())

        def apply(folder: RunFolder, progress: Progress) -> Safer:
            owned = read_split(settings, self.records)  # dealt anew: some are for training
            check_trainable(settings, owned)
            case = SplitCase(settings, self.records, owned).made(folder, progress)
            defence = case.defence
            assert defence is not None  # the settings ask for one
            after, before = defence.accuracy, defence.plain_accuracy
            return Safer(case, after, before, defence.request_sentence())

        said = words.format(**vars(settings))
        promised = f"{settings.bits:g} bits a request on average, for any attacker"
        return Fix(f"split-{name}", said, promised, "accuracy", seconds, apply)

    # Write

    def charts(self, found: Sequence[Findings]) -> list[Chart]:
        cuts = self._cuts(found)
        if not cuts:
            return []
        depths = {n.removeprefix("after "): cut for n, cut in cuts.items() if self._plain(n)}
        guarded = cuts.get(self.where) if self.settings.defend else None
        return charts(depths, guarded, texts=self.owned.text is not None)


SPLIT = Kind(SplitCase, "What the features of a split network give away", read_released_split)


def _certify(case: SplitCase, found: Sequence[Findings], *_: object) -> Findings:
    """What a channel allows, beside the best namer of all inputs that are not trained on."""
    assert case.defence is not None  # it is the channel
    parts, made = case.owned.parts, case.defence
    pool = Records.joined([parts.target, parts.test, parts.public]).to(made.job.device)
    own = [one for one in found if one.section.spec.name.endswith(f", {case.where}")]
    return audit_channel(made.pipeline, pool, own, case.key.fold("channel"))


def _knowing(cut: AttackedCut) -> bool:
    """Whether an adversary who knows the head was tried."""
    return cut.bound is not None and cut.bound.section.applies


def _doubted(one: Findings, name: str, shadows: str, missing: str) -> Findings:
    """With what speaks against its cut's shadows; missing: and against everybody, if the strongest is."""
    section = one.section
    why = section.doubt or ("" if name in SHADOWLESS else shadows) or missing
    return replace(one, section=replace(section, doubt=why if section.applies else ""))


def _at_other_depth(one: Findings, name: str) -> Findings:
    """Shown, and no test of the audit."""
    if name != HEAD_KNOWN:
        return replace(one, verdict=verdict_on(one.section))
    verdict = verdict_on(replace(one.section, knows_more=_HEAD))
    return replace(one, section=replace(one.section, lineup=None), verdict=verdict)  # it stays


def fewer_targets(parts: readers.RecordsByRole) -> readers.RecordsByRole:
    """The first few targets; the others are strangers."""
    few, rest = parts.target[:RUNG_TARGETS], parts.target[RUNG_TARGETS:]
    return replace(parts, target=few, test=Records.joined([parts.test, rest]))


def slug(where: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in where).strip("-")


def untrained(pipeline: Pipeline, test: Records, accuracy: float, where: str) -> str:
    """Why silence says nothing: the network names records no better than the most frequent class does."""
    with torch.no_grad():
        outputs = pipeline(test.inputs[:1]).shape[1]
    guess = float(torch.bincount(test.labels.cpu()).max()) / len(test)
    if outputs != len(test.classes) or guess == 1:
        return ""  # labels mean something else to it
    right = round(accuracy * len(test))
    if float(binom.sf(right - 1, len(test), guess)) <= LEVEL:
        return ""
    return (
        f"{where}, the network names {accuracy:.0%} of held-out records, a guess {guess:.0%}: it was not "
        "trained, so that what holds for it says nothing about one that is"
    )
