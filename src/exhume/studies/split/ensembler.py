"""Ensembler24's defences on one data set, met with the paper's attackers and with those it leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from torch import Tensor

from exhume.attacks.split.committee import Committee
from exhume.attacks.split.enumeration import SubsetSearch
from exhume.attacks.split.inversion import ShadowInversion
from exhume.attacks.split.layer_fit import Pass
from exhume.attacks.split.likelihood import Likelihood
from exhume.attacks.split.lookalike import Lookalike
from exhume.attacks.split.shadow import LEARNED
from exhume.contract import Attack, Cost, Key, Outcome, Status
from exhume.defences.split.dropout_ensemble import DropoutEnsemble
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Dropout, Noise, RandomHead, Shredder
from exhume.models.lpips import perceptual
from exhume.models.split.pipeline import Pipeline
from exhume.results import AttackSpec, Findings, Section
from exhume.score.features import Distance
from exhume.studies.claims import prefixed
from exhume.studies.framework import Run
from exhume.studies.split.game import ClientSetting, Row, SplitGame, bound_of, inversion
from exhume.train.split import ANSWERS, SplitDefence

__all__ = ["QUICK", "Attackers", "Setting", "fill", "findings", "game_of", "make", "play"]

_SHOWN = 8  # images of each row on the page
_SEVERAL = ("ensembler", "dr_ensemble")  # bodies
_THOROUGH = ("none", "ensembler")  # met with every attacker, and with the bound of a known head


@dataclass(frozen=True)
class Attackers:
    """How hard they try."""

    shadow: ShadowInversion
    lookalike: Lookalike
    match: float = 10.0
    search_steps: int = 100  # of the likelihood

    @staticmethod
    def of(shadow: ShadowInversion, lookalike: Lookalike) -> Attackers:
        """All decoders alike, trained alike."""
        decoder, schedule = shadow.decoder, shadow.decoder_schedule
        return Attackers(shadow, replace(lookalike, decoder=decoder, decoder_schedule=schedule))

    @property
    def adaptive(self) -> ShadowInversion:
        return replace(self.shadow, reads=LEARNED)

    def against(self, defence: str, ensembler: Ensembler) -> dict[str, Attack]:
        """By name; the paper's attacker of one body has none."""
        bodies, every = ensembler.bodies if defence in _SEVERAL else 1, defence in _THOROUGH
        alone = tuple(replace(self.shadow, reads=(i,)) for i in range(bodies))
        several = self.adaptive if bodies > 1 else alone[0]
        found: dict[str, Attack] = {"": alone[0]}
        if bodies > 1:
            found = {f"body_{i + 1}": one for i, one in enumerate(alone)}
            found |= {"adaptive": several} if every else {}
        found["lookalike"] = self.lookalike
        if every:
            found["matched"] = replace(several, match=self.match)
            found["likelihood"] = Likelihood(several, steps=self.search_steps)
            if bodies > 1:
                found["committee"] = Committee((*alone, several))
                found["subsets"] = SubsetSearch(ensembler.selected, inversion=self.shadow)
            found["true_head"] = bound_of(self.shadow)
        return found


QUICK = Attackers.of(inversion(4, 1, 30), Lookalike(3, 2, Pass(3, 64), Pass(3, 64), Pass(3, 64)))
"""A few steps of everything."""


@dataclass(frozen=True)
class Setting:
    """One scale of a table: on which data, how large."""

    client: ClientSetting
    defences: tuple[str, ...]
    ensembler: Ensembler = Ensembler(2, 1)
    attackers: Attackers = QUICK
    shredder: Shredder = Shredder(1.0)
    sigma: float = 0.1  # of Single
    dropout: float = 0.5

    def game(self, run: Run[Any]) -> SplitGame:
        """Single is the first pipeline of the Ensembler's stage 1: the same definition, one training."""
        key = run.key.fold("victim")
        defences: dict[str, tuple[SplitDefence, Key]] = {
            "none": (Noise(), key),
            "shredder": (self.shredder, key),
            "single": (Noise(self.sigma), key.fold("body", 0)),
            "dr_single": (Dropout(self.dropout, ANSWERS), key),
            "dr_ensemble": (DropoutEnsemble(self.ensembler.bodies, self.dropout, ANSWERS), key),
            "random_head": (RandomHead(), key),
            "ensembler": (self.ensembler, key),
        }
        distance: Distance = perceptual(progress=run.progress)

        def in_colour(one: Tensor, other: Tensor) -> Tensor:
            """Grey images are shown to it in three equal channels."""
            return distance(*(x.expand(-1, 3, -1, -1) for x in (one, other)))

        return replace(SplitGame.of(run, self.client, run.key, defences), distance=in_colour)


def play(run: Run[Setting]) -> tuple[dict[str, Row], dict[str, float]]:
    """Rows by name, the mean image first, and their metrics."""
    setting = run.setting
    attacks = {n: setting.attackers.against(n, setting.ensembler) for n in setting.defences}
    fill(run, attacks, setting.ensembler.bodies)
    game = game_of(run)
    rows = {"mean_image": game.mean_image()}
    metrics = prefixed("mean_image", rows["mean_image"].metrics)
    for name in setting.defences:
        pipeline = game.pipeline(name)
        metrics |= _facts(game, name, pipeline)
        cost = metrics[f"{name}.accuracy"] - metrics["none.accuracy"]
        for row, found in _rows(game, attacks[name], name, pipeline).items():
            rows[row] = found
            metrics |= prefixed(row, found.metrics)
            metrics |= {f"{row}.delta_accuracy": cost, f"{row}.seconds": found.seconds}
    return rows, metrics | {"accuracy": metrics["none.accuracy"]}


@lru_cache(maxsize=1)  # one in each process
def game_of(run: Run[Any]) -> SplitGame:
    game: SplitGame = run.setting.game(run)
    return game


def fill(run: Run[Any], attacks: Mapping[str, Mapping[str, Attack]], bodies: int) -> None:
    """Where several processes run, they train the networks, then the attackers; the study then only loads.

    attacks: by defence; bodies: of the one whose subsets are tried.
    """
    order = sorted(attacks, key=lambda name: name not in _SEVERAL)
    run.fill("training the networks", make, [(name, None) for name in order])
    tried = [(name, one) for name in order for one in _pieces(attacks[name].values(), bodies)]
    run.fill("training the attackers", make, tried)


def make(run: Run[Any], piece: tuple[str, Attack | None]) -> None:
    """Leave in the store the network of a defence, and what an attacker against it trains, if any."""
    (name, attack), game = piece, game_of(run)
    pipeline = game.pipeline(name)
    if attack is not None:
        replace(game, distance=None).meet(pipeline, attack, name)


def _pieces(attacks: Iterable[Attack], bodies: int) -> list[Attack]:
    """What attackers need trained, each once, those with several bodies first.

    None needs what another trains, so that they can be made in any order; they are met in the store.
    """
    found: list[Attack] = []
    for attack in attacks:
        if isinstance(attack, SubsetSearch):
            subsets = attack.subsets(bodies)
            found += [replace(attack.inversion, reads=subset) for subset in subsets]
        elif not isinstance(attack, Committee | Likelihood):
            found.append(attack)
    return list(dict.fromkeys(reversed(found)))


def _rows(
    game: SplitGame, attacks: Mapping[str, Attack], name: str, pipeline: Pipeline
) -> dict[str, Row]:
    """Rows of one defence; of the attackers of one body among several, the best.

    Which body is best is judged with the truth in sight, as in the paper: a bound on that attacker.
    """
    rows = {
        who: game.meet(pipeline, attack, name, f"{name} {who}".strip())
        for who, attack in attacks.items()
    }
    alone = [rows.pop(who) for who in attacks if who.startswith("body_")]
    if alone:
        best = {f"best_{by}": max(alone, key=lambda row: row.mean(by)) for by in ("ssim", "psnr")}
        rows = best | rows
    return {f"{name}_{who}".removesuffix("_"): row for who, row in rows.items()}


def _facts(game: SplitGame, name: str, pipeline: Pipeline) -> dict[str, float]:
    """Accuracy; size of the noise beside that of the features; what became of eq. 3's cosine."""
    sent, noise = pipeline.released(game.parts.test.inputs), pipeline.client.noise
    found = {
        f"{name}.accuracy": game.accuracy(pipeline),
        f"{name}.noise_size": float(noise.square().mean().sqrt()),
        f"{name}.feature_size": float((sent - noise).square().mean().sqrt()),
    }
    if name == "ensembler":
        found[f"{name}.likeness"] = game.likeness(name, pipeline)
    return found


def findings(row: str, found: Row) -> Findings:
    """The row on the page: its first images, and what came back of them."""
    scores = found.scores
    tensors = {"targets": scores.targets, "reconstructions": scores.reconstructions}
    tensors |= {name: scores.each[name] for name in ("mse", "ssim", "psnr")}
    section = Section(
        AttackSpec(row, row.replace("_", " "), "Ensembler24", "the features that the client sends"),
        Status(Outcome.CONVERGED),
        metrics={name: found.mean(name) for name in scores.each},
        cost=Cost(found.seconds),
    )
    shown = {name: tensor[:_SHOWN].contiguous() for name, tensor in tensors.items()}
    return Findings(section, evidence=shown)
