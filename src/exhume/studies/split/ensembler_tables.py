"""Ensembler24, Tables 1 to 3: split inference on CIFAR-10, CIFAR-100 and faces, and attackers it leaves out.

CIFAR-100's network has no max-pool before the cut. The faces are CelebA-HQ at paper scale, ORL below it, or
those of a user's folder, one sub-folder a person (`--data FOLDER`), cropped and resized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from exhume.attacks.split.lookalike import Lookalike
from exhume.core.contract import Key
from exhume.core.results import Chart, Point
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Shredder
from exhume.readers import Sizes
from exhume.studies.claims import Claims, Paired, clustered_pair, line
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.split.ensembler import Attackers, Setting, Trained, train_networks
from exhume.studies.split.ensembler_cells import Cells, best_body, findings, mean_images, meet_all
from exhume.studies.split.game import PAPER, ClientSetting, inversion
from exhume.train.single import Schedule

__all__ = ["CIFAR10", "CIFAR100", "FACES", "TABLE_1", "TABLE_2", "TABLE_3"]

_STRONGER = ("lookalike", "matched", "committee", "likelihood", "subsets")
_SIX = ("none", "ensembler", "single", "shredder", "dr_single", "dr_ensemble")
_SEVEN = (*_SIX, "dr_answers")
_THREE = ("none", "single", "ensembler")
_FIVE = ("none", "single", "random_head", "foreign_head", "ensembler")
_NETWORK = 0.7  # accuracy of an undefended network that was trained in earnest


@dataclass(frozen=True)
class Paper:
    """What the paper reports for one data set."""

    table: str
    selected: int  # of ten bodies
    rows: Mapping[str, tuple[float, float, float]]  # change of accuracy in points, SSIM, PSNR

    def ssim(self, one: str, other: str) -> str:
        known = [f"{self.rows[row][1]:.4f}" if row in self.rows else "-" for row in (one, other)]
        return f"SSIM {known[0]} against {known[1]}"


TABLE_1 = Paper(
    table="Table 1",
    selected=4,
    rows={
        "none.shadow": (0.0, 0.4363, 12.27),
        "shredder.shadow": (-5.68, 0.5359, 10.40),
        "single.shadow": (2.15, 0.3921, 7.53),
        "dr_single.shadow": (2.70, 0.3453, 6.67),
        "dr_ensemble.best_ssim": (1.42, 0.373, 7.35),
        "dr_ensemble.best_psnr": (1.42, 0.3232, 7.96),
        "ensembler.adaptive": (-2.13, 0.0555, 5.98),
        "ensembler.best_ssim": (-2.13, 0.2889, 4.87),
        "ensembler.best_psnr": (-2.13, 0.2221, 5.53),
    },
)
TABLE_2 = Paper(
    table="Table 2",
    selected=3,
    rows={
        "single.shadow": (-0.97, 0.4558, 8.52),
        "ensembler.adaptive": (0.31, 0.0864, 4.77),
        "ensembler.best_ssim": (0.31, 0.2636, 5.07),
    },
)
TABLE_3 = Paper(
    table="Table 3",
    selected=5,
    rows={
        "single.shadow": (-1.24, 0.2650, 14.31),
        "foreign_head.shadow": (-65.19, 0.1387, 12.82),
        "ensembler.adaptive": (2.39, 0.0897, 13.37),
        "ensembler.best_ssim": (2.39, 0.1791, 12.06),
    },
)


def _run(paper: Paper, run: Run[Setting]) -> Outcome:
    trained, key, client = train_networks(run), run.key.fold("claims"), run.setting.client
    rows = _rows(run, trained)
    metrics = _metrics(trained, rows, key.fold("intervals"))
    return Outcome(
        claims=_claims(paper, rows, trained, key) | _about_shadows(rows, key),
        metrics=metrics,
        attacks=[findings(name, row) for name, row in rows.items() if name != "mean_image"],
        classes=list(run.records(client.source, client.size).classes),
        deviations=_deviations(paper, run.setting, trained),
        charts=_charts(paper, rows, metrics),
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


def _claims(paper: Paper, rows: Mapping[str, Cells], trained: Trained, key: Key) -> Claims:
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
    costs = trained.costs("ensembler")
    mean, plain = sum(costs) / len(costs), trained.mean("none", "accuracy")
    spread = f", {-100 * max(costs):+.2f} to {-100 * min(costs):+.2f}" if len(costs) > 1 else ""
    return {
        "network": (
            f"The undefended network names {_NETWORK:.0%} of the test images",
            "trained to the end",
            f"{plain:.1%}, mean of {len(trained.networks['none'])} clients",
            plain >= _NETWORK,
        ),
        "ensembler-below-single": (
            "The adaptive attacker gets less out of the Ensembler than out of Single",
            paper.ssim("ensembler.adaptive", "single.shadow"),
            *ssim("ensembler.adaptive", "single.shadow").below(),
        ),
        "single-below-none": (
            "and less out of Single than without a defence",
            paper.ssim("single.shadow", "none.shadow"),
            *ssim("single.shadow", "none.shadow").below(),
        ),
        "accuracy": (
            "The Ensembler costs at most three points of accuracy",
            f"{paper.rows['ensembler.adaptive'][0]:+.2f} points",
            f"{-100 * mean:+.2f} points{spread}, from {plain:.1%}",
            mean <= 0.03,
        ),
        "withstands": (
            "No attacker that the paper leaves out gets more of the inputs than a constant image",
            "not tried",
            *broken.not_above(),
        ),
        "hides-from-lookalike": (
            "The Ensembler leaves less to the attacker who looks at features only than no defence does",
            "not tried",
            *ssim("ensembler.lookalike", "none.lookalike").below(),
        ),
    }


def _about_shadows(rows: Mapping[str, Cells], key: Key) -> Claims:
    """Form, records and choice of a shadow, without a defence."""
    plain, own = rows["none.shadow"], rows["none.own_form"]
    claims: Claims = {
        "own-form": (
            "A shadow of the client's own form gets more than the paper's three convolutions",
            "not tried",
            *_compared(rows, key, "none.own_form", "none.shadow").above(),
        ),
        "training-set": (
            "Holding the training records is worth more than holding others",
            "assumed: the attacker is aware of the training data set",
            *_compared(rows, key, "none.training_set", "none.shadow").above(),
        ),
    }
    if plain.each["ssim"].shape[1] > 1:
        both = [
            clustered_pair(row.taken("ssim"), row.each["ssim"], key.fold(name), name)
            for name, row in (("three convolutions", plain), ("own form", own))
        ]
        claims["choosing"] = (
            "Restarts pay: the shadow whose decoded features fit best decodes better than a single one",
            "not tried",
            "SSIM of " + "; ".join(str(one) for one in both),
            all(one.one > one.other for one in both),
        )
    return claims


def _charts(paper: Paper, rows: Mapping[str, Cells], metrics: Mapping[str, float]) -> list[Chart]:
    shown = {name.replace("_", " ").replace(".", ", "): name for name in rows}
    affine = line(shown, "affine_ssim", metrics)
    known = {label: name for label, name in shown.items() if name in paper.rows}
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
                f"Ensembler24, {paper.table}": [
                    Point(label, paper.rows[name][1]) for label, name in known.items()
                ],
            },
        )
    ]
    if lottery:
        charts.append(Chart("A shadow is a draw", "attacker and client", "SSIM", lottery))
    return charts


def _deviations(paper: Paper, setting: Setting, trained: Trained) -> list[str]:
    ensembler, chosen = setting.ensembler, trained.networks["ensembler"][0].strength
    clients, shadows = setting.clients, setting.shadows
    tried = ", ".join(f"{value:g}" for value in setting.lambdas)
    return [
        setting.client.deviation("ResNet-18"),
        f"{clients} clients (NONE, Single, Ensembler; else one), each with records of its own, and {shadows} "
        "shadows for the paper's attackers. Intervals resample clients, shadows and images; from so few "
        "clients they are rough, and rather too short.",
        "A row is of the shadow whose features of what it decodes are nearest to those sent; `<row>.each` "
        "are all of them, `<row>.by_accuracy` is that which classifies held-out records best. The first run "
        "chose by accuracy; the other observable was as good or better in every row, and is used since.",
        f"N = {ensembler.bodies} bodies, P = {ensembler.selected} (the paper: 10 and {paper.selected}).",
        "Eq. 3's sum over the selected heads is ambiguous; the largest cosine of each input counts.",
        f"Bodies are in eval mode in stage 2. Lambda is {chosen:g}, the largest of {tried} that costs the "
        "first client at most 3 points on validation records; the paper states none.",
        "Shredder's noise is one learned map; its authors draw from several. It starts from the largest "
        "sigma that costs at most 6 points on validation records, about what the paper reports. "
        "`<defence>.noise_size` is the root mean square of each.",
        "Dropout works on the features (`dr_single`, `dr_ensemble`) or on the bodies' answers "
        "(`dr_answers`); the paper does not say where.",
        "Best of N is chosen with the truth in sight, as in the paper: a bound on that attacker.",
        "`own_form`, `matched` and `lookalike` also use the features that the client has sent before, not "
        "their inputs: to tell pictures from negatives, which the paper's attackers are left to draw.",
        "Single is the first of the Ensembler's stage 1 pipelines, which are trained in the same way.",
    ]


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


def _table(name: str, paper: Paper, scales: Mapping[Scale, Setting]) -> Study[Setting]:
    return Study(
        name,
        scales,
        partial(_run, paper),
        spreads=True,
        on_device=True,
        threads={"smoke": 1, "cpu": 1},
    )


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
    TABLE_1,
    {
        "smoke": Setting(_SMALL, _SEVEN, 20, clients=2, shadows=2, lambdas=(1.0, 0.1)),
        "cpu": _CPU,
        "paper": _at_paper_scale(PAPER, _SEVEN, 4),
    },
)
CIFAR100 = _table(
    "ensembler-cifar100",
    TABLE_2,
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
    TABLE_3,
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
