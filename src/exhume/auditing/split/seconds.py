"""What the attackers of a split network take, and the training of a defence: counted, not timed.

A shadow is trained through the frozen bodies, a decoder on the shadow's features. Both are counted layer by
layer: products of matrices by their operations, all else by the numbers that come out and by the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from exhume.attacks.split.token_search import KnownHead
from exhume.auditing.split.attackers import (
    HEAD_KNOWN,
    likelihood_steps,
    lookalike_applies,
    lookalike_seconds,
    rounds_of,
    shadows_of,
)
from exhume.auditing.split.reading import LoadedSplit
from exhume.choices import threads_for
from exhume.core.contract import Key
from exhume.models.probes import after, leaves
from exhume.models.split.cost import multiply_adds
from exhume.models.split.inverter import Decoder, ShadowHead
from exhume.settings import SplitSettings

__all__ = ["Seconds"]

_ANY = Key.from_seed(0)
_BACK = 3  # forward and backward, in forward passes
_SPEED = (
    60e9  # operations a second and thread, of products in batches of convolutions and dense layers
)
_NUMBER = 4e-9  # seconds of a number that a layer puts out, there and back: norms, ReLUs, pooling
_STEP = 4e-3  # seconds of a step besides
_SCORED = 2e-3  # seconds to score one target
_LINED = 0.6  # seconds of a line-up
_DECIPHERED = 4e-9  # seconds of a round, times the cube of the words


@dataclass(frozen=True, eq=False)
class Seconds:
    """For one set of settings. bodies, selected: of the split in use."""

    settings: SplitSettings
    owned: LoadedSplit
    bodies: int
    selected: int

    def attack(self, names: Sequence[str], first: str = "") -> float:
        """All these attackers, one after another. first: the depth; empty: the split in use."""
        alone = sum(
            self._text(n, first) if self.owned.text else self._image(n, first) for n in names
        )
        lined = _LINED + _SCORED * len(self.owned.parts.target)
        return alone + lined * len(names)

    def training(self) -> float:
        """N bodies one after another, the client's part, and a plain network to compare with."""
        records = len(self.owned.parts.fixed) or 10_000
        one = self._pass(self.owned.module, self.owned.shape)
        return (self.bodies + 2) * self._trained(one, records, self.settings.epochs)

    def _image(self, name: str, first: str) -> float:
        settings, shape = self.settings, self.owned.shape
        pipeline = self.owned.pipeline(first or self.owned.first[0])
        features = tuple(pipeline.client.noise.shape)
        bodies, selected = (1, 1) if first else (self.bodies, self.selected)
        channel = settings.defend == "channel" and not first
        sent = (settings.numbers,) if channel else features
        head = self._pass(ShadowHead(settings.channels).module(shape, sent, _ANY), shape)
        body = self._pass(pipeline.bodies[0], features)
        shadows = shadows_of(name, bodies, selected, own_form=channel)
        decoders = 0 if name in ("as-sent", "likelihood", "committee") else 1
        made = shadows * head + rounds_of(name, bodies, selected) * body
        if decoders:
            made += self._pass(Decoder(settings.channels).module(sent, shape, _ANY), sent)
        held = len(self.owned.parts.shadow)
        seconds = self._trained(made, held, settings.attack_epochs, max(1, shadows + decoders))
        if name == "likelihood":
            return _BACK * likelihood_steps(settings) * len(self.owned.parts.target) * head
        if name == "lookalike" and not channel and lookalike_applies(pipeline, shape):
            return seconds + lookalike_seconds(settings, features[0])
        if name in ("as-sent", "committee") or (name == "lookalike" and not channel):
            return 0.0
        return seconds

    def _text(self, name: str, first: str) -> float:
        text, settings, parts = self.owned.text, self.settings, self.owned.parts
        assert text is not None  # asked before
        pipeline = self.owned.pipeline(first or self.owned.first[0])
        whole = self._pass(self.owned.module, self.owned.shape)
        head = self._pass(pipeline.client.head, self.owned.shape)
        if name == "cipher":
            kinds = len(torch.unique(parts.shadow.inputs))
            return 25 * _DECIPHERED * kinds**3
        if name not in ("shadow", HEAD_KNOWN):
            return 0.0
        how = KnownHead(text.vocabulary)
        tried = text.vocabulary + len(parts.target) * how.sweeps * how.options * self.owned.shape[0]
        read = tried * head
        if name == HEAD_KNOWN:
            return read
        return read + self._trained(whole, len(parts.shadow), settings.attack_epochs)

    def _trained(self, one: float, records: int, epochs: int, models: int = 1) -> float:
        """So many passes of all records there and back, of which one record's takes `one` second."""
        steps = models * epochs * -(-records // self.settings.batch)
        return epochs * records * _BACK * one + _STEP * steps

    def _pass(self, module: nn.Module, shape: tuple[int, ...]) -> float:
        """Seconds of one record's way through it."""
        threads = threads_for(self.settings.threads)
        products = 2 * multiply_adds(module, shape) / (_SPEED * threads)
        return products + _NUMBER / _BACK * _numbers(module, shape)


@torch.no_grad()
def _numbers(module: nn.Module, shape: tuple[int, ...]) -> int:
    """That the layers of a network put out for one record."""
    count = 0

    def counted(_: str, __: object, outputs: object) -> None:
        nonlocal count
        if isinstance(outputs, torch.Tensor):
            count += outputs.numel()

    with after(module, leaves(module), counted):
        module.eval()(torch.zeros(1, *shape))
    return count
