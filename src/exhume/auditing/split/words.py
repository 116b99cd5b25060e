"""What an audit of a split says besides its verdict: depths in words, a chart, facts for the page."""

from __future__ import annotations

from collections.abc import Mapping

from exhume.auditing.split.attackers import AttackedCut
from exhume.auditing.split.defended import Defended
from exhume.auditing.split.reading import LoadedSplit
from exhume.models.split.cost import request_cost
from exhume.results import Chart, Facts, Point
from exhume.settings import SplitSettings

__all__ = ["charts", "depth_sentence", "facts"]


def depth_sentence(words: Mapping[str, str]) -> str:
    """Which of the depths tried is enough. words: depth, from the one in use on, to its verdict."""
    names = list(words)
    if len(names) == 1:
        return "No other depth was tried."
    said = {
        "leaks": "it leaks after",
        "at risk": "the head's secret alone protects after",
        "no leak found": "nothing was found after",
        "not audited": "nothing can be said after",
    }
    parts = [
        f"{phrase} {', '.join(name for name in names if words[name] == word)}"
        for word, phrase in said.items()
        if word in words.values()
    ]
    return f"Without a defence, {'; '.join(parts)}."


def charts(depths: Mapping[str, AttackedCut], guarded: AttackedCut | None) -> list[Chart]:
    """SSIM after an affine fit, attacker by attacker, and that of the mean image."""
    series: dict[str, list[Point]] = {}
    rows = dict(depths)
    if guarded is not None:
        rows[f"{next(iter(depths))}, defended"] = guarded
    for name, cut in rows.items():
        for attacker, one in cut.found.items():
            series.setdefault(attacker, []).append(Point(name, one.metrics["affine_ssim"]))
        null = cut.bound.metrics["mean_image_affine_ssim"]
        series.setdefault("mean image", []).append(Point(name, null))
    title = "How much of an input comes back"
    return [Chart(title, "last layer of the client's head", "SSIM after an affine fit", series)]


def facts(settings: SplitSettings, owned: LoadedSplit, defence: Defended | None) -> Facts:
    """About the network that was attacked."""
    test, pipeline = owned.parts.test, owned.pipeline(owned.first[0])
    cost = request_cost(pipeline, test.inputs[:1])
    found: Facts = {
        "network": settings.model.rpartition(":")[2],
        "split_in_use": f"after {owned.first[0]} and after {owned.second}",
        "test_accuracy": pipeline.accuracy(test.inputs, test.labels),
        "bytes_up_per_input": cost.bytes_up,
        "bytes_down_per_input": cost.bytes_down,
        "attacker_holds": len(owned.parts.shadow),
        "sent_before": len(owned.parts.public),
    }
    if defence is None:
        return found
    return found | {
        "defence": settings.defend,
        "plain_retrained_accuracy": defence.plain_accuracy,
        "defended_accuracy": defence.accuracy,
        "bodies": defence.cost.bodies,
        "read_by_the_client": defence.cost.selected,
        "defended_bytes_up_per_input": defence.cost.bytes_up,
        "defended_bytes_down_per_input": defence.cost.bytes_down,
        "server_compute_ratio": defence.cost.in_turn / defence.plain_cost.in_turn,
        "bodies_together_ratio": defence.cost.together / defence.plain_cost.in_turn,
        "client_compute_ratio": defence.client_ratio,
    }
