"""A split network on paper: which network, cut where. It is rebuilt before saved weights are put in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from exhume.core.contract import ExhumeError, Key
from exhume.models.own import module_named
from exhume.models.own_texts import whole_numbers
from exhume.models.split.channel import ChannelNetwork
from exhume.models.split.cut import Split, cut, wider_tail
from exhume.models.split.networks import VGG16, KeyedNetwork, ResNet18
from exhume.store.shards import describe

_ANY = Key.from_seed(0)  # of weights that are replaced


@dataclass(frozen=True)
class OwnNetwork:
    """Somebody's factory, `package.module:factory`: their code draws the weights, from our key."""

    factory: str
    input_shape: tuple[int, ...]

    def module(self, key: Key) -> nn.Module:
        return whole_numbers(module_named(self.factory, key))


_Kind = type[ResNet18] | type[VGG16] | type[OwnNetwork] | type[ChannelNetwork]
_NAMED: dict[str, _Kind] = {
    "ResNet18": ResNet18,
    "VGG16": VGG16,
    "OwnNetwork": OwnNetwork,
    "ChannelNetwork": ChannelNetwork,
}


@dataclass(frozen=True)
class Blueprint:
    """Enough to rebuild head, body and tail, without their weights."""

    network: KeyedNetwork
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
        plain = plain_network(self.network)
        if type(plain).__name__ not in _NAMED:
            raise ExhumeError(
                f"network: a {type(plain).__name__} cannot be named in a manifest; give it as "
                "OwnNetwork('package.module:factory', input_shape)"
            )
        return {"network": describe(self.network), "first": self.first, "second": self.second}

    @staticmethod
    def read(content: Mapping[str, Any], where: str, *, factory: str = "") -> Blueprint:
        """The inverse of `written`.

        factory: the only one that may be imported. A manifest is data; it does not decide which code runs.
        """
        network = _read_network(content["network"], where, factory)
        return Blueprint(network, str(content["first"]), str(content["second"]))


def plain_network(network: KeyedNetwork) -> KeyedNetwork:
    """The network without a channel in it."""
    return network.network if isinstance(network, ChannelNetwork) else network


def _read_network(named: Mapping[str, Any], where: str, factory: str) -> KeyedNetwork:
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
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in given.items()}
    if kind is ChannelNetwork:
        if values["network"].get("type") == "ChannelNetwork":
            raise ExhumeError(f"{where}: a channel within a channel; one is all that is made")
        values["network"] = _read_network(values["network"], where, factory)
    return kind(**values)


_LEGAL = {"int": int, "str": str, "bool": bool, "tuple[int, ...]": list, "KeyedNetwork": dict}


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
