"""The three or four figures at the top of the page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from exhume.core.contract import Cost
from exhume.core.results import Rate, Result, StudyResult
from exhume.report.figures import interval
from exhume.report.words import duration, number, percent

__all__ = ["Tile", "key_figures"]


@dataclass(frozen=True)
class Tile:
    title: str
    value: str
    range: str = ""
    beside: str = ""
    figure: Markup | None = None


def key_figures(result: Result | StudyResult) -> list[Tile]:
    """Figures of the attack that the verdict is about: the strongest."""
    best = result.strongest or next((a for a in result.attacks if "mse" in a.metrics), None)
    if best is None:
        return []
    leak = [_leak(best.leak)] if best.leak is not None and best.leak.trials else []
    finite = {name: value for name, value in best.metrics.items() if math.isfinite(value)}
    return [*leak, *_measured(finite, len(result.classes)), _effort(best.cost)]


def _leak(leak: Rate) -> Tile:
    rates = {"this attack": (leak.low, leak.share, leak.high)}
    beside = ""
    if leak.chance is not None:
        rates["by chance"] = (leak.chance, leak.chance, leak.chance)
        beside = f"by chance {percent(leak.chance)}"
    return Tile(
        "Records brought back",
        f"{number(leak.successes)} of {number(leak.trials)}",
        f"{percent(leak.share)} ({percent(leak.low)} to {percent(leak.high)})",
        beside,
        interval(rates, label="Share of the records brought back"),
    )


def _measured(m: dict[str, float], classes: int) -> Iterator[Tile]:
    if "tpr_at_1pct" in m:
        above = f"SSIM above {number(m['ssim_at_1pct'])}" if "ssim_at_1pct" in m else ""
        share = percent(m["tpr_at_1pct"])
        yield Tile("At 1% false positives", share, "of the training images", above)
    if "mse" in m:
        oracle = m.get("oracle_mse")
        ratio = f"{number(m['mse'] / oracle)} times the oracle's" if oracle else ""
        beside = f"nearest-record oracle {number(oracle)}" if oracle is not None else ""
        yield Tile("Error (MSE)", number(m["mse"]), ratio, beside)
    if "whole_texts" in m:
        likest = m.get("oracle_token_accuracy")
        beside = f"likest held text {percent(likest)}" if likest is not None else ""
        tokens = f"{percent(m['token_accuracy'])} of the tokens"
        yield Tile("Texts whole", percent(m["whole_texts"]), tokens, beside)
    if "label_accuracy" in m:
        low, high = m.get("label_accuracy_low"), m.get("label_accuracy_high")
        span = f"{percent(low)} to {percent(high)}" if low is not None and high is not None else ""
        guess = f"guessing {percent(1 / classes)}, {classes} classes" if classes else ""
        yield Tile("Labels inferred", percent(m["label_accuracy"]), span, guess)


def _effort(cost: Cost) -> Tile:
    trained = f"{number(cost.models)} models trained" if cost.models else "no models trained"
    return Tile("Effort of the best attack", duration(cost.seconds), trained)
