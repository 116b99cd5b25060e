"""A model and records that are in memory, as a case: what `exhume.audit(model, records, …)` attacks.

    a module, no train               its weights are released: a checkpoint
    a module or what makes one, and train    a network that is trained so: the informed adversary
    a fitted scikit-learn model      itself; an MLPClassifier is a checkpoint

Code goes by name everywhere else, so what is in memory is given one, made of what it does, under which this
process finds it. No other process does: models are trained here, one after another.
"""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.neural_network import MLPClassifier
from torch import nn

from exhume import readers
from exhume.auditing.case import Case
from exhume.auditing.kinds.checkpoint import checkpoint_case
from exhume.auditing.kinds.fitted import fitted_case
from exhume.auditing.kinds.training import read_training
from exhume.core.contract import ExhumeError, Progress, Records
from exhume.core.own_code import digest_of_code
from exhume.models.mlp import MLP
from exhume.models.own import ModuleArchitecture, recognised
from exhume.readers.arrays import from_arrays, is_dataset, rows_in_arrays
from exhume.readers.checkpoint import convolution_in
from exhume.readers.fitted import network_of_mlp, records_of_fitted
from exhume.settings import Brief
from exhume.store.shards import digest

_RECORDS, _STRANGERS, _MODEL = "records in memory", "strangers in memory", "model in memory"
_LEGAL = (
    "legal are a brief (a mapping, or the path of a TOML file), an nn.Module, with train= also a function "
    "that makes one, and a fitted scikit-learn model"
)


@dataclass(frozen=True, eq=False)
class InMemory:
    """What the engine takes."""

    brief: Brief
    cases: dict[str, Case]  # by kind
    folder: (
        Path  # where it is written unless something else is said; the same call finds its own work
    )


def in_memory(
    model: Any,
    records: Any,
    *,
    train: Callable[..., Any] | Mapping[str, Any] | None,
    strangers: Any,
    settings: Mapping[str, Any],
    progress: Progress,
) -> InMemory:
    """train: `train(model, inputs, labels)`, or keys of [victim]; settings: further sections of a brief."""
    if isinstance(model, MLPClassifier):
        _refuse("a fitted MLPClassifier", train=train)
        trained, others = (_labelled(model, given) for given in (records, strangers))
        return _checkpoint(network_of_mlp(model), trained, others, settings, progress)
    if isinstance(model, BaseEstimator):
        _refuse("a fitted model", train=train)
        return _fitted(model, records, strangers, settings, progress)
    if train is None and isinstance(model, nn.Module):
        return _checkpoint(model, records, strangers, settings, progress)
    if train is None or not (isinstance(model, nn.Module) or callable(model)):
        said = " without train=" if callable(model) else ""
        raise ExhumeError(f"model: a {type(model).__name__}{said} cannot be audited; {_LEGAL}")
    _refuse("a model that is trained here", strangers=strangers)
    return _training(model, records, train, settings, progress)


def _refuse(what: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ExhumeError(f"{name}: given, but {what} has no use for it")


# The three kinds


def _training(
    model: nn.Module | Callable[[], Any],
    given: Any,
    train: Callable[..., Any] | Mapping[str, Any],
    settings: Mapping[str, Any],
    progress: Progress,
) -> InMemory:
    said: dict[str, Any] = dict(train) if isinstance(train, Mapping) else {}
    if {**settings.get("victim", {}), **said}.get("loss") == "mse":
        records, source = rows_in_arrays(*_pair(given), "records"), _RECORDS
    else:
        records, source = records_in(given, "records", progress, _missing(settings))
    makes_model = partial(_drawn_anew, model) if isinstance(model, nn.Module) else model
    code: dict[str, Any] = {"model": makes_model}
    if not isinstance(train, Mapping):
        code["train"] = partial(_train_with_arrays, train)
    name = _named_code(code, digest(records))
    victim = {**said, "network": f"{name}:model"}
    if "train" in code:
        victim["train"] = f"{name}:train"
    brief = _brief(settings, source, victim=victim)
    case = read_training(brief, lambda *_: records)
    assert case is not None  # weights are released
    return InMemory(brief, {"weights": case}, _folder("training", brief, digest(records)))


def _checkpoint(
    model: nn.Module,
    given: Any,
    strangers: Any,
    settings: Mapping[str, Any],
    progress: Progress,
) -> InMemory:
    if strangers is None:
        raise ExhumeError(
            "strangers: the weights of a model are attacked as they are (train= trains it here), and records "
            "like those that it was not trained on are needed to compare with"
        )
    trained, source = records_in(given, "records", progress, _missing(settings))
    others, _ = records_in(strangers, "strangers", progress, _missing(settings))
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    section = {"checkpoint": _MODEL, "trained_on": _RECORDS, "decoys": _STRANGERS}
    section["activation"] = _activation(model, trained)
    if convolution_in(state):
        section["model"] = f"{_named_code({'model': model}, *map(digest, state.values()))}:model"
    brief = _brief(settings, source, checkpoint=section)
    assert brief.checkpoint is not None  # the section above
    sets = {_RECORDS: trained, _STRANGERS: others}
    case = checkpoint_case(brief.checkpoint, state, lambda name, _: sets[name])
    folder = _folder("checkpoint", brief, *map(digest, (*state.values(), trained, others)))
    return InMemory(brief, {"checkpoint": case}, folder)


def _labelled(model: MLPClassifier, given: Any) -> Any:
    """A pair of arrays as records of the model's classes; anything else as it is."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        return given
    records = records_of_fitted(model, *given)
    return replace(records, inputs=records.inputs.float())


def _fitted(
    model: BaseEstimator,
    given: Any,
    strangers: Any,
    settings: Mapping[str, Any],
    progress: Progress,
) -> InMemory:
    missing = _missing(settings)
    inputs, labels = _pair_for(model, given, "records", progress, missing)
    count, others = len(labels), None
    if strangers is not None:  # in one go: classes of a regression are tenths of all targets
        more, their_labels = _pair_for(model, strangers, "strangers", progress, missing)
        for ours, theirs in ((inputs, more), (labels, their_labels)):
            if np.shape(theirs)[1:] != np.shape(ours)[1:]:
                raise ExhumeError(
                    f"strangers: shape {np.shape(theirs)} given, {np.shape(ours)} of what it was fitted on"
                )
        inputs, labels = np.concatenate([inputs, more]), np.concatenate([labels, their_labels])
    records = records_of_fitted(model, inputs, labels)
    if strangers is not None:
        records, others = records[:count], records[count:]
    brief = _brief(settings, "", fitted={})
    assert brief.fitted is not None  # the section above
    seed = brief.settings.seed
    case = fitted_case(brief.fitted, records, seed, "in memory", model, others=others)
    digests = [digest(one) for one in (records, others) if one is not None]
    folder = _folder("fitted", brief, *digests, *case.digests().values())
    return InMemory(brief, {"fitted": case}, folder)


def _pair_for(
    model: BaseEstimator, given: Any, what: str, progress: Progress, missing: str
) -> tuple[Any, Any]:
    """Inputs and labels as the fitted model takes them."""
    if isinstance(given, tuple | list) and len(given) == 2:
        return given[0], given[1]
    known, _ = records_in(given, what, progress, missing)
    names = np.asarray([known.classes[label] for label in known.labels.tolist()])
    classes = np.asarray(getattr(model, "classes_", names))
    return known.inputs.flatten(1), names.astype(classes.dtype)


def _brief(settings: Mapping[str, Any], source: str, **released: Mapping[str, Any]) -> Brief:
    """The brief that says so much, and what is released; a section says more of it in `settings`."""
    content = {**settings, "data": {**settings.get("data", {}), "source": source}}
    for name, section in released.items():
        content[name] = {**settings.get(name, {}), **section}
    return Brief.from_mapping(content).resolved()


def _folder(kind: str, brief: Brief, *digests: str) -> Path:
    """Two calls with other settings, records or models have other folders."""
    every = hashlib.sha256("".join([brief.toml(), *digests]).encode()).hexdigest()
    return Path("runs") / f"{kind}-in-memory-{every[:8]}"


# Records


def _missing(settings: Mapping[str, Any]) -> str:
    """What missing numbers of a table become."""
    data = settings.get("data", {})
    return str(data.get("missing", "")) if isinstance(data, Mapping) else ""


def _pair(given: Any) -> tuple[Any, Any]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ExhumeError("records: of a regression a pair (inputs, targets) is needed")
    return given[0], given[1]


def records_in(given: Any, what: str, progress: Progress, missing: str = "") -> tuple[Records, str]:
    """The records, and what they are called. what: begins every complaint."""
    if isinstance(given, str | Path):
        return readers.load(given, missing=missing, progress=progress), str(given)
    if isinstance(given, Records):
        return given, _RECORDS
    if isinstance(given, tuple | list) and len(given) == 2:
        inputs, labels = given
        return from_arrays(inputs, labels, what), _RECORDS
    if is_dataset(given) and not isinstance(given, np.ndarray | torch.Tensor | Mapping):
        return readers.from_dataset(given, what, progress=progress), _RECORDS
    raise ExhumeError(
        f"{what}: {type(given).__name__} given; legal are a pair (inputs, labels) of arrays or tensors, a "
        "torch Dataset, and the name or path of a set"
    )


# Code


def _named_code(code: Mapping[str, Any], *digests: str) -> str:
    """The name of a module that has this code; the same code has the same name."""
    does = digest_of_code(*code.values())
    name = f"exhume_in_memory_{hashlib.sha256(''.join([does, *digests]).encode()).hexdigest()[:12]}"
    module = ModuleType(name)
    vars(module).update(code)
    sys.modules[name] = module
    return name


def _drawn_anew(model: nn.Module) -> nn.Module:
    """A copy at fresh weights, from the global generators."""
    fresh = copy.deepcopy(model)
    for name, layer in fresh.named_modules():
        redraw = getattr(layer, "reset_parameters", None)
        own = [key for key, tensor in layer.named_parameters(recurse=False) if tensor.requires_grad]
        if callable(redraw):
            redraw()
        elif own:
            raise ExhumeError(
                f"model: {name or type(layer).__name__} has no reset_parameters, so that {own[0]} cannot be "
                "drawn anew; pass the function or class that makes the model"
            )
    return fresh


def _train_with_arrays(
    train: Callable[..., Any], model: nn.Module, records: Records, _: torch.Generator
) -> Any:
    """`train(model, inputs, labels)` as a recipe calls it; the global generators are seeded for it."""
    return train(model, records.inputs, records.labels)


def _activation(model: nn.Module, records: Records) -> str:
    """What stands between the layers. Nothing but a chain of layers is read from its tensors alone."""
    if convolution_in(model.state_dict()):
        return "relu"  # the network itself says it
    plain = recognised(ModuleArchitecture(copy.deepcopy(model).eval(), records.shape))
    if isinstance(plain, MLP):
        return plain.activation
    raise ExhumeError(
        f"model: {type(model).__name__} is not a chain of fully connected layers with one activation, and "
        "has no convolutions; with train= the way it is trained is audited instead"
    )
