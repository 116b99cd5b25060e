from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from exhume.core.contract import ExhumeError, Key
from exhume.readers.image_sets import CIFAR100
from exhume.store.scale import Processes, spread_over
from exhume.studies import run_study
from exhume.studies.claims import said_of
from exhume.studies.split.ensembler_tables import Cells


def reported(study):
    """The rows that the paper's table has."""
    return said_of(study)["published"]["rows"]


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("ensembler-cifar10", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    stronger = ("lookalike", "matched", "committee", "likelihood", "subsets", "true_head")
    rows = {
        *reported("ensembler-cifar10"),
        "mean_image",
        "none.own_form",
        "none.training_set",
        "dr_answers.shadow",
        *(f"ensembler.{name}" for name in stronger),
    }
    for row in rows:
        for measure in ("ssim", "psnr", "lpips", "affine_ssim", "affine_psnr", "affine_lpips"):
            assert f"{row}.{measure}" in metrics
        assert metrics[f"{row}.ssim_low"] <= metrics[f"{row}.ssim"] <= metrics[f"{row}.ssim_high"]
    assert metrics["none.delta_accuracy"] == 0
    assert metrics["none.networks"] == metrics["ensembler.networks"] == 2
    assert metrics["dr_single.networks"] == 1
    for row in ("none.shadow", "none.own_form", "single.shadow", "ensembler.adaptive"):
        assert (metrics[f"{row}.clients"], metrics[f"{row}.shadows"]) == (2, 2)
        least, most = metrics[f"{row}.each.ssim_least"], metrics[f"{row}.each.ssim_most"]
        assert least < metrics[f"{row}.each.ssim"] < most
    assert metrics["ensembler.strength"] in (1.0, 0.1)
    assert metrics["mean_image.affine_psnr"] >= metrics["mean_image.psnr"]
    assert metrics["ensembler.subsets.subsets"] == 2
    best = max(metrics[f"ensembler.best_{by}.ssim"] for by in ("ssim", "psnr"))
    assert metrics["ensembler.best_ssim.ssim"] == best
    assert {claim["id"] for claim in result["claims"]} == {
        "network",
        "ensembler-below-single",
        "single-below-none",
        "accuracy",
        "withstands",
        "hides-from-lookalike",
        "own-form",
        "training-set",
        "choosing",
    }
    shown = {attack["name"]: attack["evidence"] for attack in result["attacks"]}
    drawn = load_file(tmp_path / "run" / shown["ensembler, adaptive"])
    assert drawn["reconstructions"].shape == drawn["targets"].shape == (8, 3, 32, 32)
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<img") >= 2 * 8 * len(shown)


def test_the_chosen_shadow_is_the_one_whose_decoded_features_are_nearest():
    ssim = torch.arange(12.0).reshape(2, 3, 2)
    mismatch = torch.tensor([[0.5, 0.1, 0.6], [0.2, 0.3, 0.1]])
    accuracy = torch.tensor([[0.9, 0.7, 0.6], [0.2, 0.8, 0.4]])
    observed = {"mismatch": mismatch, "shadow_accuracy": accuracy}
    cells = Cells({"ssim": ssim}, observed, 0.0, ssim, ssim)
    assert torch.equal(cells.taken("ssim")[:, 0], torch.stack([ssim[0, 1], ssim[1, 2]]))
    by_accuracy = cells.metrics("row", Key.from_seed(0))["row.by_accuracy.ssim"]
    assert by_accuracy == float(torch.stack([ssim[0, 0], ssim[1, 1]]).mean())
    alone = Cells({"ssim": ssim[:, :1]}, {}, 0.0, ssim, ssim)
    assert torch.equal(alone.taken("ssim"), ssim[:, :1])


def planted_cifar100(folder: Path) -> Path:
    """The canonical files of CIFAR-100, with a few records of stripes."""
    folder.mkdir()
    generator = Key.from_seed(0).generator()
    for name, count in zip(CIFAR100.batches, (100, 40), strict=True):
        labels = torch.randint(0, 100, (count, 2), generator=generator)
        pixels = torch.randint(0, 256, (count, 3, 32, 1), generator=generator).expand(
            -1, -1, -1, 32
        )
        table = torch.cat([labels, pixels.flatten(1)], 1).to(torch.uint8)
        (folder / name).write_bytes(table.numpy().tobytes())
    return folder


@pytest.mark.network
@pytest.mark.slow
def test_table_2_runs_on_the_canonical_files(tmp_path):
    copy = f"cifar100:{planted_cifar100(tmp_path / 'data')}"
    outcome = run_study("ensembler-cifar100", "smoke", tmp_path / "run", data=copy).to_json()
    metrics = outcome["metrics"]
    for row in (
        *reported("ensembler-cifar100"),
        "none.lookalike",
        "ensembler.lookalike",
        "single.lookalike",
    ):
        assert f"{row}.affine_lpips" in metrics
    assert not any(name.startswith("shredder") for name in metrics)
    paper = {claim["id"]: claim["paper"] for claim in outcome["claims"]}
    assert "0.0864 against 0.4558" in paper["ensembler-below-single"]
    assert not paper["single-below-none"]

    stages = []
    with spread_over(Processes(2)):
        spread = run_study(
            "ensembler-cifar100",
            "smoke",
            tmp_path / "spread",
            data=copy,
            progress=lambda *what: stages.append(what),
        )
    timeless = {n: v for n, v in metrics.items() if not n.endswith(".seconds")}
    assert {n: v for n, v in spread.metrics.items() if n in timeless} == timeless
    assert {what[0] for what in stages if what[1] == 0} >= {"training the networks", "attacking"}


@pytest.mark.network
@pytest.mark.slow
def test_table_3_has_a_random_head(tmp_path):
    result = run_study("ensembler-faces", "smoke", tmp_path / "run").to_json()
    for row in reported("ensembler-faces"):
        assert f"{row}.affine_lpips" in result["metrics"]
    for kind in ("random_head", "foreign_head"):
        assert f"{kind}.delta_accuracy" in result["metrics"]


def test_table_3_needs_a_folder_at_paper_scale(tmp_path):
    with pytest.raises(ExhumeError, match="celeba-hq:FOLDER"):
        run_study("ensembler-faces", "paper", tmp_path / "run")


@pytest.mark.slow
def test_table_3_takes_a_folder_of_faces(tmp_path):
    generator = Key.from_seed(0).generator()
    for person in "abcd":
        folder = tmp_path / "photos" / person
        folder.mkdir(parents=True)
        for index in range(50):
            side = 40 + index  # no two alike: they are cropped and resized
            pixels = torch.randint(0, 256, (side, 60, 3), generator=generator).to(torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / f"{index}.png")
    result = run_study("ensembler-faces", "smoke", tmp_path / "run", data=str(tmp_path / "photos"))
    drawn = load_file(tmp_path / "run" / result.attacks[0].evidence)
    assert drawn["reconstructions"].shape == (8, 3, 48, 48)
    assert result.classes == ("a", "b", "c", "d")


@pytest.mark.network
@pytest.mark.slow
def test_the_selector_study_counts_what_it_tries(tmp_path):
    result = run_study("ensembler-selector", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    assert metrics["enumeration.subsets"] == metrics["enumeration.trials_2"] == 3
    assert 1 <= metrics["enumeration.rank"] <= 3
    assert metrics["enumeration.trials_10"] == 1023
    assert metrics["enumeration.hours_10"] > metrics["enumeration.hours_2"] > 0
    for variant in ("plain", "selected_2", "lambda_0", "bodies_1", "sigma_0.5"):
        assert f"{variant}.adaptive.affine_ssim" in metrics
        assert f"{variant}.lookalike.affine_ssim" in metrics
    claims = {claim["id"]: claim for claim in result["claims"]}
    assert claims["accuracy-names-the-secret"]["holds"] == (metrics["enumeration.rank"] == 1)
