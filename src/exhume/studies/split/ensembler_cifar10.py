"""Ensembler24, Table 1: split inference on CIFAR-10 under seven defences, and attackers it leaves out."""

from __future__ import annotations

from dataclasses import replace

from exhume.attacks.split.inversion import ShadowInversion
from exhume.attacks.split.layer_fit import Pass
from exhume.attacks.split.lookalike import Lookalike
from exhume.data import Sizes
from exhume.defences.split.ensembler import Ensembler
from exhume.defences.split.single import Shredder
from exhume.models.split.inverter import Decoder, ShadowHead
from exhume.studies.split.ensembler_rows import Attackers
from exhume.studies.split.ensembler_tables import Setting, Table
from exhume.studies.split.ensembler_told import Paper
from exhume.train.single import Schedule

__all__ = ["CPU", "STUDY", "TABLE", "attackers", "quick"]


def attackers(
    channels: int, epochs: int, batch: int, lookalike: Lookalike, shadow_epochs: int = 0
) -> Attackers:
    """All decoders alike, trained alike. shadow_epochs: of shadows; 0: as many as of decoders."""
    schedule, decoder = Schedule(epochs, batch, 3e-3, "adam", 0.0), Decoder(channels)
    longer = replace(schedule, epochs=shadow_epochs or epochs)
    shadow = ShadowInversion((0,), ShadowHead(channels), decoder, longer, schedule)
    return Attackers(shadow, replace(lookalike, decoder=decoder, decoder_schedule=schedule))


def quick() -> Attackers:
    """A few steps of everything."""
    return attackers(4, 1, 30, Lookalike(3, 2, Pass(3, 64), Pass(3, 64), Pass(3, 64)))


CPU = Setting(
    Sizes(18_000, 200, 3_000, 2_000, 2_000),
    16,
    Ensembler(4, 2, likeness=0.1, schedule=Schedule(6, 64, 0.1)),
    Schedule(3, 64, 0.1),
    attackers(32, 5, 32, Lookalike(), shadow_epochs=12),
    augment=False,
    shredder=Shredder(1.0, schedule=Schedule(1, 64, 1e-2, "adam", 0.0)),
)
"""What two cores do in an hour."""

TABLE = Table(
    name="ensembler-cifar10",
    title="Split inference on CIFAR-10: seven defences, the paper's attackers and stronger ones",
    source="cifar10",
    paper=Paper(
        table="Table 1",
        bodies=10,
        selected=4,
        rows={  # change of accuracy in points, SSIM, PSNR
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
    ),
    defences=("none", "ensembler", "single", "shredder", "dr_single", "dr_ensemble"),
    scales={
        "smoke": Setting(
            Sizes(100, 12, 60, 40, 50), 4, Ensembler(2, 1), Schedule(1, 50, 0.05), quick()
        ),
        "cpu": CPU,
        "paper": Setting(
            Sizes(25_000, 1_000, 20_000, 4_000, 10_000),
            64,
            Ensembler(10, 4, likeness=0.1),
            Schedule(100, 128, 0.1),
            attackers(64, 50, 128, Lookalike(starts=12)),
        ),
    },
)
STUDY = TABLE.study()
