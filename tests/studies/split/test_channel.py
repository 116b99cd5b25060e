from __future__ import annotations

import pytest

from exhume.bounds.channel import naming
from exhume.core.contract import Key
from exhume.models.split.channel import ChannelNetwork
from exhume.models.split.cost import multiply_adds
from exhume.models.split.cut import cut
from exhume.studies import run_study, study_named


def test_the_client_of_the_real_sizes_has_at_most_a_tenth_of_the_work():
    setting = study_named("split-channel").scales["cpu"]
    network = ChannelNetwork(setting.network, setting.cuts[0], "pool", setting.numbers)
    parts = cut(network.module(Key.from_seed(0)), "encode", "body")
    shape = network.input_shape
    client = multiply_adds(parts.head, shape) + multiply_adds(parts.tail, (setting.network.wide,))
    server = multiply_adds(parts.body, (setting.numbers,))
    assert 0.05 < client / (client + server) <= 0.1


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("split-channel", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    for bits in (4, 24):
        for count in (20, 50):
            bound = metrics[f"bits{bits}.bound.k{count}"]
            assert bound == naming(count, 6, metrics[f"bits{bits}.sigma"])
            assert metrics[f"bits{bits}.named.k{count}_surely"] <= bound
        for row in ("lookalike", "true_head"):
            assert f"bits{bits}.{row}.ssim" in metrics
    for name in ("free.accuracy", "alone.accuracy", "client.share", "class_mean.ssim"):
        assert 0 <= metrics[name] <= 1
    assert metrics["conv2.bits24.share"] < metrics["bits24.share"]
    assert metrics["bits4.bytes_up"] == 24
    claims = [claim["id"] for claim in result["claims"]]
    assert claims == ["network", "bits24", "never-above", "near", "looks", "server"]
    titles = [chart["title"] for chart in result["charts"]]
    assert titles == ["What a channel costs", "Naming the input", "Drawing the input"]
    again = run_study("split-channel", "smoke", tmp_path / "run").to_json()
    assert again["metrics"] == metrics
