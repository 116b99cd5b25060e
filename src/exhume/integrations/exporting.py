"""A trained defence as it is deployed: the client's folder, and its bodies in folders of MLServer or Triton.

Bodies know no selector, like all that a server gets.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch

from exhume.core.contract import ExhumeError
from exhume.models.split.blueprint import Blueprint, OwnNetwork, plain_network
from exhume.models.split.parts import (
    KeptBody,
    empty_folder,
    load_bodies,
    load_client,
    load_pipeline,
    save_client,
    save_server,
)
from exhume.models.split.pipeline import Pipeline
from exhume.store.shards import write_atomically

MOST = 256  # records of one request
RUNTIME = "exhume.integrations.mlserver_body.Body"


def export_run(run: Path, client: Path, server: Path | None) -> str:
    """From a run of `exhume audit-split --defend …`; returns the name of the owner's factory, if any.

    Without a server folder, the client's part alone.
    """
    kept = run / "defence"
    if not kept.is_dir():
        raise ExhumeError(
            f"export: {run} holds no trained defence; run exhume audit-split with --defend"
        )
    factory = _factory(kept / "client" / "manifest.json")
    pipeline = load_pipeline(kept / "client", kept / "server", factory=factory)
    blueprint = load_client(kept / "client", factory=factory).blueprint
    export_parts(pipeline, blueprint, client, server)
    return factory


def export_parts(
    pipeline: Pipeline, blueprint: Blueprint, client: Path, server: Path | None
) -> None:
    """Write both sides into new or empty folders; nothing in the server's depends on the selector."""
    for folder in filter(None, (client, server)):
        if folder.exists() and any(folder.iterdir()):
            raise ExhumeError(f"{folder}: holds files already; choose a new or empty folder")
    if server is not None:
        save_server(pipeline, blueprint, server)
        network = plain_network(blueprint.network)
        factory = network.factory if isinstance(network, OwnNetwork) else ""
        for body in load_bodies(server, factory=factory):
            text = json.dumps(_settings(body, factory), indent=2, sort_keys=True)
            path = server / f"body{body.index}" / "model-settings.json"
            write_atomically(path, f"{text}\n".encode(), mode=0o644)
    save_client(pipeline, blueprint, client)


def version_of(sha256: str) -> str:
    """A model's version on the server: a number, as Triton wants it, that names the weights."""
    return str(int(sha256[:15], 16))


def _settings(body: KeptBody, factory: str) -> dict[str, object]:
    return {
        "name": f"body{body.index}",
        "implementation": RUNTIME,
        "parameters": {
            "uri": "./body.safetensors",
            "version": version_of(body.sha256),
            "extra": {"factory": factory} if factory else {},
        },
        "inputs": [{"name": "features", "datatype": "FP32", "shape": [-1, *body.feature]}],
        "versions": [version_of(body.sha256)],
        "outputs": [{"name": "answer", "datatype": "FP32", "shape": [-1, *body.answer]}],
    }


def _factory(manifest: Path) -> str:
    """The owner's factory, which the owner's own run folder may name."""
    try:
        named = json.loads(manifest.read_text(encoding="utf-8"))["network"]
        return str(named.get("network", named).get("factory", ""))  # behind a channel: within it
    except (OSError, ValueError, KeyError, AttributeError):
        return ""  # what is wrong with the folder is said where it is read


# ONNX, in the folders that Triton serves


def export_onnx(server: Path, folder: Path, *, factory: str = "") -> None:
    """The bodies of an exported server folder as a Triton model repository, in a new or empty folder."""
    try:
        import onnx  # noqa: F401 - the exporter needs both, and says it in many words
        import onnxscript  # noqa: F401
    except ImportError as missing:
        raise ExhumeError(f"onnx: {missing}; pip install 'exhume[onnx]'") from missing
    bodies = load_bodies(server, factory=factory)
    empty_folder(folder, mode=0o755)
    for body in bodies:
        place = folder / f"body{body.index}" / version_of(body.sha256)
        place.mkdir(parents=True)
        _write(body, place / "model.onnx")
        write_atomically(place.parent / "config.pbtxt", _triton_settings(body).encode(), mode=0o644)


def _write(body: KeptBody, path: Path) -> None:
    sample = torch.zeros(2, *body.feature)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about its own workings
        made = torch.onnx.export(
            body.module,
            (sample,),
            input_names=["features"],
            output_names=["answer"],
            dynamic_shapes=({0: torch.export.Dim("n", min=1, max=MOST)},),
            dynamo=True,
            verbose=False,
        )
    assert made is not None  # what the new exporter returns
    _forget_paths(made.model)
    made.save(str(path))


def _forget_paths(model: object) -> None:
    """The exporter writes down where the code lies on this machine; nobody needs to know."""
    graph = getattr(model, "graph", None)
    for node in graph if graph is not None else ():
        node.metadata_props.clear()


def _triton_settings(body: KeptBody) -> str:
    def tensor(name: str, shape: tuple[int, ...]) -> str:
        dims = ", ".join(map(str, shape))
        return f'[ {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ] }} ]'

    return (
        f'name: "body{body.index}"\n'
        'platform: "onnxruntime_onnx"\n'
        f"max_batch_size: {MOST}\n"
        f"input {tensor('features', body.feature)}\n"
        f"output {tensor('answer', body.answer)}\n"
        "version_policy: { all { } }\n"
    )
