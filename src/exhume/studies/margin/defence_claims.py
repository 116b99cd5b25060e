"""What the numbers of `margin-defence` say: claims and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exhume.report.charts import Chart, Point
from exhume.studies.study import Claim

__all__ = ["EARLY", "defence_charts", "defence_claims"]

EARLY = 0.1  # loss at which a victim stops early


def defence_claims(strengths: Sequence[float], m: Mapping[str, float]) -> list[Claim]:
    strong, middle = strengths[-1], strengths[len(strengths) // 2]
    margin, random = f"record.margin.{strong:g}", f"record.random.{strong:g}"
    everyone, white = f"record.all.{strong:g}", f"white.all.{middle:g}"
    none = m["none.good"]
    return [
        Claim(
            "protected",
            "Records on the margin that are trained on with noise no longer come back",
            "left for later",
            f"{m[f'{margin}.good_chosen']:g} against {m['none.good_chosen']:g} without",
            m[f"{margin}.good_chosen"] <= 0.1 * m["none.good_chosen"],
        ),
        Claim(
            "enough",
            "It is enough to protect the half on the margin: fewer than half as many come back",
            "left for later",
            f"{m[f'{margin}.good']:g} against {none:g}; of the others "
            f"{m[f'{margin}.good_others']:g} instead of {m['none.good_others']:g}",
            m[f"{margin}.good"] < 0.5 * none,
        ),
        Claim(
            "margin-not-random",
            "Protecting those on the margin saves more than protecting as many at random",
            "samples on the margin are the ones at risk",
            f"{m[f'{margin}.good']:g} left against {m[f'{random}.good']:g}",
            m[f"{margin}.good"] < m[f"{random}.good"],
        ),
        Claim(
            "all",
            "Noise of a record's own spectrum on all records stops the attack, smoothed or not",
            "—",
            f"{max(m[f'{everyone}.good'], m[f'{everyone}.good_smoothed']):g} of {none:g} left; accuracy "
            f"{m[f'{everyone}.test_accuracy']:.3f} instead of {m['none.test_accuracy']:.3f}",
            max(m[f"{everyone}.good"], m[f"{everyone}.good_smoothed"]) <= 0.1 * none,
        ),
        Claim(
            "white",
            "White noise that stops the plain attack also stops one that smooths",
            "—",
            f"{m[f'{white}.good']:g} plain, {m[f'{white}.good_smoothed']:g} smoothed, {none:g} without noise",
            m[f"{white}.good_smoothed"] < 0.5 * none,
        ),
        Claim(
            "early",
            f"Stopping at a loss of {EARLY:g} halves the count",
            "—",
            f"{m['early.good']:g} against {none:g}",
            m["early.good"] < 0.5 * none,
        ),
    ]


def defence_charts(strengths: Sequence[float], m: Mapping[str, float]) -> list[Chart]:
    kinds = {
        "white, all": ("white.all", "good"),
        "white, all, smoothed": ("white.all", "good_smoothed"),
        "spectrum, all, smoothed": ("record.all", "good_smoothed"),
        "spectrum, margin half": ("record.margin", "good"),
        "spectrum, random half": ("record.random", "good"),
    }

    costs = [name for name in kinds if name != "white, all, smoothed"]  # training is the same

    def series(kind: str, metric: str) -> Sequence[Point]:
        start = Point(0.0, m[f"none.{metric}"])
        return [start, *(Point(s, m[f"{kind}.{s:g}.{metric}"]) for s in strengths)]

    return [
        Chart(
            "Images that come back",
            "norm of the noise, over that of a record",
            "images with SSIM above 0.4",
            {name: series(kind, metric) for name, (kind, metric) in kinds.items()},
        ),
        Chart(
            "What it costs",
            "norm of the noise, over that of a record",
            "test accuracy",
            {
                name.removesuffix(", smoothed"): series(kinds[name][0], "test_accuracy")
                for name in costs
            },
        ),
    ]
