"""From a recipe to unrolled training, or the reason why it cannot be differentiated."""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor

from exhume.core.contract import Architecture, NotApplicable, Recipe, Records
from exhume.models.own.architecture import OwnArchitecture
from exhume.models.own.language import LanguageModel
from exhume.models.own.per_record_check import not_per_record
from exhume.train.batch_norm import mixes_batches, without_memory
from exhume.train.functional import activations
from exhume.train.local import LocalTraining
from exhume.train.optimisers import Adam, Optimiser
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.routine import Routine
from exhume.train.rules import AdamRule, HeavyBall, Rule
from exhume.train.unrolled import Seen, Unrolled

__all__ = ["check_differentiable", "unroll"]


def check_differentiable(recipe: object) -> None:
    """Raises `NotApplicable` with the reason why a training cannot be differentiated."""
    if isinstance(recipe, OwnTraining):
        raise NotApplicable(
            f"{recipe.spec} is a function of your own: it can be called, not differentiated; say how it "
            "trains with optimiser, batch, rate and steps in place of train",
            ever=True,
        )
    if not isinstance(recipe, FullBatch | MiniBatch | LocalTraining):
        raise NotApplicable(f"no way to differentiate through {recipe} is known", ever=True)
    if not isinstance(recipe, MiniBatch) and (recipe.privacy.clips or recipe.privacy.noise):
        raise NotApplicable("private training adds noise the adversary cannot redo", ever=False)
    if isinstance(recipe, LocalTraining) and recipe.reduction != "mean":
        raise NotApplicable("written for the mean loss, not for the sum", ever=True)
    _differentiable(recipe.architecture)


def unroll(
    recipe: Recipe, initial: Tensor, fixed: Records, unknown: int = 1, *, memory: int = 1024
) -> Unrolled:
    """Training on the fixed records and so many unknown ones, step by step; raises `NotApplicable`."""
    check_differentiable(recipe)
    assert isinstance(recipe, FullBatch | MiniBatch | LocalTraining)  # nothing else passes
    module, mixes = _differentiable(recipe.architecture)
    rule, steps, loss = _parts(recipe, len(fixed), unknown)
    return Unrolled(
        module.to(initial.device),
        recipe.architecture.layout,
        rule,
        steps,
        initial,
        fixed,
        loss,
        mixes,
        activations(recipe.architecture),
        memory,
    )


def _differentiable(architecture: Architecture) -> tuple[torch.nn.Module, bool]:
    """The module as it trains, and whether its records must be seen together."""
    if isinstance(architecture, LanguageModel):
        raise NotApplicable(
            "tokens have no derivative: updates of texts have attacks of their own", ever=True
        )
    if mixes_batches(architecture):
        return without_memory(architecture.trainable()), True
    module = (
        architecture.trainable()
        if isinstance(architecture, OwnArchitecture)
        else architecture.build()
    )
    why = not_per_record(module, architecture.input_shape)
    if why:
        raise NotApplicable(f"training cannot be differentiated: {why}", ever=True)
    return module, False


def _parts(
    recipe: FullBatch | MiniBatch | LocalTraining, known: int, unknown: int
) -> tuple[Rule, tuple[Seen, ...], str]:
    every = torch.arange(unknown)
    if isinstance(recipe, LocalTraining):
        return _local(recipe, known, unknown)
    rule, count, rate = _rule(recipe.descent), recipe.descent.steps, recipe.descent.rate
    if isinstance(recipe, FullBatch):
        return rule, (Seen(None, every, rate),) * count, "cross-entropy"
    batches = islice(recipe.order.batches(known, unknown), count)
    return rule, tuple(Seen(b.fixed, b.extra, rate) for b in batches), "cross-entropy"


def _rule(optimiser: Optimiser) -> Rule:
    if isinstance(optimiser, Adam):
        return AdamRule(optimiser.beta1, optimiser.beta2, optimiser.epsilon, optimiser.weight_decay)
    return HeavyBall(optimiser.momentum, optimiser.weight_decay)


def _local(recipe: LocalTraining, known: int, unknown: int) -> tuple[Rule, tuple[Seen, ...], str]:
    routine = recipe.routine
    if routine.hidden_order(known + unknown):
        raise NotApplicable("mini-batches in an order that nobody else knows", ever=False)
    rates = recipe.rates(known + unknown)
    rows = routine.batches(recipe.steps, known + unknown)
    steps = tuple(
        Seen(part[part < known], part[part >= known] - known, rate)
        for part, rate in zip(rows, rates, strict=True)
    )
    return _routine_rule(routine, recipe.live), steps, routine.loss


def _routine_rule(routine: Routine, live: Tensor | None) -> Rule:
    if routine.optimiser == "adam":
        return AdamRule(*routine.betas, routine.eps, routine.weight_decay, live)
    return HeavyBall(routine.momentum, routine.weight_decay, live)
