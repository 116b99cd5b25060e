"""A split network on paper: which network, cut where. It is rebuilt before saved weights are put in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from exhume.contract import ExhumeError, Key
from exhume.models.own.factory import module_named
from exhume.models.split.cut import Split, cut, wider_tail
from exhume.models.split.resnet import ResNet18
from exhume.models.split.vgg import VGG16
from exhume.store import describe

__all__ = ["Blueprint", "Network", "OwnNetwork"]

_ANY = Key.from_seed(0)  # of weights that are replaced


@runtime_checkable
class Network(Protocol):
    """A network as a value that builds itself from a key."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...
    def module(self, key: Key) -> nn.Module: ...


@dataclass(frozen=True)
class OwnNetwork:
    """Somebody's factory, `package.module:factory`: their code draws the weights, from our key."""

    factory: str
    input_shape: tuple[int, ...]

    def module(self, key: Key) -> nn.Module:
        return module_named(self.factory, key)


_NAMED: dict[str, type[ResNet18] | type[VGG16] | type[OwnNetwork]] = {
    "ResNet18": ResNet18,
    "VGG16": VGG16,
    "OwnNetwork": OwnNetwork,
}


@dataclass(frozen=True)
class Blueprint:
    """Enough to rebuild head, body and tail, without their weights."""

    network: Network
    first: str  # last layer of the head
    second: str  # last layer of the body

    def split(self) -> Split:
        """The parts with weights that mean nothing yet."""
        return cut(self.network.module(_ANY), self.first, self.second)

    def tail(self, answers: int) -> nn.Module:
        """The tail for so many bodies' answers side by side."""
        parts = self.split()
        if answers == 1:
            return parts.tail
        shape = parts.feature_shape(self.network.input_shape)
        return wider_tail(parts, parts.body, shape, answers)

    def shapes(self, parts: Split | None = None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of what one input sends and one body answers. parts: where they are built already."""
        parts = parts or self.split()
        feature = parts.feature_shape(self.network.input_shape)
        with torch.no_grad():
            answer = parts.body.eval()(torch.zeros(1, *feature))
        return feature, tuple(answer.shape[1:])

    def written(self) -> dict[str, Any]:
        """The blueprint as plain data."""
        if type(self.network).__name__ not in _NAMED:
            raise ExhumeError(
                f"network: a {type(self.network).__name__} cannot be named in a manifest; give it as "
                "OwnNetwork('package.module:factory', input_shape)"
            )
        return {"network": describe(self.network), "first": self.first, "second": self.second}

    @staticmethod
    def read(content: Mapping[str, Any], where: str, *, factory: str = "") -> Blueprint:
        """The inverse of `written`.

        factory: the only one that may be imported. A manifest is data; it does not decide which code runs.
        """
        named = content["network"]
        kind = _NAMED.get(str(named.get("type")))
        if kind is None:
            raise ExhumeError(
                f"{where}: network {named.get('type')!r} is not one of {', '.join(_NAMED)}"
            )
        given = {name: value for name, value in named.items() if name != "type"}
        _check_arguments(kind, given, where)
        if kind is OwnNetwork and given["factory"] != factory:
            raise ExhumeError(
                f"{where}: the network is made by {given['factory']}; say factory={given['factory']!r} "
                "to allow that this code is run"
            )
        values: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in given.items()
        }
        network = kind(**values)
        return Blueprint(network, str(content["first"]), str(content["second"]))


_LEGAL = {"int": int, "str": str, "bool": bool, "tuple[int, ...]": list}


def _check_arguments(kind: type, given: Mapping[str, Any], where: str) -> None:
    wanted = {f.name: str(f.type) for f in fields(kind)}
    if set(given) != set(wanted):
        raise ExhumeError(
            f"{where}: network {kind.__name__} takes {', '.join(sorted(wanted))}, "
            f"given are {', '.join(sorted(given))}"
        )
    for name, value in given.items():
        whole = all(isinstance(v, int) for v in value) if isinstance(value, list) else True
        if not isinstance(value, _LEGAL[wanted[name]]) or not whole:
            raise ExhumeError(
                f"{where}: network {kind.__name__}: {name} is {value!r}, {wanted[name]} is needed"
            )
