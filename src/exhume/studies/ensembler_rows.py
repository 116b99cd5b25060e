"""The rows of Ensembler24's tables: a defence, the attackers it is met with, accuracy and likeness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from exhume.attacks.split.committee import Committee
from exhume.attacks.split.enumeration import SubsetSearch
from exhume.attacks.split.inversion import ShadowInversion, TrueHeadInversion
from exhume.attacks.split.likelihood import Likelihood
from exhume.attacks.split.shadow import LEARNED
from exhume.contract import Attack, Key, Progress, Records, Store
from exhume.models.pipeline import Pipeline
from exhume.score.features import Distance, InputScores, score_constant, score_inputs
from exhume.studies.study import labelled
from exhume.victims.split import release_features, server_knowledge

__all__ = ["Met", "Row", "mean_image", "meet", "stronger", "the_papers"]


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a table: what an attacker brought back from one defence."""

    scores: InputScores
    observed: Mapping[str, float]


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


def meet(met: Met, pipeline: Pipeline, attack: Attack, name: str, *, head: bool = False) -> Row:
    """One attacker against one defence. head: the attacker is given the client's head."""
    release, secret = release_features(pipeline, met.private)
    knowledge = server_knowledge(pipeline, met.held, earlier=met.earlier, with_head=head)
    prepared = attack.prepare(
        knowledge,
        key=met.key.fold("attack", name),
        store=met.store,
        progress=labelled(met.progress, name),
    )
    found = prepared.run(release)
    return Row(score_inputs(secret, found, met.distance), found.observed)


def mean_image(met: Met, pipeline: Pipeline) -> InputScores:
    """The null: the mean of the attacker's own records."""
    _, secret = release_features(pipeline, met.private)
    return score_constant(secret, met.held.inputs.mean(0), met.distance)


def the_papers(met: Met, pipeline: Pipeline, attack: ShadowInversion, name: str) -> dict[str, Row]:
    """The paper's attackers: against one body; against several, the best of them and the adaptive one.

    Which body is best is judged with the truth in sight, as in the paper: a bound on that attacker.
    """
    bodies = len(pipeline.bodies)
    if bodies == 1:
        return {name: meet(met, pipeline, replace(attack, reads=(0,)), name)}
    single = [
        meet(met, pipeline, replace(attack, reads=(i,)), f"{name} body {i + 1}")
        for i in range(bodies)
    ]

    def mean(row: Row, measure: str) -> float:
        return float(row.scores.each[measure].mean())

    adaptive = replace(attack, reads=LEARNED)
    return {
        f"{name}_adaptive": meet(met, pipeline, adaptive, f"{name} adaptive"),
        f"{name}_best_ssim": max(single, key=lambda row: mean(row, "ssim")),
        f"{name}_best_psnr": max(single, key=lambda row: mean(row, "psnr")),
    }


def stronger(
    met: Met, pipeline: Pipeline, attack: ShadowInversion, name: str, *, selected: int, match: float
) -> dict[str, Row]:
    """Attackers the paper leaves out, and the bound of one who knows the head."""
    several = replace(attack, reads=LEARNED if len(pipeline.bodies) > 1 else (0,))
    matched = replace(several, match=match)
    attackers: dict[str, Attack] = {
        f"{name}_matched": matched,
        f"{name}_committee": Committee(several),
        f"{name}_likelihood": Likelihood(several),
    }
    if len(pipeline.bodies) > 1:
        attackers[f"{name}_subsets"] = SubsetSearch(selected, inversion=attack)
    rows = {row: meet(met, pipeline, attacker, row) for row, attacker in attackers.items()}
    bound = TrueHeadInversion(attack.decoder, attack.decoder_schedule)
    rows[f"{name}_true_head"] = meet(met, pipeline, bound, f"{name} true head", head=True)
    return rows
