"""The settings of an audit of a split network, and how a run folder keeps to them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from exhume.auditing.resume import keep_to
from exhume.choices import threads_for
from exhume.contract import ExhumeError
from exhume.data import Sizes
from exhume.report.folder import RunFolder
from exhume.settings import to_toml

__all__ = ["DEFENCES", "SplitSettings", "folder_for", "sizes_of", "take_up"]

DEFENCES = ("ensembler", "single", "shredder", "dropout", "dropout-ensemble", "random-head")


@dataclass(frozen=True)
class SplitSettings:
    """Empty or 0 means: not said, or choose it here."""

    model: str = ""  # package.module:factory
    data: str = ""  # the owner's records: targets, and what an attacker like them holds
    weights: str = ""  # a state dict; the factory's own weights if not given
    first: tuple[str, ...] = ()  # last layers of the head; the first named is the split in use
    second: str = ""  # last layer of the body
    defend: str = ""  # one of DEFENCES
    bodies: int = 4  # N of the ensembles
    selected: int = 2  # P of the Ensembler
    sigma: float = 0.1  # of the noise
    epochs: int = 10  # of training the defended network, and a plain one to compare it with
    rate: float = 0.1
    batch: int = 128
    augment: bool = False  # the defended network's images are moved by up to 4 pixels and mirrored
    attack_epochs: int = 8  # of the shadow, and of the decoder
    channels: int = 64  # of both
    targets: int = 0  # inputs that the client sends and the attacker wants
    held: int = 0  # the attacker's own records
    seen: int = 0  # inputs sent before; the attacker kept their features
    train: int = 0  # records the defended network is trained on
    lpips: bool = True  # for images of three channels
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        if self.defend and self.defend not in DEFENCES:
            raise ExhumeError(f"defend: {self.defend!r} is not one of {', '.join(DEFENCES)}")
        if not self.model or not self.data:
            raise ExhumeError("model, data: both are needed")
        least = {"bodies": 1, "selected": 1, "epochs": 1, "batch": 1, "attack_epochs": 1}
        least |= {"channels": 1} | dict.fromkeys(("targets", "held", "seen", "train"), 0)
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ExhumeError(f"{name}: {getattr(self, name)} given, at least {bound} needed")
        if not self.sigma >= 0 or not self.rate > 0:
            raise ExhumeError(
                f"sigma at least 0 and a rate above 0 needed: {self.sigma}, {self.rate}"
            )
        if len(set(self.first)) < len(self.first):
            raise ExhumeError(f"first: {', '.join(self.first)} names a layer twice")


def sizes_of(settings: SplitSettings, records: int) -> Sizes:
    """Who gets how many; sizes that were not given are shares of the records."""
    train = 0
    if settings.defend:
        train = settings.train or min(10_000, records * 2 // 5)
    return Sizes(
        fixed=train,
        target=settings.targets or min(100, records // 10),
        shadow=settings.held or min(5_000, records * 3 // 10),
        public=settings.seen or min(1_000, records // 10),
        test=min(2_000, records // 10),
    )


def take_up(folder: RunFolder, settings: SplitSettings, weights: str) -> None:
    """weights: digest of the network as it is attacked."""
    threads = threads_for(settings.threads)
    keep_to(folder, settings, {"weights_digest": weights}, threads=threads)


def folder_for(settings: SplitSettings) -> Path:
    """A folder named by the settings, so that the same command finds its own earlier work."""
    name = settings.model.rpartition(":")[2]
    digest = hashlib.sha256(to_toml(settings).encode()).hexdigest()[:8]
    return Path("runs") / f"split-{name}-{digest}"
