"""What no attacker can exceed who sees k numbers of length at most 1 behind fresh Gaussian noise.

    Y = u(x) + sigma·N,    u(x) of k numbers, ||u(x)|| <= 1,    N ~ N(0, I_k) fresh for every request

For every prior of the inputs and everything else that is known (the head too), as long as that is
independent of N: nothing else is sent, nothing depends on the other inputs of a batch, and the noise is an
ideal Gaussian.

*Bits.* E||u||² <= 1 shared out over k independent Gaussian channels is worth most in equal parts:

    I(X; Y) <= (k/2)·log2(1 + 1/(k sigma²)) = b,    on average over the inputs, not for each of them.

*Success.* Let the attacker succeed with probability kappa at best if it is sent noise alone, N(0, sigma² I).
For one input, the likeliest event under N(u, sigma² I) that has probability q under N(0, sigma² I) has
Phi(Phi^-1(q) + ||u||/sigma) (Neyman and Pearson), which is concave in q, so that averages over inputs obey

    P[success] <= Phi(Phi^-1(kappa) + 1/sigma).

*Naming* one of K equally likely inputs: kappa = 1/K; besides, Fano's (b + 1)/log2 K.

*T requests* of the same u are one of sigma/sqrt(T); of different ones, bits add up.
"""

from __future__ import annotations

import math

from scipy.special import ndtr, ndtri

from exhume.bounds.prior import check_kappa
from exhume.core.contract import ExhumeError

_MOST = 32  # bits of one number as it is sent


def bits(numbers: int, sigma: float, requests: int = 1) -> float:
    """b = (k/2)·log2(1 + T/(k sigma²)): of T requests of the same input, on average over inputs.

    numbers: k; requests: T.
    """
    _check(numbers, sigma, requests)
    return numbers / 2 * math.log1p(requests / (numbers * sigma**2)) / math.log(2)


def sigma_for(bits: float, numbers: int) -> float:
    """The noise with which k numbers carry at most so many bits: 1/sqrt(k (2^(2b/k) - 1))."""
    _check(numbers, 1.0, 1)
    if not 0 < bits <= _MOST * numbers:
        raise ExhumeError(
            f"bits: {bits} given, more than 0 and at most {_MOST * numbers} needed ({_MOST} a number)"
        )
    return 1 / math.sqrt(numbers * math.expm1(2 * bits / numbers * math.log(2)))


def success(kappa: float, sigma: float, requests: int = 1) -> float:
    """Phi(Phi^-1(kappa) + sqrt(T)/sigma): of any event that has probability kappa without the requests."""
    check_kappa(kappa)
    _check(1, sigma, requests)
    return float(ndtr(ndtri(kappa) + math.sqrt(requests) / sigma))


def naming(inputs: int, numbers: int, sigma: float, requests: int = 1) -> float:
    """min{1, (b + 1)/log2 K, Phi(Phi^-1(1/K) + sqrt(T)/sigma)}: one of K equally likely inputs is named.

    inputs: K; requests: T of the same input.
    """
    if inputs < 1:
        raise ExhumeError(f"inputs: {inputs} given, at least 1 needed")
    lifted = success(1 / inputs, sigma, requests)
    if inputs == 1:
        return 1.0
    return min(1.0, (bits(numbers, sigma, requests) + 1) / math.log2(inputs), lifted)


def _check(numbers: int, sigma: float, requests: int) -> None:
    if numbers < 1:
        raise ExhumeError(f"numbers: {numbers} given, at least 1 needed")
    if not 0 < sigma < math.inf:
        raise ExhumeError(f"sigma: {sigma} given, a finite number above 0 is needed")
    if requests < 1:
        raise ExhumeError(f"requests: {requests} given, at least 1 needed")
