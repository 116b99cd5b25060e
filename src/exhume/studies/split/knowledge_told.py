"""What the study of the server's knowledge says: claims, charts, pictures, deviations from the paper."""

from __future__ import annotations

from collections.abc import Mapping

from exhume.contract import Key
from exhume.data import Sizes
from exhume.report.charts import Chart, Point
from exhume.score.features import InputScores
from exhume.score.intervals import bootstrap
from exhume.studies.study import Claim

__all__ = ["charts", "claims", "deviations", "shown"]

_SHOWN = {
    "mean_image": "mean image (null)",
    "paper": "the paper's: no query",
    "training_records": "training records",
    "other_classes": "five classes",
    "faces": "faces",
    "shorter_head": "shadow of 2 convolutions",
    "longer_head": "shadow of 5 convolutions",
    "seen": "features seen before",
    "queries_faces": "queries with faces",
    "queries_noise": "queries with noise",
    "head_known": "head known (bound)",
}


def claims(rows: Mapping[str, InputScores], queries: tuple[int, ...], key: Key) -> list[Claim]:
    def gap(one: str, other: str) -> tuple[float, float]:
        """Interval of the mean difference of SSIM, 95%, paired by image."""
        apart = rows[one].each["ssim"] - rows[other].each["ssim"]
        return bootstrap(apart, key.fold(one, other)) if bool(apart.any()) else (0.0, 0.0)

    def told(one: str, other: str) -> str:
        low, high = gap(one, other)
        return (
            f"SSIM {_ssim(rows[one]):.3f} against {_ssim(rows[other]):.3f}, "
            f"paired difference {low:.3f} to {high:.3f}"
        )

    few, many = f"queries_{queries[0]}", f"queries_{queries[-1]}"
    return [
        Claim(
            "query-free",
            "Without a query the server gets more than a constant image",
            "SSIM 0.4363 (Table 1, NONE)",
            told("paper", "mean_image"),
            gap("paper", "mean_image")[0] > 0,
        ),
        Claim(
            "queries-matter",
            "Forbidding queries is what protects: with them the server gets more",
            "not tried",
            told(many, "paper"),
            gap(many, "paper")[0] > 0,
        ),
        Claim(
            "few-queries",
            f"{queries[0]} queries are worth more than all records without one",
            "not tried",
            told(few, "paper"),
            gap(few, "paper")[0] > 0,
        ),
        Claim(
            "other-data",
            "Queries need no records like the client's: noise is worth more than the paper's attacker",
            "not tried",
            told("queries_noise", "paper"),
            gap("queries_noise", "paper")[0] > 0,
        ),
        Claim(
            "like-data",
            "Without queries, records like the client's are worth more than faces",
            "assumed",
            told("paper", "faces"),
            gap("paper", "faces")[0] > 0,
        ),
    ]


def shown(name: str) -> str:
    """A row's name on the page."""
    return _SHOWN.get(name, f"{name.removeprefix('queries_')} queries")


def _ssim(scores: InputScores) -> float:
    return float(scores.each["ssim"].mean())


def charts(rows: Mapping[str, InputScores], queries: tuple[int, ...], key: Key) -> list[Chart]:
    def point(name: str, x: str | float, measure: str = "ssim") -> Point:
        values = rows[name].each[measure]
        low, high = bootstrap(values, key.fold(name, measure))
        return Point(x, float(values.mean()), low, high)

    level = {
        label: [Point(float(count), _ssim(rows[name])) for count in queries]
        for name, label in _SHOWN.items()
        if name in ("paper", "head_known", "mean_image")
    }
    return [
        Chart(
            "What the server knows",
            "knowledge",
            "SSIM",
            {
                "ours": [point(name, label) for name, label in _SHOWN.items()],
                "after an affine fit": [
                    point(name, label, "affine_ssim") for name, label in _SHOWN.items()
                ],
                "Ensembler24, Table 1": [Point(_SHOWN["paper"], 0.4363)],
            },
        ),
        Chart(
            "How many queries",
            "queries",
            "SSIM",
            {
                "queries": [point(f"queries_{count}", float(count)) for count in queries],
                **level,
            },
            x_scale="log",
        ),
    ]


def deviations(sizes: Sizes, width: int) -> list[str]:
    return [
        f"ResNet-18 of width {width} trained on {sizes.fixed:,} images of CIFAR-10; the attacker holds "
        f"{sizes.shadow:,} others and attacks {sizes.target:,}.",
        "No defence; the cut is after the first convolution with its max-pool, and before the last layer.",
        "The paper's server knows the training records (5.1) or others like them (2.2): both are there.",
        "Five other classes: shadows are trained on airplane to deer, all ten are attacked.",
        "Faces: the 400 images of ORL, resized and in three equal colours.",
        f"Features seen before: of {sizes.public:,} inputs, whose moments the shadow must match.",
        "Everything beside the paper's attacker is ours. Intervals are over images, one training each.",
    ]
