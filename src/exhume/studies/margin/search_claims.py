"""What the numbers of `margin-search` say: claims and a chart."""

from __future__ import annotations

from collections.abc import Mapping

from exhume.report.charts import Chart, Point
from exhume.score.correlation import Correlation
from exhume.studies.study import Claim

__all__ = ["search_chart", "search_claims"]


def search_claims(m: Mapping[str, float], seen: Mapping[str, Correlation]) -> list[Claim]:
    return [
        Claim(
            "close",
            "The blind choice brings back at least 90% of what the choice made with the truth does",
            "tuned with the truth",
            f"{m['good_blind']:g} against {m['good_sighted']:g}",
            m["good_blind"] >= 0.9 * m["good_sighted"],
        ),
        Claim(
            "better-than-random",
            "The blind choice is better than a setting drawn at random",
            "—",
            f"{m['good_blind']:g} against {m['good_random']:.1f} on average",
            m["good_blind"] > m["good_random"],
        ),
        Claim(
            "agreement",
            "Agreement between restarts ranks settings as the truth does (interval above 0)",
            "—",
            f"{seen['agreement']}; after the first short round {seen['short']}",
            seen["agreement"].low > 0,
        ),
        Claim(
            "residual",
            "The residual ranks settings as the truth does (interval above 0)",
            "the objective of eq. (6)",
            f"{seen['residual']}; its choice brings back {m['good_by_residual']:g}",
            seen["residual"].low > 0,
        ),
        Claim(
            "published",
            "The blind choice brings back more than eq. (6) with the published point",
            "chosen with the truth",
            f"{m['good_blind']:g} against {m['good_eq6']:g}",
            m["good_blind"] > m["good_eq6"],
        ),
    ]


def search_chart(m: Mapping[str, float]) -> Chart:
    choices = {
        "with the truth": "good_sighted",
        "blind search": "good_blind",
        "defaults": "good_default",
        "at random": "good_random",
        "least residual": "good_by_residual",
        "eq. (6), published": "good_eq6",
    }
    points = [Point(name, m[metric]) for name, metric in choices.items()]
    return Chart(
        "Images that come back, by how the setting was chosen",
        "choice",
        "images with SSIM above 0.4",
        {"mean over victims": points},
    )
