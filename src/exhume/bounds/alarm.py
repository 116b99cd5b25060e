"""What was measured beside what is possible: one certificate for each attack, and the alarm.

An attack's success is a lower bound on what leaks, gamma an upper bound. Where the exact lower limit of
the success exceeds gamma, the two contradict each other: the accounting or the implementation is wrong.
The limit is one-sided at 1e-4, divided by the number of comparisons made.

The trials are n trainings with noise of their own, on records drawn from the prior, or on every record of
the prior equally often. In both cases the number of successes exceeds gamma n by so much no more often
than a binomial one (Hoeffding 1956).
"""

from __future__ import annotations

from dataclasses import dataclass

from exhume.core.contract import ExhumeError
from exhume.score.intervals import clopper_pearson

__all__ = ["ALARM_LEVEL", "Certificate", "certify"]

ALARM_LEVEL = 1e-4


@dataclass(frozen=True)
class Certificate:
    """One attack's success in one game, and the bound for the same loss and threshold."""

    successes: int
    trials: int
    kappa: float  # what guessing reaches
    bound: float  # gamma
    low: float  # 95% interval of the success
    high: float
    surely: float  # what the success exceeds, but for the alarm's level
    of: str = "the private training"  # what states the bound

    @property
    def rate(self) -> float:
        return self.successes / self.trials

    @property
    def alarm(self) -> bool:
        return self.surely > self.bound

    def metrics(self, name: str) -> dict[str, float]:
        return {
            name: self.rate,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
            f"{name}_surely": self.surely,
        }

    def sentence(self) -> str:
        measured = f"{self.successes} of {self.trials} ({self.rate:.1%})"
        if self.alarm:
            return (
                f"ALARM: success {measured} is certainly above {self.surely:.1%}, but the stated privacy "
                f"allows no attack more than {self.bound:.1%}: the accounting or the implementation of "
                f"{self.of} is wrong."
            )
        return (
            f"Success {measured}, 95% interval {self.low:.1%} to {self.high:.1%}; guessing reaches "
            f"{self.kappa:.1%}, and the stated privacy allows no attack more than {self.bound:.1%}."
        )


def certify(
    successes: int,
    trials: int,
    *,
    kappa: float,
    bound: float,
    comparisons: int = 1,
    of: str = "the private training",
) -> Certificate:
    """comparisons: how many certificates are looked at together; of: what states the bound."""
    if not 0 <= successes <= trials or trials < 1:
        raise ExhumeError(f"successes: {successes} of {trials} trials given")
    if comparisons < 1:
        raise ExhumeError(f"comparisons: {comparisons} given, at least 1 needed")
    surely = clopper_pearson(successes, trials, 1 - 2 * ALARM_LEVEL / comparisons)[0]
    low, high = clopper_pearson(successes, trials)
    return Certificate(successes, trials, kappa, bound, low, high, surely, of)
