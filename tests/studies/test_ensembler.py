from __future__ import annotations

import pytest
from safetensors.torch import load_file

from exhume.studies import run_study
from exhume.studies.ensembler_cifar10 import TABLE


@pytest.mark.network
def test_smoke(tmp_path):
    result = run_study("ensembler-cifar10", "smoke", tmp_path / "run")
    metrics = result["metrics"]
    stronger = ("lookalike", "matched", "committee", "likelihood", "subsets", "true_head")
    rows = {*TABLE.paper.rows, "mean_image", *(f"ensembler_{name}" for name in stronger)}
    for row in rows:
        for measure in ("ssim", "psnr", "lpips", "affine_ssim", "affine_psnr", "affine_lpips"):
            assert f"{row}.{measure}" in metrics
    assert metrics["none.delta_accuracy"] == 0
    assert metrics["mean_image.affine_psnr"] >= metrics["mean_image.psnr"]
    assert metrics["ensembler_subsets.subsets"] == 2
    best = max(metrics[f"ensembler_best_{by}.ssim"] for by in ("ssim", "psnr"))
    assert metrics["ensembler_best_ssim.ssim"] == best
    assert {claim["id"] for claim in result["claims"]} == {
        "ensembler-below-single",
        "single-below-none",
        "accuracy",
        "withstands",
        "hides-from-lookalike",
    }
    shown = {attack["name"]: attack["evidence"] for attack in result["attacks"]}
    drawn = load_file(tmp_path / "run" / shown["ensembler adaptive"])
    assert drawn["reconstructions"].shape == drawn["targets"].shape == (12, 3, 32, 32)
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<img") >= 2 * 12 * len(shown)
