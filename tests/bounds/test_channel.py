"""The channel's bounds: closed forms, and the best namer there is, which never exceeds them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exhume.bounds.channel import bits, naming, sigma_for, success
from exhume.core.contract import ExhumeError, Key
from exhume.score.intervals import clopper_pearson

DRAWS = 4_000


def codewords(inputs, numbers, key):
    """(K, k) inputs of length 1, spread at random; as many as there are numbers stand at right angles."""
    if inputs <= numbers:
        return torch.eye(numbers, dtype=torch.float64)[:inputs]
    drawn = torch.randn(inputs, numbers, generator=key.generator(), dtype=torch.float64)
    return drawn / drawn.norm(dim=1, keepdim=True)


def requests(words, sigma, times, key):
    """(n,) which input, and (n, k) the mean of so many requests of it: all that they tell."""
    which = torch.randint(len(words), (DRAWS,), generator=key.fold("which").generator())
    noise = torch.randn(DRAWS, words.shape[1], generator=key.generator(), dtype=torch.float64)
    return which, words[which] + sigma / math.sqrt(times) * noise


def scores(words, sent, sigma, times):
    """(n, K) log-likelihoods but for a constant."""
    return -times * torch.cdist(sent, words).square() / (2 * sigma**2)


CASES = [
    (inputs, numbers, asked, times)
    for inputs, numbers in ((10, 16), (100, 8), (1000, 16))
    for asked in (1.0, 4.0, 24.0)
    for times in (1, 4)
]


def test_the_best_namer_never_exceeds_the_bound_and_comes_near_it():
    shares = []
    for place, (inputs, numbers, asked, times) in enumerate(CASES):
        key = Key.from_seed(0).fold("case", place)
        sigma = sigma_for(asked, numbers)
        words = codewords(inputs, numbers, key)
        which, sent = requests(words, sigma, times, key.fold("sent"))
        right = int((scores(words, sent, sigma, times).argmax(1) == which).sum())
        bound = naming(inputs, numbers, sigma, times)
        surely = clopper_pearson(right, DRAWS, 1 - 1e-4)[0]
        assert surely <= bound, (inputs, numbers, asked, times)
        shares.append(right / DRAWS / bound)
    assert max(shares) > 0.9
    assert sum(share > 1 / 3 for share in shares) >= 5


def test_the_bits_of_a_request_never_exceed_the_bound_and_reach_it_at_much_noise():
    reached = []
    for place, (inputs, numbers, asked, times) in enumerate(CASES):
        key = Key.from_seed(1).fold("case", place)
        sigma = sigma_for(asked, numbers)
        words = codewords(inputs, numbers, key)
        which, sent = requests(words, sigma, times, key.fold("sent"))
        # I = E log2 p(y | x) / p(y), with p(y) the mean over inputs
        logs = scores(words, sent, sigma, times)
        each = logs[torch.arange(DRAWS), which] - torch.logsumexp(logs, 1) + math.log(inputs)
        each = each / math.log(2)
        error = float(each.std()) / math.sqrt(DRAWS)
        bound = bits(numbers, sigma, times)
        assert float(each.mean()) <= bound + 4 * error
        assert float(each.mean()) <= math.log2(inputs) + 4 * error
        reached.append(float(each.mean()) / bound)
    assert max(reached) > 0.9


@pytest.mark.parametrize("kappa", [0.001, 0.1, 0.5])
@pytest.mark.parametrize("times", [1, 3])
def test_one_input_and_one_event_reach_the_bound(kappa, times, key):
    """The half-space in the input's direction: probability kappa under noise, the bound under the input."""
    sigma, numbers = 0.5, 8
    word = codewords(1, numbers, key)
    _, sent = requests(word, sigma, times, key)
    _, blind = requests(0 * word, sigma, times, key.fold("blind"))
    normal = torch.distributions.Normal(0.0, 1.0)
    above = sigma / math.sqrt(times) * float(normal.icdf(torch.tensor(1 - kappa).double()))
    error = 4 / math.sqrt(DRAWS)
    assert float((blind @ word[0] > above).double().mean()) == pytest.approx(kappa, abs=error)
    reached = float((sent @ word[0] > above).double().mean())
    assert reached == pytest.approx(success(kappa, sigma, times), abs=error)


def test_known_values():
    assert bits(1, 1.0) == pytest.approx(0.5)
    assert bits(64, 0.125) == pytest.approx(32)
    assert bits(64, 0.125, 3) == pytest.approx(64)
    assert sigma_for(32.0, 64) == pytest.approx(0.125)
    assert sigma_for(128.0, 4) == pytest.approx((4 * (2.0**64 - 1)) ** -0.5)  # the most there is
    assert success(0.5, 1.0) == pytest.approx(0.8413447)
    assert success(0.0, 1.0) == 0
    assert success(1.0, 1.0) == 1
    assert naming(1, 8, 1.0) == 1
    assert naming(2**20, 64, 0.125) == success(2.0**-20, 0.125) < 1
    assert naming(2**40, 64, 0.125) == pytest.approx(33 / 40)
    assert naming(2, 64, 1.0) == pytest.approx(0.8413447)


@given(st.floats(0.01, 200), st.integers(1, 500), st.integers(2, 10**6), st.integers(1, 50))
def test_more_of_anything_tells_more(asked, numbers, inputs, times):
    asked = min(asked, 32.0 * numbers)
    sigma = sigma_for(asked, numbers)
    assert bits(numbers, sigma) == pytest.approx(asked, rel=1e-6)
    assert bits(numbers, sigma, times) <= times * bits(numbers, sigma) * (1 + 1e-9)
    assert bits(numbers + 1, sigma) >= asked * (1 - 1e-9)
    assert naming(inputs, numbers, sigma) <= naming(inputs, numbers, sigma, times) <= 1
    assert naming(inputs + 1, numbers, sigma) <= naming(inputs, numbers, sigma)
    assert success(1 / inputs, sigma) >= 1 / inputs


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: bits(0, 1.0), "numbers: 0 given, at least 1 needed"),
        (lambda: bits(4, 0.0), "sigma: 0.0 given, a finite number above 0 is needed"),
        (lambda: bits(4, math.inf), "sigma: inf given"),
        (lambda: bits(4, 1.0, 0), "requests: 0 given, at least 1 needed"),
        (lambda: sigma_for(0.0, 4), "bits: 0.0 given, more than 0 and at most 128 needed"),
        (lambda: sigma_for(129.0, 4), "bits: 129.0 given"),
        (lambda: sigma_for(math.nan, 4), "bits: nan given"),
        (lambda: success(1.5, 1.0), "kappa: 1.5 given"),
        (lambda: naming(0, 4, 1.0), "inputs: 0 given, at least 1 needed"),
    ],
)
def test_illegal_values(make, said):
    with pytest.raises(ExhumeError, match=said):
        make()
