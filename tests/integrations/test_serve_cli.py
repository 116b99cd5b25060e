"""`exhume export` and `exhume serve`: what they write and what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from exhume.cli import app
from exhume.core.contract import Key
from exhume.integrations.exporting import export_parts, export_run, version_of
from exhume.models.split.blueprint import Blueprint, OwnNetwork
from exhume.models.split.parts import load_pipeline, save_pipeline
from exhume.models.split.pipeline import undefended

served = pytest.importorskip("served")
PLAN, planted = served.PLAN, served.planted


def test_a_run_is_exported_as_two_folders(tmp_path):
    run = tmp_path / "run"
    save_pipeline(planted(), PLAN, run / "defence" / "client", run / "defence" / "server")
    client, server = tmp_path / "client", tmp_path / "server"
    told = CliRunner().invoke(
        app, ["export", str(run), "--client", str(client), "--server", str(server)]
    )
    assert told.exit_code == 0, told.output
    x = torch.rand(3, 3, 16, 16)
    assert torch.equal(load_pipeline(client, server)(x), planted()(x))
    settings = json.loads((server / "body2" / "model-settings.json").read_text())
    sha256 = json.loads((server / "body2" / "manifest.json").read_text())["sha256"]
    assert settings["name"] == "body2"
    assert settings["versions"] == [settings["parameters"]["version"]] == [version_of(sha256)]
    assert settings["inputs"][0]["shape"] == [-1, 4, 8, 8]
    assert 0 < int(version_of("f" * 64)) < 2**63  # Triton's versions are positive 64-bit numbers
    again = CliRunner().invoke(app, ["export", str(run), "--client", str(client)])
    assert again.exit_code == 2
    assert "holds files already" in again.output
    alone = ["export", str(run), "--client", str(tmp_path / "c"), "--onnx", str(tmp_path / "o")]
    assert "--onnx: give --server too" in CliRunner().invoke(app, alone).output


def test_the_owners_factory_is_taken_along(tmp_path):
    factory = f"{Path(__file__).parents[2] / 'tests' / 'defences' / 'test_split_parts.py'}:small"
    plan = Blueprint(OwnNetwork(factory, (1, 8, 8)), "0", "2")
    whole = undefended(plan.network.module(Key.from_seed(0)), "0", "2", (1, 8, 8))
    run = tmp_path / "run"
    save_pipeline(whole, plan, run / "defence" / "client", run / "defence" / "server")
    export_run(run, tmp_path / "client", tmp_path / "server")
    settings = json.loads((tmp_path / "server" / "body0" / "model-settings.json").read_text())
    assert settings["parameters"]["extra"] == {"factory": factory}


def test_a_run_without_a_defence(tmp_path):
    told = CliRunner().invoke(app, ["export", str(tmp_path), "--client", str(tmp_path / "c")])
    assert told.exit_code == 2
    assert "holds no trained defence; run exhume audit-split with --defend" in told.output


SCRIPT = """
import json, sys
from typer.testing import CliRunner
from exhume.cli import app
told = [CliRunner().invoke(app, ["serve", *case]) for case in json.load(sys.stdin)]
print(json.dumps([[one.exit_code, one.output] for one in told]))
"""


@pytest.mark.slow
@pytest.mark.serve
@pytest.mark.xdist_group("serve")
def test_what_is_not_served(tmp_path):
    if served.server_python() is None:
        pytest.skip("no interpreter with MLServer: make test sets one up")
    server = tmp_path / "server"
    export_parts(planted(), PLAN, tmp_path / "client", server)
    part = server / "body3" / "body.safetensors"
    part.write_bytes(part.read_bytes() + b" ")
    (server / "body2" / "model-settings.json").unlink()
    settings = server / "body1" / "model-settings.json"
    settings.write_text(settings.read_text().replace("mlserver_body.Body", "mlserver_body.Other"))
    settings = server / "body0" / "model-settings.json"
    settings.write_text(settings.read_text().replace('"body0"', '"other"'))
    cases = {
        ("--only", "0-x"): "is not a list of bodies such as 3,17,40-43 or 0:100",
        ("--only", "0,7"): "has no body7",
        ("--only", "2"): "model-settings.json is missing; write the folder with exhume export",
        ("--only", "3"): "altered or damaged",
        ("--only", "1"): "names another runtime than exhume.integrations.mlserver_body.Body",
        ("--only", "3-1"): "no body is named",
        ("--only", "0"): "names another model than body0",
        ("--port", "70000"): "port: 70000 given, legal is 1 to 65533",
        ("--host", "0.0.0.0"): "neither a token nor TLS nor limits: put nginx in front",
        ("--host", "somewhere"): "somewhere is reached from other machines",
        ("--host", "0.0.0.0", "--insecure", "--only", "7"): "has no body7",
        ("--host", "::1", "--only", "7"): "has no body7",
        ("--host", "127.0.0.3", "--only", "7"): "has no body7",
    }
    given = [[str(server), *case] for case in cases] + [[str(tmp_path / "client")]]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [served.server_python(), "-c", SCRIPT],
        input=json.dumps(given),
        text=True,
        capture_output=True,
        env=environment,
        check=True,
        timeout=600,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    for (code, said), sentence in zip(found, [*cases.values(), "holds no body"], strict=True):
        assert (code, sentence in said) == (2, True), said
