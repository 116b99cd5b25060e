"""Ensembler24, Table 3: split inference on faces. CelebA-HQ at paper scale, the ORL faces below it."""

from __future__ import annotations

from exhume.attacks.split.lookalike import Lookalike
from exhume.data import Sizes
from exhume.defences.split.ensembler import Ensembler
from exhume.studies.split.ensembler_cifar10 import attackers, quick
from exhume.studies.split.ensembler_tables import Setting, Table
from exhume.studies.split.ensembler_told import Paper
from exhume.train.single import Schedule

__all__ = ["STUDY", "TABLE"]

TABLE = Table(
    name="ensembler-faces",
    title="Split inference on faces: Single, a random head and the Ensembler, and stronger attackers",
    source="faces",
    paper=Paper(
        table="Table 3",
        bodies=10,
        selected=5,
        rows={
            "single": (-1.24, 0.2650, 14.31),
            "random_head": (-65.19, 0.1387, 12.82),
            "ensembler_adaptive": (2.39, 0.0897, 13.37),
            "ensembler_best_ssim": (2.39, 0.1791, 12.06),
        },
    ),
    defences=("none", "single", "random_head", "ensembler"),
    scales={
        "smoke": Setting(
            Sizes(60, 12, 60, 40, 20),
            4,
            Ensembler(2, 1),
            Schedule(1, 30, 0.05),
            quick(),
            halvings=1,
        ),
        "cpu": Setting(
            Sizes(220, 20, 90, 40, 30),
            8,
            Ensembler(4, 2, likeness=0.1, schedule=Schedule(60, 20, 0.05)),
            Schedule(30, 20, 0.05),
            attackers(16, 80, 20, Lookalike(), shadow_epochs=160),
            halvings=1,
        ),
        "paper": Setting(
            Sizes(15_000, 1_000, 8_000, 3_000, 3_000),
            64,
            Ensembler(10, 5, likeness=0.1),
            Schedule(100, 128, 0.1),
            attackers(64, 50, 128, Lookalike(starts=12)),
            source="celeba-hq",
        ),
    },
)
STUDY = TABLE.study()
