"""Flower: record the updates of a real federated run, for `exhume audit-update` to read.

At the server a strategy is wrapped, and all that its clients return is recorded: what the server sees. At
a client a mod records what that client sends.

    strategy = RecordingStrategy(FedAvg(), Recording(Path("recorded")), FactNames(rate="lr"))
    app = ClientApp(mods=[recording_mod(Recording(Path("recorded")), FactNames(rate="lr"))])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import Tensor

from exhume.core.contract import ExhumeError
from exhume.readers.updates import Recording
from exhume.train.local import PLAIN, Routine

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
except ImportError as missing:
    raise ExhumeError(
        f"Flower is not installed ({missing}): pip install 'exhume[flower]'"
    ) from missing

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


@dataclass(frozen=True)
class FactNames:
    """Where the facts of an update come from: a value, or the name of one in the config or the metrics."""

    rate: int | float | str = "lr"  # learning rate of the client's SGD
    steps: int | str = 1  # local steps
    batch_size: int | str = "num-examples"  # records behind the update; 0: unknown
    client: str = ""  # a metric that names the client; empty: its node id
    epochs: int | str = 0  # local epochs, in place of steps; 0: not said
    local_batch: int | str = 0  # records of a step within an epoch; 0: not said
    momentum: float | str = 0.0
    weight_decay: float | str = 0.0


USUAL = FactNames()  # the names that Flower's own examples use


@dataclass(eq=False)
class RecordingStrategy(Strategy):
    """Another strategy, whose rounds are written down as they pass."""

    strategy: Strategy
    recording: Recording
    facts: FactNames = USUAL
    _sent: dict[int, RecordDict] = field(default_factory=dict, repr=False)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._sent = {message.metadata.dst_node_id: message.content for message in messages}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in replies:
            if not reply.has_error():
                node = reply.metadata.src_node_id
                _write(
                    self.recording,
                    self.facts,
                    self._sent[node],
                    reply.content,
                    round=server_round,
                    node=str(node),
                )
        aggregated: tuple[ArrayRecord | None, MetricRecord | None] = self.strategy.aggregate_train(
            server_round, replies
        )
        return aggregated

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages: Iterable[Message] = self.strategy.configure_evaluate(
            server_round, arrays, config, grid
        )
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()


def recording_mod(recording: Recording, facts: FactNames = USUAL) -> Mod:
    """A mod of a `ClientApp`: records what this client sends in answer to requests to train."""

    def mod(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        before = message.content
        reply = call_next(message, context)
        if message.metadata.message_type.split(".")[0] == "train" and not reply.has_error():
            asked = _found("server-round", before, reply.content)
            _write(
                recording,
                facts,
                before,
                reply.content,
                round=1 if asked is None else int(asked),
                node=str(context.node_id),
            )
        return reply

    return mod


def _write(
    recording: Recording,
    facts: FactNames,
    before: RecordDict,
    after: RecordDict,
    *,
    round: int,  # noqa: A002 - the word of federated learning
    node: str,
) -> None:
    def fact(name: str, value: int | float | str) -> float:
        found = _found(value, before, after) if isinstance(value, str) else float(value)
        if found is None:
            raise ExhumeError(
                f"{name}: neither the config that was sent nor the metrics that came back have "
                f"{value!r}; say FactNames({name}=...)"
            )
        return found

    client = fact("client", facts.client) if facts.client else None
    routine = Routine(
        int(fact("epochs", facts.epochs)),
        int(fact("local_batch", facts.local_batch)),
        momentum=fact("momentum", facts.momentum),
        weight_decay=fact("weight_decay", facts.weight_decay),
    )
    recording.write(
        _state(before),
        _state(after),
        round=round,
        client=node if client is None else f"{client:g}",
        rate=fact("rate", facts.rate),
        steps=int(fact("steps", facts.steps)),
        batch_size=int(fact("batch_size", facts.batch_size)),
        routine=None if routine == PLAIN else routine,
    )


def _found(name: str, before: RecordDict, after: RecordDict) -> float | None:
    """A number of that name, in what was sent or in what came back."""
    for records in (*before.config_records.values(), *after.metric_records.values()):
        if isinstance(records, ConfigRecord | MetricRecord):
            value = records.get(name)
            if isinstance(value, int | float):
                return float(value)
    return None


def _state(content: RecordDict) -> dict[str, Tensor]:
    """The one model of a message."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise ExhumeError(f"message: it holds {len(records)} array records, one model is needed")
    return dict(records[0].to_torch_state_dict())
