from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from exhume.contract import Architecture, ExhumeError, Layout
from exhume.models.tokens import TokenNet


@pytest.mark.parametrize("pool", ["flatten", "mean", "attention"])
@pytest.mark.parametrize("frozen", [False, True])
def test_layout_and_function(pool, frozen, key):
    net = TokenNet(20, 4, 6, 5, 3, pool, frozen, "tanh")
    assert isinstance(net, Architecture)
    assert Layout.of(net.build()) == net.layout
    flat = net.initial(key).double()
    assert flat.shape == (net.layout.size,)
    tokens = torch.tensor([[1.0, 2, 3, 4], [4, 3, 2, 1], [1, 1, 1, 1]])
    parts = net.layout.split(flat)
    outputs = functional_call(net.build().double(), parts, (tokens,))
    expected = torch.stack([naive(net, parts, flat, row.long()) for row in tokens])
    torch.testing.assert_close(outputs, expected)
    same = torch.allclose(outputs[0], outputs[1])
    assert same == (pool == "mean")  # only the mean forgets the order
    assert ("public" in str(net)) == frozen


def naive(net, parts, flat, tokens):
    """One record, one place after the other."""
    vectors = [net.table(flat)[t] for t in tokens]
    if net.pool == "flatten":
        pooled = torch.cat(vectors)
    else:
        if net.pool == "attention":
            places = net.positions().double()
            seen = [v + p for v, p in zip(vectors, places, strict=True)]
            seen = [(v - v.mean()) / (v.var(unbiased=False) + 1e-5).sqrt() for v in seen]
            vectors = []
            for one in seen:
                asked = parts["query"] @ one
                weights = torch.stack([asked @ (parts["key"] @ o) / net.width**0.5 for o in seen])
                mixed = sum(
                    w * (parts["value"] @ o) for w, o in zip(weights.softmax(0), seen, strict=True)
                )
                vectors.append(one + mixed)
        pooled = torch.stack(vectors).mean(0)
    hidden = torch.tanh(parts["fc1.weight"] @ pooled + parts["fc1.bias"])
    return parts["fc2.weight"] @ hidden + parts["fc2.bias"]


def test_what_is_no_network():
    with pytest.raises(ExhumeError, match="pool: 'max' is not one of flatten, mean, attention"):
        TokenNet(5, 2, pool="max")
    with pytest.raises(ExhumeError, match=r"at least 1, got \(0, 2, 32, 64, 3\)"):
        TokenNet(0, 2)
