"""What the study of the Ensembler's numbers says: claims and a chart."""

from __future__ import annotations

from collections.abc import Mapping

from exhume.contract import Key
from exhume.report.charts import Chart, Point
from exhume.score.intervals import bootstrap
from exhume.studies.split.ensembler_rows import Row
from exhume.studies.study import Claim

__all__ = ["chart", "claims"]


def claims(rows: Mapping[str, Row], metrics: Mapping[str, float], key: Key) -> list[Claim]:
    def above(one: str, other: str) -> tuple[float, float]:
        apart = rows[one].scores.each["affine_ssim"] - rows[other].scores.each["affine_ssim"]
        return bootstrap(apart, key.fold(one, other)) if bool(apart.any()) else (0.0, 0.0)

    low, high = above("plain.subsets", "plain.adaptive")
    seen = above("plain.lookalike", "plain.subsets")
    rank, tried = metrics["enumeration.rank"], metrics["enumeration.subsets"]
    least, most = _lambdas(rows)
    return [
        Claim(
            "accuracy-names-the-secret",
            "The subset whose shadow classifies best is the client's",
            "implied: 2^N - 1 trials are said to be what the attacker needs",
            f"the client's subset ranks {rank:.0f} of {tried:.0f}",
            rank == 1,
        ),
        Claim(
            "enumeration-pays",
            "Who tries every subset gets more than the adaptive attacker",
            "implied",
            f"SSIM after an affine fit, paired difference {low:.3f} to {high:.3f}",
            low > 0,
        ),
        Claim(
            "secret-matters",
            "No attacker who lacks the selection does better than by trying every subset",
            "implied",
            f"looking at features only: SSIM after an affine fit "
            f"{metrics['plain.lookalike.affine_ssim']:.3f} against "
            f"{metrics['plain.subsets.affine_ssim']:.3f}, paired difference {seen[0]:.3f} to {seen[1]:.3f}",
            seen[0] <= 0,
        ),
        *(
            _lambda_helps(attacker, least, most, above(f"{most}.{attacker}", f"{least}.{attacker}"))
            for attacker in ("adaptive", "lookalike")
        ),
        Claim(
            "lambda-is-cheap",
            "Keeping the head unlike those of stage 1 costs at most three points of accuracy",
            "not stated; 2.13 points for the whole defence",
            f"{_spoken(most)}: {100 * metrics[f'{most}.delta_accuracy']:+.1f} points at a cosine of "
            f"{metrics[f'{most}.likeness']:.2f}; {_spoken(least)}: "
            f"{100 * metrics[f'{least}.delta_accuracy']:+.1f} points at {metrics[f'{least}.likeness']:.2f}",
            metrics[f"{most}.delta_accuracy"] - metrics[f"{least}.delta_accuracy"] >= -0.03,
        ),
    ]


def _lambda_helps(attacker: str, least: str, most: str, apart: tuple[float, float]) -> Claim:
    return Claim(
        f"lambda-helps-against-{attacker}",
        f"Eq. 3's cosine leaves less to the attacker `{attacker}`",
        "implied",
        f"{_spoken(most)} against {_spoken(least)}: SSIM after an affine fit, paired difference "
        f"{apart[0]:.3f} to {apart[1]:.3f}",
        apart[1] < 0,
    )


def _lambdas(rows: Mapping[str, Row]) -> tuple[str, str]:
    """The variants with the least and with the largest lambda."""
    found = {name.rpartition(".")[0] for name in rows if name.startswith("lambda_")}
    by_size = sorted(found, key=lambda name: float(name.removeprefix("lambda_")))
    return by_size[0], by_size[-1]


def _spoken(variant: str) -> str:
    return variant.replace("_", " ")


def chart(variants: list[str], metrics: Mapping[str, float]) -> Chart:
    names = ["plain", *variants]
    return Chart(
        "What P, N, lambda and sigma do",
        "variant",
        "SSIM after an affine fit",
        {
            attacker: [Point(_spoken(n), metrics[f"{n}.{attacker}.affine_ssim"]) for n in names]
            for attacker in ("adaptive", "lookalike")
        },
    )
