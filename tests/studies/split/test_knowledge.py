from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume.studies import study_named
from exhume.studies.framework import RunOptions, run_study
from exhume.studies.split.knowledge import as_pictures


def test_images_are_made_to_fit(key, make_records):
    grey = make_records(4, (1, 8, 6), 2, key)
    fitted = as_pictures(grey, (3, 4, 3))
    assert fitted.shape == (3, 4, 3)
    for channel in range(3):
        block = grey.inputs[1, 0, :2, :2].mean()
        torch.testing.assert_close(fitted.inputs[1, channel, 0, 0], block)


@pytest.mark.network
@pytest.mark.parametrize("source", ["digits", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_smoke(source, tmp_path):
    study = study_named("split-knowledge")
    smoke = study.scales["smoke"]
    setting = replace(smoke, client=replace(smoke.client, source=source))
    study = replace(study, scales={"smoke": setting})
    result = run_study(study, "smoke", tmp_path / "run", RunOptions()).to_json()
    metrics = result["metrics"]
    rows = {
        *(
            "training_records",
            "mean_image",
            "paper",
            "other_classes",
            "faces",
            "shorter_head",
            "longer_head",
            "seen",
        ),
        *("head_known", "queries_10", "queries_60", "queries_faces", "queries_noise"),
    }
    assert {n.removesuffix(".ssim") for n in metrics if n.endswith(".ssim")} - rows == set()
    assert all(f"{row}.psnr" in metrics for row in rows)
    assert len({metrics[f"{row}.mse"] for row in rows}) == len(rows)
    assert {claim["id"] for claim in result["claims"]} == {
        *("query-free", "queries-matter", "few-queries", "other-data", "like-data")
    }
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("data:image/png") == 2 * len(rows)
