"""Ensembler24, Tables 1 to 3: split inference on CIFAR-10, CIFAR-100 and faces, and attackers it leaves out.

CIFAR-100's network has no max-pool before the cut. The faces are CelebA-HQ at paper scale, ORL below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from exhume.attacks.split.lookalike import Lookalike
from exhume.contract import Key
from exhume.data import Sizes
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Shredder
from exhume.studies.claims import Comparison, paired
from exhume.studies.framework import Chart, Claims, Outcome, Point, Run, Scale, Study
from exhume.studies.split.ensembler import Attackers, Setting, findings, play
from exhume.studies.split.game import PAPER, ClientSetting, Row, inversion
from exhume.train.single import Schedule

__all__ = ["CIFAR10", "CIFAR100", "FACES", "TABLE_1", "TABLE_2", "TABLE_3"]

_STRONGER = ("lookalike", "matched", "committee", "likelihood", "subsets")
_SIX = ("none", "ensembler", "single", "shredder", "dr_single", "dr_ensemble")
_THREE = ("none", "single", "ensembler")
_FOUR = ("none", "single", "random_head", "ensembler")


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
        "none": (0.0, 0.4363, 12.27),
        "shredder": (-5.68, 0.5359, 10.40),
        "single": (2.15, 0.3921, 7.53),
        "dr_single": (2.70, 0.3453, 6.67),
        "dr_ensemble_best_ssim": (1.42, 0.373, 7.35),
        "dr_ensemble_best_psnr": (1.42, 0.3232, 7.96),
        "ensembler_adaptive": (-2.13, 0.0555, 5.98),
        "ensembler_best_ssim": (-2.13, 0.2889, 4.87),
        "ensembler_best_psnr": (-2.13, 0.2221, 5.53),
    },
)
TABLE_2 = Paper(
    table="Table 2",
    selected=3,
    rows={
        "single": (-0.97, 0.4558, 8.52),
        "ensembler_adaptive": (0.31, 0.0864, 4.77),
        "ensembler_best_ssim": (0.31, 0.2636, 5.07),
    },
)
TABLE_3 = Paper(
    table="Table 3",
    selected=5,
    rows={
        "single": (-1.24, 0.2650, 14.31),
        "random_head": (-65.19, 0.1387, 12.82),
        "ensembler_adaptive": (2.39, 0.0897, 13.37),
        "ensembler_best_ssim": (2.39, 0.1791, 12.06),
    },
)


def _run(paper: Paper, run: Run[Setting]) -> Outcome:
    rows, metrics = play(run)
    return Outcome(
        claims=_claims(paper, rows, metrics, run.key.fold("claims")),
        metrics=metrics,
        attacks=[findings(name, row) for name, row in rows.items() if name != "mean_image"],
        classes=list(run.records(run.setting.client.source).classes),
        deviations=_deviations(paper, run.setting),
        charts=[_chart(paper, metrics)],
    )


def _claims(
    paper: Paper, rows: Mapping[str, Row], metrics: Mapping[str, float], key: Key
) -> Claims:
    ssim = Comparison(lambda row: rows[row].scores.each["ssim"], "SSIM", key)
    strongest = max(
        (f"ensembler_{name}" for name in _STRONGER), key=lambda row: metrics[f"{row}.affine_ssim"]
    )
    beyond = paired(
        rows[strongest].scores.each["affine_ssim"],
        rows["mean_image"].scores.each["affine_ssim"],
        key.fold("broken"),
        f"{strongest.removeprefix('ensembler_')}: SSIM after an affine fit",
    )
    cost = metrics["ensembler.accuracy"] - metrics["none.accuracy"]
    return {
        "ensembler-below-single": (
            "The adaptive attacker gets less out of the Ensembler than out of Single",
            paper.ssim("ensembler_adaptive", "single"),
            *ssim("ensembler_adaptive", "single").below(),
        ),
        "single-below-none": (
            "and less out of Single than without a defence",
            paper.ssim("single", "none"),
            *ssim("single", "none").below(),
        ),
        "accuracy": (
            "The Ensembler costs at most three points of accuracy",
            f"{paper.rows['ensembler_adaptive'][0]:+.2f} points",
            f"{100 * cost:+.2f} points, from {metrics['accuracy']:.1%}",
            cost >= -0.03,
        ),
        "withstands": (
            "No attacker that the paper leaves out gets more of the inputs than a constant image",
            "not tried",
            *beyond.not_above(),
        ),
        "hides-from-lookalike": (
            "The Ensembler leaves less to the attacker who looks at features only than no defence does",
            "not tried",
            *ssim("ensembler_lookalike", "none_lookalike").below(),
        ),
    }


def _chart(paper: Paper, metrics: Mapping[str, float]) -> Chart:
    names = [name.removesuffix(".ssim") for name in metrics if name.endswith(".ssim")]
    shown = {name: name.replace("_", " ") for name in names}
    return Chart(
        "How much of the input comes back",
        "defence and attacker",
        "SSIM",
        {
            "ours": [Point(shown[n], metrics[f"{n}.ssim"]) for n in names],
            "after an affine fit": [Point(shown[n], metrics[f"{n}.affine_ssim"]) for n in names],
            f"Ensembler24, {paper.table}": [
                Point(shown[n], paper.rows[n][1]) for n in names if n in paper.rows
            ],
        },
    )


def _deviations(paper: Paper, setting: Setting) -> list[str]:
    ensembler = setting.ensembler
    return [
        setting.client.deviation("ResNet-18"),
        f"N = {ensembler.bodies} bodies, P = {ensembler.selected} (the paper: 10 and {paper.selected}).",
        "Eq. 3's sum over the selected heads is ambiguous; the largest cosine of each input counts.",
        f"Bodies are in eval mode in stage 2. Lambda is {ensembler.likeness:g}; the paper states none.",
        "Shredder's noise is one learned map, as large as accuracy allows; its authors draw from several, "
        "and the paper calls its noise small. `<row>.noise_size` is the root mean square of each.",
        "Dropout works on the bodies' answers, where the Ensembler has its selector; the paper does not "
        "say where.",
        "Best of N is chosen with the truth in sight, as in the paper: a bound on that attacker.",
        "`matched` and `lookalike` also use the features that the client has sent before, not their inputs.",
        "Single is the first of the Ensembler's stage 1 pipelines, which are trained in the same way.",
    ]


_CPU = Setting(
    ClientSetting(Sizes(18_000, 200, 3_000, 2_000, 2_000), 16, Schedule(3, 64, 0.1), augment=False),
    _SIX,
    Ensembler(4, 2, likeness=0.1, schedule=Schedule(6, 64, 0.1)),
    Attackers.of(inversion(32, 5, 32, shadow_epochs=12), Lookalike()),
    shredder=Shredder(1.0, schedule=Schedule(1, 64, 1e-2, "adam", 0.0)),
)  # what two cores do in an hour
_ORL = ClientSetting(
    Sizes(60, 12, 60, 40, 20), 4, Schedule(1, 30, 0.05), source="faces", halvings=1
)
_STRONG = Attackers.of(inversion(64, 50, 128), Lookalike(starts=12))


def _table(name: str, title: str, paper: Paper, scales: Mapping[Scale, Setting]) -> Study[Setting]:
    return Study(name, title, "Ensembler24", scales, partial(_run, paper), spreads=True)


def _of_cifar100(client: ClientSetting) -> ClientSetting:
    return replace(client, source="cifar100", max_pool=False)


CIFAR10 = _table(
    "ensembler-cifar10",
    "Split inference on CIFAR-10: seven defences, the paper's attackers and stronger ones",
    TABLE_1,
    {
        "smoke": Setting(ClientSetting(Sizes(100, 12, 60, 40, 50), 4, Schedule(1, 50, 0.05)), _SIX),
        "cpu": _CPU,
        "paper": Setting(PAPER, _SIX, Ensembler(10, 4, likeness=0.1), _STRONG),
    },
)
CIFAR100 = _table(
    "ensembler-cifar100",
    "Split inference on CIFAR-100: Single and the Ensembler, the paper's attackers and stronger ones",
    TABLE_2,
    {
        "smoke": Setting(
            _of_cifar100(ClientSetting(Sizes(40, 12, 30, 20, 20), 4, Schedule(1, 50, 0.05))), _THREE
        ),
        "cpu": replace(_CPU, client=_of_cifar100(_CPU.client), defences=_THREE),
        "paper": Setting(_of_cifar100(PAPER), _THREE, Ensembler(10, 3, likeness=0.1), _STRONG),
    },
)
FACES = _table(
    "ensembler-faces",
    "Split inference on faces: Single, a random head and the Ensembler, and stronger attackers",
    TABLE_3,
    {
        "smoke": Setting(_ORL, _FOUR),
        "cpu": Setting(
            replace(
                _ORL, sizes=Sizes(220, 20, 90, 40, 30), width=8, training=Schedule(30, 20, 0.05)
            ),
            _FOUR,
            Ensembler(4, 2, likeness=0.1, schedule=Schedule(60, 20, 0.05)),
            Attackers.of(inversion(16, 80, 20, shadow_epochs=160), Lookalike()),
        ),
        "paper": Setting(
            replace(PAPER, source="celeba-hq", sizes=Sizes(15_000, 1_000, 8_000, 3_000, 3_000)),
            _FOUR,
            Ensembler(10, 5, likeness=0.1),
            _STRONG,
        ),
    },
)
