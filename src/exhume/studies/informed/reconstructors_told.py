"""What `reconstructors` says: sizes, charts and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exhume.report.charts import Chart, Point
from exhume.settings import DataSettings
from exhume.studies.informed.pooled import point
from exhume.studies.study import Claim

__all__ = ["Large", "Setting", "charts", "claims"]


@dataclass(frozen=True)
class Large:
    """The paper's own |D-| and rate."""

    data: DataSettings
    shadows: tuple[int, ...]
    through: int = (
        0  # targets differentiated through training; preparing that takes a quarter of an hour
    )
    rate: float = 0.2


@dataclass(frozen=True)
class Setting:
    """The sizes of one scale."""

    data: DataSettings
    shadows: tuple[int, ...]  # of the closed form, ELU; the largest is data.shadows
    relu: int  # shadows of the closed form, ReLU
    reconn: int  # shadows of the published network and of the Mnemonist, first seed only
    through: int  # targets differentiated through training, first seed only
    relu_through: int  # the same for ReLU
    seeds: int
    corrected: tuple[
        int, ...
    ]  # of `shadows`, at which a network corrects the closed form; ReLU's always
    epochs: int = 100
    drawings: int = 60_000  # that train the correction, all epochs together
    rate: float = 0.1
    large: Large | None = None


def charts(setting: Setting, metrics: Mapping[str, float]) -> list[Chart]:
    def curve(prefix: str, shadows: Sequence[int]) -> list[Point]:
        return [point(count, f"{prefix}.{count}.mse", metrics) for count in shadows]

    series = {
        "closed form, ELU": curve("closed_form", setting.shadows),
        "corrected, ELU": curve("corrected", setting.corrected),
        "closed form, ReLU": curve("relu.closed_form", (setting.relu,)),
        "corrected, ReLU": curve("relu.corrected", (setting.relu,)),
        "RecoNN, ELU": curve("reconn", (setting.reconn,)),
        "Mnemonist, ELU": curve("mnemonist", (setting.reconn,)),
    }
    if setting.large:
        fixed = setting.large.data.fixed
        series[f"closed form, |D-| = {fixed:,}"] = curve(
            "paper_setting.closed_form", setting.large.shadows
        )
        series["RecoNN in the paper, |D-| = 10,000"] = [Point(59_000, 0.0089)]
    return [
        Chart(
            "Error against shadow models",
            "shadow models",
            "mean squared error",
            series,
            x_scale="log",
            y_scale="log",
        ),
        Chart(
            "Error against time",
            "seconds of the attack, shadow models included where this arm trained them",
            "mean squared error",
            _by_time(setting, metrics),
            x_scale="log",
            y_scale="log",
        ),
    ]


def _by_time(setting: Setting, metrics: Mapping[str, float]) -> dict[str, list[Point]]:
    def at(*arms: str) -> list[Point]:
        return [point(metrics[f"{arm}.seconds"], f"{arm}.mse", metrics) for arm in arms]

    return {
        "closed form": at(*(f"closed_form.{count}" for count in setting.shadows)),
        "corrected": at(*(f"corrected.{count}" for count in setting.corrected)),
        "RecoNN": at(f"reconn.{setting.reconn}"),
        "Mnemonist": at(f"mnemonist.{setting.reconn}"),
        "through training": at("through_training"),
    }


def claims(setting: Setting, metrics: Mapping[str, float]) -> list[Claim]:
    few, many = setting.shadows[0], setting.shadows[-1]
    middle = setting.reconn if setting.reconn in setting.shadows else few
    exact, network = (
        metrics["through_training.mse"],
        metrics[f"reconn.{setting.reconn}.mae_plus_mse"],
    )
    closed = metrics[f"closed_form.{middle}.mae_plus_mse"]
    pairs = [(f"closed_form.{n}", f"corrected.{n}", f"{n:,}") for n in setting.corrected]
    bent = setting.relu
    pairs.append((f"relu.closed_form.{bent}", f"relu.corrected.{bent}", f"{bent:,} (ReLU)"))
    return [
        Claim(
            "exact",
            "Differentiating through training returns the records exactly, without shadows or data",
            "average MSE 0.0089 with 59,000 shadows at |D-| = 10,000",
            f"MSE {exact:.1e}, labels {metrics['through_training.label_accuracy']:.1%}",
            exact < 1e-4,
        ),
        Claim(
            "closed-form",
            "The closed form beats the published network at the same number of shadows",
            "held-out MAE + MSE 0.0583 with 10,000 shadows",
            f"{closed:.4f} against {network:.4f} at {middle:,} shadows",
            closed < network,
        ),
        Claim(
            "shadows",
            "More shadow models, smaller error",
            "shown for the network",
            f"MSE {metrics[f'closed_form.{few}.mse']:.4f} at {few:,}, "
            f"{metrics[f'closed_form.{many}.mse']:.4f} at {many:,}",
            metrics[f"closed_form.{many}.mse"] < metrics[f"closed_form.{few}.mse"],
        ),
        Claim(
            "corrected",
            "A network on top lowers the closed form's error",
            "ours",
            ", ".join(
                f"MAE + MSE {metrics[f'{closed}.mae_plus_mse']:.4f} to "
                f"{metrics[f'{corrected}.mae_plus_mse']:.4f} at {shadows}"
                for closed, corrected, shadows in pairs
            ),
            all(
                metrics[f"{corrected}.mse_high"] < metrics[f"{closed}.mse"]
                for closed, corrected, _ in pairs
            ),
        ),
    ]
