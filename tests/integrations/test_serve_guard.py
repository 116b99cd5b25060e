"""The guard in front of REST, in this process: what reaches the application, and what does not."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("grpc", reason="gRPC is not installed")

from exhume.integrations.mlserver_guard import MetricsGuard, RequestGuard
from exhume.integrations.serve_limits import Served, ServeLimits, WorkPlaces

SERVED = Served({"body0": "7"}, {"body0": (3,)})
INFER = "/v2/models/body0/infer"
BODY = b'{"inputs":[{"name":"features","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}'


async def nothing(scope, receive, send):
    raise AssertionError(f"{scope['type']} got through")


async def fine(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def scope(kind="http", path=INFER, method="POST", client="1.2.3.4", **headers):
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": kind,
        "path": path,
        "method": method,
        "headers": pairs,
        "client": (client, 1),
    }


def guard(app=fine, at_once=1, seconds=30.0):
    limits = ServeLimits("", at_once=at_once, seconds=seconds)
    return RequestGuard(app, limits, SERVED, WorkPlaces(limits))


class Sent(list):
    """What an application sends; it can be waited for."""

    def __init__(self):
        self.first = asyncio.Event()

    async def __call__(self, message):
        self.append(message)
        self.first.set()

    @property
    def status(self):
        return self[0]["status"]


def whole(body=BODY):
    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def never():
    await asyncio.Event().wait()


def test_websockets_do_not_get_through():
    async def run():
        for app in (guard(nothing), MetricsGuard(nothing, "/metrics")):
            await app(scope("websocket"), never, sent := Sent())
            assert all(one["type"] == "websocket.close" for one in sent)
        return sent

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 200),
        ({"path": "/v2/models/body0/versions/7/infer"}, 200),
        ({"path": "/v2/models/body0", "method": "GET"}, 200),
        ({"path": "/v2/models/body0"}, 405),
        ({"method": "GET"}, 405),
        ({"path": "/v2/models/body1/infer"}, 404),
        ({"path": "/v2/models/body0/versions/8/infer"}, 404),
        ({"path": INFER + "\n"}, 404),
        ({"content-length": "1000000"}, 413),
        ({"content-length": "9" * 5000}, 413),
        ({"content-length": "-1"}, 413),
        ({"content-encoding": "gzip"}, 415),
    ],
)
def test_what_is_decided_on_headers_alone(change, status):
    async def run():
        receive = whole() if status == 200 else never
        await asyncio.wait_for(guard()(scope(**change), receive, sent := Sent()), 10)
        return sent.status

    assert asyncio.run(run()) == status


def test_a_message_that_is_awaited_holds_no_place_in_work():
    async def run():
        door = guard(at_once=1)
        slow = [asyncio.create_task(door(scope(), never, Sent())) for _ in range(30)]
        await asyncio.sleep(0)
        await door(scope(), whole(), sent := Sent())
        for task in slow:
            task.cancel()
        return sent.status

    assert asyncio.run(run()) == 200


def test_the_longest_awaited_of_an_address_gives_way_to_its_next():
    async def run():
        door = guard(at_once=64)
        sents = [Sent() for _ in range(33)]
        tasks = [asyncio.create_task(door(scope(), never, sent)) for sent in sents]
        await asyncio.wait_for(sents[0].first.wait(), 10)
        assert sents[0].status == 503
        assert not any(sent for sent in sents[1:])
        for task in tasks:
            task.cancel()

    asyncio.run(run())


def test_too_many_in_work_are_refused_and_places_come_back():
    async def run():
        entered, leave = asyncio.Event(), asyncio.Event()

        async def slow(scope, receive, send):
            entered.set()
            await leave.wait()
            await fine(scope, receive, send)

        door = guard(slow, at_once=1)
        first = asyncio.create_task(door(scope(), whole(), one := Sent()))
        await asyncio.wait_for(entered.wait(), 10)
        await door(scope(), whole(), two := Sent())
        leave.set()
        await first
        await door(scope(), whole(b"nonsense"), three := Sent())
        await door(scope(), whole(), four := Sent())
        return [sent.status for sent in (one, two, three, four)]

    assert asyncio.run(run()) == [200, 503, 400, 200]


def test_a_slow_message_is_given_up():
    async def run():
        await guard(seconds=0.05)(scope(), never, sent := Sent())
        return sent.status

    assert asyncio.run(run()) == 408


def test_health_is_answered_whatever_is_in_work():
    async def run():
        door = guard()
        assert door.places.take(0)
        await door(scope(path="/v2/health/ready", method="GET"), never, sent := Sent())
        return sent.status

    assert asyncio.run(run()) == 200


def test_nothing_but_metrics_is_at_the_metrics_port():
    async def run():
        door, statuses = MetricsGuard(fine, "/metrics"), []
        for path, method in (("/metrics", "GET"), ("/metrics", "POST"), ("/docs", "GET")):
            await door(scope(path=path, method=method), never, sent := Sent())
            statuses.append(sent.status)
        return statuses

    assert asyncio.run(run()) == [200, 404, 404]
