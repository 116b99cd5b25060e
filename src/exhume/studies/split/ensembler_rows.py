"""The rows of Ensembler24's tables: a defence, the attackers it is met with, accuracy and likeness.

All attackers of one defence share a key, so that a shadow which several of them need is trained once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from exhume.attacks.split.committee import Committee
from exhume.attacks.split.enumeration import SubsetSearch
from exhume.attacks.split.inversion import ShadowInversion, TrueHeadInversion
from exhume.attacks.split.likelihood import Likelihood
from exhume.attacks.split.lookalike import Lookalike
from exhume.attacks.split.shadow import LEARNED
from exhume.contract import Attack, Key, Progress, Records, Store
from exhume.models.split.pipeline import Pipeline
from exhume.score.features import Distance, InputScores, score_constant, score_inputs
from exhume.studies.study import labelled
from exhume.victims.split import release_features, server_knowledge

__all__ = [
    "THOROUGH",
    "Attackers",
    "Met",
    "Row",
    "left_out",
    "mean_image",
    "meet",
    "pieces",
    "the_papers",
]


THOROUGH = ("none", "ensembler")
"""Defences that are met with every attacker."""


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a table: what an attacker brought back from one defence."""

    scores: InputScores
    observed: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, eq=False)
class Met:
    """Records of all roles, and what is common to all rows."""

    private: Records  # what the client sends, and the attacker wants
    held: Records  # the attacker's own
    earlier: Records  # sent before; the attacker kept the features
    distance: Distance | None
    key: Key
    store: Store
    progress: Progress


@dataclass(frozen=True)
class Attackers:
    """How hard they try."""

    shadow: ShadowInversion
    lookalike: Lookalike
    match: float = 10.0
    search_steps: int = 100  # of the likelihood


def meet(
    met: Met, pipeline: Pipeline, attack: Attack, defence: str, row: str = "", *, head: bool = False
) -> Row:
    """One attacker against one defence. head: the attacker is given the client's head."""
    release, secret = release_features(pipeline, met.private)
    knowledge = server_knowledge(pipeline, met.held, earlier=met.earlier, with_head=head)
    prepared = attack.prepare(
        knowledge,
        key=met.key.fold("attack", defence),
        store=met.store,
        progress=labelled(met.progress, row or defence),
    )
    found = prepared.run(release)
    return Row(score_inputs(secret, found, met.distance), found.observed, found.cost.seconds)


def mean_image(met: Met, pipeline: Pipeline) -> InputScores:
    """The null: the mean of the attacker's own records."""
    _, secret = release_features(pipeline, met.private)
    return score_constant(secret, met.held.inputs.mean(0), met.distance)


def the_papers(
    met: Met, pipeline: Pipeline, attack: ShadowInversion, name: str, *, adaptive: bool
) -> dict[str, Row]:
    """The paper's attackers: against one body; against several, the best of them, and the adaptive one.

    Which body is best is judged with the truth in sight, as in the paper: a bound on that attacker.
    """
    bodies = len(pipeline.bodies)
    if bodies == 1:
        return {name: meet(met, pipeline, replace(attack, reads=(0,)), name, name)}
    single = [
        meet(met, pipeline, replace(attack, reads=(i,)), name, f"{name} body {i + 1}")
        for i in range(bodies)
    ]

    def best(measure: str) -> Row:
        return max(single, key=lambda row: float(row.scores.each[measure].mean()))

    rows = {f"{name}_best_{measure}": best(measure) for measure in ("ssim", "psnr")}
    if adaptive:
        learned = replace(attack, reads=LEARNED)
        rows[f"{name}_adaptive"] = meet(met, pipeline, learned, name, f"{name} adaptive")
    return rows


def left_out(
    met: Met, pipeline: Pipeline, attackers: Attackers, name: str, *, selected: int, every: bool
) -> dict[str, Row]:
    """Attackers the paper leaves out. every: also the weaker ones, and the bound of a known head."""
    tried = _left_out(attackers, len(pipeline.bodies), selected=selected, every=every)
    rows = {
        f"{name}_{row}": meet(met, pipeline, attacker, name, f"{name} {row}")
        for row, attacker in tried.items()
    }
    if every:
        bound = _bound(attackers)
        rows[f"{name}_true_head"] = meet(met, pipeline, bound, name, f"{name} true head", head=True)
    return rows


def _left_out(
    attackers: Attackers, bodies: int, *, selected: int, every: bool
) -> dict[str, Attack]:
    attack = attackers.shadow
    tried: dict[str, Attack] = {"lookalike": attackers.lookalike}
    if every:
        several = replace(attack, reads=LEARNED if bodies > 1 else (0,))
        tried["matched"] = replace(several, match=attackers.match)
        tried["likelihood"] = Likelihood(several, steps=attackers.search_steps)
    if every and bodies > 1:
        alone = tuple(replace(attack, reads=(i,)) for i in range(bodies))
        tried["committee"] = Committee((*alone, several))
        tried["subsets"] = SubsetSearch(selected, inversion=attack)
    return tried


def _bound(attackers: Attackers) -> TrueHeadInversion:
    return TrueHeadInversion(attackers.shadow.decoder, attackers.shadow.decoder_schedule)


def pieces(
    attackers: Attackers, bodies: int, *, selected: int, every: bool
) -> list[tuple[Attack, bool]]:
    """What all rows of a defence need trained, the longest first; with each, whether it knows the head.

    None needs what another trains, so that they can be made in any order; they are met in the store.
    """
    attack = attackers.shadow
    found: list[Attack] = []
    if bodies > 1 and every:
        several = replace(attack, reads=LEARNED)
        found += [several, replace(several, match=attackers.match)]
        subsets = SubsetSearch(selected).subsets(bodies)
        found += [replace(attack, reads=subset) for subset in subsets if len(subset) > 1]
    elif every:
        found.append(replace(attack, match=attackers.match))
    found += [replace(attack, reads=(i,)) for i in range(bodies)]
    known: list[tuple[Attack, bool]] = [(one, False) for one in (*found, attackers.lookalike)]
    return [*known, *([(_bound(attackers), True)] if every else [])]
