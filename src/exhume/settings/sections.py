"""The sections that all releases of a brief share: each setting once, with its default, range and help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from exhume.core.errors import ExhumeError
from exhume.core.notation import seconds_in
from exhume.settings.schema import SettingsSection, filled, setting, toml_at

ACTIVATIONS = (
    *("relu", "floor", "elu", "sigmoid", "softplus", "silu", "leaky-relu", "tanh", "celu", "selu"),
    *("gelu", "identity"),
)  # as `models.activations` has them


@dataclass(frozen=True)
class DataSettings(SettingsSection):
    """0 for a size means: choose it from the number of records."""

    prefix: ClassVar[str] = "data."

    source: str = setting(
        "mnist", "Your records: a named set (exhume data list), or a path.", flag="--data"
    )
    fixed: int = setting(  # |D-|; Balle22: 10,000, its notebook: 1,000
        0, "Training records that the adversary knows.", least=0
    )
    targets: int = setting(0, "Private records to attack, each in a model of its own.", least=0)
    shadows: int = setting(  # Balle22: 59,000, its notebook: 10,000
        0, "Shadow models that the adversary trains.", least=0
    )
    public: int = setting(0, "Further records that the adversary holds.", least=0)
    test: int = setting(0, "Records to measure the model's accuracy on.", least=0)
    missing: str = setting(
        "",
        "What missing numbers of a table become: mean, that of their column; default: they are refused.",
        choices=("mean",),
    )
    group: str = setting(
        "",
        "A column of a table: the share of records that leak is also given for each of its values.",
    )


@dataclass(frozen=True)
class VictimSettings(SettingsSection):
    prefix: ClassVar[str] = "victim."

    released: bool = setting(
        True,
        "Its weights are released; false: the section only describes the model, for other sections.",
        flag="",
    )
    network: str = setting(
        "mlp", "mlp, cnn (for images, as in Balle22), or your own nn.Module: file.py:factory."
    )
    hidden: tuple[int, ...] = setting(
        (10,), "Widths of the hidden layers: 10 or 64,32.", example=(64, 32)
    )
    activation: str = setting(
        "elu",
        "Activation between the layers; floor is max(-0.5, x).",
        choices=ACTIVATIONS,
        example="relu",
    )
    init: str = setting("lecun", "How weights are drawn.", choices=("lecun", "torch"))
    start: str = setting("", "A file of weights that training starts from.", file=True)
    train: str = setting(
        "", "Your own training: file.py:train(model, records, rng).", example="train.py:train"
    )
    optimiser: str = setting(
        "gd",
        "gd (full-batch), sgd, adam (its weight decay is added to the gradient) or adamw (decoupled).",
        choices=("gd", "sgd", "adam", "adamw"),
    )
    batch: int = setting(0, "Records in one step; 0: all of them.", least=0)
    batch_order: str = setting(
        "known",
        "Whether the adversary knows the order of the batches.",
        choices=("known", "unknown"),
    )
    steps: int = setting(100, "Gradient steps of training.", least=1)
    rate: float = setting(0.1, "Learning rate of training.", above=0)
    momentum: float = setting(0.0, "Momentum of training.", least=0, below=1, example=0.9)
    weight_decay: float = setting(0.0, "Weight decay of training.", least=0)
    schedule: str = setting(
        "constant",
        "Learning-rate schedule over the steps; step: a tenth after each third.",
        choices=("constant", "linear", "cosine", "step"),
    )
    loss: str = setting(
        "cross-entropy",
        "cross-entropy, or mse: a regression of the table's last column.",
        choices=("cross-entropy", "mse"),
    )
    label_smoothing: float = setting(
        0.0, "Label smoothing of cross-entropy.", least=0, below=1, example=0.1
    )
    dropout: str = setting(
        "known",
        "Whether the adversary knows what dropout drops in which step.",
        choices=("known", "unknown"),
    )
    dp_clip: float = setting(  # Balle22: 10
        0.0,
        "Private training: clip each record's gradient to this norm; 0: not private.",
        least=0,
        example=1.0,
    )
    dp_noise: float = setting(
        0.0,
        "Private training: standard deviation of the noise, as a multiple of the clip.",
        least=0,
        example=1.0,
    )
    dp_steps: int = setting(
        0, "Private training by your own function: how many noisy steps it takes.", least=0
    )
    dp_sampling: float = setting(
        1.0,
        "Private training: probability that a record enters a step.",
        above=0,
        most=1,
        noun="a probability",
        example=0.1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network not in ("mlp", "cnn") and ":" not in self.network:
            raise ExhumeError(
                f"network: {self.network!r} is not one of mlp, cnn, or file.py:factory"
            )


@dataclass(frozen=True)
class AttackSettings(SettingsSection):
    prefix: ClassVar[str] = "attack."

    exact: int = setting(
        0, "Also attack this many targets by differentiating through training.", least=0
    )


@dataclass(frozen=True)
class MachineSettings(SettingsSection):
    """0 means: choose it here, once; the choice is written down and reused on resume."""

    prefix: ClassVar[str] = "machine."

    memory: int = setting(2048, "Memory for training models, in MiB.", least=16)
    threads: int = setting(0, "Processor threads; default: all cores.", least=0)
    chunk: int = setting(0, "Models trained at once; default: what the memory allows.", least=0)
    device: str = setting("cpu", "cpu (default) or cuda.")


@dataclass(frozen=True)
class BudgetSettings(SettingsSection):
    time: str = setting(
        "",
        "Time for all attacks together, such as 90s, 10m or 1.5h; default: no limit.",
        flag="--budget",
    )
    fixes: bool = setting(
        False, "If it leaks, audit again under every fix that applies.", flag="--try-fixes"
    )

    def __post_init__(self) -> None:
        seconds_in(self.time)

    @property
    def seconds(self) -> float | None:
        return seconds_in(self.time)


@dataclass(frozen=True)
class Settings:
    """What every release of a brief shares."""

    seed: int = setting(0, "Seed of everything random.")
    data: DataSettings = field(default_factory=DataSettings)
    victim: VictimSettings = field(default_factory=VictimSettings)
    attack: AttackSettings = field(default_factory=AttackSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)

    @staticmethod
    def from_toml(path: Path) -> Settings:
        return Settings.from_mapping(toml_at(path), where=str(path))

    @staticmethod
    def from_mapping(content: Mapping[str, Any], *, where: str = "settings") -> Settings:
        settings: Settings = filled(Settings(), content, where)
        return settings

    def with_seed(self, seed: int) -> Settings:
        return replace(self, seed=seed)

    def with_values(self, section: str, **values: Any) -> Settings:
        """A copy with those values of a section replaced that are not None."""
        given = {name: value for name, value in values.items() if value is not None}
        return replace(self, **{section: replace(getattr(self, section), **given)})
