"""What an audit of a split says besides its verdict: notes, depths in words, a chart, facts for the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from exhume.auditing.kinds.split_attackers import HEAD_KNOWN
from exhume.auditing.kinds.split_defence import Defended
from exhume.auditing.kinds.split_files import LoadedSplit
from exhume.core.results import Chart, Facts, Findings, Point, Word
from exhume.score.verdict import found_something, silent
from exhume.settings import SplitSettings


@dataclass(frozen=True, eq=False)
class AttackedCut:
    """The network cut at one depth, or with a defence there, and what every attacker got."""

    where: str
    found: dict[str, Findings]  # by attacker

    @property
    def real(self) -> list[Findings]:
        """Those who do not know the head."""
        return [one for name, one in self.found.items() if name != HEAD_KNOWN]

    @property
    def bound(self) -> Findings | None:
        """The adversary who was given the head; None: it was not tried."""
        return self.found.get(HEAD_KNOWN)

    @property
    def measured(self) -> list[dict[str, float]]:
        """Figures of every attacker that could be mounted."""
        return [one.metrics for one in self.found.values() if one.metrics]

    @property
    def strongest(self) -> Findings | None:
        """The attacker without the head who brought most back; None: nothing could be scored."""
        scored = [one for one in self.real if one.section.leak is not None]
        return max(scored, key=lambda one: (one.share, _alikeness(one.metrics)), default=None)

    @property
    def word(self) -> Word:
        """What these attackers say of this cut alone; silence is not checked on an easier version."""
        sections = [one.section for one in self.real if one.section.applies]
        if any(found_something(section) for section in sections):
            return "leaks"
        if self.bound is not None and found_something(self.bound.section):
            return "at risk"
        return "no leak found" if sections and all(map(silent, sections)) else "not audited"

    def name_of(self, one: Findings) -> str:
        """An attacker's name, without where it was met."""
        return one.section.spec.name.removesuffix(f", {self.where}")


def _alikeness(metrics: Mapping[str, float]) -> float:
    return metrics.get("affine_ssim", metrics.get("token_accuracy", 0.0))


def depth_sentence(words: Mapping[str, str]) -> str:
    """What was found at which depth. words: depth, from the one in use on, to its word."""
    names = list(words)
    if len(names) == 1:
        return "No other depth was tried."
    said = {
        "leaks": "it leaks after",
        "at risk": "the head's secret alone protects after",
        "no leak found": "nothing came back, which alone proves nothing, after",
        "not audited": "nothing can be said after",
    }
    parts = [
        f"{phrase} {', '.join(name for name in names if words[name] == word)}"
        for word, phrase in said.items()
        if word in words.values()
    ]
    return f"Without a defence, {'; '.join(parts)}."


def notes_on(
    depths: Mapping[str, AttackedCut], in_use: AttackedCut, defence: Defended | None
) -> tuple[str, ...]:
    """About the split in use, beside its strongest attacker."""
    notes = [depth_sentence({name: cut.word for name, cut in depths.items()})]
    if len(depths) > 1:
        notes.append("Where the split is not in use, only a few of the attackers were tried.")
    bound = in_use.bound
    if bound is not None and bound.section.leak is not None:
        notes.append(
            f"An adversary who knew the client's head would get {bound.section.leak} back "
            f"({_likeness(bound.metrics)})."
        )
    if defence is not None:
        notes.append(defence.cost_sentence())
    return tuple(notes)


def _likeness(metrics: Mapping[str, float]) -> str:
    if "ssim" in metrics:
        return f"SSIM {metrics['ssim']:.2f}"
    return f"{metrics['token_accuracy']:.0%} of the tokens in place"


@dataclass(frozen=True)
class _Figure:
    value: str
    null: str
    nobody: str
    axis: str


_SSIM = _Figure("affine_ssim", "mean_image_affine_ssim", "mean image", "SSIM after an affine fit")
_TOKENS = _Figure(
    "token_accuracy", "usual_token_accuracy", "usual words", "share of tokens in place"
)


def charts(
    depths: Mapping[str, AttackedCut], guarded: AttackedCut | None, *, texts: bool = False
) -> list[Chart]:
    """How alike, attacker by attacker, and what the mean image or the usual words have for nothing."""
    series: dict[str, list[Point]] = {}
    rows, figure = dict(depths), _TOKENS if texts else _SSIM
    if guarded is not None:
        rows[f"{next(iter(depths))}, defended"] = guarded
    for name, cut in rows.items():
        for attacker, one in cut.found.items():
            alike = one.metrics.get(figure.value, math.nan)
            if math.isfinite(alike):  # a head that tells nothing may be inverted to nothing
                series.setdefault(attacker, []).append(Point(name, alike))
        null = next((m[figure.null] for m in cut.measured if figure.null in m), None)
        if null is not None:
            series.setdefault(figure.nobody, []).append(Point(name, null))
    title = "How much of an input comes back"
    return [Chart(title, "last layer of the client's head", figure.axis, series)]


def facts(settings: SplitSettings, owned: LoadedSplit, defence: Defended | None) -> Facts:
    """About the network that was attacked."""
    test, pipeline = owned.parts.test, owned.pipeline(owned.first[0])
    with torch.no_grad():
        sent = pipeline.released(test.inputs[:1])
        answers = [body(sent) for body in pipeline.bodies]
    found: Facts = {
        "network": settings.model.rpartition(":")[2],
        "split_in_use": f"after {owned.first[0]} and after {owned.second}",
        "test_accuracy": pipeline.accuracy(test.inputs, test.labels),
        "bytes_up_per_input": sent.nbytes,  # to the one body of a network as it is
        "bytes_down_per_input": sum(answer.nbytes for answer in answers),
        "attacker_holds": len(owned.parts.shadow),
        "sent_before": len(owned.parts.public),
    }
    if defence is None:
        return found
    if defence.pipeline.client.sigma:
        found |= {"channel_bits": settings.bits, "channel_sigma": defence.pipeline.client.sigma}
    return found | {
        "defence": settings.defend,
        "plain_retrained_accuracy": defence.plain_accuracy,
        "defended_accuracy": defence.accuracy,
        "bodies": defence.cost.bodies,
        "read_by_the_client": defence.cost.selected,
        "defended_bytes_up_per_input": defence.cost.bytes_up,
        "defended_bytes_down_per_input": defence.cost.bytes_down,
        "server_compute_ratio": defence.cost.in_turn / defence.plain_cost.in_turn,
        "client_compute_ratio": defence.client_ratio,
        "client_share_of_multiply_adds": defence.client_share,
    }
