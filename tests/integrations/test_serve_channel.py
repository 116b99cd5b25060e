"""What a client with a channel sends: k numbers with fresh noise, and nothing else."""

from __future__ import annotations

import os

import pytest
import torch

from exhume.core.contract import ExhumeError, Key
from exhume.integrations.serve import Client
from exhume.models.split import channel as channels
from exhume.models.split.blueprint import Blueprint
from exhume.models.split.channel import ChannelNetwork
from exhume.models.split.pipeline import Pipeline, SplitClient

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

from exhume.integrations import serve
from exhume.integrations.exporting import export_parts

served = pytest.importorskip("served")
REAL = (pytest.mark.slow, pytest.mark.serve, pytest.mark.xdist_group("serve"))

PLAN = Blueprint(ChannelNetwork(served.PLAN.network, "conv1", "pool", 6), "encode", "body")


def planted():
    parts = PLAN.split()
    for part in (parts.head, parts.body, parts.tail):
        part.requires_grad_(False).eval()
    client = SplitClient(parts.head, torch.zeros(6), (0,), parts.tail, sigma=0.5)
    return Pipeline(client, (parts.body,), "encode")


@pytest.fixture(scope="module", params=["stand-in", pytest.param("MLServer", marks=REAL)])
def running(request, tmp_path_factory):
    """A client's folder, and two servers that hold the same body."""
    folder = tmp_path_factory.mktemp("channel")
    export_parts(planted(), PLAN, folder / "client", folder / "server")
    if request.param == "stand-in":
        servers = [served.StandIn(folder) for _ in range(2)]
    elif served.server_python() is None:
        pytest.skip("no interpreter with MLServer: make test sets one up, or EXHUME_SERVE_PYTHON")
    else:
        servers = [served.Running(folder, "0") for _ in range(2)]
    for server in servers:
        server.start()
    try:
        for server in servers:
            server.wait()
        yield folder / "client", servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture
def asked(monkeypatch):
    """Everything that is sent to a server, question by question."""
    kept = []

    def question(body, version, features, request, shape):
        kept.append(features.copy())
        return real(body, version, features, request, shape)

    real = serve.BodyQuestion
    monkeypatch.setattr(serve, "BodyQuestion", question)
    return kept


def images(count):
    return torch.rand(count, 3, 16, 16, generator=Key.from_seed(0).generator())


def client_of(running, *urls):
    folder, servers = running
    return Client(folder, urls or [server.urls[0] for server in servers], deadline=60.0)


def test_the_same_logits_as_in_this_process(running, monkeypatch):
    generator = Key.from_seed(1).generator()
    noise = torch.randn(7, 6, generator=generator, dtype=torch.float64)
    monkeypatch.setattr(channels, "system_gaussian", lambda shape: noise)
    for url in running[1][0].urls:
        with client_of(running, url) as client:
            found = client(images(7))
        torch.testing.assert_close(found, planted()(images(7)), atol=1e-5, rtol=1e-5)


def test_without_the_system_s_randomness_no_server_is_asked(running, asked, monkeypatch):
    with client_of(running) as client:
        monkeypatch.setattr(os, "urandom", _fails)
        with pytest.raises(ExhumeError, match="this system gives no randomness"):
            client(images(2))
        monkeypatch.undo()
    assert not asked


def test_noise_is_fresh_for_every_request_and_never_for_a_repetition(running, asked):
    """The last test of these servers: one of them dies."""
    same = images(1).expand(3, 3, 16, 16)
    with client_of(running) as client:
        one, two = client(same), client(same)
        assert [sent.shape for sent in asked] == [(3, 6), (3, 6)]
        rows = {tuple(row) for sent in asked for row in sent.tolist()}
        assert len(rows) == 6
        assert not torch.allclose(one, two)
        running[1][0].kill()
        asked.clear()
        client(same)
        assert len(asked) > 1  # the first server, then the second
        assert all((sent == asked[0]).all() for sent in asked)


def _fails(size):
    raise OSError("the source is closed")
