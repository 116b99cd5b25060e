"""nginx in front of a server, by the configuration in docs/serve.md: what it carries is seen here."""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

from exhume.integrations.serve import Client

served = pytest.importorskip("served")
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/opt/homebrew/bin")
PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
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
    head = f"daemon off;\npid {folder}/pid;\nerror_log {folder}/log;\nevents {{}}\n"
    (folder / "nginx.conf").write_text(head + http_part)
    process = subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-e", f"{folder}/log"])
    try:
        until = time.monotonic() + served.PATIENCE
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
    connection = http.client.HTTPSConnection(
        "localhost", port, timeout=served.PATIENCE, context=context
    )
    connection.request(method, path, body, dict(headers))
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
def test_answers_come_through_it(scheme, proxy, running):
    port, certificate = proxy
    inputs = torch.rand(2, 3, 16, 16)
    here = (f"{scheme}://localhost:{port}", running[1].grpc)
    given = {"token": served.TOKEN, "authorities": certificate, "deadline": served.PATIENCE}
    with Client(running[0].folder / "client", here, **given) as client:
        torch.testing.assert_close(client(inputs), served.planted()(inputs), atol=1e-5, rtol=1e-5)


def test_the_server_behind_it_still_decides(proxy):
    assert asked(proxy, "GET", "/v2/health/live") == 200
    assert asked(proxy, "POST", served.INFER, b"{}") == 401
    assert asked(proxy, "POST", "/v2/repository/index", b"{}", served.ADMITTED) == 404
    assert asked(proxy, "GET", "/metrics") == 404
    many = b'{"inputs":[' + b"{}," * 50_000 + b"{}]}"
    assert asked(proxy, "POST", served.INFER, many, served.ADMITTED) == 400


def test_large_messages_end_at_it(proxy):
    headers = {**dict(served.ADMITTED), "content-length": str(2**30)}
    assert asked(proxy, "POST", served.INFER, None, headers.items()) == 413


@pytest.mark.parametrize("said", [b"", b"GET /v2/hea", b"half"])
def test_who_says_nothing_is_hung_up(said, proxy):
    """Before the handshake, within a header, and within a message."""
    port, certificate = proxy
    with socket.create_connection(("127.0.0.1", port), timeout=served.PATIENCE) as plain:
        if not said:
            assert not plain.recv(100)
            return
        context = ssl.create_default_context(cafile=str(certificate))
        with context.wrap_socket(plain, server_hostname="localhost") as wire:
            head = f"POST {served.INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n".encode()
            wire.sendall(head + said if said == b"half" else said)
            heard = wire.recv(100)
            assert not heard or heard.startswith(b"HTTP/1.1 408")
