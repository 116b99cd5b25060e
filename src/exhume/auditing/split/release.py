"""Features that the client of a split network sends: the act of an audit, and its fixes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from exhume.auditing.estimate import network_seconds
from exhume.auditing.findings import Findings
from exhume.auditing.fixes import Fix, Tried
from exhume.auditing.plan import Offer
from exhume.auditing.split.attack import DEVIATIONS, judge_split, split_verdict
from exhume.auditing.split.defended import check_trainable
from exhume.auditing.split.reading import Owned, read_split
from exhume.auditing.split.settings import SplitSettings
from exhume.auditing.split.words import facts
from exhume.choices import threads_for
from exhume.contract import Progress, Records
from exhume.report.folder import RunFolder

__all__ = ["SplitAct"]

_THREAT = "sees the features; knows the server's part of the network and records like yours"
_ATTACKERS = 3  # trained at every depth
_FIXES = {
    "ensembler": "the Ensembler: {bodies} bodies, of which {selected} count",
    "single": "noise of {sigma:g} on the features, trained with",
}


@dataclass(frozen=True, eq=False)
class SplitAct:
    settings: SplitSettings
    records: Records
    owned: Owned

    @staticmethod
    def of(settings: SplitSettings, records: Records) -> SplitAct:
        owned = read_split(settings, records)
        if settings.defend:
            check_trainable(settings, owned)
        return SplitAct(settings, records, owned)

    @property
    def title(self) -> str:
        return "the features of the split network"

    @property
    def classes(self) -> list[str]:
        return list(self.records.classes)

    @property
    def deviations(self) -> tuple[str, ...]:
        return (*DEVIATIONS, *self.owned.notes)

    def offers(self) -> list[Offer]:
        depths = len(self.owned.first) + bool(self.settings.defend)
        seconds = depths * self._attack() + bool(self.settings.defend) * self._training()
        return [
            Offer("split", "Inputs from a split network's features", _THREAT, seconds, self._run)
        ]

    def fixes(self) -> list[Fix]:
        """Defences of the split in use; each is trained, and attacked as the split itself was."""
        if self.settings.defend:
            return []
        seconds = self._training() + self._attack()
        return [self._fix(name, words, seconds) for name, words in _FIXES.items()]

    def _run(self, folder: RunFolder, progress: Progress) -> list[Findings]:
        judged = judge_split(self.settings, self.owned, folder, progress)
        told = facts(self.settings, self.owned, judged.defence)
        whole, in_use = split_verdict(judged), judged.in_use.attacked
        found = []
        for one in judged.attacked:
            counts = one in in_use and not one.line.told_head  # what the verdict is about
            metrics = dict(one.metrics)
            if counts:
                metrics["success"] = metrics["recognised_share"]
            section = {**one.section, "metrics": metrics}
            verdict = whole if one is judged.in_use.strongest else one.verdict
            found.append(Findings(section, one.evidence, told, verdict, counts))
        return found

    def _fix(self, name: str, words: str, seconds: float) -> Fix:
        settings = replace(
            self.settings, defend=name, first=self.owned.first[:1], second=self.owned.second
        )

        def run(folder: RunFolder, progress: Progress) -> Tried:
            owned = read_split(settings, self.records)  # dealt anew: some are for training
            check_trainable(settings, owned)
            judged = judge_split(settings, owned, folder, progress)
            assert judged.defence is not None  # the settings ask for one
            best = judged.in_use.strongest
            targets = len(owned.parts.target)
            return Tried(
                round(best.metrics["recognised_share"] * targets),
                targets,
                judged.in_use.verdict.word,
                judged.defence.accuracy,
                judged.defence.plain_accuracy,
            )

        said = words.format(**vars(settings))
        return Fix(f"split-{name}", said, "none", "accuracy", seconds, run)

    def _forward(self) -> float:
        return network_seconds(
            self.owned.module, self.owned.shape, threads_for(self.settings.threads)
        )

    def _attack(self) -> float:
        passes = 3 * _ATTACKERS * self.settings.attack_epochs * len(self.owned.parts.shadow)
        return passes * self._forward()

    def _training(self) -> float:
        """N bodies one after another, the client's part, and a plain network to compare with."""
        records = len(self.owned.parts.fixed) or 10_000
        return 3 * (self.settings.bodies + 2) * self.settings.epochs * records * self._forward()
