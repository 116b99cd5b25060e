"""What `informed-cifar10` says: sizes, charts, claims and deviations from the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from exhume.contract import Key
from exhume.report.charts import Chart, Point
from exhume.score.intervals import bootstrap
from exhume.settings import DataSettings
from exhume.studies.arms import Arm
from exhume.studies.study import Claim

__all__ = ["Setting", "charts", "claims", "deviations"]


@dataclass(frozen=True)
class Setting:
    """The sizes of one scale."""

    data: DataSettings
    private: DataSettings  # of the arms with private training, which costs twice as much
    crowded: DataSettings | None = None  # an arm with more fixed records
    epsilons: tuple[float, ...] = (1e4, 1e6)  # the paper: 10^0 to 10^6
    steps: tuple[int, ...] = (10, 100)  # of the released model; the last is that of all other arms
    epochs: int = 1000  # of the published reconstructor
    batch: int = 128
    rate: float = 1e-4
    threads: int = 0  # 0: one a core


def charts(setting: Setting, arms: Mapping[str, Arm]) -> list[Chart]:
    def point(x: str | float, name: str) -> Point:
        return Point(x, arms[name].mse, *arms[name].interval)

    oracle = arms["closed_form"].scores.metrics["oracle_mse"]
    kinds = {
        "closed form": "closed_form",
        "closed form, per label": "closed_form_per_label",
        "RecoNN": "reconn",
        "RecoNN, pixels alone": "reconn_pixels",
        "mean record": "mean_record",
    }
    steps = [
        point(count, "closed_form" if count == setting.steps[-1] else f"steps_{count}")
        for count in sorted(setting.steps)
    ]
    crowd = [point(str(setting.data.fixed), "closed_form")]
    if setting.crowded is not None:
        crowd.append(point(str(setting.crowded.fixed), f"fixed_{setting.crowded.fixed}"))
    private = {"not private": "dp.not_private"} | {
        f"epsilon {epsilon:g}": f"dp.epsilon_{epsilon:g}"
        for epsilon in sorted(setting.epsilons, reverse=True)
    }
    return [
        Chart(
            "Attacks on the same released models",
            "attack",
            "mean squared error",
            {
                "ours": [point(shown, name) for shown, name in kinds.items()],
                "nearest-neighbour oracle": [Point(shown, oracle) for shown in kinds],
            },
        ),
        Chart(
            "Error against the released model's steps (Fig. 15)",
            "steps",
            "mean squared error",
            {"closed form": steps},
        ),
        Chart(
            "Error against the number of fixed records",
            "fixed records",
            "mean squared error",
            {"closed form": crowd},
        ),
        Chart(
            "Error against privacy (Fig. 14)",
            "training",
            "mean squared error",
            {
                "closed form": [point(shown, name) for shown, name in private.items()],
                "mean record": [Point(shown, arms["dp.mean_record"].mse) for shown in private],
            },
        ),
    ]


def deviations(setting: Setting) -> list[str]:
    sizes, small = setting.data, setting.private
    crowded = setting.crowded
    further = []
    if crowded is not None:
        further = [
            f"The arm fixed_{crowded.fixed} has |D-| = {crowded.fixed:,} and {crowded.shadows:,} shadows: "
            "each takes as long as many of the others."
        ]
    return [
        *further,
        f"|D-| = {sizes.fixed:,}, {sizes.shadows:,} shadows and {sizes.targets:,} targets (the paper: "
        "5,000, 54,000 and 1,000), one seed.",
        "RecoNN reads the standardised parameters projected onto the training shadows' span, which "
        "makes its first layer small; the paper's has 226M parameters.",
        f"RecoNN is trained for {setting.epochs:,} epochs in batches of {setting.batch} at rate "
        f"{setting.rate:g} (the paper: 1,000, 128, 1e-4); its epoch is chosen on held-out shadows.",
        "The closed form is ours. It chooses, by its error on the shadows, between a regression per "
        "label and one regression on the imprint in the first fully connected layer.",
        f"Private arms: |D-| = {small.fixed:,}, {small.shadows:,} shadows, {small.targets:,} targets, "
        "attacked by the closed form; the number of records counts as public.",
        "Initial weights are drawn from N(0, 1/fan_in) without truncation.",
    ]


def _paired(apart: Tensor, key: Key) -> tuple[float, float]:
    """Interval of the mean of (t,) differences; no difference at all is no share of successes."""
    return bootstrap(apart, key) if bool(apart.any()) else (0.0, 0.0)


def claims(
    setting: Setting,
    arms: Mapping[str, Arm],
    metrics: Mapping[str, float],
    seen: Mapping[str, Tensor],
    key: Key,
) -> list[Claim]:
    """seen: (t,) LPIPS of each arm's reconstructions."""

    def gap(one: str, other: str) -> tuple[float, float]:
        """Interval of the mean difference in squared error, paired by target."""
        apart = arms[one].scores.attack.mse - arms[other].scores.attack.mse
        return _paired(apart, key.fold(one, other))

    def told(one: str, other: str) -> str:
        low, high = gap(one, other)
        return (
            f"MSE {arms[one].mse:.4f} against {arms[other].mse:.4f}, "
            f"paired difference {low:.4f} to {high:.4f}"
        )

    weakest = f"dp.epsilon_{max(setting.epsilons):g}"
    first = f"steps_{setting.steps[0]}"
    closed = arms["closed_form"].scores.metrics
    clearer = _paired(seen["reconn"] - seen["reconn_pixels"], key.fold("lpips"))
    return [
        Claim(
            "beats-oracle",
            "CIFAR-10 records come back closer than the nearest record the adversary held",
            "shown with 54,000 shadows at |D-| = 5,000",
            f"{closed['success']:.1%} of the targets by the closed form, null "
            f"{closed['null_success']:.1%}",
            closed["success_low"] > 0.5,
        ),
        Claim(
            "reconn-learns",
            "The published reconstructor beats the mean record",
            "shown with 54,000 shadows at |D-| = 5,000",
            told("reconn", "mean_record"),
            gap("reconn", "mean_record")[1] < 0,
        ),
        Claim(
            "imprint",
            "Reading the imprint in the first fully connected layer beats a regression per label",
            "not in the paper",
            told("closed_form", "closed_form_per_label"),
            gap("closed_form", "closed_form_per_label")[1] < 0,
        ),
        Claim(
            "perceptual",
            "LPIPS and a discriminator in the loss make reconstructions perceptually closer",
            "used for CIFAR-10, not compared",
            f"LPIPS {metrics['reconn.lpips']:.3f} against {metrics['reconn_pixels.lpips']:.3f}, "
            f"paired difference {clearer[0]:.3f} to {clearer[1]:.3f}",
            clearer[1] < 0,
        ),
        Claim(
            "private",
            "Private training stops reconstruction even at a large epsilon",
            "Fig. 14, clip 10, delta 1e-5",
            f"epsilon {max(setting.epsilons):g}: {told(weakest, 'dp.mean_record')}; "
            f"not private: {told('dp.not_private', 'dp.mean_record')}",
            gap("dp.not_private", "dp.mean_record")[1] < 0 < gap(weakest, "dp.mean_record")[1],
        ),
        Claim(
            "steps",
            "The error grows with the number of steps the released model is trained for",
            "Fig. 15: slowly from 1 to 240 epochs, then a jump",
            f"{setting.steps[-1]} steps against {setting.steps[0]}: {told('closed_form', first)}",
            gap("closed_form", first)[0] > 0,
        ),
    ]
