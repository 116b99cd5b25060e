"""What the studies of the Ensembler say: claims, charts, deviations from the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exhume.contract import Key
from exhume.data import Sizes
from exhume.defences.split.ensembler import Ensembler
from exhume.report.charts import Chart, Point
from exhume.score.features import InputScores
from exhume.score.intervals import bootstrap
from exhume.studies.split.ensembler_rows import Row
from exhume.studies.study import Claim

__all__ = ["Paper", "charts", "claims", "deviations"]

_STRONGER = ("lookalike", "matched", "committee", "likelihood", "subsets")


@dataclass(frozen=True)
class Paper:
    """What the paper reports for one data set."""

    table: str
    bodies: int
    selected: int
    rows: Mapping[str, tuple[float, float, float]]  # change of accuracy in points, SSIM, PSNR

    def ssim(self, one: str, other: str) -> str:
        told = [f"{self.rows[row][1]:.4f}" if row in self.rows else "-" for row in (one, other)]
        return f"SSIM {told[0]} against {told[1]}"


def claims(  # noqa: PLR0917
    paper: Paper,
    rows: Mapping[str, Row],
    accuracy: Mapping[str, float],
    null: InputScores,
    metrics: Mapping[str, float],
    key: Key,
) -> list[Claim]:
    def gap(one: str, other: str, measure: str = "ssim") -> tuple[float, float]:
        """Interval of the mean difference, 95%, paired by image."""
        apart = rows[one].scores.each[measure] - rows[other].scores.each[measure]
        return bootstrap(apart, key.fold(one, other)) if bool(apart.any()) else (0.0, 0.0)

    def told(one: str, other: str) -> str:
        low, high = gap(one, other)
        return (
            f"SSIM {metrics[f'{one}.ssim']:.3f} against {metrics[f'{other}.ssim']:.3f}, "
            f"paired difference {low:.3f} to {high:.3f}"
        )

    strongest = max(
        (f"ensembler_{name}" for name in _STRONGER), key=lambda row: metrics[f"{row}.affine_ssim"]
    )
    above = rows[strongest].scores.each["affine_ssim"] - null.each["affine_ssim"]
    low, high = bootstrap(above, key.fold("broken")) if bool(above.any()) else (0.0, 0.0)
    cost = accuracy["ensembler"] - accuracy["none"]
    return [
        Claim(
            "ensembler-below-single",
            "The adaptive attacker gets less out of the Ensembler than out of Single",
            paper.ssim("ensembler_adaptive", "single"),
            told("ensembler_adaptive", "single"),
            gap("ensembler_adaptive", "single")[1] < 0,
        ),
        Claim(
            "single-below-none",
            "and less out of Single than without a defence",
            paper.ssim("single", "none"),
            told("single", "none"),
            gap("single", "none")[1] < 0,
        ),
        Claim(
            "accuracy",
            "The Ensembler costs at most three points of accuracy",
            f"{paper.rows['ensembler_adaptive'][0]:+.2f} points",
            f"{100 * cost:+.2f} points, from {accuracy['none']:.1%}",
            cost >= -0.03,
        ),
        Claim(
            "withstands",
            "No attacker that the paper leaves out gets more of the inputs than a constant image",
            "not tried",
            f"{strongest.removeprefix('ensembler_')}: SSIM after an affine fit "
            f"{metrics[f'{strongest}.affine_ssim']:.3f} against "
            f"{metrics['mean_image.affine_ssim']:.3f}, paired difference {low:.3f} to {high:.3f}",
            low <= 0,
        ),
        Claim(
            "hides-from-lookalike",
            "The Ensembler leaves less to the attacker who looks at features only than no defence does",
            "not tried",
            told("ensembler_lookalike", "none_lookalike"),
            gap("ensembler_lookalike", "none_lookalike")[1] < 0,
        ),
    ]


def charts(paper: Paper, metrics: Mapping[str, float]) -> list[Chart]:
    names = [name.removesuffix(".ssim") for name in metrics if name.endswith(".ssim")]
    names = [name for name in names if not name.endswith("affine")]
    shown = {name: name.replace("_", " ") for name in names}
    return [
        Chart(
            "How much of the input comes back",
            "defence and attacker",
            "SSIM",
            {
                "ours": [Point(shown[n], metrics[f"{n}.ssim"]) for n in names],
                "after an affine fit": [
                    Point(shown[n], metrics[f"{n}.affine_ssim"]) for n in names
                ],
                f"Ensembler24, {paper.table}": [
                    Point(shown[n], paper.rows[n][1]) for n in names if n in paper.rows
                ],
            },
        )
    ]


def deviations(paper: Paper, sizes: Sizes, width: int, ensembler: Ensembler) -> list[str]:
    return [
        f"ResNet-18 of width {width} trained on {sizes.fixed:,} images; the attacker holds "
        f"{sizes.shadow:,} others and attacks {sizes.target:,}.",
        f"N = {ensembler.bodies} bodies, P = {ensembler.selected} (the paper: {paper.bodies} and "
        f"{paper.selected}).",
        "Eq. 3's sum over the selected heads is ambiguous; the largest cosine of each input counts.",
        f"Bodies are in eval mode in stage 2. Lambda is {ensembler.likeness:g}; the paper states none.",
        "Shredder's noise is one learned map, as large as accuracy allows; its authors draw from several, "
        "and the paper calls its noise small. `<row>.noise_size` is the root mean square of each.",
        "Dropout works on the bodies' answers, where the Ensembler has its selector; the paper does not "
        "say where.",
        "Best of N is chosen with the truth in sight, as in the paper: a bound on that attacker.",
        "`matched` and `lookalike` also use the features that the client has sent before, not their inputs.",
        "Single is the first of the Ensembler's stage 1 pipelines, which are trained in the same way.",
    ]
