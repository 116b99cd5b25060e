from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from exhume.core.contract import ExhumeError
from exhume.integrations.exporting import export_onnx, export_parts

served = pytest.importorskip("served")
PLAN, planted = served.PLAN, served.planted


@pytest.mark.slow
def test_a_body_as_onnx_answers_the_same(tmp_path):
    """That it knows no selector follows: it is made of a server folder that knows none."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    import onnxruntime

    whole = planted((0,), bodies=1)
    export_parts(whole, PLAN, tmp_path / "client", tmp_path / "server")
    export_onnx(tmp_path / "server", tmp_path / "triton")
    (path,) = (tmp_path / "triton" / "body0").glob("*/model.onnx")
    assert path.parent.name.isdigit()
    assert b"/site-packages/" not in path.read_bytes()
    features = np.random.default_rng(0).standard_normal((5, 4, 8, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(["answer"], {"features": features})
    wanted = whole.bodies[0](torch.from_numpy(features))
    torch.testing.assert_close(torch.from_numpy(found), wanted, atol=1e-4, rtol=1e-4)
    config = (tmp_path / "triton" / "body0" / "config.pbtxt").read_text()
    assert 'name: "features" data_type: TYPE_FP32 dims: [ 4, 8, 8 ]' in config


def test_without_onnx(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ExhumeError, match=r"onnx: .*; pip install 'exhume\[onnx\]'"):
        export_onnx(tmp_path, tmp_path / "triton")
