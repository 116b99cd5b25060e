"""The audit of a split network, top to bottom: the owner's module, depths, attackers, a defence, verdict.

The network is cut at several depths and attacked at each. A defence, where one is named, is trained at the
depth in use, beside a plain network trained the same way, attacked again, and kept in the run folder.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from exhume import data
from exhume.auditing.findings import Audit, pages_of
from exhume.auditing.split.defended import Defended, check_trainable, defended, keep, secret_key
from exhume.auditing.split.lines import Attacked, Met, attack_split
from exhume.auditing.split.reading import Owned, read_split
from exhume.auditing.split.settings import SplitSettings, take_up
from exhume.auditing.split.words import charts, depth_told, facts
from exhume.auditing.training.game import check_apart
from exhume.contract import Key, Progress, silent
from exhume.models.lpips import perceptual
from exhume.report.folder import RunFolder, environment
from exhume.score.features import Distance
from exhume.score.verdict import Verdict

__all__ = ["DEVIATIONS", "Judged", "SplitSettings", "audit_split", "judge_split", "split_verdict"]

DEVIATIONS = (
    "The attackers' shadow and decoder are trained for a fixed number of epochs; longer ones may get more.",
    "A defended network is trained from scratch by our schedule, and compared with a plain one trained the "
    "same way; the owner's own training may do better.",
    "A defended network's key comes from the system's randomness and stays in the run folder: a selector "
    "that follows from a seed is no secret. Another folder gives other numbers.",
    "Accuracy of the network as given may be measured on records that it was trained on.",
    "Records are taken to lie in [0, 1]: put the client's normalisation into the model.",
)


@dataclass(frozen=True, eq=False)
class Judged:
    """Depth by depth, and the defended network if there is one."""

    depths: dict[str, Met]
    guarded: Met | None
    defence: Defended | None

    @property
    def attacked(self) -> list[Attacked]:
        every = [*self.depths.values(), *([self.guarded] if self.guarded else [])]
        return [one for met in every for one in met.attacked]

    @property
    def in_use(self) -> Met:
        """What the verdict is about: the defended network, else the split in use."""
        return self.guarded or next(iter(self.depths.values()))


def audit_split(
    settings: SplitSettings, out: Path, *, progress: Progress = silent, redact: bool = False
) -> Audit:
    """Attack a split of the owner's network; write the run folder; say the verdict.

    The same settings and folder resume a stopped run and end with the same bits.
    """
    started = time.perf_counter()
    records = data.load(settings.data, progress=progress)
    owned = read_split(settings, records)
    if settings.defend:
        check_trainable(settings, owned)
    check_apart(out, settings.data)
    folder = RunFolder.create(out)
    take_up(folder, settings, owned.fingerprint())
    folder.write_json("environment.json", environment())
    judged = judge_split(settings, owned, folder, progress)
    for one in judged.attacked:
        name = f"{one.section['id']}.safetensors"
        folder.write_tensors(name, one.evidence)
        one.section["evidence"] = name
    verdict = split_verdict(judged)
    folder.write_json(
        "result.json",
        {
            "schema": 1,
            "kind": "audit",
            "title": "What the features of a split network give away",
            "data": settings.data,
            "seed": settings.seed,
            "verdict": asdict(verdict),
            "attacks": [one.section for one in judged.attacked],
            "charts": [chart.plain() for chart in charts(judged.depths, judged.guarded)],
            "victim": facts(settings, owned, judged.defence),
            "classes": list(records.classes),
            "deviations": [*DEVIATIONS, *owned.notes],
            "wall_seconds": time.perf_counter() - started,
        },
    )
    report, redacted = pages_of(folder, redact=redact, progress=progress)
    best = judged.in_use.strongest.metrics
    metrics = {**best, "success": best["recognised_share"]}
    return Audit(verdict, metrics, folder.path, report, redacted)


def judge_split(
    settings: SplitSettings, owned: Owned, folder: RunFolder, progress: Progress
) -> Judged:
    key, store = Key.from_seed(settings.seed), folder.store()
    distance: Distance | None = None
    if settings.lpips and owned.shape[0] == 3:
        distance = perceptual(progress=progress)
    depths = {}
    for place, first in enumerate(owned.first):
        progress("attacking depths", place, len(owned.first))
        depths[first] = attack_split(
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
        return Judged(depths, None, None)
    made = defended(settings, owned, key=secret_key(folder), store=store, progress=progress)
    keep(made, folder)
    guarded = attack_split(
        settings,
        made.pipeline,
        owned.parts,
        f"after {owned.first[0]} with {settings.defend}",
        distance=distance,
        key=key,
        store=store,
        progress=progress,
    )
    return Judged(depths, guarded, made)


def split_verdict(judged: Judged) -> Verdict:
    """That of the split in use, with what was found at other depths and what the defence costs."""
    own = judged.in_use.verdict
    more = [own.detail, depth_told({n: met.verdict.word for n, met in judged.depths.items()})]
    if judged.defence is not None:
        more.append(judged.defence.cost_told())
    return Verdict(own.word, own.sentence, " ".join(more))
