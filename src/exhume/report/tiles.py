"""The three or four figures at the top of the page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from exhume.report.figures import interval
from exhume.report.words import Number, duration, number, percent

__all__ = ["Tile", "key_figures"]


@dataclass(frozen=True)
class Tile:
    title: str
    value: str
    range: str = ""
    beside: str = ""
    figure: Markup | None = None


def key_figures(result: dict[str, Any]) -> list[Tile]:
    """Key figures of the attack that succeeded most often."""
    ran = [(_numbers(attack["metrics"]), _numbers(attack["cost"])) for attack in result["attacks"]]
    ran = [(m, cost) for m, cost in ran if {"success", "mse", "good_share"} & set(m)]
    if not ran:
        return []
    m, cost = max(ran, key=lambda both: _rank(both[0]))
    tiles = (
        _success(m),
        _brought_back(m),
        _strict(m),
        _error(m),
        _texts(m),
        _labels(m, len(result["classes"])),
        _effort(cost),
    )
    return [tile for tile in tiles if tile]


def _rank(m: dict[str, Number]) -> tuple[Number, Number]:
    return m.get("success", m.get("good_share", 0)), -m.get("mse", 0)


def _brought_back(m: dict[str, Number]) -> Tile | None:
    """Whole images, against decoys that may choose among the same reconstructions."""
    needed = ("good", "records", "good_share", "decoy_rate")
    if not set(needed) <= set(m):
        return None
    rates = {
        title: (m.get(f"{name}_low", m[name]), m[name], m.get(f"{name}_high", m[name]))
        for name, title in (("good_share", "training images"), ("decoy_rate", "decoys"))
    }
    decoys = rates["decoys"]
    return Tile(
        "Images brought back",
        f"{number(round(m['good']))} of {number(round(m['records']))}",
        _range(m, "good_share"),
        f"decoys {percent(decoys[1])}, up to {percent(decoys[2])}",
        interval(rates, label="Share brought back"),
    )


def _strict(m: dict[str, Number]) -> Tile | None:
    if "tpr_at_1pct" not in m:
        return None
    above = f"SSIM above {number(m['ssim_at_1pct'])}" if "ssim_at_1pct" in m else ""
    return Tile("At 1% false positives", percent(m["tpr_at_1pct"]), "of the training images", above)


def _success(m: dict[str, Number]) -> Tile | None:
    rates = {
        title: (m.get(f"{name}_low", m[name]), m[name], m.get(f"{name}_high", m[name]))
        for name, title in (("success", "this attack"), ("null_success", "unrelated"))
        if name in m
    }
    if "success" not in m:
        return None
    null = rates.get("unrelated")
    beside = f"unrelated records {percent(null[1])}, up to {percent(null[2])}" if null else ""
    figure = interval(rates, label="Success rate")
    return Tile("Success rate", percent(m["success"]), _range(m, "success"), beside, figure)


def _error(m: dict[str, Number]) -> Tile | None:
    if "mse" not in m:
        return None
    oracle = m.get("oracle_mse")
    ratio = f"{number(m['mse'] / oracle)} times the oracle's" if oracle else ""
    beside = f"nearest-record oracle {number(oracle)}" if oracle is not None else ""
    return Tile("Error (MSE)", number(m["mse"]), ratio, beside)


def _texts(m: dict[str, Number]) -> Tile | None:
    if "whole_texts" not in m:
        return None
    likest = m.get("oracle_token_accuracy")
    beside = f"likest held text {percent(likest)}" if likest is not None else ""
    tokens = f"{percent(m['token_accuracy'])} of the tokens"
    return Tile("Texts whole", percent(m["whole_texts"]), tokens, beside)


def _labels(m: dict[str, Number], classes: int) -> Tile | None:
    if "label_accuracy" not in m:
        return None
    guess = f"guessing {percent(1 / classes)}, {classes} classes" if classes else ""
    value = percent(m["label_accuracy"])
    return Tile("Labels inferred", value, _range(m, "label_accuracy"), guess)


def _effort(cost: dict[str, Number]) -> Tile | None:
    if "seconds" not in cost:
        return None
    models = cost.get("models")
    trained = f"{number(models)} models trained" if models else "no models trained"
    return Tile("Effort", duration(cost["seconds"]), trained)


def _range(m: dict[str, Number], name: str) -> str:
    low, high = m.get(f"{name}_low"), m.get(f"{name}_high")
    return f"{percent(low)} to {percent(high)}" if low is not None and high is not None else ""


def _numbers(values: dict[str, Any]) -> dict[str, Number]:
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
