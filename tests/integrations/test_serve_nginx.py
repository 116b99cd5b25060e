"""nginx in front of a server, by the configuration in docs/serve.md: what it keeps away from MLServer."""

from __future__ import annotations

import contextlib
import http.client
import queue
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

import grpc

from exhume.core.contract import ExhumeError
from exhume.integrations.serve import Client

served = pytest.importorskip("served")
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/bin")
PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
TOKEN, INFER, SERVICE, PATIENCE = served.TOKEN, served.INFER, served.SERVICE, served.PATIENCE
ADMITTED = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
pytestmark = [
    pytest.mark.serve,
    pytest.mark.xdist_group("serve"),
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl"),
]


def printed() -> str:
    """The configuration on the page."""
    (found,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    return found


@pytest.fixture(scope="module")
def proxy(running, tmp_path_factory):
    """Its port and certificate, in front of the first of the two servers."""
    folder = tmp_path_factory.mktemp("nginx")
    command = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (folder / "token").write_text(f'"Bearer {TOKEN}" 0;\n')
    port, own = served.free_ports(), running[0].port
    site = printed()
    for ours, theirs in (
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("127.0.0.1:8080", f"127.0.0.1:{own}"),
        ("127.0.0.1:8081", f"127.0.0.1:{own + 1}"),
        ("/etc/exhume", str(folder)),
        ("client_header_timeout 5s", "client_header_timeout 1s"),
        ("client_body_timeout 10s", "client_body_timeout 1s"),
    ):
        assert ours in site
        site = site.replace(ours, theirs)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    http_part = f"http {{\naccess_log off;\n{places}{site}}}\n"
    head = f"daemon off;\npid {folder}/pid;\nerror_log {folder}/log;\n"
    head += "events { worker_connections 2048; }\n"
    (folder / "nginx.conf").write_text(head + http_part)
    process = subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-e", f"{folder}/log"])
    try:
        until = time.monotonic() + PATIENCE
        while served._free(port):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        yield port, folder / "cert.pem"
    finally:
        process.terminate()
        process.wait()


def asked(proxy, method, path, body=None, headers=()):
    """One request through the proxy: its status."""
    port, certificate = proxy
    context = ssl.create_default_context(cafile=str(certificate))
    connection = http.client.HTTPSConnection("localhost", port, timeout=PATIENCE, context=context)
    connection.request(method, path, body, dict(headers))
    status = connection.getresponse().status
    connection.close()
    return status


@contextlib.contextmanager
def channel(proxy):
    port, certificate = proxy
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    with grpc.secure_channel(f"localhost:{port}", credentials) as opened:
        yield opened


def called(proxy, method, raw=b"", metadata=served.ADMITTED, **more):
    """One call through the proxy: its status."""
    with channel(proxy) as opened:
        try:
            opened.unary_unary(method)(raw, metadata=metadata, timeout=PATIENCE, **more)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


def client_of(proxy, running, token=TOKEN):
    port, certificate = proxy
    places = (f"grpcs://localhost:{port}", running[1].grpc)
    given = {"token": token, "authorities": certificate, "deadline": PATIENCE}
    return Client(running[0].folder / "client", places, **given)


def answers(proxy, running):
    inputs = torch.rand(2, 3, 16, 16)
    with client_of(proxy, running) as client:
        torch.testing.assert_close(client(inputs), served.planted()(inputs), atol=1e-5, rtol=1e-5)


def test_answers_come_through_it(proxy, running):
    answers(proxy, running)
    with (
        client_of(proxy, running, "wrong") as client,
        pytest.raises(ExhumeError, match=r"refuses \(UNAUTHENTICATED: "),
    ):
        client(torch.rand(1, 3, 16, 16))


def test_without_a_token_only_health_is_answered(proxy):
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}):
        assert asked(proxy, "POST", INFER, b"{}", headers.items()) == 401
        unread = {**headers, "content-length": str(2**23)}
        assert asked(proxy, "POST", INFER, None, unread.items()) == 401
        assert asked(proxy, "GET", "/v2/models/body0", None, headers.items()) == 401
        for method in ("ModelInfer", "ModelMetadata"):
            metadata = tuple(headers.items())
            assert called(proxy, f"{SERVICE}/{method}", b"", metadata) == "UNAUTHENTICATED"
    assert asked(proxy, "GET", "/v2/health/live") == 200
    assert called(proxy, f"{SERVICE}/ServerReady", b"", ()) == "OK"


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/models/body0/unload",
        "/v2/repository/index",
        "/v2/models/body0/generate",
        "/v2/models/body0/infer_stream",
        "/v2/models/../repository/models/body0/unload",
        "/v2/models/body0/%2e%2e/%2e%2e/repository/models/body0/unload",
        "/v2/docs",
        "/metrics",
        "/",
    ],
)
def test_other_doors_are_shut(path, proxy):
    assert asked(proxy, "POST", path, b"{}", ADMITTED) == 404
    assert asked(proxy, "GET", "/v2/models/body0/ready", None, ADMITTED) == 200


def test_calls_that_are_not_passed_on(proxy):
    repository = "/inference.model_repository.ModelRepositoryService/RepositoryModelUnload"
    for method in (f"{SERVICE}/RepositoryModelUnload", f"{SERVICE}/ModelStreamInfer", repository):
        assert called(proxy, method) == "UNIMPLEMENTED"


def test_large_and_packed_messages_end_at_it(proxy, running):
    before = running[0].resident()
    large = {**ADMITTED, "content-length": str(2**30)}
    assert asked(proxy, "POST", INFER, None, large.items()) == 413
    packed = {**ADMITTED, "content-encoding": "gzip"}
    assert asked(proxy, "POST", INFER, served.bomb(128), packed.items()) == 415
    bomb = b"\x00" * 50_000_000
    found = called(proxy, f"{SERVICE}/ModelInfer", bomb, compression=grpc.Compression.Gzip)
    assert found not in ("OK", "INTERNAL")
    assert running[0].resident() - before < 2**25
    answers(proxy, running)


@pytest.mark.parametrize("said", [b"", b"GET /v2/hea", b"half"])
def test_who_says_nothing_is_hung_up(said, proxy):
    """Before the handshake, within a header, and within a message."""
    port, certificate = proxy
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
        if not said:
            assert not plain.recv(100)
            return
        context = ssl.create_default_context(cafile=str(certificate))
        with context.wrap_socket(plain, server_hostname="localhost") as wire:
            head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
            half = f"{head}content-length: 9\r\n\r\nhalf".encode()
            wire.sendall(half if said == b"half" else said)
            heard = wire.recv(100)
            assert not heard or heard.startswith(b"HTTP/1.1 408")


def test_silent_connections_and_calls_of_strangers_shut_nobody_out(proxy, running):
    ended, statuses = threading.Event(), queue.Queue()

    def nothing():
        ended.wait()
        yield from ()

    with channel(proxy) as opened, contextlib.ExitStack() as silent:
        for _ in range(600):
            silent.enter_context(socket.create_connection(("127.0.0.1", proxy[0]), PATIENCE))
        method = opened.stream_unary(f"{SERVICE}/ModelInfer")
        for _ in range(20):
            call = method.future(nothing(), timeout=PATIENCE)
            call.add_done_callback(lambda done: statuses.put(done.code().name))
        refused = {"UNAUTHENTICATED", "INTERNAL"}  # the latter: hung up before the status was read
        assert {statuses.get(timeout=PATIENCE) for _ in range(20)} <= refused
        answers(proxy, running)
        ended.set()


def test_websockets_are_refused(proxy):
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    assert asked(proxy, "GET", "/v2/models/body0", None, upgrade.items()) == 401
