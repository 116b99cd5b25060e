"""The settings of an audit: one frozen dataclass per section of `config.toml`, each default in one place."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from exhume.contract import ExhumeError

__all__ = [
    "AttackSettings",
    "DataSettings",
    "MachineSettings",
    "Settings",
    "VictimSettings",
    "filled",
    "made_of",
    "to_toml",
    "toml_at",
    "toml_of",
]


@dataclass(frozen=True)
class DataSettings:
    """0 for a size means: choose it from the number of records."""

    source: str = "mnist"  # a name from `exhume data list`, or a path
    fixed: int = (
        0  # |D-|: training records the adversary knows (Balle22: 10,000; its notebook: 1,000)
    )
    targets: int = 0  # private records, one released model each
    shadows: int = (
        0  # records the adversary trains shadow models on (Balle22: 59,000; notebook: 10,000)
    )
    public: int = 0  # further records the adversary holds
    test: int = 0  # records to measure the model's accuracy on


@dataclass(frozen=True)
class VictimSettings:
    released: bool = True  # the weights; false: this says only what the model is, for [update]
    network: str = (
        "mlp"  # or "cnn": Balle22's for CIFAR-10, two convolutions before the hidden layers; or
        # your own: package.module:factory, file.py:factory
    )
    hidden: tuple[int, ...] = (10,)  # widths of the hidden layers
    activation: str = "elu"
    init: str = "lecun"  # or "torch"
    start: str = ""  # a file of weights that training starts from: a base that is fine-tuned
    train: str = ""  # your own training, package.module:function(model, records, rng)
    optimiser: str = "gd"  # gd: full-batch; sgd: batches; adam: batches, or full-batch with batch 0
    batch: int = 0  # records a step sees; 0: all of them
    batch_order: str = "known"  # to the adversary, or "unknown"; also of dp_sampling's draws
    steps: int = 100  # gradient steps
    rate: float = 0.1
    momentum: float = 0.9  # of gd and sgd
    weight_decay: float = 0.0
    dp_clip: float = 0.0  # norm each record's gradient is clipped to; 0: none (Balle22: 10)
    dp_noise: float = 0.0  # noise multiplier: standard deviation of the noise, over the clip
    dp_steps: int = 0  # noisy steps of a `train` of your own; with the others, what it promises
    dp_sampling: float = 1.0  # probability with which a record enters a step (Poisson); 1: always


@dataclass(frozen=True)
class AttackSettings:
    exact: int = 0  # targets to reconstruct exactly as well, by differentiating through training


@dataclass(frozen=True)
class MachineSettings:
    """0 means: choose it here, once; the choice is written down and reused on resume."""

    memory: int = 2048  # MiB that model training may take
    threads: int = 0
    chunk: int = 0  # models trained at once
    device: str = "cpu"


@dataclass(frozen=True)
class Settings:
    seed: int = 0
    data: DataSettings = field(default_factory=DataSettings)
    victim: VictimSettings = field(default_factory=VictimSettings)
    attack: AttackSettings = field(default_factory=AttackSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)

    def __post_init__(self) -> None:
        for section, name, least in _LEAST:
            value = getattr(getattr(self, section), name)
            if value < least:
                raise ExhumeError(f"{section}.{name}: {value} given, at least {least} needed")
        _check_training(self.victim)

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


def toml_at(path: Path) -> dict[str, Any]:
    """What a TOML file says."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExhumeError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExhumeError(f"{path} is not a TOML file: {error}") from error


def _check_training(victim: VictimSettings) -> None:
    if not (math.isfinite(victim.rate) and victim.rate > 0):
        raise ExhumeError(f"victim.rate: {victim.rate} given, a finite number above 0 needed")
    if not 0 <= victim.momentum < 1:
        raise ExhumeError(f"victim.momentum: {victim.momentum} given, 0 or more and below 1 needed")
    if not 0 < victim.dp_sampling <= 1:
        raise ExhumeError(
            f"victim.dp_sampling: {victim.dp_sampling} given, a probability above 0 and up to 1 needed"
        )
    for name in ("weight_decay", "dp_clip", "dp_noise"):
        value = getattr(victim, name)
        if not (math.isfinite(value) and value >= 0):
            raise ExhumeError(f"victim.{name}: {value} given, a finite number of 0 or more needed")


_LEAST = (
    ("data", "fixed", 0),
    ("data", "targets", 0),
    ("data", "shadows", 0),
    ("data", "public", 0),
    ("data", "test", 0),
    ("victim", "steps", 1),
    ("victim", "batch", 0),
    ("victim", "dp_clip", 0),
    ("victim", "dp_noise", 0),
    ("victim", "dp_steps", 0),
    ("attack", "exact", 0),
    ("machine", "memory", 16),
    ("machine", "threads", 0),
    ("machine", "chunk", 0),
)


def filled(default: Any, content: Mapping[str, Any], where: str) -> Any:
    """`default` with the values of `content`; every key must exist and every value must fit its type."""
    said = {f.name: getattr(default, f.name) for f in fields(default)}
    return made_of(type(default), content, where, **said)


def made_of(kind: type[Any], content: Mapping[str, Any], where: str, **said: Any) -> Any:
    """A dataclass of settings from `content`; what that leaves open is as `said`, else as usual."""
    known = {
        f.name: f.default if f.default is not MISSING else f.default_factory()  # type: ignore[operator]
        for f in fields(kind)
    } | said
    hints = get_type_hints(kind)
    values = {}
    for name, value in content.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise ExhumeError(f"{where}: unknown key {name!r}; {hint}")
        if hints[name] == tuple[str, ...]:
            values[name] = _texts(value, f"{where}: {name}")
        else:
            values[name] = _fitting(known[name], value, f"{where}: {name}")
    return kind(**{**said, **values})


def _texts(value: Any, where: str) -> tuple[str, ...]:
    """A list of texts, or one of them."""
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, list | tuple) or not all(isinstance(item, str) for item in several):
        raise ExhumeError(f"{where}: a text or a list of texts is needed, got {value!r}")
    return tuple(several)


def _fitting(default: Any, value: Any, where: str) -> Any:
    if is_dataclass(default):
        if not isinstance(value, Mapping):
            raise ExhumeError(f"{where}: a section is needed here, got {value!r}")
        return filled(default, value, where)
    if isinstance(default, tuple):
        whole = isinstance(value, list | tuple) and all(type(item) is int for item in value)
        if not whole:
            raise ExhumeError(f"{where}: a list of whole numbers is needed, got {value!r}")
        return tuple(value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        kind = {
            int: "a whole number",
            float: "a number",
            str: "a text",
            bool: "true or false",
        }[type(default)]
        raise ExhumeError(f"{where}: {kind} is needed, got {value!r}")
    return value


def to_toml(settings: Any) -> str:
    """Settings, a dataclass of plain values or of sections of them, as TOML; top-level values first."""
    return toml_of(asdict(settings))


def toml_of(content: Mapping[str, Any]) -> str:
    """Plain values and sections of plain values as TOML."""
    lines: list[str] = []
    sections: list[str] = []
    for name, value in content.items():
        if isinstance(value, dict):
            sections += [
                "",
                f"[{name}]",
                *(f"{key} = {_toml(item)}" for key, item in value.items()),
            ]
        else:
            lines.append(f"{name} = {_toml(value)}")
    return "\n".join([*lines, *sections]) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, str):
        escaped = "".join(
            f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c
            for c in value.replace("\\", "\\\\").replace('"', '\\"')
        )
        return f'"{escaped}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
