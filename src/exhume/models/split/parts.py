"""A trained split network on disk: one client part, and one part for every body, each with a manifest.

    client/  manifest.json, client.safetensors     head, noise, selector, tail; for its owner's eyes only
    server/  body0/  manifest.json, body.safetensors
             body1/  …

A body's folder says which network it is a piece of, and nothing about the client: its bytes are the same for
every selection. The client's manifest has the checksums of its bodies, so that another body is noticed.
Manifests are small JSON files that say what the weights beside them are; both are checked before use.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from exhume.core.contract import ExhumeError
from exhume.models.split.blueprint import Blueprint
from exhume.models.split.channel import ChannelNetwork
from exhume.models.split.pipeline import Pipeline, SplitClient
from exhume.store.shards import write_atomically

CLIENT, BODY = "client.safetensors", "body.safetensors"
MANIFEST = "manifest.json"
_SCHEMA = 1
_NEEDED = {"network": dict, "first": str, "second": str, "sha256": str}
_MORE: dict[str, dict[str, type]] = {
    "split client": {"bodies": list},
    "split body": {"index": int},
}  # by kind


@dataclass(frozen=True, eq=False)
class KeptBody:
    """One body as a server holds it."""

    module: nn.Module
    blueprint: Blueprint
    feature: tuple[int, ...]  # shape of what it is sent for one input
    answer: tuple[int, ...]
    sha256: str  # of its file of weights
    index: int


@dataclass(frozen=True, eq=False)
class KeptClient:
    """The client's part, and what it knows of its bodies."""

    client: SplitClient
    blueprint: Blueprint
    feature: tuple[int, ...]
    answer: tuple[int, ...]
    bodies: tuple[str, ...]  # checksums, in order


def save_pipeline(pipeline: Pipeline, blueprint: Blueprint, client: Path, server: Path) -> None:
    """Write both sides, each into a new or empty folder."""
    save_server(pipeline, blueprint, server)
    save_client(pipeline, blueprint, client)


def save_server(pipeline: Pipeline, blueprint: Blueprint, folder: Path) -> None:
    """The bodies, each in a folder of its own. Nothing here depends on the selector."""
    _fits(pipeline, blueprint)
    empty_folder(folder, mode=0o755)
    for index, body in enumerate(pipeline.bodies):
        place = folder / f"body{index}"
        place.mkdir()
        content = save(_plain(body.state_dict()))
        write_atomically(place / BODY, content, mode=0o644)
        _write_manifest(place, "split body", {"index": index}, blueprint, content, mode=0o644)


def save_client(pipeline: Pipeline, blueprint: Blueprint, folder: Path) -> None:
    """Head, noise, selector and tail. The folder is its owner's only."""
    _fits(pipeline, blueprint)
    empty_folder(folder, mode=0o700)
    client = pipeline.client
    state = _plain(
        {f"head.{n}": t for n, t in client.head.state_dict().items()}
        | {f"tail.{n}": t for n, t in client.tail.state_dict().items()}
        | {"noise": client.noise, "selected": torch.tensor(client.selected)}
        | ({"sigma": torch.tensor(client.sigma, dtype=torch.float64)} if client.sigma else {})
    )
    content = save(state)
    write_atomically(folder / CLIENT, content)
    sums = [checksum(save(_plain(body.state_dict()))) for body in pipeline.bodies]
    _write_manifest(folder, "split client", {"bodies": sums}, blueprint, content, mode=0o600)


def load_client(folder: Path, *, factory: str = "") -> KeptClient:
    """The client's part, if it is whole and nobody else can read it.

    factory: allows a network of the user's own, by the name that the manifest gives.
    """
    owned(folder, (CLIENT,))
    manifest = _read_manifest(folder, "split client")
    blueprint = Blueprint.read(manifest, str(folder), factory=factory)
    state, _ = _read_part(folder / CLIENT, manifest)
    sums = manifest["bodies"]
    selected = tuple(int(i) for i in state.pop("selected", torch.zeros(0)).tolist())
    _selectable(selected, len(sums), folder)
    noise = state.pop("noise", torch.zeros(()))
    sigma = _fresh(state.pop("sigma", torch.zeros(())), blueprint, folder)
    parts = blueprint.split()
    head, tail = parts.head, blueprint.tail(len(selected))
    _put(head, _under("head.", state), folder, blueprint)
    _put(tail, _under("tail.", state), folder, blueprint)
    feature, answer = blueprint.shapes(parts)
    if tuple(noise.shape) != feature:
        raise ExhumeError(
            f"{folder}: the noise map has shape {tuple(noise.shape)}, features after "
            f"{blueprint.first!r} have {feature}"
        )
    client = SplitClient(_still(head), noise, selected, _still(tail), sigma)
    return KeptClient(client, blueprint, feature, answer, tuple(str(s) for s in sums))


def load_body(folder: Path, *, factory: str = "") -> KeptBody:
    """One body from its folder."""
    manifest = _read_manifest(folder, "split body")
    blueprint = Blueprint.read(manifest, str(folder), factory=factory)
    state, sha256 = _read_part(folder / BODY, manifest)
    parts = blueprint.split()
    _put(parts.body, state, folder, blueprint)
    feature, answer = blueprint.shapes(parts)
    return KeptBody(_still(parts.body), blueprint, feature, answer, sha256, int(manifest["index"]))


def load_bodies(
    server: Path, *, only: Sequence[int] | None = None, factory: str = ""
) -> tuple[KeptBody, ...]:
    """The bodies in a server's folder, in order; only: some of them."""
    indices = bodies_in(server)
    wanted = indices if only is None else list(only)
    if not wanted:
        raise ExhumeError(f"server: {server} holds no body; export one there first")
    for index in wanted:
        if index not in indices:
            held = ", ".join(f"body{n}" for n in indices)
            raise ExhumeError(f"server: {server} has no body{index}; there are {held or 'none'}")
    return tuple(load_body(server / f"body{index}", factory=factory) for index in wanted)


def bodies_in(server: Path) -> list[int]:
    """The numbers of the bodies in a server's folder, in order."""
    return sorted(
        int(match.group(1))
        for place in (server.iterdir() if server.is_dir() else ())
        if (match := re.fullmatch(r"body(\d+)", place.name))
    )


def load_pipeline(client: Path, server: Path, *, factory: str = "") -> Pipeline:
    """Client and bodies as one, if they belong together."""
    kept = load_client(client, factory=factory)
    bodies = load_bodies(server, only=range(len(kept.bodies)), factory=factory)
    for body, wanted in zip(bodies, kept.bodies, strict=True):
        theirs, ours = body.blueprint, kept.blueprint
        if theirs != ours:
            raise ExhumeError(
                f"server: body{body.index} is a piece of {theirs.network} cut at {theirs.first!r} and "
                f"{theirs.second!r}, the client's network is {ours.network} cut at {ours.first!r} and "
                f"{ours.second!r}"
            )
        if body.sha256 != wanted:
            raise ExhumeError(
                f"server: body{body.index} is not the one that this client was trained with"
            )
    return Pipeline(kept.client, tuple(body.module for body in bodies), kept.blueprint.first)


# Pieces


def _plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: state[name].detach().cpu().contiguous().clone() for name in sorted(state)}


def _fits(pipeline: Pipeline, blueprint: Blueprint) -> None:
    if pipeline.cut != blueprint.first:
        raise ExhumeError(
            f"split: the pipeline was cut after {pipeline.cut!r}, the blueprint says {blueprint.first!r}"
        )
    _selectable(pipeline.client.selected, len(pipeline.bodies), "pipeline")
    _fresh(torch.tensor(pipeline.client.sigma), blueprint, "pipeline")


def _selectable(selected: tuple[int, ...], bodies: int, where: Path | str) -> None:
    """P of N, each once, ascending."""
    if len(selected) > bodies:
        raise ExhumeError(f"{where}: {len(selected)} bodies are selected and there are {bodies}")
    ascending = list(selected) == sorted(set(selected))
    if not selected or not ascending or selected[0] < 0 or selected[-1] >= bodies:
        raise ExhumeError(f"{where}: the selector is no choice of {bodies} bodies")


def _fresh(sigma: Tensor, blueprint: Blueprint, folder: Path | str) -> float:
    """Size of the noise of every request: a channel has some, and nothing else has."""
    value = float(sigma) if sigma.numel() == 1 else math.nan
    channel = isinstance(blueprint.network, ChannelNetwork)
    if channel and not 0 < value < math.inf:
        raise ExhumeError(
            f"{folder}: a channel needs fresh noise above 0, the folder has {value:g}; without it the client "
            "must not be used"
        )
    if value and not channel:
        raise ExhumeError(f"{folder}: fresh noise without a channel guarantees nothing")
    return value


def _put(
    module: nn.Module, state: Mapping[str, Tensor], folder: Path, blueprint: Blueprint
) -> None:
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if own != given:
        odd = sorted(name for name in {*own, *given} if own.get(name) != given.get(name))[0]
        raise ExhumeError(
            f"{folder}: the weights are those of another network or split: {odd} has shape "
            f"{given.get(odd, 'none')}, {blueprint.network} cut at {blueprint.first!r} and "
            f"{blueprint.second!r} has {own.get(odd, 'none')}"
        )
    module.load_state_dict(dict(state))


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def _still(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False).eval()


# Manifests


def empty_folder(folder: Path, *, mode: int) -> None:
    """Make it; one that already holds something is left alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
        if any(folder.iterdir()):
            raise ExhumeError(f"{folder}: holds files already; choose a new or empty folder")
        folder.chmod(mode)
    except OSError as error:
        raise ExhumeError(f"cannot write to {folder}: {error.strerror or error}") from error


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_manifest(
    folder: Path,
    kind: str,
    more: Mapping[str, Any],
    blueprint: Blueprint,
    content: bytes,
    *,
    mode: int,
) -> None:
    about = {"schema": _SCHEMA, "kind": kind, **more, **blueprint.written()}
    text = json.dumps({**about, "sha256": checksum(content)}, indent=2, sort_keys=True)
    write_atomically(folder / MANIFEST, f"{text}\n".encode(), mode=mode)


def _read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest of a folder, of this kind, with all fields that it needs."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ExhumeError(f"{folder}: there is no {MANIFEST}, so this is no exported {kind}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as damage:
        raise ExhumeError(f"{path}: not readable as JSON ({damage})") from None
    if not isinstance(content, dict) or content.get("schema") != _SCHEMA:
        raise ExhumeError(f"{path}: this version reads manifests of schema {_SCHEMA}")
    if content.get("kind") != kind:
        raise ExhumeError(f"{path}: describes a {content.get('kind')!r}, a {kind!r} is needed")
    for name, wanted in {**_NEEDED, **_MORE[kind]}.items():
        if not isinstance(content.get(name), wanted):
            raise ExhumeError(f"{path}: {name!r} is missing or no {wanted.__name__}")
    return content


def _read_part(path: Path, manifest: Mapping[str, Any]) -> tuple[dict[str, Tensor], str]:
    """The tensors of a part and its checksum, if that is the manifest's."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ExhumeError(f"{path}: is missing, though the manifest names it") from None
    except OSError as error:
        raise ExhumeError(f"{path}: cannot be read ({error.strerror or error})") from error
    sha256 = checksum(content)
    if sha256 != manifest["sha256"]:
        raise ExhumeError(f"{path}: was altered or damaged; its checksum is not the manifest's")
    try:
        return load(content), sha256
    except (SafetensorError, ValueError) as error:
        raise ExhumeError(f"{path}: is no safetensors file ({error})") from error


def owned(folder: Path, names: Sequence[str]) -> None:
    """Refuse a client's folder that anybody else can look into: it holds the selector."""
    if not folder.is_dir():
        raise ExhumeError(f"client: there is no folder {folder}")
    for path in (folder, *(folder / name for name in (MANIFEST, *names))):
        mode = path.stat().st_mode & 0o777 if path.exists() else 0
        if mode & 0o077:
            private = "700" if path.is_dir() else "600"
            raise ExhumeError(
                f"client: others can read {path} (mode {mode:o}), and it holds the selector: "
                f"chmod {private} {path}"
            )
