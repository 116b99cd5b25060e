"""Ensembler24, Tables 1 to 3: split inference on CIFAR-10, CIFAR-100 and faces, and attackers it leaves out.

CIFAR-100's network has no max-pool before the cut. The faces are CelebA-HQ at paper scale, ORL below it, or
those of a user's folder, one sub-folder a person (`--data FOLDER`), cropped and resized.

A row of a table is one attacker against one defence: an array of clients x shadows x images. The shadow that
the server would take, by what it can observe, stands for the row; `each` are the single shadows, as the paper
trains them. Intervals resample clients, shadows within clients, and images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from exhume.attacks.split.lookalike import Lookalike
from exhume.core.contract import Cost, Key, Status
from exhume.core.contract import Outcome as Ended
from exhume.core.results import AttackSpec, Chart, Findings, Point, Section
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Shredder
from exhume.readers import Sizes
from exhume.score.intervals import clustered
from exhume.studies.claims import Paired, Range, clustered_pair, line, said_of
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.split.ensembler import (
    Attackers,
    Network,
    Setting,
    Trained,
    defended,
    train_networks,
)
from exhume.studies.split.game import PAPER, ClientSetting, Row, inversion
from exhume.train.single import Schedule

_SHOWN = 8  # images of each row on the page
_SHADOWED = ("shadow", "adaptive")  # of every client, several times
# Attackers who meet every client; the others meet the first one only, but for the rows below.
_EVERY_CLIENT = (*_SHADOWED, "true_head")
_EVERY_CLIENT_TOO = ("none.own_form", "none.lookalike", "ensembler.lookalike")
# Who is met first: the paper's attackers, and those whose rows claims are about.
_ORDER = ("adaptive", "shadow", "own_form", "lookalike", "true_head")


@dataclass(frozen=True)
class Cell:
    network: Network
    attacker: str
    shadow: int = 0

    def __str__(self) -> str:
        return f"{self.network}: {self.attacker} {self.shadow + 1}"


@dataclass(frozen=True, eq=False)
class Cells:
    """All that one attacker brought back from one defence."""

    each: Mapping[str, Tensor]  # measure to (clients, shadows, images)
    observed: Mapping[str, Tensor]  # what the server sees: (clients, shadows)
    seconds: float
    images: Tensor  # of the first client's chosen shadow
    targets: Tensor

    @cached_property
    def chosen(self) -> Tensor:
        """(clients,) the shadow whose features of what it decodes are nearest to those sent."""
        clients, shadows, _ = self.each["ssim"].shape
        if shadows == 1:
            return torch.zeros(clients, dtype=torch.long)
        return self.observed["mismatch"].argmin(1)

    def taken(self, measure: str) -> Tensor:
        """(clients, 1, images) of the chosen shadows."""
        values = self.each[measure]
        return values[torch.arange(len(values)), self.chosen][:, None]

    def metrics(self, name: str, key: Key) -> dict[str, float]:
        found = {f"{name}.{measure}": float(self.taken(measure).mean()) for measure in self.each}
        found |= _interval(f"{name}.ssim", self.taken("ssim"), key)
        found |= {f"{name}.{n}": float(values.mean()) for n, values in self.observed.items()}
        found[f"{name}.seconds"] = self.seconds
        clients, shadows, _ = self.each["ssim"].shape
        found |= {f"{name}.clients": float(clients), f"{name}.shadows": float(shadows)}
        if shadows == 1:
            return found
        means = self.each["ssim"].mean(2)
        found |= {f"{name}.each.{m}": float(values.mean()) for m, values in self.each.items()}
        found |= _interval(f"{name}.each.ssim", self.each["ssim"], key)
        found |= {
            f"{name}.each.ssim_least": float(means.min()),
            f"{name}.each.ssim_most": float(means.max()),
            f"{name}.each.ssim_deviation": float(means.std(1).mean()),
        }
        best = self.observed["shadow_accuracy"].argmax(1)
        found[f"{name}.by_accuracy.ssim"] = float(means[torch.arange(clients), best].mean())
        return found


def _interval(name: str, values: Tensor, key: Key) -> dict[str, float]:
    low, high = clustered(values, key.fold(name))
    return {f"{name}_low": low, f"{name}_high": high}


def meet_all(run: Run[Setting], trained: Trained) -> dict[str, Cells]:
    """Rows by name, `none.shadow` for example."""
    cells = [
        Cell(network, attacker, shadow)
        for defence, networks in trained.networks.items()
        for network in networks
        for attacker in _attackers(run, network)
        if network.client == 0
        or attacker in _EVERY_CLIENT
        or f"{defence}.{attacker}" in _EVERY_CLIENT_TOO
        for shadow in range(_shadows(run.setting, attacker))
    ]
    cells.sort(
        key=lambda cell: _ORDER.index(cell.attacker) if cell.attacker in _ORDER else len(_ORDER)
    )
    made = run.tensors("attacking", _run_attacker, {str(cell): cell for cell in cells})
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(f"{cell.network.defence}.{cell.attacker}", []).append(cell)
    order = [f"{d}.{a}" for d in trained.networks for a in _attackers(run, Network(0, d))]
    return {name: _joined(rows[name], made) for name in order}


def _attackers(run: Run[Setting], network: Network) -> list[str]:
    """A defence's attackers; all clients have the same."""
    setting, job = run.setting, defended(run, network).job
    held = setting.client.sizes.shadow
    return list(setting.attackers.against(network.defence, setting.ensembler, job, held))


def _shadows(setting: Setting, attacker: str) -> int:
    return setting.shadows if attacker in (*_SHADOWED, "own_form") else 1


def _run_attacker(run: Run[Any], cell: Cell) -> dict[str, Tensor]:
    """One attacker with one shadow against one client."""
    game, name = defended(run, cell.network), cell.network.defence
    setting = run.setting
    held = setting.client.sizes.shadow
    attack = setting.attackers.against(name, setting.ensembler, game.job, held)[cell.attacker]
    if cell.attacker == "training_set":
        game = game.holding(game.parts.fixed)
    again = f"{name} shadow {cell.shadow}" if cell.shadow else name
    return game.meet(game.pipeline(name), attack, again, f"{cell}").kept(_SHOWN)


def _joined(cells: Sequence[Cell], made: Mapping[str, Mapping[str, Tensor]]) -> Cells:
    clients = sorted({cell.network.client for cell in cells})
    by_client = [[made[str(c)] for c in cells if c.network.client == client] for client in clients]

    def stacked(prefix: str) -> dict[str, Tensor]:
        names = [name for name in by_client[0][0] if name.startswith(prefix)]
        return {
            name.removeprefix(prefix): torch.stack(
                [torch.stack([one[name] for one in shadows]) for shadows in by_client]
            )
            for name in names
        }

    whole = Cells(
        stacked("each."),
        stacked("observed."),
        float(sum(one["seconds"] for shadows in by_client for one in shadows)),
        torch.empty(0),
        torch.empty(0),
    )
    shown = by_client[0][int(whole.chosen[0])]
    return Cells(whole.each, whole.observed, whole.seconds, shown["images"], shown["targets"])


def best_body(rows: Mapping[str, Cells], defence: str, measure: str) -> Cells:
    """The best of the attackers of one body, chosen with the truth in sight, as in the paper: a bound."""
    alone = [row for name, row in rows.items() if name.startswith(f"{defence}.body_")]
    return max(alone, key=lambda row: float(row.each[measure].mean()))


def mean_images(run: Run[Setting], clients: int) -> Cells:
    """The null: the mean of the attacker's own records, client by client."""
    rows: list[Row] = [
        defended(run, Network(client, "none")).mean_image() for client in range(clients)
    ]
    each = {m: torch.stack([r.scores.each[m] for r in rows])[:, None] for m in rows[0].scores.each}
    shown = rows[0].scores
    return Cells(each, {}, 0.0, shown.reconstructions[:_SHOWN].clone(), shown.targets[:_SHOWN])


def findings(name: str, row: Cells) -> Findings:
    """The row on the page: the first client's first images, and what came back of them."""
    first = {m: row.taken(m)[0, 0, :_SHOWN].contiguous() for m in ("mse", "ssim", "psnr")}
    tensors = {"targets": row.targets, "reconstructions": row.images} | first
    spoken = name.replace("_", " ").replace(".", ", ")
    section = Section(
        AttackSpec(
            name.replace(".", "_"), spoken, "Ensembler24", "the features that the client sends"
        ),
        Status(Ended.CONVERGED),
        metrics={measure: float(row.taken(measure).mean()) for measure in row.each},
        cost=Cost(row.seconds),
    )
    return Findings(section, evidence={n: t.contiguous() for n, t in tensors.items()})


_STRONGER = ("lookalike", "matched", "committee", "likelihood", "subsets")
_SIX = ("none", "ensembler", "single", "shredder", "dr_single", "dr_ensemble")
_SEVEN = (*_SIX, "dr_answers")
_THREE = ("none", "single", "ensembler")
_FIVE = ("none", "single", "random_head", "foreign_head", "ensembler")


def _run(run: Run[Setting]) -> Outcome:
    trained, key, client = train_networks(run), run.key.fold("claims"), run.setting.client
    rows = _rows(run, trained)
    metrics = _metrics(trained, rows, key.fold("intervals"))
    strength = trained.networks["ensembler"][0].strength
    return Outcome(
        metrics=metrics,
        said={
            **compared(rows, trained, key),
            **{"strength": strength, "grid": ", ".join(f"{w:g}" for w in run.setting.lambdas)},
        },
        attacks=[findings(name, row) for name, row in rows.items() if name != "mean_image"],
        classes=list(run.records(client.source, client.size).classes),
        charts=_charts(run.study.name, rows, metrics),
    )


def _rows(run: Run[Setting], trained: Trained) -> dict[str, Cells]:
    """By name, the mean image first; of the attackers of one body among several, the best."""
    met = meet_all(run, trained)
    rows = {"mean_image": mean_images(run, run.setting.clients)}
    for defence in trained.networks:
        if f"{defence}.body_1" in met:
            rows |= {f"{defence}.best_{by}": best_body(met, defence, by) for by in ("ssim", "psnr")}
    return rows | {name: row for name, row in met.items() if ".body_" not in name}


def _metrics(trained: Trained, rows: Mapping[str, Cells], key: Key) -> dict[str, float]:
    metrics = {"accuracy": trained.mean("none", "accuracy")}
    for defence, networks in trained.networks.items():
        facts = trained.facts[networks[0]]
        metrics |= {f"{defence}.{fact}": trained.mean(defence, fact) for fact in facts}
        costs = trained.costs(defence)
        metrics[f"{defence}.delta_accuracy"] = -sum(costs) / len(costs)
        metrics[f"{defence}.networks"] = float(len(networks))
    for defence, tried in trained.tried.items():
        metrics[f"{defence}.strength"] = trained.networks[defence][0].strength
        metrics |= {f"{defence}.strength_{s:g}.validation": value for s, value in tried.items()}
    for name, row in rows.items():
        metrics |= row.metrics(name, key)
    return metrics


def _compared(rows: Mapping[str, Cells], key: Key, one: str, other: str) -> Paired:
    """Single shadows of two rows, over clients, shadows and images."""
    what = key.fold(one, other)
    return clustered_pair(rows[one].each["ssim"], rows[other].each["ssim"], what, "SSIM")


def compared(rows: Mapping[str, Cells], trained: Trained, key: Key) -> dict[str, object]:
    """What the claims ask for: rows compared over clients, shadows and images."""

    def ssim(one: str, other: str) -> Paired:
        return _compared(rows, key, one, other)

    beyond = {name: rows[f"ensembler.{name}"] for name in _STRONGER if f"ensembler.{name}" in rows}
    strongest = max(beyond, key=lambda name: float(beyond[name].taken("affine_ssim").mean()))
    broken = clustered_pair(
        beyond[strongest].taken("affine_ssim"),
        rows["mean_image"].each["affine_ssim"],
        key.fold("broken"),
        f"{strongest}: SSIM after an affine fit",
    )
    costs, plain = trained.costs("ensembler"), rows["none.shadow"]
    spread = f", {-100 * max(costs):+.2f} to {-100 * min(costs):+.2f}" if len(costs) > 1 else ""
    said: dict[str, object] = {
        "plain": trained.mean("none", "accuracy"),
        "nones": len(trained.networks["none"]),
        "below_single": ssim("ensembler.adaptive", "single.shadow"),
        "below_none": ssim("single.shadow", "none.shadow"),
        **{"costs": Range(min(costs), max(costs)), "spread": spread},
        "points": -100 * sum(costs) / len(costs),
        "broken": broken,
        "looking": ssim("ensembler.lookalike", "none.lookalike"),
        "own_form": ssim("none.own_form", "none.shadow"),
        "training_set": ssim("none.training_set", "none.shadow"),
    }
    if plain.each["ssim"].shape[1] > 1:
        shadows = {"three convolutions": plain, "own form": rows["none.own_form"]}
        said["choosing"] = [
            clustered_pair(row.taken("ssim"), row.each["ssim"], key.fold(name), name)
            for name, row in shadows.items()
        ]
    return said


def _charts(study: str, rows: Mapping[str, Cells], metrics: Mapping[str, float]) -> list[Chart]:
    paper = said_of(study)["published"]
    shown = {name.replace("_", " ").replace(".", ", "): name for name in rows}
    affine = line(shown, "affine_ssim", metrics)
    known = {label: name for label, name in shown.items() if name in paper["rows"]}
    several = {label: row for label, row in shown.items() if rows[row].each["ssim"].shape[1] > 1}
    lottery = {
        f"shadow {i + 1}": [
            Point(f"{label}, client {c + 1}", float(value))
            for label, row in several.items()
            for c, value in enumerate(rows[row].each["ssim"].mean(2)[:, i])
        ]
        for i in range(max((rows[r].each["ssim"].shape[1] for r in several.values()), default=0))
    }
    charts = [
        Chart(
            "How much of the input comes back",
            "defence and attacker",
            "SSIM",
            {
                "ours": line(shown, "ssim", metrics),
                "after an affine fit": affine,
                f"Ensembler24, {paper['table']}": [
                    Point(label, paper["rows"][name][1]) for label, name in known.items()
                ],
            },
        )
    ]
    if lottery:
        charts.append(Chart("A shadow is a draw", "attacker and client", "SSIM", lottery))
    return charts


_CPU = Setting(
    ClientSetting(Sizes(36_000, 200, 3_000, 2_000, 5_000), 16, Schedule(4, 64, 0.1), augment=False),
    _SIX,
    2_000,
    Ensembler(4, 2),
    Attackers.of(inversion(32, 5, 32, shadow_epochs=10), Lookalike(), subsets=False),
    clients=3,
    shadows=3,
    lambdas=(0.3, 0.1),
    shredders=(3.0, 2.0, 1.0),
    shredder=Shredder(schedule=Schedule(1, 64, 1e-2, "adam", 0.0)),
)  # what two cores do in an hour and a half
_ORL = ClientSetting(
    Sizes(60, 12, 60, 40, 20), 4, Schedule(1, 30, 0.05), source="faces", halvings=1, size=48
)
_STRONG = Attackers.of(inversion(64, 50, 128), Lookalike(starts=12), subsets=False)
_SMALL = ClientSetting(Sizes(100, 12, 60, 40, 50), 4, Schedule(1, 50, 0.05))


def _table(name: str, scales: Mapping[Scale, Setting]) -> Study[Setting]:
    threads: Mapping[Scale, int] = {"smoke": 1, "cpu": 1}
    return Study(name, scales, _run, spreads=True, on_device=True, threads=threads)


def _of_cifar100(client: ClientSetting) -> ClientSetting:
    return replace(client, source="cifar100", max_pool=False)


def _at_paper_scale(client: ClientSetting, defences: tuple[str, ...], selected: int) -> Setting:
    return Setting(
        client,
        defences,
        2_000,
        Ensembler(10, selected),
        _STRONG,
        clients=3,
        shadows=3,
        lambdas=(10.0, 1.0, 0.3, 0.1),
        shredders=(3.0, 2.0, 1.0),
    )


CIFAR10 = _table(
    "ensembler-cifar10",
    {
        "smoke": Setting(_SMALL, _SEVEN, 20, clients=2, shadows=2, lambdas=(1.0, 0.1)),
        "cpu": _CPU,
        "paper": _at_paper_scale(PAPER, _SEVEN, 4),
    },
)
CIFAR100 = _table(
    "ensembler-cifar100",
    {
        "smoke": Setting(
            _of_cifar100(ClientSetting(Sizes(40, 12, 30, 20, 20), 4, Schedule(1, 50, 0.05))),
            _THREE,
            10,
        ),
        "cpu": replace(_CPU, client=_of_cifar100(_CPU.client), defences=_THREE),
        "paper": _at_paper_scale(_of_cifar100(PAPER), _THREE, 3),
    },
)
FACES = _table(
    "ensembler-faces",
    {
        "smoke": Setting(_ORL, _FIVE, 10),
        "cpu": Setting(
            replace(
                _ORL, sizes=Sizes(200, 20, 80, 40, 60), width=8, training=Schedule(45, 20, 0.05)
            ),
            _FIVE,
            30,
            Ensembler(4, 2),
            Attackers.of(inversion(16, 80, 20, shadow_epochs=80), Lookalike()),
            clients=3,
            shadows=3,
            lambdas=(1.0, 0.3, 0.1),
        ),
        "paper": _at_paper_scale(
            replace(
                PAPER,
                source="celeba-hq",
                sizes=Sizes(15_000, 1_000, 8_000, 2_000, 4_000),
                size=128,
            ),
            _FIVE,
            5,
        ),
    },
)
