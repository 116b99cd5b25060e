"""The attackers of a split network, by name: those of the papers, ours, and one who knows the head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb

import torch
from torch import nn

from exhume.attacks.split.as_sent import AsSent
from exhume.attacks.split.inversion import (
    Committee,
    Likelihood,
    ShadowInversion,
    SubsetSearch,
    TrueHeadInversion,
)
from exhume.attacks.split.lookalike import Lookalike, Pass
from exhume.attacks.split.shadow import LEARNED
from exhume.auditing.estimate import seconds_of
from exhume.core.contract import Attack, Key, NotApplicable
from exhume.models.split.inverter import Decoder, OwnForm, ShadowHead
from exhume.models.split.pipeline import Pipeline
from exhume.settings import SplitSettings
from exhume.train.single import Schedule

__all__ = [
    "FEW",
    "HEAD_KNOWN",
    "Attacker",
    "attacker_named",
    "likelihood_steps",
    "lookalike_applies",
    "lookalike_seconds",
    "models_of",
    "names_for",
    "rounds_of",
    "shadows_of",
]

HEAD_KNOWN = "head-known"
FEW = ("as-sent", "shadow", "matched", HEAD_KNOWN)
"""Those who are tried at depths that are not in use."""

_SHADOWLESS = ("as-sent", "lookalike", "frequency", "cipher", HEAD_KNOWN)
_MATCH = 10.0  # weight of the moments
_STARTS = 2  # shadows of the client's own form; the one that classifies best is inverted
_SUBSETS = 10  # tried at most
_FULL = 8  # epochs from which searches take all their steps
_SEARCH = 100  # steps of the likelihood
_KEPT = 6  # starts of a lookalike that are compared, mirror images included
_REFINED = 4  # times that one of them is refined
_WINDOW = 9  # features of each channel in one of its windows
_SORTING = 1.5e-7  # seconds of one number


@dataclass(frozen=True)
class Attacker:
    id: str
    name: str
    attack: Attack
    paper: str = "ours"
    why_not: NotApplicable | None = None  # it cannot be mounted on this head

    @property
    def given_head(self) -> bool:
        """It knows the client's head: its success means that a secret alone protects."""
        return self.id == HEAD_KNOWN

    @property
    def uses_shadow(self) -> bool:
        """It works through a shadow of the client, which must have learned to classify."""
        return self.id not in _SHADOWLESS


def names_for(bodies: int) -> tuple[str, ...]:
    """Every attacker of a client that reads so many bodies; the last one knows its head."""
    if bodies == 1:
        return ("as-sent", "shadow", "own-form", "lookalike", "matched", "likelihood", HEAD_KNOWN)
    alone = tuple(f"body-{i + 1}" for i in range(bodies))
    several = ("adaptive", "own-form", "lookalike", "matched", "likelihood", "committee", "subsets")
    return ("as-sent", *alone, *several, HEAD_KNOWN)


def attacker_named(
    name: str,
    settings: SplitSettings,
    pipeline: Pipeline,
    shape: tuple[int, ...],
    form: OwnForm,
) -> Attacker:
    """One of `names_for`, against any pipeline: one of several bodies becomes the same of a single one.

    shape: of the inputs; form: of the client's head, which is no secret.
    """
    schedule = Schedule(settings.attack_epochs, settings.batch, 3e-3, "adam", 0.0)
    head, decoder = ShadowHead(settings.channels), Decoder(settings.channels)
    alone = [
        ShadowInversion((i,), head, decoder, schedule, schedule)
        for i in range(len(pipeline.bodies))
    ]
    several = replace(alone[0], reads=LEARNED) if len(alone) > 1 else alone[0]
    paper = "Ensembler24"
    if name.startswith("body-"):
        place = min(int(name.removeprefix("body-")), len(alone)) - 1
        return Attacker(
            name, f"Inverting a shadow of {name.replace('-', ' ')}", alone[place], paper
        )
    own = replace(several, head=form, starts=_STARTS)
    if name == "own-form":
        return Attacker(name, "Inverting shadows of the client's own form", own)
    if name == "lookalike" and pipeline.client.sigma:  # numbers have no windows to look at
        alike = replace(own, match=_MATCH)
        return Attacker(name, "Inverting a lookalike of the client's own form", alike)
    if name == "lookalike":
        return _lookalike(settings, pipeline.client.head, shape, decoder, schedule)
    members = (*alone, several) if len(alone) > 1 else (several, several)
    size = len(pipeline.client.selected)
    search = Likelihood(several, steps=_steps(_SEARCH, settings))
    subsets = SubsetSearch(size, _SUBSETS, alone[0])
    found = (
        Attacker("as-sent", "What was sent, looked at", AsSent()),
        Attacker("shadow", "Inverting a shadow of the head", several, paper),
        Attacker("adaptive", "Inverting a shadow of all bodies", several, paper),
        Attacker(
            "matched", "Inverting a shadow that matches moments", replace(several, match=_MATCH)
        ),
        Attacker("likelihood", "Searching for inputs that a shadow sends alike", search),
        Attacker("committee", "Inverting several shadows together", Committee(members)),
        Attacker("subsets", "Inverting the best of several selections", subsets),
        Attacker(HEAD_KNOWN, "Inverting the true head", TrueHeadInversion(decoder, schedule)),
    )
    return {one.id: one for one in found}[name]


def _lookalike(
    settings: SplitSettings,
    head: nn.Module,
    shape: tuple[int, ...],
    decoder: Decoder,
    schedule: Schedule,
) -> Attacker:
    kernel, why_not = 3, None
    try:
        kernel = _kernel(head, shape)
    except NotApplicable as why:
        why_not = why
    attack = replace(_searching(settings, kernel), decoder=decoder, decoder_schedule=schedule)
    name = "Inverting a lookalike of the first layer"
    return Attacker("lookalike", name, attack, why_not=why_not)


def _searching(settings: SplitSettings, kernel: int = 3) -> Lookalike:
    own = Lookalike(kernel)

    def shortened(part: Pass) -> Pass:
        return replace(part, steps=_steps(part.steps, settings))

    return replace(
        own,
        search=shortened(own.search),
        compare=shortened(own.compare),
        refine=shortened(own.refine),
    )


def _steps(usual: int, settings: SplitSettings) -> int:
    """Of a search; fewer where shadows are trained for few epochs, too."""
    return max(3, round(usual * min(1.0, settings.attack_epochs / _FULL)))


@torch.no_grad()
def _kernel(head: nn.Module, shape: tuple[int, ...]) -> int:
    """Side of the one convolution that a head consists of, besides batch norm, ReLU and pooling."""
    weighted = [part for part in head.modules() if list(part.parameters(recurse=False))]
    layers = [part for part in weighted if isinstance(part, nn.Conv2d)]
    others = [p for p in weighted if not isinstance(p, nn.Conv2d | nn.BatchNorm2d)]
    needs = "a lookalike is one convolution of odd size with a ReLU, and the client's head "
    if len(layers) != 1 or others:
        count = f"{len(layers)} convolutions" if layers else "no convolution"
        kinds = sorted({type(part).__name__ for part in others})
        more = f" and {', '.join(kinds)}" if kinds else ""
        raise NotApplicable(f"{needs}has {count}{more}", ever=True)
    one = layers[0]
    side = int(one.kernel_size[0])
    plain = one.padding in ("same", (side // 2, side // 2)) and one.padding_mode == "zeros"
    plain &= set(one.kernel_size) == {side} and {*one.stride, *one.dilation, one.groups} == {1}
    if not plain or side % 2 == 0:
        raise NotApplicable(f"{needs}has {one}", ever=True)
    probe = torch.rand(8, *shape, generator=Key.from_seed(0).generator())
    if float(head(probe).amin()) < 0:
        raise NotApplicable(f"{needs}sends values below zero", ever=True)
    return side


# What they take


def models_of(name: str, bodies: int, selected: int) -> int:
    """Shadows and decoders that an attacker trains which no other one has trained."""
    if name == "subsets":
        return _subsets(bodies, selected) + 1
    few = {"as-sent": 0, "lookalike": 1, "likelihood": 0, "committee": 0, HEAD_KNOWN: 1}
    return (few | {"own-form": _STARTS + 1}).get(name, 2)


def shadows_of(name: str, bodies: int, selected: int, *, own_form: bool = False) -> int:
    """Shadow heads that an attacker trains which no other one has trained."""
    if name == "lookalike":
        return _STARTS if own_form else 0
    if name == "subsets":
        return _subsets(bodies, selected)
    if name == "own-form":
        return _STARTS
    return 0 if name in ("as-sent", "likelihood", "committee", HEAD_KNOWN) else 1


def likelihood_steps(settings: SplitSettings) -> int:
    return _steps(_SEARCH, settings)


def rounds_of(name: str, bodies: int, selected: int) -> int:
    """How often the records held pass one body in an epoch, roughly."""
    if name == "subsets":
        return _subsets(bodies, selected) * selected
    if name in ("shadow", "adaptive", "matched"):
        return bodies
    if name == "own-form":
        return _STARTS * bodies
    return 0 if name in ("as-sent", "committee") else 1


def lookalike_applies(pipeline: Pipeline, shape: tuple[int, ...]) -> bool:
    try:
        _kernel(pipeline.client.head, shape)
    except NotApplicable:
        return False
    return True


def lookalike_seconds(settings: SplitSettings, channels: int) -> float:
    """Of its search for the first layer, which sorts projections of windows."""
    own = _searching(settings)
    starts = ((own.search, own.starts), (own.compare, _KEPT), (own.refine, _REFINED))
    sorted_ = sum(n * part.steps * part.windows * part.directions for part, n in starts)
    return sorted_ * (_SORTING + seconds_of(6.0 * _WINDOW * channels))


def _subsets(bodies: int, selected: int) -> int:
    return min(_SUBSETS, comb(bodies, selected))
