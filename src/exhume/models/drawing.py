"""Weights of a module drawn from a key, without touching the global generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key

M = TypeVar("M", bound=nn.Module)


def he_normal(build: Callable[[], M], key: Key) -> M:
    """Weights of dense and convolutional layers from N(0, 2/fan_in), the last dense layer's from
    N(0, 1/fan_in); biases zero; batch norm the identity. Other layers with weights are refused.
    """
    module = _made(build)
    generator = key.fold("weights").generator()
    dense = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                gain = 1.0 if dense and layer is dense[-1] else 2.0
                deviation = math.sqrt(gain / _fan_in(layer, layer.weight))
                layer.weight.normal_(0, deviation, generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()
            elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.reset_parameters()
                layer.reset_running_stats()
            elif any(True for _ in layer.parameters(recurse=False)):
                raise ExhumeError(
                    f"model: {type(layer).__name__} has weights that are not drawn here"
                )
    return module


def lecun_normal(build: Callable[[], M], key: Key) -> M:
    """Weights from N(0, 1/fan_in), biases zero."""
    module = _made(build)
    generator = key.fold("reconstructor").generator()
    with torch.no_grad():
        for layer in module.modules():
            weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
            if not isinstance(weight, Tensor):
                continue
            weight.normal_(0, 1 / math.sqrt(_fan_in(layer, weight)), generator=generator)
            if isinstance(bias, Tensor):
                bias.zero_()
    return module


def _made(build: Callable[[], M]) -> M:
    """The module, its weights not yet set."""
    with torch.device("meta"):
        module = build()
    return module.to_empty(device="cpu")


def _fan_in(layer: nn.Module, weight: Tensor) -> float:
    """How many products one output sums up."""
    if isinstance(layer, nn.ConvTranspose2d):
        return weight[:, 0].numel() / math.prod(layer.stride)
    return float(weight[0].numel())
