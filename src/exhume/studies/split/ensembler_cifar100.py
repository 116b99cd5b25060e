"""Ensembler24, Table 2: split inference on CIFAR-100, whose network has no max-pool before the cut."""

from __future__ import annotations

from exhume.attacks.split.lookalike import Lookalike
from exhume.data import Sizes
from exhume.defences.split.ensembler import Ensembler
from exhume.studies.split.ensembler_cifar10 import CPU, attackers, quick
from exhume.studies.split.ensembler_tables import Setting, Table
from exhume.studies.split.ensembler_told import Paper
from exhume.train.single import Schedule

__all__ = ["STUDY", "TABLE"]

TABLE = Table(
    name="ensembler-cifar100",
    title="Split inference on CIFAR-100: Single and the Ensembler, the paper's attackers and stronger ones",
    source="cifar100",
    paper=Paper(
        table="Table 2",
        bodies=10,
        selected=3,
        rows={
            "single": (-0.97, 0.4558, 8.52),
            "ensembler_adaptive": (0.31, 0.0864, 4.77),
            "ensembler_best_ssim": (0.31, 0.2636, 5.07),
        },
    ),
    defences=("none", "single", "ensembler"),
    scales={
        "smoke": Setting(
            Sizes(40, 12, 30, 20, 20), 4, Ensembler(2, 1), Schedule(1, 50, 0.05), quick()
        ),
        "cpu": CPU,
        "paper": Setting(
            Sizes(25_000, 1_000, 20_000, 4_000, 10_000),
            64,
            Ensembler(10, 3, likeness=0.1),
            Schedule(100, 128, 0.1),
            attackers(64, 50, 128, Lookalike(starts=12)),
        ),
    },
    max_pool=False,
)
STUDY = TABLE.study()
