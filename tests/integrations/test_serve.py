"""A split network on real MLServer processes: right answers, lost servers, what the wire shows."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from exhume.core.contract import ExhumeError

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

from tritonclient.grpc import service_pb2

from exhume.integrations.exporting import export_parts
from exhume.integrations.serve import Client, Server

served = pytest.importorskip("served")
PLAN, TOKEN, Running, planted = served.PLAN, served.TOKEN, served.Running, served.planted
pytestmark = [pytest.mark.serve, pytest.mark.xdist_group("serve")]


def inputs(count, key):
    return torch.rand(count, 3, 16, 16, generator=key.generator())


def client_of(running, urls, **more):
    return Client(running[0].folder / "client", urls, token=TOKEN, **{"deadline": 30.0, **more})


def test_the_same_logits_as_in_this_process(running, key):
    one, two = running
    with client_of(running, [two.grpc, one.grpc], apart=True) as client:
        for count in (1, 7):
            x = inputs(count, key)
            torch.testing.assert_close(client(x), planted()(x), atol=1e-5, rtol=1e-5)


def test_large_batches_go_in_pieces(running, key, monkeypatch):
    monkeypatch.setattr("exhume.integrations.serve._ROWS", 16)
    x = inputs(50, key)
    with client_of(running, [s.grpc for s in running]) as client:
        torch.testing.assert_close(client(x), planted()(x), atol=1e-5, rtol=1e-5)


def test_calls_under_way_at_the_same_time_get_their_own_answers(running, key):
    whole = planted()
    many = [inputs(1 + i % 3, key.fold(i)) for i in range(12)]

    async def all_at_once(client):
        return await asyncio.gather(*(client.predict(x) for x in many))

    with client_of(running, [s.grpc for s in running]) as client:
        for x, found in zip(many, asyncio.run(all_at_once(client)), strict=True):
            torch.testing.assert_close(found, whole(x), atol=1e-5, rtol=1e-5)
    clients = [client_of(running, [s.grpc for s in running]) for _ in range(3)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda i: clients[i % 3](many[i]), range(12)))
    for x, one in zip(many, found, strict=True):
        torch.testing.assert_close(one, whole(x), atol=1e-5, rtol=1e-5)
    for client in clients:
        client.close()


def test_a_server_that_is_gone_is_an_error_and_comes_back_by_itself(running, key):
    whole, x = planted(), inputs(2, key)
    tap = Tap(running[1].port + 1)
    url = f"grpc://127.0.0.1:{tap.port}"
    with client_of(running, [running[0].grpc, url]) as client:
        torch.testing.assert_close(client(x), whole(x), atol=1e-5, rtol=1e-5)
        tap.hang_up()
        with pytest.raises(ExhumeError, match=r"^servers: no answer of body[23]; grpc://"):
            client(x)
        with client_of(running, [url, running[0].grpc, running[1].grpc]) as spared:
            torch.testing.assert_close(spared(x), whole(x), atol=1e-5, rtol=1e-5)
        tap.listen()
        torch.testing.assert_close(_when_ready(client, x), whole(x), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_killed_server_is_an_error_in_time_and_comes_back_by_itself(running, key):
    folder = running[0].folder
    doomed = Running(folder, "2-3")
    doomed.start()
    doomed.wait()
    whole, results, stop = planted(), [], threading.Event()

    def load(client, number):
        for i in range(10_000):
            if stop.is_set():
                return
            x, started = inputs(2, key.fold(number, i)), time.monotonic()
            try:
                results.append((x, client(x), time.monotonic() - started))
            except ExhumeError as error:
                results.append((x, str(error), time.monotonic() - started))

    deadline = 10.0
    with client_of(running, [running[0].grpc, doomed.grpc], deadline=deadline) as client:
        torch.testing.assert_close(client(x := inputs(1, key)), whole(x), atol=1e-5, rtol=1e-5)
        threads = [threading.Thread(target=load, args=(client, i)) for i in range(3)]
        for thread in threads:
            thread.start()
        _until(lambda: any(isinstance(found, torch.Tensor) for _, found, _ in list(results)))
        doomed.kill()
        _until(lambda: any(isinstance(found, str) for _, found, _ in list(results)))
        stop.set()
        for thread in threads:
            thread.join(served.PATIENCE)
            assert not thread.is_alive()
        answered = [r for r in results if isinstance(r[1], torch.Tensor)]
        failed = [r for r in results if isinstance(r[1], str)]
        assert answered
        assert failed
        for x, logits, _ in answered:
            torch.testing.assert_close(logits, whole(x), atol=1e-5, rtol=1e-5)
        for _, sentence, _ in failed:
            assert re.match(
                r"servers: no answer of body[23]( within 10 seconds)?; grpc://", sentence
            )
        assert max(seconds for _, _, seconds in results) < deadline + served.PATIENCE
        with client_of(running, [running[0].grpc, doomed.grpc, running[1].grpc]) as spared:
            torch.testing.assert_close(spared(x), whole(x), atol=1e-5, rtol=1e-5)
        doomed.start()
        doomed.wait()
        until = time.monotonic() + served.PATIENCE
        while True:
            try:
                found = client(x)
                break
            except ExhumeError:
                assert time.monotonic() < until
        torch.testing.assert_close(found, whole(x), atol=1e-5, rtol=1e-5)
    doomed.kill()


class Tap:
    """Passes bytes on between a client and a server, and keeps what the client sent. Can be slow, or gone."""

    def __init__(self, port):
        self.to, self.delay, self.sent, self.wires, self.port = port, 0.0, [], [], 0
        self.listen()

    def listen(self):
        """At the port that it had before."""
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def hang_up(self):
        for wire in (self.listener, *self.wires):
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
            wire.close()

    def _accept(self, listener):
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.to))
            self.wires += [near, far]
            kept = bytearray()
            self.sent.append(kept)
            threading.Thread(target=self._pass_on, args=(near, far, kept), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(far, near, None), daemon=True).start()

    def _pass_on(self, source, sink, kept):
        try:
            while data := source.recv(65536):
                if kept is None:
                    time.sleep(self.delay)
                else:
                    kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one of them has gone


def captures(running, tmp_path, selections, x):
    """What each of several clients, alike but for selector and tail, sends to each server."""
    found = []
    for selected in selections:
        folder = tmp_path / "".join(map(str, selected))
        export_parts(planted(selected), PLAN, folder, None)
        taps = [Tap(server.port + 1) for server in running]
        urls = [f"grpc://127.0.0.1:{tap.port}" for tap in taps]
        with Client(folder, urls, token=TOKEN, deadline=30.0) as client:
            logits = client(x)
            client(x)
        for tap in taps:
            tap.hang_up()
        found.append((taps, logits))
    return found


SELECTIONS = ((0, 1), (2, 3), (1, 2, 3))


def messages(stream):
    """What one client sent over HTTP/2: lengths of headers, and every message without its random name."""
    assert stream.startswith(b"PRI * HTTP/2.0")
    at, headers, data = 24, [], {}
    while at < len(stream):
        size, kind = int.from_bytes(stream[at : at + 3], "big"), stream[at + 3]
        place, body = stream[at + 5 : at + 9], stream[at + 9 : at + 9 + size]
        if kind == 0:
            data[place] = data.get(place, b"") + body
        elif kind == 1:
            headers.append(size)
        at += 9 + size
    found = []
    for body in data.values():
        assert len(body) == 5 + int.from_bytes(body[1:5], "big")
        request = service_pb2.ModelInferRequest.FromString(body[5:])
        assert not request.inputs or len(request.id) == 16
        request.id = ""
        found.append(request.SerializeToString(deterministic=True))
    return headers, found


def test_grpc_does_not_show_the_selector(running, key, tmp_path):
    """One connection to a server, so that its bytes are in order: the same messages, one after another."""
    found = captures(running, tmp_path, SELECTIONS, inputs(2, key))
    sent = [[messages(b"".join(map(bytes, tap.sent))) for tap in taps] for taps, _ in found]
    for both in sent[1:]:
        for (headers, asked), (first, wanted) in zip(both, sent[0], strict=True):
            assert asked == wanted
            assert len(headers) == len(first)
            assert sum(headers) == pytest.approx(sum(first), abs=80)  # digits of timeouts differ
    for server in range(2):
        whole = b"".join(sent[0][server][1])
        counts = [whole.count(f"body{i}".encode()) for i in range(4)]
        assert counts == ([3, 3, 1, 1], [1, 1, 3, 3])[server]  # once to find it, twice to ask it
    assert not torch.allclose(found[0][1], found[1][1])


@pytest.mark.parametrize("selected", [(0, 1), (2, 3)])
def test_slow_bodies_are_waited_for_whether_they_are_read_or_not(selected, running, key, tmp_path):
    export_parts(planted(selected), PLAN, tmp_path / "client", None)
    slow = Tap(running[1].port + 1)
    urls = [running[0].grpc, f"grpc://127.0.0.1:{slow.port}"]
    with Client(tmp_path / "client", urls, token=TOKEN, deadline=30.0) as client:
        x = inputs(1, key)
        client(x)
        slow.delay, started = 0.2, time.monotonic()
        client(x)
        assert time.monotonic() - started >= 0.2


def test_exported_servers_do_not_know_the_selection(tmp_path):
    trees = []
    for selected in ((0, 1), (1, 2, 3)):
        folder = tmp_path / str(len(selected))
        export_parts(planted(selected), PLAN, folder / "client", folder / "server")
        paths = sorted(p for p in (folder / "server").rglob("*") if p.is_file())
        trees.append([(p.relative_to(folder), p.read_bytes()) for p in paths])
    assert trees[0] == trees[1]
    assert len(trees[0]) == 12


def test_clients_that_are_refused(running, tmp_path):
    urls, folder = [s.grpc for s in running], running[0].folder / "client"
    copy = tmp_path / "client"
    shutil.copytree(folder, copy)
    copy.chmod(0o755)
    with pytest.raises(ExhumeError, match="others can read"):
        Client(copy, urls)
    copy.chmod(0o700)
    part = copy / "client.safetensors"
    part.write_bytes(part.read_bytes() + b" ")
    with pytest.raises(ExhumeError, match="altered or damaged"):
        Client(copy, urls)
    export_parts(planted(seed=1), PLAN, tmp_path / "other", None)
    x = torch.rand(1, 3, 16, 16)
    with (
        Client(tmp_path / "other", urls, token=TOKEN) as client,
        pytest.raises(ExhumeError, match="body0 at .* is not the one that this client was"),
    ):
        client(x)
    with (
        client_of(running, urls[:1]) as client,
        pytest.raises(ExhumeError, match="nobody holds body2, body3$"),
    ):
        client(x)
    with (
        client_of(running, [Server(urls[0], (0, 1, 2, 3))], apart=True) as client,
        pytest.raises(ExhumeError, match="holds all bodies, and none may"),
    ):
        client(x)
    with (
        client_of(running, [Server(urls[0], (0, 1, 2, 3))]) as client,
        pytest.raises(ExhumeError, match=r"refuses body2 \(NOT_FOUND"),
    ):
        client(x)
    with (
        client_of(running, ["grpc://127.0.0.1:9"], deadline=2.0) as client,
        pytest.raises(ExhumeError, match="nobody holds body0.*127.0.0.1:9 does not answer"),
    ):
        client(x)
    with (
        client_of(running, urls) as client,
        pytest.raises(
            ExhumeError, match=r"inputs: of shape \(1, 3, 20, 20\), \(n, 3, 16, 16\) is needed"
        ),
    ):
        client(torch.rand(1, 3, 20, 20))


def test_a_server_that_never_answers_is_given_up_in_time(running, key):
    silent = socket.create_server(("127.0.0.1", 0))
    url, started = f"grpc://127.0.0.1:{silent.getsockname()[1]}", time.monotonic()
    with (
        client_of(running, [running[0].grpc, Server(url, (2, 3))], deadline=1.0) as client,
        pytest.raises(ExhumeError, match="no answer of body2"),
    ):
        client(inputs(1, key))
    assert time.monotonic() - started < served.PATIENCE
    silent.close()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"servers": []}, "servers: none is named"),
        ({"servers": ["127.0.0.1:80"]}, "is not of the form grpc://HOST:PORT"),
        ({"servers": ["http://here:80"]}, "is not of the form"),
        ({"servers": ["grpc://elsewhere:80"]}, "must not go to grpc://elsewhere:80 in the clear"),
        ({"deadline": 0.0}, "deadline, repeats: 0.0 and 3 given"),
        ({"repeats": -1}, "deadline, repeats: 10.0 and -1 given"),
    ],
)
def test_arguments_that_mean_nothing(change, sentence, client_folder):
    given = {"servers": ["grpc://localhost:1"], "token": TOKEN, **change}
    with pytest.raises(ExhumeError, match=sentence):
        Client(client_folder, **given)


def _until(true, seconds=60.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def _when_ready(client, x):
    until = time.monotonic() + 90
    while True:
        try:
            return client(x)
        except ExhumeError:
            if time.monotonic() > until:
                raise
            time.sleep(0.3)
