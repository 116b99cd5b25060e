"""A defended version of the owner's network, trained beside a plain one, and what it costs."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass

import torch

from exhume.auditing.kinds.split_files import LoadedSplit
from exhume.choices import device_named, moved
from exhume.core.contract import ExhumeError, Key, Progress, Store
from exhume.defences.split.channel import Channel
from exhume.defences.split.dropout_ensemble import DropoutEnsemble
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Dropout, Noise, RandomHead, Shredder
from exhume.models.split.blueprint import OwnNetwork
from exhume.models.split.cost import RequestCost, client_ratio, client_share, request_cost
from exhume.models.split.parts import save_pipeline
from exhume.models.split.pipeline import Pipeline
from exhume.report.folder import RunFolder
from exhume.settings import SplitSettings
from exhume.store.shards import write_atomically
from exhume.train.single import Schedule, SplitDefence, SplitJob

DEFENCE = "defence"  # folder of a run, with the trained parts

_RATE = 0.5  # of dropout
_REPEATS = 20
_ENSEMBLES = ("ensembler", "dropout-ensemble")


@dataclass(frozen=True, eq=False)
class Defended:
    """The defended pipeline, and the plain one that was trained on the same records by the same schedule."""

    pipeline: Pipeline
    plain: Pipeline
    job: SplitJob  # of the defended one
    key: Key  # of both trainings
    accuracy: float
    plain_accuracy: float
    cost: RequestCost
    plain_cost: RequestCost
    client_ratio: float
    client_share: float  # of all multiply-adds of a request

    def cost_sentence(self) -> str:
        change = 100 * (self.accuracy - self.plain_accuracy)
        return (
            f"The defence costs {-change:.1f} points of accuracy ({self.plain_accuracy:.1%} without it, "
            f"{self.accuracy:.1%} with it, trained the same way), {self.request_sentence()}."
        )

    def request_sentence(self) -> str:
        """What a request costs besides accuracy."""
        server = self.cost.in_turn / self.plain_cost.in_turn
        return (
            f"{server:.1f} times the server's compute, {self.client_ratio:.2f} times the client's (which is "
            f"{self.client_share:.0%} of a request's multiply-adds), and "
            f"{self.cost.bytes_up:,} bytes up and {self.cost.bytes_down:,} down per input instead of "
            f"{self.plain_cost.bytes_up:,} and {self.plain_cost.bytes_down:,}"
        )


def defended(
    settings: SplitSettings, owned: LoadedSplit, *, key: Key, store: Store, progress: Progress
) -> Defended:
    """Train both, by the same schedule on the same records."""
    network = OwnNetwork(settings.model, owned.shape)
    schedule = Schedule(settings.epochs, settings.batch, settings.rate)
    parts = moved(owned.parts, device_named(settings.device or "cpu"))
    job = SplitJob(network, owned.first[0], owned.second, parts.fixed, schedule, settings.augment)
    defence = _defence(settings)
    plain = Noise().train(job, key=key, store=store, progress=_named("plain", progress))
    guarded = defence.train(job, key=key, store=store, progress=_named(settings.defend, progress))
    test, one = parts.test, parts.test.inputs[:1]
    return Defended(
        guarded,
        plain,
        defence.job(job) if isinstance(defence, Channel) else job,
        key,
        guarded.accuracy(test.inputs, test.labels, key.fold("test requests")),
        plain.accuracy(test.inputs, test.labels),
        request_cost(guarded, one, repeats=_REPEATS),
        request_cost(plain, one, repeats=_REPEATS),
        client_ratio(guarded, plain, one, repeats=_REPEATS),
        client_share(guarded, parts.test.shape),
    )


def secret_key(folder: RunFolder) -> Key:
    """Key of the system's randomness, drawn once a run folder: nobody may guess noise and selector."""
    path = folder.path / "secret.key"
    if not path.exists():
        write_atomically(path, secrets.token_hex(32).encode())
    return Key(path.read_text(encoding="ascii"))


def keep(made: Defended, folder: RunFolder) -> None:
    """Both sides in the run folder, for `exhume export`."""
    place = folder.path / DEFENCE
    if place.exists():
        shutil.rmtree(place)  # of an earlier turn of the same run
    save_pipeline(made.pipeline, made.job.blueprint, place / "client", place / "server")


def _defence(settings: SplitSettings) -> SplitDefence:
    choices: dict[str, SplitDefence] = {
        "single": Noise(settings.sigma),
        "shredder": Shredder(settings.sigma),
        "dropout": Dropout(_RATE),
        "random-head": RandomHead(),
    }
    if settings.defend in choices:
        return choices[settings.defend]
    if settings.defend == "channel":
        return Channel.of_bits(settings.bits, settings.numbers)
    if settings.defend == "dropout-ensemble":
        return DropoutEnsemble(settings.bodies, _RATE)
    return Ensembler(settings.bodies, settings.selected, settings.sigma)


def check_defence(settings: SplitSettings) -> None:
    """Refuse settings that no defence can have, before records are read."""
    _defence(settings)


def check_trainable(settings: SplitSettings, owned: LoadedSplit) -> None:
    """Refuse, before anything is attacked, what could not be trained or attacked afterwards."""
    if owned.text and settings.defend in _ENSEMBLES:
        raise ExhumeError(
            f"defend: {settings.defend} has several bodies, and for texts there are no attackers of such; "
            "channel, single, shredder, dropout and random-head are covered"
        )
    network, key = OwnNetwork(settings.model, owned.shape), Key.from_seed(settings.seed)
    one, other = (network.module(key.fold(i)).state_dict().values() for i in range(2))
    if all(torch.equal(a, b) for a, b in zip(one, other, strict=True)):
        raise ExhumeError(
            f"model: {network.factory} gives the same weights at every call; to train it afresh, let the "
            "factory build the network"
        )


def _named(name: str, progress: Progress) -> Progress:
    return lambda stage, done, total: progress(f"{name}: {stage}", done, total)
