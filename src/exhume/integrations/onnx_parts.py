"""Bodies as ONNX, in the folders that Triton serves. They know no selector, like all that a server gets."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from exhume.core.contract import ExhumeError
from exhume.integrations.exporting import version_of
from exhume.models.split.manifest import empty_folder
from exhume.models.split.parts import KeptBody, load_bodies
from exhume.store.shards import write_atomically

_MOST = 256  # records of one request, as for MLServer


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
        write_atomically(place.parent / "config.pbtxt", _settings(body).encode(), mode=0o644)


def _write(body: KeptBody, path: Path) -> None:
    sample = torch.zeros(2, *body.feature)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about its own workings
        made = torch.onnx.export(
            body.module,
            (sample,),
            input_names=["features"],
            output_names=["answer"],
            dynamic_shapes=({0: torch.export.Dim("n", min=1, max=_MOST)},),
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


def _settings(body: KeptBody) -> str:
    def tensor(name: str, shape: tuple[int, ...]) -> str:
        dims = ", ".join(map(str, shape))
        return f'[ {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ] }} ]'

    return (
        f'name: "body{body.index}"\n'
        'platform: "onnxruntime_onnx"\n'
        f"max_batch_size: {_MOST}\n"
        f"input {tensor('features', body.feature)}\n"
        f"output {tensor('answer', body.answer)}\n"
        "version_policy: { all { } }\n"
    )
