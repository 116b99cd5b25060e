"""What one request of a split network costs: bytes up and down, and time at the client and at the bodies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from exhume.core.contract import ExhumeError
from exhume.models.split.cut import device_of
from exhume.models.split.pipeline import Pipeline, SplitClient


@dataclass(frozen=True)
class RequestCost:
    """What one request of so many inputs to N bodies costs. Times are the best of several, in seconds."""

    inputs: int
    bodies: int  # N
    selected: int  # P
    bytes_up: int  # every body is sent the features
    bytes_up_once: int  # where all bodies are on one server that passes them on
    bytes_down: int
    in_turn: float  # bodies one after another on this machine
    slowest_body: float  # all bodies on machines of their own, and no network


def request_cost(pipeline: Pipeline, inputs: Tensor, *, repeats: int = 5) -> RequestCost:
    """Bytes are counted, times measured on this machine with its present number of threads.

    inputs: (n, *shape) of one request.
    """
    with torch.inference_mode():
        features = pipeline.client.send(inputs)
        answers = [body(features) for body in pipeline.bodies]
    bodies = [_best(body, features, repeats) for body in pipeline.bodies]
    up = _bytes(features)
    return RequestCost(
        inputs=len(inputs),
        bodies=len(pipeline.bodies),
        selected=len(pipeline.client.selected),
        bytes_up=up * len(pipeline.bodies),
        bytes_up_once=up,
        bytes_down=sum(_bytes(answer) for answer in answers),
        in_turn=sum(bodies),
        slowest_body=max(bodies),
    )


def client_seconds(
    clients: Sequence[SplitClient],
    inputs: Tensor,
    answers: Sequence[Sequence[Tensor]],
    *,
    repeats: int = 5,
) -> list[float]:
    """Seconds of head, selection and tail for each client, taken in turns; the best of the repeats."""
    if len(clients) != len(answers):
        raise ExhumeError(f"answers: {len(answers)} given for {len(clients)} clients")
    best = [float("inf")] * len(clients)
    with torch.inference_mode():
        for _ in range(repeats + 1):
            for place, client in enumerate(clients):
                started = time.perf_counter()
                client.send(inputs)
                client.finish(answers[place])
                best[place] = min(best[place], time.perf_counter() - started)
    return best


def both_clients(
    defended: Pipeline, single: Pipeline, inputs: Tensor, *, repeats: int = 5
) -> list[float]:
    """Seconds of the client of N bodies and of one with a single body; both have the same kind of head."""
    answers = []
    with torch.inference_mode():
        for pipeline in (defended, single):
            features = pipeline.client.send(inputs)
            answers.append([body(features) for body in pipeline.bodies])
    return client_seconds([defended.client, single.client], inputs, answers, repeats=repeats)


def client_ratio(
    defended: Pipeline, single: Pipeline, inputs: Tensor, *, repeats: int = 5
) -> float:
    """The client's own compute with N bodies over that with one."""
    several, alone = both_clients(defended, single, inputs, repeats=repeats)
    return several / alone


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


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _best(body: nn.Module, features: Tensor, repeats: int) -> float:
    seconds = []
    with torch.inference_mode():
        for _ in range(repeats):
            started = time.perf_counter()
            body(features)
            seconds.append(time.perf_counter() - started)
    return min(seconds)
