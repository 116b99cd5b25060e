"""What the studies of the Ensembler say: claims, charts, deviations from the paper."""

from __future__ import annotations

from collections.abc import Mapping

from exhume.contract import Key
from exhume.data import Sizes
from exhume.defences.split.ensembler import Ensembler
from exhume.report.charts import Chart, Point
from exhume.score.features import InputScores
from exhume.score.intervals import bootstrap
from exhume.studies.ensembler_rows import Row
from exhume.studies.study import Claim

__all__ = ["TABLE_1", "charts", "claims", "deviations"]

TABLE_1 = {  # Ensembler24: change of accuracy in points, SSIM, PSNR
    "none": (0.0, 0.4363, 12.27),
    "shredder": (-5.68, 0.5359, 10.40),
    "single": (2.15, 0.3921, 7.53),
    "dr_single": (2.70, 0.3453, 6.67),
    "dr_ensemble_best_ssim": (1.42, 0.373, 7.35),
    "dr_ensemble_best_psnr": (1.42, 0.3232, 7.96),
    "ensembler_adaptive": (-2.13, 0.0555, 5.98),
    "ensembler_best_ssim": (-2.13, 0.2889, 4.87),
    "ensembler_best_psnr": (-2.13, 0.2221, 5.53),
}
_STRONGER = ("matched", "committee", "likelihood", "subsets")


def claims(
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
            "SSIM 0.0555 against 0.3921",
            told("ensembler_adaptive", "single"),
            gap("ensembler_adaptive", "single")[1] < 0,
        ),
        Claim(
            "single-below-none",
            "and less out of Single than without a defence",
            "SSIM 0.3921 against 0.4363",
            told("single", "none"),
            gap("single", "none")[1] < 0,
        ),
        Claim(
            "accuracy",
            "The Ensembler costs at most three points of accuracy",
            "-2.13 points",
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
    ]


def charts(metrics: Mapping[str, float]) -> list[Chart]:
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
                "Ensembler24, Table 1": [
                    Point(shown[n], TABLE_1[n][1]) for n in names if n in TABLE_1
                ],
            },
        )
    ]


def deviations(sizes: Sizes, width: int, ensembler: Ensembler) -> list[str]:
    return [
        f"ResNet-18 of width {width} trained on {sizes.fixed:,} images; the attacker holds "
        f"{sizes.shadow:,} others and attacks {sizes.target:,}.",
        f"N = {ensembler.bodies} bodies, P = {ensembler.selected} (the paper: 10 and 4).",
        "Eq. 3's sum over the selected heads is ambiguous; the largest cosine of each input counts.",
        "Bodies are in eval mode in stage 2. Lambda is 1; the paper states none.",
        "Shredder's noise is one learned map; its authors draw from several.",
        "Best of N is chosen with the truth in sight, as in the paper: a bound on that attacker.",
        "`matched` also uses the features that the client has sent before, not their inputs.",
    ]
