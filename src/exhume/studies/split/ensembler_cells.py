"""Cells of Ensembler24's tables: one attacker's shadow against one client's network, and their statistics.

A row of a table is one attacker against one defence: an array of clients x shadows x images. The shadow that
the server would take, by what it can observe, stands for the row; `each` are the single shadows, as the paper
trains them. Intervals resample clients, shadows within clients, and images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from exhume.core.contract import Cost, Key, Outcome, Status
from exhume.core.results import AttackSpec, Findings, Section
from exhume.score.intervals import clustered
from exhume.studies.framework import Run
from exhume.studies.split.ensembler import Network, Setting, Trained, defended
from exhume.studies.split.game import Row

__all__ = ["Cells", "best_body", "findings", "mean_images", "meet_all"]

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
    made = run.tensors("attacking", _meet, {str(cell): cell for cell in cells})
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(f"{cell.network.defence}.{cell.attacker}", []).append(cell)
    order = [f"{d}.{a}" for d in trained.networks for a in _attackers(run, Network(0, d))]
    return {name: _joined(rows[name], made) for name in order}


def _attackers(run: Run[Setting], network: Network) -> list[str]:
    """Of a defence; all clients have the same."""
    setting, job = run.setting, defended(run, network).job
    held = setting.client.sizes.shadow
    return list(setting.attackers.against(network.defence, setting.ensembler, job, held))


def _shadows(setting: Setting, attacker: str) -> int:
    return setting.shadows if attacker in (*_SHADOWED, "own_form") else 1


def _meet(run: Run[Any], cell: Cell) -> dict[str, Tensor]:
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
        Status(Outcome.CONVERGED),
        metrics={measure: float(row.taken(measure).mean()) for measure in row.each},
        cost=Cost(row.seconds),
    )
    return Findings(section, evidence={n: t.contiguous() for n, t in tensors.items()})
