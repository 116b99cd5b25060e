"""The user's own way of training, as a recipe: `train(model, records, rng)`, called once a model.

- `model`: the network at its initial parameters, in the modes in which its factory returns it. It is
  trained in place, or another module with the same parameters is returned.
- `records`: `records.inputs` (n, *shape) float32 and `records.labels` (n,) int64, or float32 targets of a
  regression. The record that differs from model to model is at a place that its key draws; whichever was
  there is the last one.
- `rng`: a `torch.Generator` of this model's own. The global generators of torch, numpy and Python are
  seeded for the call as well, and put back after it, so that dropout and shuffling repeat too.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from exhume.core.contract import Architecture, ExhumeError, Key, Layout, Records
from exhume.core.own_code import digest_of_code, first_line, named, seeded_globals
from exhume.models.own import OwnArchitecture
from exhume.train import functional
from exhume.train.objective import CROSS_ENTROPY, Objective
from exhume.train.optimisers import Descent

_WRAPPERS = ("module.", "_orig_mod.", "_module.")  # of data parallelism, torch.compile and Opacus
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class OwnTraining:
    """Equal to another one if the name and the code are; sent to another machine by name."""

    architecture: Architecture
    spec: str
    fingerprint: str  # of the function's code
    root: str = field(compare=False, repr=False)
    objective: Objective = CROSS_ENTROPY  # of a regression the labels are the targets

    @staticmethod
    def of(
        architecture: Architecture,
        spec: str,
        *,
        root: Path | None = None,
        objective: Objective = CROSS_ENTROPY,
    ) -> OwnTraining:
        """spec: `package.module:train` or `file.py:train`; root: the folder that it counts from."""
        place = (root or Path()).resolve()
        function = _function(spec, place)
        training = OwnTraining(architecture, spec, digest_of_code(function), str(place), objective)
        training.__dict__["_function"] = function
        return training

    @cached_property
    def _function(self) -> Callable[..., Any]:
        """The owner's function, imported anew where this value has arrived."""
        function = _function(self.spec, Path(self.root))
        if digest_of_code(function) != self.fingerprint:
            raise ExhumeError(
                f"train: {self.spec} is not the code that it was where the work began; make them alike"
            )
        return function

    def fit(
        self, initial: Tensor, fixed: Records, extra: Records, key: Key, first: int = 0
    ) -> Tensor:
        """One call after another; initial: (p,) or (s, p); returns (s, p)."""
        self.objective.check_fits(self.architecture, fixed)
        models = extra.labels.shape[0]
        starts = initial.expand(models, -1)
        keys = [key.fold("own", first + i) for i in range(models)]
        return torch.stack(
            [
                self._trained(starts[i], _mixed(fixed, extra, i, keys[i]), keys[i])
                for i in range(models)
            ]
        )

    def repeats(self, initial: Tensor, fixed: Records, key: Key) -> bool:
        """Whether two calls with the same generator end with the same bits; costs two models."""
        once, twice = (self.fit(initial, fixed, fixed.none_for(1), key) for _ in range(2))
        return torch.equal(once, twice)

    def changed_outside(self, initial: Tensor, fixed: Records, key: Key) -> tuple[str, ...]:
        """Entries of the state dict outside the layout that training changes; costs one model.

        initial: (p,) or (1, p). Buffers, and parameters that require no gradient: whoever releases the
        state dict releases them too, but attacks do not read them. Counters of batch norm do not count.
        """
        self.objective.check_fits(self.architecture, fixed)
        return tuple(self.outside(initial.reshape(-1), fixed, key.fold("own", 0)))

    def outside(self, start: Tensor, records: Records, key: Key) -> dict[str, Tensor]:
        """Entries outside the layout as one training leaves them, where it has changed them."""
        module = self._begun(start)
        before = {name: copy.deepcopy(value) for name, value in module.state_dict().items()}
        after = self._run(module, records, key).state_dict()
        entries = {_bare(name, tuple(before)): value for name, value in after.items()}
        return {
            name: value
            for name, value in entries.items()
            if name not in self.architecture.layout.names
            and not name.endswith(_COUNTER)
            and not (name in before and _same(before[name], value))
        }

    def bytes_per_model(self, records: int) -> int:
        """Memory of one model, as if the function saw the batches that ours see."""
        return functional.bytes_per_model(self.architecture, records, Descent())

    def _trained(self, start: Tensor, records: Records, key: Key) -> Tensor:
        module = self._run(self._begun(start), records, key)
        return self._read_back(module, self.architecture.layout, start.device)

    def _begun(self, start: Tensor) -> nn.Module:
        """The module at the start (p,) of its training."""
        net, layout = self.architecture, self.architecture.layout
        module = net.trainable() if isinstance(net, OwnArchitecture) else net.build().train()
        module = module.to(start.device)
        with torch.no_grad():
            for name, tensor in layout.split(start).items():
                _tensors(module)[name].copy_(tensor)
        return module

    def _run(self, module: nn.Module, records: Records, key: Key) -> nn.Module:
        if self.objective.of_numbers:
            seen, targets = self.objective.seen(records.inputs), records.inputs[..., -1]
            records = Records(seen, targets, ())
        with seeded_globals(key.fold("global")), torch.enable_grad():
            try:
                answer = self._function(module, records, key.fold("rng").generator())
            except (Exception, SystemExit) as error:
                raise ExhumeError(
                    f"train: {self.spec} raised {type(error).__name__}: {first_line(error)}"
                ) from error
        if answer is not None and not isinstance(answer, nn.Module):
            raise ExhumeError(
                f"train: {self.spec} returns a {type(answer).__name__}, legal are nothing and the module"
            )
        return module if answer is None else answer

    def _read_back(self, module: nn.Module, layout: Layout, device: torch.device) -> Tensor:
        tensors = {
            _bare(n, layout.names): tensor.detach() for n, tensor in _tensors(module).items()
        }
        lost = [name for name in layout.names if name not in tensors]
        if lost:
            raise ExhumeError(
                f"train: the module that {self.spec} returns lacks {', '.join(lost[:3])}"
            )
        trained = layout.join({name: tensors[name] for name in layout.names}).to(device)
        if not bool(torch.isfinite(trained).all()):
            raise ExhumeError(
                f"train: {self.spec} ends with weights that are not finite; lower the rate, or scale "
                "the records"
            )
        return trained

    def __getstate__(self) -> dict[str, object]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        where, _, name = self.spec.rpartition(":")
        return f"the owner's own function {Path(where).name}:{name}"


def _function(spec: str, root: Path) -> Callable[..., Any]:
    function = named(spec, "train", root)
    if not callable(function):
        raise ExhumeError(f"train: {spec} is a {type(function).__name__}, which cannot be called")
    return function


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _bare(name: str, known: tuple[str, ...]) -> str:
    while name not in known and name.startswith(_WRAPPERS):
        name = name.split(".", 1)[1]
    return name


def _mixed(fixed: Records, extra: Records, model: int, key: Key) -> Records:
    """The model's own records change places with others, so that a place says nothing about a record.

    All others stay where they are: batches that are taken in order are the same from model to model, but one.
    """
    records = fixed.with_extra(extra, model)
    order = torch.arange(len(records))
    places = torch.randperm(len(records), generator=key.fold("places").generator())
    for last, place in enumerate(places[: len(records) - len(fixed)].tolist(), start=len(fixed)):
        order[[last, place]] = order[[place, last]]
    return records[order.to(records.labels.device)]


def _same(one: object, other: object) -> bool:
    """Whether two entries of a state dict are equal; what is no tensor counts by its bytes."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one.to(other.device), other)
    return type(one) is type(other) and pickle.dumps(one) == pickle.dumps(other)
