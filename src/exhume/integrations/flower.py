"""Flower: record the updates of a real federated run, for `exhume audit-update` to read.

At the server a strategy is wrapped, and all that its clients return is recorded: what the server sees. At
a client a mod records what that client sends, and another lets only that leave which gives no record away.

    strategy = RecordingStrategy(FedAvg(), Recording(Path("recorded")), FactNames(rate="lr"))
    app = ClientApp(mods=[recording_mod(Recording(Path("recorded")), FactNames(rate="lr"))])
    app = ClientApp(mods=[guard_mod(Guard(GuardPolicy.from_toml(Path("guard.toml"))), make_model)])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import Tensor, nn

from exhume.core.contract import ExhumeError
from exhume.guard import Guard
from exhume.readers.updates import Recording
from exhume.train.local import PLAIN, Routine

try:
    from flwr.app import (
        ArrayRecord,
        ConfigRecord,
        Context,
        Error,
        Message,
        MetricRecord,
        RecordDict,
    )
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
except ImportError as missing:
    raise ExhumeError(
        f"Flower is not installed ({missing}): pip install 'exhume[flower]'"
    ) from missing

_REFUSED = 6  # Flower: a mod whose condition does not hold

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


def guard_mod(guard: Guard, model: Callable[[], nn.Module], facts: FactNames = USUAL) -> Mod:
    """A mod of a `ClientApp`: an update that the guard stops becomes an error, which holds no record.

    model: makes the network whose state the messages hold. Put it first among the mods: the update then is
    checked as it leaves, after all that other mods add to it.
    """

    def mod(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        before = message.content
        reply = call_next(message, context)
        if message.metadata.message_type.split(".")[0] != "train" or reply.has_error():
            return reply
        try:
            said = _training(facts, before, reply.content)
            sent, name = _state(reply.content), f"client {context.node_id}"
            answer = guard.check(
                _state(before),
                sent,
                model(),
                rate=said.rate,
                steps=said.steps,
                records=said.records or None,
                routine=said.routine,
                name=name,
            )
            state, why = answer.state, answer.why
        except Exception as error:  # noqa: BLE001 - what cannot be checked does not leave
            state, why = None, f"it could not be checked: {type(error).__name__}"
        if state is None:
            return Message(error=Error(_REFUSED, f"exhume guard: {why}"), reply_to=message)
        (place,) = reply.content.array_records
        reply.content[place] = ArrayRecord(dict(state))
        return reply

    return mod


@dataclass(frozen=True)
class _Training:
    """How a client made its update, as the messages say it."""

    rate: float
    steps: int
    records: int
    routine: Routine
    client: float | None


def _training(facts: FactNames, before: RecordDict, after: RecordDict) -> _Training:
    def fact(name: str, value: int | float | str) -> float:
        found = _found(value, before, after) if isinstance(value, str) else float(value)
        if found is None:
            raise ExhumeError(
                f"{name}: neither the config that was sent nor the metrics that came back have "
                f"{value!r}; say FactNames({name}=...)"
            )
        return found

    return _Training(
        fact("rate", facts.rate),
        int(fact("steps", facts.steps)),
        int(fact("batch_size", facts.batch_size)),
        Routine(
            int(fact("epochs", facts.epochs)),
            int(fact("local_batch", facts.local_batch)),
            momentum=fact("momentum", facts.momentum),
            weight_decay=fact("weight_decay", facts.weight_decay),
        ),
        fact("client", facts.client) if facts.client else None,
    )


def _write(
    recording: Recording,
    facts: FactNames,
    before: RecordDict,
    after: RecordDict,
    *,
    round: int,  # noqa: A002 - the word of federated learning
    node: str,
) -> None:
    said = _training(facts, before, after)
    recording.write(
        _state(before),
        _state(after),
        round=round,
        client=node if said.client is None else f"{said.client:g}",
        rate=said.rate,
        steps=said.steps,
        batch_size=said.records,
        routine=None if said.routine == PLAIN else said.routine,
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
