"""What the Ensembler's numbers do: P, N, lambda and sigma, and what trying every selection costs.

One stage 1 serves all choices of P, N and lambda; a sigma has its own. Each variant is met with the paper's
adaptive attacker and with the one who looks at features only; the plain one also with all 2^N - 1 subsets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import linear_regression
from typing import Any

from torch import Tensor

from exhume.attacks.split.inversion import ShadowInversion, SubsetSearch
from exhume.attacks.split.lookalike import Lookalike
from exhume.attacks.split.shadow import server_of, train_shadow
from exhume.core.contract import Attack, Key, silent
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Noise
from exhume.models.split.pipeline import Pipeline
from exhume.readers import Sizes
from exhume.store.shards import NullStore
from exhume.studies.claims import Comparison, flattened, prefixed
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.split.ensembler import QUICK, Attackers
from exhume.studies.split.game import PAPER, ClientSetting, Row, SplitGame, inversion
from exhume.train.single import Schedule, SplitDefence
from exhume.victims.split import server_knowledge

_PAPER_BODIES = 10
_PLAIN = "plain"


@dataclass(frozen=True)
class _Setting:
    client: ClientSetting
    attackers: Attackers
    variants: Mapping[str, Ensembler]  # the plain one first

    def attacks(self, name: str) -> dict[str, Attack]:
        """The paper's adaptive one, the one who looks; of the plain one also every subset."""
        if name == "none":
            return {}
        shadow, lookalike = self.attackers.shadow, self.attackers.lookalike
        subsets = {"subsets": SubsetSearch(inversion=shadow)} if name == _PLAIN else {}
        return {"adaptive": self.attackers.adaptive, "lookalike": lookalike, **subsets}

    def game(self, run: Run[Any]) -> SplitGame:
        key = run.key.fold("selector study")
        defences: dict[str, SplitDefence] = {"none": Noise(), **self.variants}
        keyed = {name: (defence, key) for name, defence in defences.items()}
        return SplitGame.of(run, self.client, key, keyed)


def _variants(
    plain: Ensembler, selected: tuple[int, ...], lambdas: tuple[float, ...], sigma: float = 0.5
) -> dict[str, Ensembler]:
    """By the name of what differs from the plain one. lambdas: the least first."""
    return {
        _PLAIN: plain,
        **{f"selected_{p}": replace(plain, selected=p) for p in selected},
        **{f"lambda_{w:g}": replace(plain, likeness=w) for w in lambdas},
        f"bodies_{plain.selected}": replace(plain, bodies=plain.selected),
        f"sigma_{sigma:g}": replace(plain, sigma=sigma),
    }


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        ClientSetting(Sizes(60, 12, 60, 40, 30), 4, Schedule(1, 50, 0.05), augment=False),
        QUICK,
        _variants(Ensembler(2, 1), (2,), (0.0, 2.0)),
    ),
    "cpu": _Setting(
        ClientSetting(
            Sizes(10_000, 200, 2_000, 2_000, 2_000), 16, Schedule(2, 64, 0.1), augment=False
        ),
        Attackers.of(inversion(24, 4, 32), Lookalike()),
        _variants(Ensembler(4, 2, likeness=0.1, schedule=Schedule(3, 64, 0.1)), (1, 4), (0.0, 1.0)),
    ),
    "paper": _Setting(
        replace(PAPER, augment=False),
        Attackers.of(inversion(64, 50, 128), Lookalike(starts=12)),
        _variants(Ensembler(10, 4, likeness=0.1), (1, 2, 6, 10), (0.0, 1.0, 10.0)),
    ),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting, game = run.setting, _game(run)
    first = ("none", _PLAIN)  # whose bodies serve most variants
    facts = run.arms("training the first networks", _train, {name: name for name in first})
    others = {name: name for name in setting.variants if name != _PLAIN}
    facts |= run.arms("training the networks", _train, others)
    cells = {f"{name}.{who}": (name, who) for name in facts for who in setting.attacks(name)}
    made = run.tensors("attacking", _meet, cells)
    rows = {cell: Row.of(kept) for cell, kept in made.items()}
    metrics = prefixed("mean_image", game.mean_image().metrics)
    metrics["none.accuracy"] = facts["none"]["accuracy"]
    for name in setting.variants:
        metrics[f"{name}.delta_accuracy"] = facts[name]["accuracy"] - metrics["none.accuracy"]
        metrics[f"{name}.likeness"] = facts[name]["likeness"]
    metrics |= flattened({cell: row.metrics for cell, row in rows.items()})
    plain = game.pipeline(_PLAIN)
    metrics |= _guessed(plain, rows["plain.subsets"].observed)
    metrics |= _enumeration(plain, game, setting.attackers.shadow)
    return Outcome(said=compared(setting, rows, metrics, game.key), metrics=metrics)


@lru_cache(maxsize=1)  # one in each process
def _game(run: Run[Any]) -> SplitGame:
    game: SplitGame = run.setting.game(run)
    return game


def _train(run: Run[Any], name: str) -> dict[str, float]:
    game = _game(run)
    pipeline = game.pipeline(name)
    likeness = {} if name == "none" else {"likeness": game.likeness(name, pipeline)}
    return {"accuracy": game.accuracy(pipeline), **likeness}


def _meet(run: Run[Any], cell: tuple[str, str]) -> dict[str, Tensor]:
    """One attacker against one variant."""
    (name, attacker), game = cell, _game(run)
    attack = run.setting.attacks(name)[attacker]
    return game.meet(game.pipeline(name), attack, name, f"{name} {attacker}").kept(0)


def _guessed(pipeline: Pipeline, observed: Mapping[str, float]) -> dict[str, float]:
    """How many subsets were tried, and how the client's ranks among them by its shadow's accuracy."""
    tried = {name: a for name, a in observed.items() if name.startswith("shadow_accuracy.")}
    own = tried["shadow_accuracy." + "+".join(map(str, pipeline.client.selected))]
    rank = 1.0 + sum(accuracy > own for accuracy in tried.values())
    return {"enumeration.subsets": float(len(tried)), "enumeration.rank": rank}


def _enumeration(pipeline: Pipeline, game: SplitGame, shadow: ShadowInversion) -> dict[str, float]:
    """Measured seconds of one epoch through k bodies; from these, hours to try every subset of N."""
    server = server_of(server_knowledge(pipeline, game.parts.shadow), "timing")
    count, seconds = len(pipeline.bodies), list[float]()
    once, epochs = replace(shadow.shadow_schedule, epochs=1), shadow.shadow_schedule.epochs
    for size in range(1, count + 1):
        started = time.perf_counter()
        train_shadow(
            server,
            tuple(range(size)),
            shadow.head,
            once,
            key=game.key,
            store=NullStore(),
            progress=silent,
        )
        seconds.append(time.perf_counter() - started)
    each, alone = linear_regression(range(1, count + 1), seconds)
    found = {f"enumeration.epoch_seconds_{k}": s for k, s in enumerate(seconds, 1)}
    for bodies in (count, _PAPER_BODIES):
        whole = sum(
            math.comb(bodies, k) * epochs * (alone + each * k) for k in range(1, bodies + 1)
        )
        found[f"enumeration.hours_{bodies}"] = whole / 3600
        found[f"enumeration.trials_{bodies}"] = 2.0**bodies - 1
    return found


def compared(
    setting: _Setting, rows: Mapping[str, Row], metrics: Mapping[str, float], key: Key
) -> dict[str, object]:
    """What the claims ask for: attackers of the plain variant, and the largest lambda beside the least."""
    ssim = Comparison(
        lambda row: rows[row].scores.each["affine_ssim"], "SSIM after an affine fit", key
    )
    least, *_, most = (name for name in setting.variants if name.startswith("lambda_"))
    cost, without = metrics[f"{most}.delta_accuracy"], metrics[f"{least}.delta_accuracy"]
    return {
        **{"least": least, "most": most, "least_said": _spoken(least), "most_said": _spoken(most)},
        "named": {_spoken(name): name for name in setting.variants},
        "tried": ssim("plain.subsets", "plain.adaptive"),
        "seen": ssim("plain.lookalike", "plain.subsets"),
        "helped": [
            {"attacker": who, "gap": ssim(f"{most}.{who}", f"{least}.{who}")}
            for who in ("adaptive", "lookalike")
        ],
        **{"cost": 100 * cost, "without": 100 * without},
    }


def _spoken(variant: str) -> str:
    return variant.replace("_", " ")


STUDY = Study("ensembler-selector", _SCALES, _run, spreads=True, on_device=True)
