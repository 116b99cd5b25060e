"""Can the Ensembler be repaired? What its idea suggests, and what each still gives the strongest attacker.

The Ensembler hides the client's head. Here it is hidden better: fresh noise in place of a fixed map, a
secret rotation of the channels, a head trained against a decoder, deeper cuts, and an Ensembler with a
rotation. Each is met with attackers without the head (a lookalike of the first layer where it is one, shadows
of the client's own form) and with one who has it. The verdict is the audit's own: who is identified in a
line-up among strangers of the class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from exhume.attacks.informed.reconn import FEWEST
from exhume.attacks.split.inversion import ShadowInversion
from exhume.attacks.split.lookalike import Lookalike, Pass
from exhume.attacks.split.shadow import LEARNED
from exhume.core.contract import Attack
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.hiding import Adversarial, Fresh, Rotated, Rotation
from exhume.defences.split.single import Noise
from exhume.models.split.inverter import OwnForm
from exhume.readers import Sizes
from exhume.score.features import InputScores
from exhume.score.lineup import LEVEL, Lineup, likeness
from exhume.studies.claims import spread
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.split.game import (
    PAPER,
    ClientSetting,
    Row,
    SplitGame,
    bound_of,
    inversion,
    pictured,
)
from exhume.train.single import Schedule, SplitDefence

_SHOWN = 16
_KNOWS = "true_head"
_ATTACKERS = {
    "lookalike": "lookalike of the first layer",
    "own_form": "shadows of its own form",
    _KNOWS: "head known",
}


@dataclass(frozen=True)
class _Repair:
    """One way to hide the head: where the cut is, how the network is trained."""

    defence: SplitDefence
    first: str = "conv1"
    rotated: bool = False  # its channels are mixed before the defence sees them


@dataclass(frozen=True)
class _Setting:
    client: ClientSetting
    attack: ShadowInversion
    lookalike: Lookalike
    repairs: Mapping[str, _Repair]
    starts: int = 2  # shadows; the one that classifies best is inverted


def _repairs(
    sigmas: tuple[float, ...], weights: tuple[float, ...], ensembler: Ensembler
) -> dict[str, _Repair]:
    """By name; `none` and the Ensembler as it is published come first."""
    return {
        "none": _Repair(Noise()),
        "ensembler": _Repair(ensembler),
        **{f"fresh_{sigma:g}": _Repair(Fresh(sigma)) for sigma in sigmas},
        "rotated": _Repair(Rotated()),
        **{f"adversarial_{weight:g}": _Repair(Adversarial(weight)) for weight in weights},
        "after_block1": _Repair(Noise(), "block1"),
        "after_block2": _Repair(Noise(), "block2"),
        "ensembler_rotated_block1": _Repair(ensembler, "block1", rotated=True),
    }


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(
        ClientSetting(Sizes(60, 40, 60, 40, 30), 4, Schedule(1, 50, 0.05), augment=False),
        inversion(4, 1, 30),
        Lookalike(3, 2, Pass(3, 64), Pass(3, 64), Pass(3, 64)),
        _repairs((1.0,), (1.0,), Ensembler(2, 1)),
    ),
    "cpu": _Setting(
        ClientSetting(
            Sizes(18_000, 200, 3_000, 1_500, 3_000), 16, Schedule(4, 64, 0.1), augment=False
        ),
        inversion(32, 5, 32, shadow_epochs=8),
        Lookalike(),
        _repairs((0.5, 2.0), (10.0,), Ensembler(2, 1, likeness=0.3)),
    ),
    "paper": _Setting(
        PAPER,
        inversion(64, 50, 128),
        Lookalike(starts=12),
        _repairs((0.25, 0.5, 1.0, 2.0, 4.0), (1.0, 10.0, 100.0), Ensembler(10, 4, likeness=0.3)),
        starts=3,
    ),
}


@lru_cache(maxsize=1)  # one in each process
def _game(run: Run[_Setting]) -> SplitGame:
    return SplitGame.of(run, run.setting.client, run.key.fold("split-repairs"), {})


def _placed(run: Run[_Setting], name: str) -> tuple[SplitGame, OwnForm]:
    """The game with this repair in it, and the form of its head, as its attackers know it."""
    repair, game = run.setting.repairs[name], _game(run)
    job = replace(game.job, first=repair.first)
    mixed = Rotation(job.network, job.first, job.second, learned=True)
    form = OwnForm(mixed, "head", "body")
    if repair.rotated:
        job = Rotated().job(job)
    elif not isinstance(repair.defence, Rotated):
        form = OwnForm(job.network, job.first, job.second)
    key = game.key.fold("victim")
    return replace(game, job=job, defences={name: (repair.defence, key)}), form


def _train(run: Run[Any], name: str) -> dict[str, float]:
    game, _ = _placed(run, name)
    pipeline = game.pipeline(name)
    test, key = game.parts.test, game.key.fold("test")
    return {"accuracy": pipeline.accuracy(test.inputs, test.labels, key)}


def _attacks(setting: _Setting, name: str, form: OwnForm) -> dict[str, Attack]:
    repair = setting.repairs[name]
    shadow = replace(setting.attack, starts=setting.starts, upright=True)
    if isinstance(repair.defence, Ensembler):
        shadow = replace(shadow, reads=LEARNED)
    found: dict[str, Attack] = {"own_form": replace(shadow, head=form)}
    found[_KNOWS] = bound_of(setting.attack)
    one_layer = repair.first == "conv1" and not (
        repair.rotated or isinstance(repair.defence, Rotated)
    )
    if one_layer:
        decoder, schedule = setting.attack.decoder, setting.attack.decoder_schedule
        look = replace(setting.lookalike, decoder=decoder, decoder_schedule=schedule)
        found = {"lookalike": look, **found}
    return found


def _meet(run: Run[Any], which: tuple[str, str]) -> dict[str, Tensor]:
    """One attacker against one repair: SSIM of every image, and the line-up."""
    name, attacker = which
    game, form = _placed(run, name)
    attack = _attacks(run.setting, name, form)[attacker]
    row = game.meet(game.pipeline(name), attack, name, f"{name} {attacker}")
    drawn, target = row.scores.reconstructions.cpu(), game.parts.target.to(torch.device("cpu"))
    crowded = bool((torch.bincount(target.labels) > FEWEST).all())
    lineup = Lineup(
        likeness([one[None] for one in drawn], target.inputs),
        torch.arange(len(target)),
        target.labels if crowded else torch.zeros_like(target.labels),
    ).score(game.key.fold("line-up"))
    numbers = {"p": lineup.p, "chance": lineup.chance}
    numbers |= {name: row.observed[name] for name in ("shadow_accuracy",) if name in row.observed}
    return {
        "ssim": row.scores.each["ssim"],
        "affine_ssim": row.scores.each["affine_ssim"],
        "mse": row.scores.each["mse"],
        "identified": lineup.identified.double(),
        "images": drawn[:_SHOWN].contiguous(),
        **{name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()},
    }


def _run(run: Run[_Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("split-repairs study")
    names = list(setting.repairs)
    trained = run.arms("training the networks", _train, {name: name for name in names})
    pairs = [
        (name, who) for name in names for who in _attacks(setting, name, _placed(run, name)[1])
    ]
    made = run.tensors("attacking", _meet, {f"{name}.{who}": (name, who) for name, who in pairs})
    metrics = {f"{name}.accuracy": trained[name]["accuracy"] for name in names}
    for row, found in made.items():
        metrics |= spread(f"{row}.ssim", found["ssim"], key)
        metrics |= spread(f"{row}.identified", found["identified"], key)
        metrics |= {
            f"{row}.{number}": float(found[number].mean())
            for number in ("affine_ssim", "p", "chance", "shadow_accuracy")
            if number in found
        }
    words = {name: _word(made, name) for name in names}
    for name, word in words.items():
        metrics[f"{name}.leaks"] = float(word == "leaks")
        metrics[f"{name}.at_risk"] = float(word == "at risk")
    targets = _game(run).parts.target.inputs
    shown = {
        name: Row(InputScores({"mse": found["mse"]}, targets[:_SHOWN], found["images"]))
        for name, found in made.items()
    }
    pictures, labels = pictured(
        {f"Attacker: {spoken}": _of(shown, who) for who, spoken in _ATTACKERS.items()}
    )
    return Outcome(
        said={**compared(setting, metrics, words), **places(names, metrics)},
        metrics=metrics,
        attacks=pictures,
        classes=labels,
    )


def _of(rows: Mapping[str, Row], who: str) -> dict[str, Row]:
    return {
        f"{name.removesuffix(f'.{who}').replace('_', ' ')}, {who.replace('_', ' ')}": row
        for name, row in rows.items()
        if name.endswith(f".{who}")
    }


def _word(made: Mapping[str, Mapping[str, Tensor]], name: str) -> str:
    """The audit's word for one repair; its attackers were fixed beforehand, and share the level."""
    own = {row: found for row, found in made.items() if row.startswith(f"{name}.")}
    caught = {row for row, found in own.items() if float(found["p"]) * len(own) <= LEVEL}
    if caught - {f"{name}.{_KNOWS}"}:
        return "leaks"
    return "at risk" if caught else "nothing found"


def compared(
    setting: _Setting, metrics: Mapping[str, float], words: Mapping[str, str]
) -> dict[str, object]:
    """What the claims ask for: which repairs held, if the same attackers find the records without one."""
    tried = [name for name in setting.repairs if name not in ("none", "ensembler")]
    works = words["none"] == "leaks"  # or the silence of the same attackers elsewhere says nothing
    held = [name for name in tried if words[name] == "nothing found"]
    hidden = [name for name in tried if words[name] in ("nothing found", "at risk")]
    cheap = [n for n in tried if metrics["none.accuracy"] - metrics[f"{n}.accuracy"] <= 0.03]
    safest = min(cheap, key=lambda name: metrics[f"{name}.own_form.identified"], default="none")
    return {
        "told": "; ".join(f"{name.replace('_', ' ')}: {words[name]}" for name in setting.repairs),
        **{"published": words["ensembler"], "tried": len(tried), "hidden": len(hidden)},
        **{"held_up": works * len(held), "hid": works * len(hidden)},
        **{"safest": safest.replace("_", " "), "left": metrics[f"{safest}.own_form.identified"]},
        "ensembler": setting.repairs["ensembler"].defence,
    }


def places(names: Sequence[str], metrics: Mapping[str, float]) -> dict[str, object]:
    """Where the charts have each repair, and each of its attackers that was there."""
    shown = {name.replace("_", " "): name for name in names}
    met = {
        who: {label: f"{n}.{who}" for label, n in shown.items() if f"{n}.{who}.ssim" in metrics}
        for who in _ATTACKERS
    }
    return {"names": shown, "met": met}


STUDY = Study(
    "split-repairs", _SCALES, _run, spreads=True, on_device=True, threads={"cpu": 1, "smoke": 1}
)
