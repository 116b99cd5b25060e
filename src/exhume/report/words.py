"""The report's vocabulary: numbers as people read them, plain words for names in a result."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TONES = {"leaks": "leak", "at risk": "risk", "no leak found": "clear", "not audited": "unknown"}
"""Verdict: the class that gives it its colour, in words and in charts."""

MISSING = "–"
Number = int | float  # as JSON has them

KNOWN = {
    "architecture": "the network's architecture",
    "recipe": "the training algorithm and its settings",
    "initial": "the parameters before training",
    "fixed": "every training record except the target",
    "copies": "how many times the target was trained on",
    "shadow": "records of its own on which to train shadow models",
    "answers": "what the network, or the client, answers to those records",
    "public": "further records of the same distribution",
    "candidates": "a list of records among which the target is",
    "batch_size": "how many records stand behind one gradient",
    "labels": "the labels of the unknown records",
    "centre": "the mean that the released preprocessing subtracts",
    "parts": "some pieces of the split network",
    "features": "the shape of what the client sends",
    "seen": "what the client has sent before, not the inputs behind it",
}
"""The fields of `Knowledge`, completing the sentence "The adversary knew …"."""

METRICS = {
    "named": ("Records named", "share of the trainings in which the record was named among ten"),
    "guessing": ("By guessing", "what naming reaches without any release"),
    "allowed": ("Allowed at most", "what the stated privacy allows any attack that names"),
    "good": ("Images brought back", "training images whose best match has an SSIM above 0.4"),
    "good_share": ("Share brought back", "the same over all training images"),
    "decoy_rate": (
        "Decoys matched",
        "images that were not trained on and match a reconstruction as well: what chance gives",
    ),
    "tpr_at_1pct": (
        "Brought back at 1% false positives",
        "training images more similar to their best match than all but 1% of the decoys are",
    ),
    "bar": (
        "Bar of similarity",
        "0.4, or the SSIM that 1% of the decoys exceed if that is higher",
    ),
    "above_bar": ("Images above the bar", "training images whose best match is above it"),
    "above_bar_share": (
        "Share above the bar",
        "by the paper's measure; the verdict goes by the line-up",
    ),
    "ssim_at_1pct": ("SSIM at 1% false positives", "what 1% of the decoys exceed"),
    "ssim_median": ("Median SSIM", "of the training images with their best match"),
    "auc": ("AUC", "how often a training image beats a decoy in SSIM; 0.5 is chance"),
    "cosine_median": (
        "Median cosine",
        "of the training records with their best match, columns scaled alike",
    ),
    "cosine_bar": ("Cosine at 1% false positives", "what 1% of the decoys exceed"),
    "above_cosine_bar": ("Records above that", "training records whose best match is above it"),
    "above_cosine_bar_share": ("Share above that", "the verdict goes by the line-up"),
    "cosine_auc": ("AUC", "how often a training record beats a decoy in cosine; 0.5 is chance"),
    "residual_reached": (
        "Unexplained share of the weights",
        "of the first layer, at the attack's best restart; it can fall below that at the true records",
    ),
    "distinct": ("Reconstructions", "that differ from one another"),
    "agreed": ("Found more than once", "reconstructions that the attack ended at more than once"),
    "records_guessed": ("Records guessed", "training records, read off the first layer's spectrum"),
    "recognised": (
        "Inputs recognised",
        "private inputs more similar to their reconstruction than 99% of strangers are",
    ),
    "recognised_share": ("Share recognised", "by similarity; the verdict goes by the line-up"),
    "stranger_share": (
        "Strangers above the bar",
        "the same reconstructions compared with other inputs: what chance gives",
    ),
    "ssim_bar": (
        "Bar of similarity",
        "the SSIM, after an affine fit, that 1% of strangers or of inputs with the mean image exceed",
    ),
    "affine_ssim": ("SSIM after an affine fit", "brightness and contrast fitted to the truth"),
    "mean_image_affine_ssim": (
        "The mean image's SSIM after an affine fit",
        "what answering with one image every time achieves",
    ),
    "success": (
        "Success rate",
        "targets whose reconstruction is closer to the truth than any record the adversary held",
    ),
    "null_success": (
        "Success rate on unrelated records",
        "each reconstruction scored against another target of the same label: what chance gives",
    ),
    "null_mse": (
        "Error against unrelated records",
        "between a reconstruction and another target of the same label",
    ),
    "token_accuracy": (
        "Tokens right",
        "of the private texts, words too many counted as wrong; in place where the order can be known",
    ),
    "whole_texts": ("Texts whole", "private texts of which every token came back, and no other"),
    "word_accuracy": (
        "Words right",
        "tokens of the private texts that came back, wherever they stand",
    ),
    "oracle_token_accuracy": (
        "Likest held text",
        "tokens that the likest text an adversary may hold has in common with the private one",
    ),
    "usual_token_accuracy": (
        "The usual words",
        "tokens right by answering with the most frequent token of every place",
    ),
    "listed": ("Words listed", "tokens whose row of the embedding the update changes"),
    "false_words": (
        "Words listed wrongly",
        "of these, tokens that no private text of the client has",
    ),
    "own_occurring": ("Words that occur", "counted by the attack, without the truth"),
    "mae_plus_mse": ("MAE + MSE", "the loss that Balle22's notebook reports"),
    "label_accuracy_on_shadows": (
        "Label accuracy on shadows",
        "the attack's own leave-one-out estimate, known without the truth",
    ),
    "mse_on_shadows": (
        "Error on shadows",
        "the attack's own leave-one-out estimate of its squared error, known without the truth",
    ),
    "residual": (
        "Unexplained share of the release",
        "median over the releases: how far training on the answer ends from what was released",
    ),
    "explained": (
        "Releases explained",
        "share of the releases that training on the answer reproduces to 1%",
    ),
    "shadow_accuracy": (
        "Shadow models' accuracy",
        "on public records: how well the models that the attack learns from are trained",
    ),
    "mse": ("Mean squared error", "between target and reconstruction; 0 is a perfect copy"),
    "oracle_mse": (
        "Oracle's error",
        "error of the held record nearest to the target, chosen by someone who knows the target",
    ),
    "nearest_mse": (
        "Nearest-record error",
        "error of the held record nearest to the reconstruction",
    ),
    "mean_record_mse": (
        "Mean record's error",
        "error of answering with the average record every time",
    ),
    "mae": ("Mean absolute error", "average distance of one value from the truth"),
    "psnr": ("PSNR, in dB", "the error on a logarithmic scale; higher is closer"),
    "ssim": ("SSIM", "structural similarity; 1 is identical"),
    "label_accuracy": ("Label accuracy", "targets whose label the attack inferred correctly"),
    "targets": ("Targets", "private records the attack tried to bring back"),
    "pool": ("Records held", "records the adversary had, from which the oracle chooses"),
    "duplicates": ("Duplicates", "targets of which the adversary already held (almost) a copy"),
    "recovered": (
        "Recovered",
        "targets whose reconstruction has a cosine of 0.99 or more with them",
    ),
    "certified": (
        "Proved records",
        "reconstructions that the update itself proves, without the truth",
    ),
    "update_residual": (
        "Unexplained share of the update",
        "how far training on the reconstructions ends from the update; 0 is a proof",
    ),
    "decoys": ("Decoys", "unrelated records that had their choice among the same reconstructions"),
    "detectable_rate": (
        "Detectable rate",
        "the smallest success rate that this audit would tell from chance 95 times in 100",
    ),
    "averages": ("Averages", "candidates nearer to a mean of their batch than to any record"),
    "own_fell": ("Mismatch lost at the end", "in the last quarter of the search's steps"),
}
"""Name in a result: what it is called on the page, and what it means."""

RATES = (
    "success",
    "accuracy",
    "detectable_rate",
    "_share",
    "decoy_rate",
    "tpr_at_1pct",
    "whole_texts",
)

GLOSSARY = {
    "Target": "A private record that was used to make the release, and that the attack tries to recover.",
    "Reconstruction": "What the attack made of the release for a target, without seeing the target.",
    "Line-up": "The private record among strangers, all compared with what came back.",
    "Stranger": "A record of the same class that the adversary never held and that nothing released was "
    "trained on.",
    "Identified": "Strictly first in its line-up: more like what came back than every stranger.",
    "By chance": "The share that would be identified if the release said nothing about the records.",
    "p =": "How often chance alone does as well, found by shuffling records within their class. Below 0.01, "
    "for all attacks of the audit together, is more than chance.",
    "Reconstructed": "What came back is nearer to the record than anything that the adversary held, or "
    "training on it gives the release back.",
    "Recognised": "The line-up tells the record from strangers, but what came back is no copy of it.",
    "At risk": "The assumed adversary gets nothing; one with the same release and more knowledge does.",
    "No leak found": "These attacks, with this knowledge and effort, did not succeed here, and they do on an "
    "easier version of the same system. A stronger attack may still succeed.",
    "Not audited": "Nothing is known: no attack applied, or none was shown to work here.",
    "Distance": "How many times a record must be trained on before the attack sees it; 1: once is enough.",
    "Held": "Records that the adversary has anyway, besides the release.",
    "Oracle": "The held record nearest to the target, chosen by someone who knows the target: a hard bar.",
    "Gain": "How far the reconstruction's error lies below that of the nearest held record.",
    "Unrelated record": "The same reconstructions, compared with others of the label: what chance gives.",
    "Decoy": "A record of the same kind that was not trained on, matched like the trained ones.",
    "Shadow model": "A model that the adversary trains itself, to learn what weights say about records.",
    "MSE": "Mean squared error over all values of a record, which lie between 0 and 1. 0 is a perfect copy.",
    "SSIM": "Structural similarity of two images, 1 for equal ones; above 0.4 most see the same picture.",
    "Confidence": "The attack's own certainty, known without the truth; comparable within one attack only.",
    "Epsilon": "How much differential privacy promises; smaller promises more.",
}
"""Words of the page and what they mean; a page explains those that it uses."""


def without_tags(page: str) -> str:
    """What a person reads of a page."""
    return re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)


def glossary_of(text: str) -> list[tuple[str, str]]:
    """The words that occur in a text, with what they mean."""
    return [
        (term.removesuffix(" ="), meaning)
        for term, meaning in GLOSSARY.items()
        if re.search(rf"\b{re.escape(term)}", text, re.IGNORECASE)
    ]


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: Number) -> str:
    """Three significant digits, commas between thousands, a power of ten instead of a row of zeros."""
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        mantissa, exponent = f"{value:.2e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
        return power if mantissa == "1" else f"{mantissa} × {power}"
    if abs(value) >= 1000:
        return number(round(value))
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: Number) -> str:
    """A rate in percent, to a tenth where that is not zero."""
    return f"{100 * value:.1f}".removesuffix(".0") + "%" if math.isfinite(value) else MISSING


def show(value: Any) -> str:
    """Any plain value of a result, a configuration or an environment, for a table cell."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(show, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {show(item)}" for key, item in value.items()) or "none"
    return str(value)


def humanise(name: str) -> str:
    """`test_accuracy` as "Test accuracy"."""
    text = name.replace("_", " ").strip()
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class TableRow:
    name: str
    value: str
    meaning: str = ""


def metric_rows(metrics: Mapping[str, Any]) -> list[TableRow]:
    """Metrics the page knows in its own order, then all others; `x_low` and `x_high` join `x`."""
    bounds = {f"{name}_{end}" for name in metrics for end in ("low", "high")}
    names = [n for n in METRICS if n in metrics] + [n for n in metrics if n not in METRICS]
    rows = []
    for name in names:
        if name in bounds:
            continue
        text = measured(name, metrics[name])
        low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
        if low is not None and high is not None:
            text += f" ({measured(name, low)} to {measured(name, high)})"
        title, meaning = METRICS.get(name, (humanise(name), ""))
        rows.append(TableRow(title, text, meaning))
    return rows


def measured(name: str, value: Any) -> str:
    """A value as its name asks for: rates in percent, all else as `show` has it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return percent(value) if is_number and name.endswith(RATES) else show(value)
