"""A trained reconstructor as one file: safetensors, its settings as JSON in the header, never a pickle.

A file is believed only if its format, its settings, its content's digest and every tensor's name,
type and shape are what this reconstructor must have.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from exhume.attacks.informed.experience import Experience
from exhume.attacks.informed.features import Features
from exhume.attacks.informed.learner import Training
from exhume.attacks.informed.reconn import FittedRecoNN, RecoNN
from exhume.core.contract import ExhumeError, Key
from exhume.models.reconstructors import Deconv, Dense
from exhume.store.shards import digest, write_atomically

__all__ = ["load_reconstructor", "save_reconstructor"]

_FORMAT = "exhume reconstructor 2"
_NETWORKS: dict[str, Callable[..., Dense | Deconv]] = {"Dense": Dense, "Deconv": Deconv}


def save_reconstructor(fitted: FittedRecoNN, path: Path) -> None:
    """All or nothing; readable by its owner only, since it tells about the shadow records."""
    tensors = {f"network.{name}": t for name, t in fitted.network.state_dict().items()}
    features = fitted.features
    tensors |= {
        "base": features.base,
        "columns": features.columns,
        "centre": features.centre,
        "scale": features.scale,
        "drawn": fitted.experience.drawn,
        "errors": fitted.experience.errors,
    }
    if features.basis is not None:
        tensors["basis"] = features.basis
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {
        "attack": asdict(fitted.attack) | {"network": _described(fitted.attack)},
        "shape": fitted.shape,
        "observed": fitted.observed,
    }
    header = {"format": _FORMAT, "about": json.dumps(about), "digest": _content(plain)}
    write_atomically(path, save(plain, header))


def load_reconstructor(path: Path) -> FittedRecoNN:
    """What `save_reconstructor` wrote, on the CPU."""
    tensors, header = _open(path)
    if header.get("format") != _FORMAT:
        raise _refused(path, f"its format is not {_FORMAT!r}")
    if header.get("digest") != _content(tensors):
        raise _refused(path, "its content differs from what was written")
    try:
        about = json.loads(header["about"])
        attack = _attack(about["attack"])
        shape = tuple(int(size) for size in about["shape"])
        observed = {str(name): float(value) for name, value in about["observed"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refused(path, f"its settings cannot be read: {error!r}") from error
    features = _features(path, attack, tensors)
    network = attack.network.build(features.size, shape, Key.from_seed(0))
    weights = {
        n.removeprefix("network."): t for n, t in tensors.items() if n.startswith("network.")
    }
    expected = {name: (tuple(t.shape), t.dtype) for name, t in network.state_dict().items()}
    if {name: (tuple(t.shape), t.dtype) for name, t in weights.items()} != expected:
        raise _refused(path, f"its weights are not those of {attack.network}")
    network.load_state_dict(weights)
    network.requires_grad_(False).eval()
    experience = _experience(path, shape, tensors)
    return FittedRecoNN(attack, features, network, shape, experience, observed)


def _open(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _refused(path, str(error)) from error
    return tensors, header


def _described(attack: RecoNN) -> dict[str, Any]:
    return {"type": type(attack.network).__name__, **asdict(attack.network)}


def _attack(about: dict[str, Any]) -> RecoNN:
    network = dict(about["network"])
    made = _NETWORKS[network.pop("type")]
    lists = {name: tuple(v) if isinstance(v, list) else v for name, v in network.items()}
    rest = {name: value for name, value in about.items() if name not in ("network", "training")}
    return RecoNN(network=made(**lists), training=Training(**about["training"]), **rest)


def _features(path: Path, attack: RecoNN, tensors: dict[str, Tensor]) -> Features:
    wanted = {"base", "columns", "centre", "scale", "drawn", "errors"} | (
        {"basis"} if attack.span else set()
    )
    others = {name for name in tensors if not name.startswith("network.")}
    if others != wanted:
        raise _refused(path, f"it holds {sorted(others)} instead of {sorted(wanted)}")
    base, columns = tensors["base"], tensors["columns"]
    count = len(columns)
    sizes = {name: tuple(tensors[name].shape) for name in ("centre", "scale")}
    legal = (
        base.ndim == columns.ndim == 1
        and columns.dtype == torch.int64
        and set(sizes.values()) == {(count,)}
        and (count == 0 or (int(columns.min()) >= 0 and int(columns.max()) < len(base)))
        and (not attack.span or tensors["basis"].shape[0] == count)
    )
    if not legal:
        raise _refused(path, "its scaler's shapes do not fit together")
    basis = tensors.get("basis")
    return Features(attack.inputs, base, columns, tensors["centre"], tensors["scale"], basis)


def _experience(path: Path, shape: tuple[int, ...], tensors: dict[str, Tensor]) -> Experience:
    drawn, errors = tensors["drawn"], tensors["errors"]
    if not len(errors) or errors.ndim != 1 or drawn.shape != (len(errors), *shape):
        raise _refused(path, "its reconstructions of held-out shadows do not fit its errors")
    return Experience(drawn, errors)


def _content(tensors: dict[str, Tensor]) -> str:
    return json.dumps({name: digest(tensors[name]) for name in sorted(tensors)})


def _refused(path: Path, why: str) -> ExhumeError:
    return ExhumeError(f"{path}: this is no reconstructor that can be used ({why})")
