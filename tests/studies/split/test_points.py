from __future__ import annotations

import pytest
import torch

from exhume.core.contract import Key
from exhume.models.split.cut import cut
from exhume.models.split.networks import VGG16
from exhume.studies import run_study
from exhume.studies.arms import mosaic
from exhume.studies.split.points import _Trend, chained, slope


def test_slope_equals_least_squares(key):
    values = torch.randn(6, 4, dtype=torch.float64, generator=key.generator())
    steps = torch.stack([torch.ones(4), torch.arange(4.0)], 1).double()
    naive = torch.linalg.lstsq(steps, values.T).solution[1]
    torch.testing.assert_close(slope(values), naive)


def test_shadows_that_differ_widen_the_interval_of_a_trend(key):
    """Images agree to the last digit here, so that only the shadows' differences are left."""
    alike = {point: torch.full((3, 40), level) for point, level in (("a", 0.3), ("b", 0.2))}
    lots = {"a": torch.tensor([0.1, 0.3, 0.5]), "b": torch.tensor([0.0, 0.2, 0.4])}
    apart = {point: means[:, None].expand(3, 40) for point, means in lots.items()}
    sure, unsure = _Trend.of(alike, key), _Trend.of(apart, key)
    assert (sure.low, sure.high) == pytest.approx((-0.1, -0.1))
    assert unsure.low < -0.25
    assert unsure.high > 0.05


def test_a_network_that_was_cut_is_whole_again():
    whole = VGG16(width=2).module(Key.from_seed(0)).eval()
    again = chained(cut(whole, "conv2", "conv9"))
    images = torch.rand(2, 3, 32, 32)
    assert [n for n, _ in again.named_children()] == [n for n, _ in whole.named_children()]
    torch.testing.assert_close(again(images), whole(images))


def test_sixteen_images_make_a_mosaic(key):
    images = torch.rand(14, 3, 5, 4, generator=key.generator())
    drawn = mosaic(images)
    assert drawn.shape == (3, 24, 20)
    for i in range(14):
        y, x = 6 * (i // 4), 5 * (i % 4)
        assert torch.equal(drawn[:, y : y + 5, x : x + 4], images[i])
    assert not drawn[:, 5].any()
    assert not drawn[:, 18:, 10:].any()
    assert torch.equal(mosaic(torch.cat([images] * 2)), mosaic(torch.cat([images, images[:2]])))


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("split-points", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    for network, firsts, seconds in (
        ("vgg16", ("conv1", "conv7"), ("conv8", "pool")),
        ("resnet18", ("conv1", "block2"), ("block3", "pool")),
    ):
        cells = [f"{network}.{f}.{c}" for f in firsts for c in (*seconds, "matched", "head_known")]
        assert all(f"{cell}.ssim" in metrics for cell in cells)
        assert (
            metrics[f"{network}.conv1.pool.ssim"] != metrics[f"{network}.conv1.{seconds[0]}.ssim"]
        )
    ids = [
        f"{network}-{what}"
        for network in ("vgg16", "resnet18")
        for what in ("first", "second", "bound")
    ]
    assert sorted(claim["id"] for claim in result["claims"]) == sorted(ids)
    assert [chart["title"] for chart in result["charts"]][:2] == [
        "VGG-16: first split point",
        "VGG-16: second split point",
    ]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "conv7, head known" in page
    assert page.count("data:image/png") == 2 * 2 * 2 * 3
