"""Privacy parameters that a line-up rules out, in the game of Balle22.

An adversary who knows all records but one, and k strangers besides it, names the record with a probability
of at most e^epsilon times that of a guess (Balle22, reconstruction robustness). So

    epsilon >= ln((rate - delta) / chance)        mu >= Phi^-1(rate) - Phi^-1(chance)

with a lower limit in the place of the rate; chance is the number of measures over k + 1.
"""

from __future__ import annotations

from math import log

from scipy.stats import beta, norm

from exhume.core.evidence import Epsilon

_TAIL = 0.05  # of a one-sided limit, for all rows of an audit together


def epsilon_shown(
    identified: int,
    targets: int,
    chance: float,
    *,
    rows: int = 1,
    delta: float = 0.0,
    estimate: bool = False,
) -> Epsilon:
    """rows: tests of the audit, among which the level is divided. estimate: trials are not independent."""
    tail = _TAIL / max(1, rows)
    low, most = (_lower(count, targets, tail) for count in (identified, targets))
    at_least, cannot_exceed = (_pure(rate, chance, delta) for rate in (low, most))
    mu, mu_most = (_gaussian(rate, chance) for rate in (low, most))
    about = "about " if estimate else ""
    why = (
        " (an estimate: targets share strangers or the randomness of training)" if estimate else ""
    )
    sentence = (
        f"{identified} of {targets} identified: epsilon is at least {about}{at_least:.2g}{why}; this "
        f"line-up cannot show more than {cannot_exceed:.2g}. Gaussian privacy: mu is at least {about}"
        f"{mu:.2g}; it cannot show more than {mu_most:.2g}."
    )
    return Epsilon(at_least, cannot_exceed, delta, mu, mu_most, estimate, sentence)


def _lower(successes: int, trials: int, tail: float) -> float:
    """One-sided exact limit of a share."""
    return float(beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0


def _pure(rate: float, chance: float, delta: float) -> float:
    return max(0.0, log((rate - delta) / chance)) if rate > delta else 0.0


def _gaussian(rate: float, chance: float) -> float:
    if not 0 < rate < 1 or not 0 < chance < 1:
        return 0.0
    return max(0.0, float(norm.ppf(rate) - norm.ppf(chance)))
