"""A guard for updates: attacks what a client is about to send, with the exact attacks, before it leaves.

    guard = Guard(GuardPolicy(shape=(1, 28, 28), action="refuse"))
    answer = guard.check(before, after, model, rate=0.1, records=4)
    answer.passes, answer.state, answer.why

Silence of these attacks counts only where

1. they find a record that is made up, in an update of the same model that holds nothing else;
2. noise covers the update: an update of b records is of rank b in every layer, and no singular value of a
   layer may stand out of those that noise alone has. Slower attacks than these would follow what does.

Whatever cannot be checked in time does not leave: an error, an attack that does not apply, a clock that runs
out. Nothing is fetched, and a log line holds no record. For Flower, `integrations.flower.guard_mod`.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from exhume.auditing.attack import Earlier, attack_row
from exhume.auditing.kinds.update import UpdateCase
from exhume.auditing.kinds.update_files import ClientUpdate, client_update, updates_of_batches
from exhume.core.contract import ExhumeError, Key, Progress, Records
from exhume.models.own_texts import TextModel
from exhume.readers.updates import Update, between_states, with_state
from exhume.settings import SettingsSection, UpdateSettings, setting
from exhume.settings.schema import made_of, toml_at
from exhume.store.shards import NullStore
from exhume.train.local import LOSSES, PLAIN, Routine, Steps

_LOG = logging.getLogger("exhume.guard")
_DECODING = 50  # steps: enough to see that there is something to decode
_LEAST = 4  # rows and columns of a layer whose singular values tell anything
_DRAWN, _ABOVE = 5, 1.1  # matrices of noise to compare with, and times the largest of their ratios
_SEARCHES = ("tensor", "matching")  # these answer whatever the update: nothing follows from it


@dataclass(frozen=True)
class GuardPolicy(SettingsSection):
    """The section [guard] of a TOML file."""

    action: str = setting(
        "refuse",
        "What happens to an update that leaks: refuse, noise (add it and try again), or warn.",
        choices=("refuse", "noise", "warn"),
    )
    seconds: float = setting(10.0, "That the check may take; more is refused.", above=0)
    noise: float = setting(
        1.0,
        "First noise, as a multiple of the update's root mean square; then twice that.",
        above=0,
    )
    tries: int = setting(6, "How often noise is added before the update is refused.", least=1)
    shape: tuple[int, ...] = setting((), "Shape of one record; of texts their length.")
    loss: str = setting(PLAIN.loss, "The client's loss.", choices=LOSSES)
    reduction: str = setting("mean", "Of the loss over the batch.", choices=("mean", "sum"))
    batch_norm: str = setting(
        "train", "Mode of batch norm at the client.", choices=("train", "eval")
    )

    @staticmethod
    def from_toml(path: Path) -> GuardPolicy:
        content = toml_at(path)
        if set(content) != {"guard"} or not isinstance(content["guard"], Mapping):
            raise ExhumeError(f"{path}: one section [guard] is needed, and nothing else")
        policy: GuardPolicy = made_of(GuardPolicy, content["guard"], f"{path}: guard")
        return policy


@dataclass(frozen=True, eq=False)
class GuardAnswer:
    """Whether an update may leave, and in which form."""

    passes: bool
    why: str  # without any record
    state: Mapping[str, Tensor] | None  # that may be sent; None: nothing may
    seconds: float
    noise: float = 0.0  # that was added, over the update's root mean square


@dataclass(frozen=True)
class Guard:
    policy: GuardPolicy
    key: Key = Key.from_seed(0)  # of probes and of decoding; the noise is not drawn from it

    def check(
        self,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        model: nn.Module,
        *,
        rate: float,
        steps: int = 1,
        records: int | None = None,
        routine: Routine = PLAIN,
        name: str = "update",
    ) -> GuardAnswer:
        """The states that a client was sent and would return, and how it trained; never raises.

        records: that it has; None: not said. name: of the update in the log.
        """
        started, policy = time.perf_counter(), self.policy
        training = Steps(steps, rate, replace(routine, loss=policy.loss))
        state, noise, why = after, 0.0, ""
        for attempt in range(1 + (policy.tries if policy.action == "noise" else 0)):
            if attempt:
                noise = policy.noise * 2 ** (attempt - 1)
                state = noisy(before, after, noise, set(dict(model.named_parameters())))
            left = policy.seconds - (time.perf_counter() - started)

            def work(progress: Progress, state: Mapping[str, Tensor] = state) -> str:
                module = with_state(model, before)
                update = between_states(before, state, module, training, records)
                return self.leak_in(self._read(update, records), progress)

            why = _in_time(left, work)
            if not why:
                break
        passes = not why or policy.action == "warn"
        seconds = time.perf_counter() - started
        said = why or ("nothing was found" if not noise else f"passes with noise of {noise:g}")
        word = "passed" if not why else "WARNING" if passes else "refused"
        _LOG.log(
            logging.WARNING if why else logging.INFO,
            "%s: %s: %s, %.2f s",
            name,
            word,
            said,
            seconds,
        )
        return GuardAnswer(passes, said, state if passes else None, seconds, noise)

    def _read(self, update: Update, records: int | None) -> ClientUpdate:
        policy = self.policy
        settings = UpdateSettings(
            update="in memory",
            batch_size=records or 0,
            shape=policy.shape,
            loss=policy.loss,
            reduction=policy.reduction,
            batch_norm=policy.batch_norm,
        )
        return client_update(update, settings, policy.shape)

    def leak_in(self, update: ClientUpdate, progress: Progress) -> str:
        """Why it is not safe to send; empty: it is, as far as the exact attacks and its own noise tell."""
        if found := self._found_in(update, progress):
            return found
        if bare := self._above_noise(update):
            return bare
        if not self._found_in(self._probe(update), progress):
            return "nothing can be said: the exact attacks do not read updates of this model"
        return ""

    def _above_noise(self, update: ClientUpdate) -> str:
        """A layer that noise does not cover; empty: it covers all.

        s_1 / median(s) of a layer (m, k), beside that of normal matrices (m, k).
        """
        parts = update.gradient.layout.split(update.gradient.values[0])
        told = False
        for name, part in parts.items():
            layer = part.flatten(1) if part.ndim > 1 else part[None]
            if min(layer.shape) < _LEAST or not bool(layer.any()):
                continue
            told, generator = True, self.key.fold("noise alone", name).generator()
            alone = max(_peak(torch.randn(layer.shape, generator=generator)) for _ in range(_DRAWN))
            if not _peak(layer) <= _ABOVE * alone:
                return "no noise covers it: a layer stands out of what noise alone would be"
        return "" if told else "nothing can be said: no layer is large enough to tell noise"

    def _probe(self, update: ClientUpdate) -> ClientUpdate:
        """The update that one made-up record gives at the same weights."""
        network, key = update.architecture, self.key.fold("probe")
        drawn = torch.rand(1, *network.input_shape, generator=key.generator())
        if isinstance(network, TextModel):
            drawn = 1 + (drawn * (network.vocabulary - 1)).floor().long()
        record = Records(drawn, torch.zeros(1, dtype=torch.long), ("made up",))
        (probe,), _ = updates_of_batches(network, update.start(), record, 1)
        return probe

    def _found_in(self, update: ClientUpdate, progress: Progress) -> str:
        """What the first attack that finds something says; empty: none does."""
        settings = UpdateSettings(update="in memory", search_steps=_DECODING)
        case = UpdateCase(replace(settings, seed=0, threads=1), [update], None, ())
        earlier: Earlier = {}
        for row in case.rows():
            if row.id not in _SEARCHES:
                progress(row.spec.name, 0, 1)
                attack_row(case, row, NullStore(), progress, earlier=earlier, found=(), tests=0)
                answer = earlier[row.id].get(0)
                if answer is not None and len(answer.found.found()):
                    kind = "records" if row.whole else "words"
                    sure = "proves" if answer.proof.records else "finds"
                    count = answer.proof.records or len(answer.found.found())
                    return f"{row.spec.name} ({row.id}) {sure} {count} {kind}"
        return ""


def _in_time(seconds: float, work: Callable[[Progress], str]) -> str:
    """What the work says, or that it is late: then it goes on until its next report, and is not heard."""
    late = "it could not be checked in time"
    said, over = [late], threading.Event()

    def progress(*_: object) -> None:
        if over.is_set():
            raise ExhumeError(late)

    def worked() -> None:
        try:
            said[0] = work(progress)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, nothing leaves
            why = str(error) if isinstance(error, ExhumeError) else type(error).__name__
            said[0] = f"it could not be checked: {why}"

    thread = threading.Thread(target=worked, daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    answer = late if thread.is_alive() else said[0]
    over.set()
    return answer


def _peak(matrix: Tensor) -> float:
    values = torch.linalg.svdvals(matrix.double())
    return float(values[0] / values.median())


def noisy(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    strength: float,
    names: Collection[str] = (),
) -> dict[str, Tensor]:
    """The state after with noise on all that changed, as a multiple of the change's root mean square.

    names: of tensors that get noise; none: all, also running statistics, which noise may break.

    Its seed is the machine's own: whoever could draw it again would take it off.
    """
    changed = {
        name: after[name] - before[name].to(after[name])
        for name in after
        if name in before and after[name].is_floating_point() and (not names or name in names)
    }
    moved = torch.cat([change.flatten().double() for change in changed.values()])
    deviation = strength * float(moved.square().mean().sqrt())
    seed = torch.Generator().manual_seed(int.from_bytes(secrets.token_bytes(8), "big") >> 1)
    drawn = {
        name: (deviation * torch.randn(change.shape, generator=seed)).to(change)
        for name, change in changed.items()
        if bool(change.any())
    }
    return {name: value + drawn[name] if name in drawn else value for name, value in after.items()}
