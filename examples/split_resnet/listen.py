"""A server that is curious: it answers as it should, keeps what it is sent, and tries to see the inputs.

    python listen.py WORK SOURCE PLACE [COUNT]

WORK holds the run and the client of `README.md`; PLACE is where `exhume serve` answers over gRPC. Between the
client and that server stands a listener, which passes everything on and keeps the features. The attackers get
these features, what the server holds (its body), records like the client's, and, the last of them, the head.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import torch
from torch import Tensor
from tritonclient.grpc import service_pb2

from exhume import readers
from exhume.attacks.split.inversion import ShadowInversion, TrueHeadInversion
from exhume.auditing.limits import identified_at_most
from exhume.core.contract import Activations, ExhumeError, Key, NotApplicable, Records
from exhume.models.split.inverter import Decoder, ShadowHead
from exhume.models.split.parts import load_pipeline
from exhume.models.split.pipeline import Pipeline
from exhume.score.places import line_up, places_for
from exhume.store.shards import NullStore
from exhume.train.single import Schedule
from exhume.victims.split import server_knowledge


class Listener(grpc.GenericRpcHandler):
    """Passes calls on to a server, and keeps the features that are in them."""

    def __init__(self, behind: str) -> None:
        """behind: HOST:PORT of the server."""
        self.channel = grpc.insecure_channel(behind)
        self.heard: list[Tensor] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def pass_on(message: bytes, context: grpc.ServicerContext) -> bytes:
            if details.method.endswith("/ModelInfer"):
                self.keep(message)
            try:
                return self.channel.unary_unary(details.method)(message, timeout=60)
            except grpc.RpcError as refused:
                context.abort(refused.code(), refused.details())

        return grpc.unary_unary_rpc_method_handler(pass_on)

    def __enter__(self) -> str:
        """Where it listens."""
        self.door = grpc.server(ThreadPoolExecutor(4), [self])
        port = self.door.add_insecure_port("127.0.0.1:0")
        self.door.start()
        return f"grpc://127.0.0.1:{port}"

    def __exit__(self, *_: object) -> None:
        self.door.stop(None).wait()

    def keep(self, message: bytes) -> None:
        asked = service_pb2.ModelInferRequest.FromString(message)
        for given, content in zip(asked.inputs, asked.raw_input_contents, strict=True):
            values = torch.frombuffer(bytearray(content), dtype=torch.float32)
            self.heard.append(values.reshape(tuple(given.shape)))


def attack(
    pipeline: Pipeline,
    heard: Tensor,
    private: Records,
    held: Records,
    strangers: Records,
    *,
    epochs: int = 30,
    channels: int = 16,
) -> dict[str, tuple[int, int, int]]:
    """Of each attacker: how many inputs it identifies, of how many, among how many strangers.

    pipeline: for the body, and for the head that the last attacker is given. The private records are compared
    with what the attackers return, and reach none of them.
    """
    schedule = Schedule(epochs, 32, 3e-3, "adam", 0.0)
    decoder, key = Decoder(channels), Key.from_seed(0)
    attackers = {
        "a shadow of the head": ShadowInversion(
            (0,), ShadowHead(channels), decoder, schedule, schedule
        ),
        "the true head": TrueHeadInversion(decoder, schedule),
    }
    release = Activations(heard, pipeline.cut)
    places = places_for(private, torch.arange(len(private)), strangers, key, held=held)
    found = {}
    for name, attacker in attackers.items():
        knowledge = server_knowledge(pipeline, held, with_head=name == "the true head")
        try:
            back = attacker.prepare(knowledge, key=key, store=NullStore()).run(release)
        except NotApplicable as why:
            sys.stdout.write(f"{name}: {why}\n")
            continue
        answers = [back.found(place) for place in range(len(private))]
        row, _ = line_up(places, answers, key.fold("line-up"), tests=len(attackers))
        found[name] = (row.identified, row.targets, row.strangers)
    return found


def main(work: Path, source: str, place: str, count: int = 60) -> None:
    from exhume.integrations.serve import Client

    every = readers.load(source)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(1))
    private, held, strangers = (
        every[rows]
        for rows in torch.split(
            order, [count, (len(every) - count) // 2, -(-(len(every) - count) // 2)]
        )
    )
    kept = work / "run" / "defence"
    manifest = json.loads((kept / "client" / "manifest.json").read_text())
    factory = manifest["network"]["network"]["factory"]
    pipeline = load_pipeline(kept / "client", kept / "server", factory=factory)
    listener = Listener(place)
    with listener as door, Client(work / "client", [door], factory=factory) as client:
        named = client(private.inputs).argmax(1)
    heard = torch.cat(listener.heard)
    right = float((named == private.labels).double().mean())
    sys.stdout.write(
        f"{count} inputs, {right:.0%} named rightly; the server was sent {tuple(heard.shape)} numbers\n"
    )
    for name, (who, of, among) in attack(pipeline, heard, private, held, strangers).items():
        most = identified_at_most(among, pipeline.client.sigma)
        sys.stdout.write(
            f"{name}: {who} of {of} identified among {among} strangers; at most {most:.0%} on average\n"
        )


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
    except ExhumeError as error:
        sys.exit(f"listen.py: {error}")
