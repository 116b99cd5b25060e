"""What the noise of a private client allows at most, and the same client with less of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from exhume.bounds.dp_sgd import gaussian
from exhume.score.lineup import USUAL
from exhume.train.dp import Privacy
from exhume.train.local import Steps

_SHARES = (0.0, 1 / 16, 1 / 4)  # of the client's noise, on the rungs of the ladder


@dataclass(frozen=True)
class NoiseBound:
    """What no attack on one client can exceed: naming its record among equally likely ones."""

    chance: float  # of an attack that knows nothing
    most: float  # Hayes et al. 2023

    @property
    def sentence(self) -> str:
        return (
            f"the noise that is said allows no attack to name more than {self.most:.1%} of the records among "
            f"{USUAL} strangers each (by chance {self.chance:.1%})"
        )


def noise_bound(steps: Steps, updates: int, *, images: bool) -> NoiseBound | None:
    """Of a client that sent so many updates of the same records; None: it adds no noise.

    A record is in every step, or in one batch of every epoch. Images are lined up by two measures, which
    doubles the chance.
    """
    if not steps.privacy.noise:
        return None
    seen = updates * (steps.routine.epochs or steps.count)
    chance = (2 if images else 1) / (USUAL + 1)
    return NoiseBound(chance, gaussian(chance, steps.privacy.noise, seen))


def with_less_noise(steps: Steps) -> list[tuple[Steps, str, str]]:
    """Easier versions of a private client, easiest first: how it trains, the noise, and words for it."""
    private = steps.privacy
    rungs = []
    for share in _SHARES:
        easier = Privacy(private.clip, share * private.noise)
        value = f"{easier.noise:.2g}"
        words = f"with noise of {value} times the clip" if share else "without the noise"
        rungs.append((replace(steps, privacy=easier), value, words))
    return rungs
