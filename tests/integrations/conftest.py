"""Real MLServer processes, shared by the tests that need them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for served, in every import mode of pytest


@pytest.fixture(scope="session")
def client_folder(tmp_path_factory):
    """What a client of four bodies holds."""
    served = pytest.importorskip("served")
    from exhume.integrations.exporting import export_parts

    place = tmp_path_factory.mktemp("client")
    export_parts(served.planted(), served.PLAN, place, None)
    return place


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    """A folder with an exported pipeline, and two servers that hold half of its bodies each."""
    pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    served = pytest.importorskip("served")
    if served.server_python() is None:
        pytest.skip("no interpreter with MLServer: make test sets one up, or EXHUME_SERVE_PYTHON")
    from exhume.integrations.exporting import export_parts

    folder = tmp_path_factory.mktemp("deployed")
    export_parts(served.planted(), served.PLAN, folder / "client", folder / "server")
    servers = [served.Running(folder, only) for only in ("0-1", "2,3")]
    for server in servers:
        server.start()
    try:
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()
