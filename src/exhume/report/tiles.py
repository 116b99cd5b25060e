"""The three or four figures at the top of the page."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from exhume.contract import Cost
from exhume.report.figures import interval
from exhume.report.words import duration, number, percent
from exhume.results import Rate, Result, StudyResult

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
    m = {name: value for name, value in best.metrics.items() if math.isfinite(value)}
    tiles = (
        _leak(best.leak),
        _strict(m),
        _error(m),
        _texts(m),
        _labels(m, len(result.classes)),
        _effort(best.cost),
    )
    return [tile for tile in tiles if tile]


def _leak(leak: Rate | None) -> Tile | None:
    if leak is None or not leak.trials:
        return None
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


def _strict(m: dict[str, float]) -> Tile | None:
    if "tpr_at_1pct" not in m:
        return None
    above = f"SSIM above {number(m['ssim_at_1pct'])}" if "ssim_at_1pct" in m else ""
    return Tile("At 1% false positives", percent(m["tpr_at_1pct"]), "of the training images", above)


def _error(m: dict[str, float]) -> Tile | None:
    if "mse" not in m:
        return None
    oracle = m.get("oracle_mse")
    ratio = f"{number(m['mse'] / oracle)} times the oracle's" if oracle else ""
    beside = f"nearest-record oracle {number(oracle)}" if oracle is not None else ""
    return Tile("Error (MSE)", number(m["mse"]), ratio, beside)


def _texts(m: dict[str, float]) -> Tile | None:
    if "whole_texts" not in m:
        return None
    likest = m.get("oracle_token_accuracy")
    beside = f"likest held text {percent(likest)}" if likest is not None else ""
    tokens = f"{percent(m['token_accuracy'])} of the tokens"
    return Tile("Texts whole", percent(m["whole_texts"]), tokens, beside)


def _labels(m: dict[str, float], classes: int) -> Tile | None:
    if "label_accuracy" not in m:
        return None
    guess = f"guessing {percent(1 / classes)}, {classes} classes" if classes else ""
    value = percent(m["label_accuracy"])
    return Tile("Labels inferred", value, _range(m, "label_accuracy"), guess)


def _effort(cost: Cost) -> Tile:
    trained = f"{number(cost.models)} models trained" if cost.models else "no models trained"
    return Tile("Effort", duration(cost.seconds), trained)


def _range(m: dict[str, float], name: str) -> str:
    low, high = m.get(f"{name}_low"), m.get(f"{name}_high")
    return f"{percent(low)} to {percent(high)}" if low is not None and high is not None else ""
