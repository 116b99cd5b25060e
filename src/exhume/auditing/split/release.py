"""Features that the client of a split network sends: depths, attackers, a defence, and its fixes.

The network is cut at several depths and attacked at each. A defence, where one is named, is trained at the
depth in use, beside a plain network trained the same way, attacked again, and kept in the run folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from exhume.auditing.estimate import network_seconds
from exhume.auditing.fixes import Fix, Tried
from exhume.auditing.plan import AttackOption
from exhume.auditing.release import AuditedRelease, Inputs, Load
from exhume.auditing.split.attackers import AttackedCut, attack_cut
from exhume.auditing.split.defended import Defended, check_trainable, defended, keep, secret_key
from exhume.auditing.split.reading import LoadedSplit, read_split
from exhume.auditing.split.words import charts, depth_sentence, facts
from exhume.choices import threads_for
from exhume.contract import Key, Progress, Records, Store
from exhume.data import Reading
from exhume.models.lpips import perceptual
from exhume.report.folder import RunFolder
from exhume.results import Chart, Findings, Verdict
from exhume.score.features import Distance
from exhume.settings import Brief, SplitSettings

__all__ = ["SplitRelease", "read_split_release"]

_THREAT = "sees the features; knows the server's part of the network and records like yours"
_ATTACKERS = 3  # trained at every depth
_FIXES = {
    "ensembler": "the Ensembler: {bodies} bodies, of which {selected} count",
    "single": "noise of {sigma:g} on the features, trained with",
}
_DEVIATIONS = (
    "The attackers' shadow and decoder are trained for a fixed number of epochs; longer ones may get more.",
    "A defended network is trained from scratch by our schedule, and compared with a plain one trained the "
    "same way; the owner's own training may do better.",
    "A defended network's key comes from the system's randomness and stays in the run folder: a selector "
    "that follows from a seed is no secret. Another folder gives other numbers.",
    "Accuracy of the network as given may be measured on records that it was trained on.",
    "Records are taken to lie in [0, 1]: put the client's normalisation into the model.",
)


def read_split_release(brief: Brief, load: Load) -> SplitRelease | None:
    settings = brief.split
    if settings is None:
        return None
    records = load(settings.data, Reading())
    owned = read_split(settings, records)
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

    @property
    def verdict(self) -> Verdict:
        """That of the split in use, with what was found at other depths and what the defence costs."""
        own = self.in_use.verdict
        words = {name: cut.verdict.word for name, cut in self.depths.items()}
        more = [own.detail, depth_sentence(words)]
        if self.defence is not None:
            more.append(self.defence.cost_sentence())
        return Verdict(own.word, own.sentence, " ".join(more))


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
        defence = bool(self.settings.defend)
        depths = len(self.owned.first) + defence
        seconds = depths * self._attack_seconds() + defence * self._training_seconds()
        name = "Inputs from a split network's features"
        targets = len(self.owned.parts.target)
        models = depths * _ATTACKERS
        return [
            AttackOption("split", name, _THREAT, seconds, self._run, records=targets, models=models)
        ]

    def charts(self, found: Sequence[Findings]) -> list[Chart]:
        if self._attacked is None:
            return []
        return charts(self._attacked.depths, self._attacked.guarded)

    def fixes(self) -> list[Fix]:
        """Defences of the split in use; each is trained, and attacked as the split itself was."""
        if self.settings.defend:
            return []
        seconds = self._training_seconds() + self._attack_seconds()
        return [self._fix(name, words, seconds) for name, words in _FIXES.items()]

    def _run(self, folder: RunFolder, progress: Progress) -> list[Findings]:
        attacked = self._attacked = _attack(self.settings, self.owned, folder, progress)
        about = facts(self.settings, self.owned, attacked.defence)
        whole, in_use = attacked.verdict, attacked.in_use
        best = in_use.strongest
        found = []
        for one in (one for cut in attacked.cuts for one in cut.found.values()):
            counts = one in in_use.real  # what the verdict is about
            decides = one is best or (counts and whole.word != "leaks")
            section = replace(one.section, counts=counts)
            verdict = whole if decides else one.verdict
            found.append(replace(one, section=section, verdict=verdict, facts=about))
        return found

    def _fix(self, name: str, words: str, seconds: float) -> Fix:
        settings = replace(
            self.settings, defend=name, first=self.owned.first[:1], second=self.owned.second
        )

        def run(folder: RunFolder, progress: Progress) -> Tried:
            owned = read_split(settings, self.records)  # dealt anew: some are for training
            check_trainable(settings, owned)
            attacked = _attack(settings, owned, folder, progress)
            assert attacked.defence is not None  # the settings ask for one
            leak = attacked.in_use.strongest.section.leak
            assert leak is not None  # every attacker is scored
            return Tried(
                leak,
                attacked.in_use.verdict.word,
                attacked.defence.accuracy,
                attacked.defence.plain_accuracy,
            )

        said = words.format(**vars(settings))
        return Fix(f"split-{name}", said, "none", "accuracy", seconds, run)

    def _forward_seconds(self) -> float:
        return network_seconds(
            self.owned.module, self.owned.shape, threads_for(self.settings.threads)
        )

    def _attack_seconds(self) -> float:
        passes = 3 * _ATTACKERS * self.settings.attack_epochs * len(self.owned.parts.shadow)
        return passes * self._forward_seconds()

    def _training_seconds(self) -> float:
        """N bodies one after another, the client's part, and a plain network to compare with."""
        records = len(self.owned.parts.fixed) or 10_000
        rounds = 3 * (self.settings.bodies + 2) * self.settings.epochs * records
        return rounds * self._forward_seconds()


def _attack(
    settings: SplitSettings, owned: LoadedSplit, folder: RunFolder, progress: Progress
) -> _Attacked:
    key, store = Key.from_seed(settings.seed), folder.store()
    distance: Distance | None = None
    if settings.lpips and owned.shape[0] == 3:
        distance = perceptual(progress=progress)
    depths = {}
    for place, first in enumerate(owned.first):
        progress("attacking depths", place, len(owned.first))
        depths[first] = attack_cut(
            settings,
            owned.pipeline(first),
            owned.parts,
            f"after {first}",
            distance=distance,
            key=key,
            store=store,
            progress=progress,
        )
    progress("attacking depths", len(owned.first), len(owned.first))
    if not settings.defend:
        return _Attacked(depths, None, None)
    made = defended(settings, owned, key=secret_key(folder), store=store, progress=progress)
    keep(made, folder)
    guarded = attack_cut(
        settings,
        made.pipeline,
        owned.parts,
        f"after {owned.first[0]} with {settings.defend}",
        distance=distance,
        key=key,
        store=store,
        progress=progress,
    )
    return _Attacked(depths, guarded, made)
