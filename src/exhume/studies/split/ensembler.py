"""Ensembler24's defences on one data set: the networks of several clients, and who attacks which of them.

NONE, Single and the Ensembler are trained for several clients, each with records, bodies and secrets of its
own; the other defences for the first. All train for the same number of epochs. What the paper leaves open,
lambda of eq. 3 and the size of Shredder's noise, is chosen on validation records, before any attacker is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from exhume.attacks.split.inversion import Committee, Likelihood, ShadowInversion, SubsetSearch
from exhume.attacks.split.lookalike import Lookalike, Pass
from exhume.attacks.split.shadow import LEARNED
from exhume.core.contract import Attack, Key
from exhume.defences.split.dropout_ensemble import DropoutEnsemble
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Dropout, ForeignHead, Noise, RandomHead, Shredder
from exhume.models.lpips import perceptual
from exhume.models.split.inverter import OwnForm
from exhume.score.features import Distance
from exhume.studies.framework import Run
from exhume.studies.split.game import ClientSetting, SplitGame, bound_of, inversion
from exhume.train.single import ANSWERS, FEATURES, SplitDefence, SplitJob

SEVERAL_CLIENTS = ("none", "single", "ensembler")
_SEVERAL_BODIES = ("ensembler", "dr_ensemble")
_COST = {"ensembler": 0.03, "shredder": 0.06}  # accuracy that a chosen strength may cost at most


@dataclass(frozen=True)
class Attackers:
    """How hard they try."""

    shadow: ShadowInversion
    lookalike: Lookalike
    match: float = 10.0
    search_steps: int = 100  # of the likelihood
    subsets: bool = True  # every selection is tried

    @staticmethod
    def of(shadow: ShadowInversion, lookalike: Lookalike, *, subsets: bool = True) -> Attackers:
        """All decoders alike, trained alike."""
        decoder, schedule = shadow.decoder, shadow.decoder_schedule
        own = replace(lookalike, decoder=decoder, decoder_schedule=schedule)
        return Attackers(shadow, own, subsets=subsets)

    @property
    def adaptive(self) -> ShadowInversion:
        return replace(self.shadow, reads=LEARNED)

    def against(
        self, defence: str, ensembler: Ensembler, job: SplitJob, held: int
    ) -> dict[str, Attack]:
        """By name. `shadow` is the paper's attacker of one body, `adaptive` its attacker of several.

        held: how many records they usually have.
        """
        bodies = ensembler.bodies if defence in _SEVERAL_BODIES else 1
        alone = tuple(replace(self.shadow, reads=(i,)) for i in range(bodies))
        several = self.adaptive if bodies > 1 else alone[0]
        found: dict[str, Attack] = {f"body_{i + 1}": one for i, one in enumerate(alone)}
        if bodies == 1:
            found = {"shadow": several}
        elif defence == "ensembler":
            found["adaptive"] = several
        found["lookalike"] = self.lookalike
        found["true_head"] = bound_of(self.shadow)
        if defence in SEVERAL_CLIENTS:
            form = OwnForm(job.network, job.first, job.second)
            found["own_form"] = replace(several, head=form, upright=True)
        if defence in ("none", "ensembler"):
            found["matched"] = replace(several, match=self.match, upright=True)
            found["likelihood"] = Likelihood(several, steps=self.search_steps)
        if defence == "none":
            found["training_set"] = self._with_more(several, len(job.records) / held)
        if defence == "ensembler":
            found["committee"] = Committee((*alone, several))
            if self.subsets:
                found["subsets"] = SubsetSearch(ensembler.selected, inversion=self.shadow)
        return found

    def _with_more(self, attack: ShadowInversion, times: float) -> ShadowInversion:
        """For so many times the records: as few epochs as make twice the usual steps, at least one."""
        longer = attack.shadow_schedule
        epochs = max(1, round(2 * longer.epochs / times))
        fewer = max(1, round(2 * attack.decoder_schedule.epochs / times))
        return replace(
            attack,
            shadow_schedule=replace(longer, epochs=epochs),
            decoder_schedule=replace(attack.decoder_schedule, epochs=fewer),
        )


QUICK = Attackers.of(inversion(4, 1, 30), Lookalike(3, 2, Pass(3, 64), Pass(3, 64), Pass(3, 64)))
"""A few steps of everything."""


@dataclass(frozen=True)
class Setting:
    """One scale of a table: on which data, how large, over how many clients and shadows."""

    client: ClientSetting
    defences: tuple[str, ...]
    validation: int  # of the test records: those on which strengths are chosen
    ensembler: Ensembler = Ensembler(2, 1)
    attackers: Attackers = QUICK
    clients: int = 1  # of NONE, Single and the Ensembler
    shadows: int = 1  # of every attacker that trains one
    lambdas: tuple[float, ...] = (0.1,)  # of eq. 3
    shredders: tuple[float, ...] = (1.0,)  # sigma of the noise that Shredder starts from
    shredder: Shredder = Shredder()
    sigma: float = 0.1  # of Single
    dropout: float = 0.5

    def defence(self, name: str, strength: float, key: Key) -> tuple[SplitDefence, Key]:
        """Single is the first pipeline of the Ensembler's stage 1: the same definition, one training."""
        if name.startswith("body_"):
            return Noise(self.sigma), key.fold("body", int(name.removeprefix("body_")) - 1)
        made: dict[str, SplitDefence] = {
            "none": Noise(),
            "shredder": replace(self.shredder, sigma=strength),
            "dr_single": Dropout(self.dropout, FEATURES),
            "dr_answers": Dropout(self.dropout, ANSWERS),
            "dr_ensemble": DropoutEnsemble(self.ensembler.bodies, self.dropout, FEATURES),
            "random_head": RandomHead(),
            "foreign_head": ForeignHead(),
            "ensembler": replace(self.ensembler, likeness=strength),
        }
        if name == "single":
            return Noise(self.sigma), key.fold("body", 0)
        return made[name], key


@dataclass(frozen=True)
class Network:
    """One network to be trained: whose, how defended, how strongly where that is chosen."""

    client: int
    defence: str
    strength: float = 0.0

    def __str__(self) -> str:
        chosen = f" {self.strength:g}" if self.strength else ""
        return f"client {self.client + 1}, {self.defence}{chosen}"


@dataclass(frozen=True)
class Trained:
    """What was trained, and what is known of each network."""

    networks: Mapping[str, tuple[Network, ...]]  # by defence, client by client
    facts: Mapping[Network, Mapping[str, float]] = field(repr=False)
    tried: Mapping[
        str, Mapping[float, float]
    ]  # by defence: strength to accuracy on validation records

    def mean(self, defence: str, fact: str) -> float:
        values = [self.facts[network][fact] for network in self.networks[defence]]
        return sum(values) / len(values)

    def costs(self, defence: str) -> list[float]:
        """Accuracy lost against the same client's undefended network."""
        plain = self.networks["none"]
        return [
            self.facts[plain[network.client]]["accuracy"] - self.facts[network]["accuracy"]
            for network in self.networks[defence]
        ]


@lru_cache(maxsize=2)  # in each process
def game_of(run: Run[Setting], client: int) -> SplitGame:
    """The records of one client and its attacker, and the network that all its defences train."""
    key = run.key.fold("client", client)
    distance: Distance = perceptual(progress=run.progress)

    def in_colour(one: Tensor, other: Tensor) -> Tensor:
        """Grey images are shown to it in three equal channels."""
        return distance(*(x.expand(-1, 3, -1, -1) for x in (one, other)))

    game = SplitGame.of(run, run.setting.client, key, {})
    return replace(game, distance=in_colour)


def defended(run: Run[Setting], network: Network) -> SplitGame:
    """The client's game with this network's defence in it."""
    game = game_of(run, network.client)
    defence = run.setting.defence(network.defence, network.strength, game.key.fold("victim"))
    return replace(game, defences={network.defence: defence})


def train_networks(run: Run[Setting]) -> Trained:
    """Every network of the table. First what needs no other one, then what is built on it."""
    setting, every = run.setting, range(run.setting.clients)
    asked = [n for n in setting.defences if n not in ("shredder", "ensembler")]
    first = [
        Network(client, name)
        for client in every
        for name in asked
        if client == 0 or name in SEVERAL_CLIENTS
    ]
    if "ensembler" in setting.defences:
        later = [f"body_{i + 1}" for i in range(1, setting.ensembler.bodies)]
        first += [Network(client, name) for client in every for name in later]
    first.sort(key=lambda one: (one.client, one.defence not in _SEVERAL_BODIES))
    facts = _made(run, first)
    plain = facts[Network(0, "none")]["validation"]
    ladders = {"ensembler": setting.lambdas, "shredder": setting.shredders}
    trials = [
        Network(0, name, strength)
        for name, ladder in ladders.items()
        if name in setting.defences
        for strength in ladder
    ]
    facts |= _made(run, trials)
    tried, strongest = dict[str, dict[float, float]](), dict[str, float]()
    for name in ladders.keys() & set(setting.defences):
        seen = {n.strength: facts[n]["validation"] for n in trials if n.defence == name}
        good = [s for s, accuracy in seen.items() if accuracy >= plain - _COST[name]]
        tried[name], strongest[name] = seen, max(good, default=min(seen))
    networks = {
        name: tuple(
            Network(client, name, strongest.get(name, 0.0))
            for client in (every if name in SEVERAL_CLIENTS else (0,))
        )
        for name in setting.defences
    }
    facts |= _made(run, [n for several in networks.values() for n in several if n not in facts])
    return Trained(networks, facts, tried)


def _made(run: Run[Setting], networks: list[Network]) -> dict[Network, dict[str, float]]:
    found = run.arms("training the networks", _train, {str(n): n for n in networks})
    return {network: found[str(network)] for network in networks}


def _train(run: Run[Any], network: Network) -> dict[str, float]:
    """Accuracy on test and on validation records; size of the noise beside that of the features."""
    game, aside = defended(run, network), run.setting.validation
    pipeline = game.pipeline(network.defence)
    test = game.parts.test
    sent, noise = pipeline.released(test.inputs[:500]), pipeline.client.noise
    found = {
        "accuracy": pipeline.accuracy(test.inputs[aside:], test.labels[aside:]),
        "validation": pipeline.accuracy(test.inputs[:aside], test.labels[:aside]),
        "noise_size": float(noise.square().mean().sqrt()),
        "feature_size": float((sent - noise).square().mean().sqrt()),
    }
    if network.defence == "ensembler":
        with torch.no_grad():
            found["likeness"] = game.likeness(network.defence, pipeline)
    return found
