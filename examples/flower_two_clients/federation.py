"""Two hospitals, a Flower server, one round: what does the server learn about the images?

Each client holds four digits and takes one step of SGD on them. The server records what it is sent, and
`exhume audit-update` digs the digits out again. With `guarded`, every client asks a guard before it sends; the
second one has noise on its update, and only that update leaves.
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import nn

CLIENTS = {"0": [3, 17, 40, 41], "1": [60, 61, 62, 63]}  # indices into MNIST
RATE = 0.1
NOISE = 50.0  # of the second client where there is a guard, over its update's root mean square


def make() -> nn.Module:
    """The model all of them train: `--model federation.py:make`."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def client_app(guarded: bool = False):
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from exhume.guard import Guard, GuardPolicy, noisy
    from exhume.integrations.flower import guard_mod

    policy = GuardPolicy(shape=(1, 28, 28), seconds=120.0)
    app = ClientApp(mods=[guard_mod(Guard(policy), make)] if guarded else [])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        import torch  # Flower looks for it in the worker before it hands out tensors

        from exhume import readers

        client = str(context.node_config["partition-id"])
        private = readers.load("mnist")[torch.tensor(CLIENTS[client])]
        model = make()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
        F.cross_entropy(model(private.inputs), private.labels).backward()
        optimiser.step()
        state = model.state_dict()
        if guarded and client == "1":
            state = noisy(message.content["arrays"].to_torch_state_dict(), state, NOISE)
        metrics = {"num-examples": len(private), "partition-id": int(client)}
        content = {"arrays": ArrayRecord(state), "metrics": MetricRecord(metrics)}
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server_app(folder):
    from flwr.app import ArrayRecord, ConfigRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    from exhume.integrations.flower import FactNames, RecordingStrategy
    from exhume.readers.updates import Recording

    app = ServerApp()

    @app.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = RecordingStrategy(
            FedAvg(fraction_evaluate=0.0),
            Recording(folder),
            FactNames(rate="lr", client="partition-id"),
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(make().state_dict()),
            num_rounds=1,
            train_config=ConfigRecord({"lr": RATE}),
        )

    return app


def simulate(folder, guarded: bool = False) -> None:
    """One process serves both clients in turn."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from flwr.simulation import run_simulation

    run_simulation(
        server_app=server_app(folder),
        client_app=client_app(guarded),
        num_supernodes=len(CLIENTS),
        backend_config={
            "client_resources": {"num_cpus": 1},
            "init_args": {"address": "local", "num_cpus": 1, "include_dashboard": False},
        },
    )
