"""What one request of a split network costs: bytes up and down, and time at the client and at the bodies."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from exhume.models.split.cut import device_of
from exhume.models.split.pipeline import Pipeline


@dataclass(frozen=True)
class RequestCost:
    """What one request to N bodies costs."""

    bodies: int  # N
    selected: int  # P
    bytes_up: int  # every body is sent the features
    bytes_down: int
    in_turn: (
        float  # seconds of the bodies, one after another on this machine, the best of several each
    )


def request_cost(pipeline: Pipeline, inputs: Tensor, *, repeats: int = 5) -> RequestCost:
    """Bytes are counted, times measured on this machine with its present number of threads.

    inputs: (n, *shape) of one request.
    """
    with torch.inference_mode():
        features = pipeline.client.send(inputs)
        answers = [body(features) for body in pipeline.bodies]
    bodies = [_best(body, features, repeats) for body in pipeline.bodies]
    return RequestCost(
        bodies=len(pipeline.bodies),
        selected=len(pipeline.client.selected),
        bytes_up=features.nbytes * len(pipeline.bodies),
        bytes_down=sum(answer.nbytes for answer in answers),
        in_turn=sum(bodies),
    )


def client_ratio(
    defended: Pipeline, single: Pipeline, inputs: Tensor, *, repeats: int = 5
) -> float:
    """The client's own compute with N bodies over that with one: head, selection and tail.

    The two take turns; the best of the repeats counts.
    """
    best = [float("inf")] * 2
    with torch.inference_mode():
        asked = []
        for pipeline in (defended, single):
            features = pipeline.client.send(inputs)
            asked.append((pipeline.client, [body(features) for body in pipeline.bodies]))
        for _ in range(repeats + 1):
            for place, (client, answers) in enumerate(asked):
                started = time.perf_counter()
                client.send(inputs)
                client.finish(answers)
                best[place] = min(best[place], time.perf_counter() - started)
    return best[0] / best[1]


def client_share(pipeline: Pipeline, shape: tuple[int, ...]) -> float:
    """Share of a request's multiply-adds that the client computes: head and tail. shape: of an input."""
    client, features = pipeline.client, tuple(pipeline.client.noise.shape)
    with torch.no_grad():
        sent = torch.zeros(2, *features, device=pipeline.client.noise.device)
        answers = [body(sent) for body in pipeline.bodies]
    read = torch.cat([answers[i] for i in client.selected], 1)
    own = multiply_adds(client.head, shape) + multiply_adds(client.tail, tuple(read.shape[1:]))
    others = sum(multiply_adds(body, features) for body in pipeline.bodies)
    return own / max(own + others, 1e-12)


def multiply_adds(network: nn.Module, shape: tuple[int, ...]) -> float:
    """Multiply-adds of one record's way through a network, counted."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        # two: a batch norm in training mode takes no less
        network.eval()(torch.zeros(2, *shape, device=device_of(network)))
    return counter.get_total_flops() / 4


def _best(body: nn.Module, features: Tensor, repeats: int) -> float:
    seconds = []
    with torch.inference_mode():
        for _ in range(repeats):
            started = time.perf_counter()
            body(features)
            seconds.append(time.perf_counter() - started)
    return min(seconds)
