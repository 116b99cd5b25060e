"""Pages of margin attacks: galleries by similarity or confidence, pairs around the threshold, the scatter."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from report_runs import MakeRun, attack, audit
from safetensors.torch import load_file

from exhume.contract import ExhumeError, NotApplicable, Outcome, Reconstruction, Records, Status
from exhume.report.folder import RunFolder
from exhume.report.gallery import make_gallery
from exhume.report.margin import inapplicable_section, margin_section, unscored_section
from exhume.report.page import draw
from exhume.report.similarity import sides_of_threshold, ssim_against_margin
from exhume.score.margin import score_margin
from exhume.victims.checkpoint import secret_of

N = 30


def evidence(seed: int = 0) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    truth = torch.rand(N, 3, 6, 6, generator=random)
    return {
        "targets": truth,
        "reconstructions": truth.flip(0),
        "decoys": torch.rand(N, 3, 6, 6, generator=random),
        "ssim": torch.linspace(0.0, 0.9, N, dtype=torch.float64),
        "confidence": torch.rand(N, generator=random),
        "labels": torch.arange(N) % 3,
        "margins": torch.linspace(9.0, 2.0, N),
        "decoy_targets": torch.rand(4, 3, 6, 6, generator=random),
        "decoy_reconstructions": torch.rand(4, 3, 6, 6, generator=random),
        "decoy_ssim": torch.tensor([0.1, 0.3, 0.2, 0.05]),
    }


def page(make_run: MakeRun, tensors: dict[str, torch.Tensor], *, redact: bool = False) -> str:
    metrics = {
        "good": 16.0,
        "records": 30.0,
        "good_share": 16 / 30,
        "good_share_low": 0.3,
        "good_share_high": 0.7,
        "decoy_rate": 0.01,
        "decoy_rate_high": 0.02,
        "tpr_at_1pct": 0.6,
        "ssim_at_1pct": 0.3,
    }
    one = attack(metrics=metrics, ranked_by="ssim", baselines=[])
    return draw(make_run(audit(attacks=[one]), tensors), redact=redact).read_text()


def test_the_pairs_are_those_nearest_to_the_threshold_on_either_side() -> None:
    above, below, decoys = sides_of_threshold(evidence())
    values = torch.linspace(0.0, 0.9, N, dtype=torch.float64).tolist()
    assert [p.ssim for p in above.pairs] == sorted((v for v in values if v > 0.4), reverse=True)[
        -8:
    ]
    assert [p.ssim for p in below.pairs] == sorted((v for v in values if v <= 0.4), reverse=True)[
        :8
    ]
    assert [round(p.ssim, 2) for p in decoys.pairs] == [0.3, 0.2, 0.1, 0.05]
    assert "data:image/png" in above.pairs[0].truth


def test_where_there_is_nothing_to_compare_there_are_no_pairs() -> None:
    all_good = evidence() | {"ssim": torch.full((N,), 0.8)}
    assert [side.title[:10] for side in sides_of_threshold(all_good)] == [
        "Just above",
        "The luckie",
    ]
    assert sides_of_threshold({"reconstructions": torch.rand(2, 1, 3, 3)}) == []
    flat = {name: torch.rand(3, 5) for name in ("targets", "reconstructions")}
    assert sides_of_threshold(flat | {"ssim": torch.rand(3)}) == []


def test_the_scatter_has_a_point_for_every_image_and_counts_them() -> None:
    drawn = str(ssim_against_margin(evidence()))
    assert "17 of 30 training images lie above 0.4" in drawn
    dots = re.findall(r'class="dots s\d" d="([^"]*)"', drawn)
    assert sum(path.count("M") for path in dots) == N
    assert ssim_against_margin({"ssim": torch.rand(3)}) == ""
    unfit = {"margins": torch.tensor([-1.0, torch.nan]), "ssim": torch.tensor([0.5, 0.1])}
    assert "1 of 1 training images" in str(ssim_against_margin(unfit))
    nothing = {"margins": torch.tensor([torch.nan]), "ssim": torch.tensor([0.5])}
    assert "no finite values" in str(ssim_against_margin(nothing))


def test_the_page_ranks_by_similarity(make_run: MakeRun) -> None:
    text = page(make_run, evidence())
    for words in (
        "most similar first",
        "Nearest decoy",
        "Images brought back",
        "16 of 30",
        "At 1% false positives",
        "Just below 0.4: not counted",
        "Similarity against margin",
    ):
        assert words in text
    assert "Errors against oracle" not in text
    first = text[text.index('data-rank="1"') :]
    assert "SSIM 0.9" in first[:400]


def test_the_redacted_page_has_no_picture_and_no_number_of_a_record(make_run: MakeRun) -> None:
    text = page(make_run, evidence(), redact=True)
    assert "data:image" not in text
    assert "Just above 0.4" not in text
    assert 'class="dots' not in text
    assert "left out of this redacted version" in text
    assert "16 of 30" in text


def test_a_gallery_without_the_truth_goes_by_confidence() -> None:
    seen = {
        "reconstructions": torch.rand(5, 1, 4, 4),
        "confidence": torch.tensor([3.0, 1, 5, 2, 4]),
    }
    gallery = make_gallery(seen, [], size=10**6, ranked_by="confidence")
    assert gallery is not None
    assert not gallery.truth
    assert [card.confidence for card in gallery.cards] == [5, 4, 3, 2, 1]
    assert (gallery.best_first, gallery.worst_first) == ("surest", "least sure")
    assert make_gallery(seen, [], size=10**6, ranked_by="mse") is None
    with pytest.raises(ExhumeError, match="ranked_by: 'size' is not one of mse, ssim, confidence"):
        make_gallery(seen, [], size=10**6, ranked_by="size")


# The sections themselves


def found(candidates: torch.Tensor, restarts: float = 2.0) -> Reconstruction:
    sure = torch.linspace(1, 0.5, len(candidates))
    observed = {"records": 4.0, "residual": 0.1, "restarts": restarts}
    return Reconstruction(
        candidates[None],
        sure[None],
        Status(Outcome.CONVERGED),
        labels=torch.zeros(1, len(candidates), dtype=torch.long),
        observed=observed,
    )


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(8, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def read(folder: RunFolder, section: dict[str, Any]) -> dict[str, torch.Tensor]:
    json.dumps(section, allow_nan=False)
    loaded: dict[str, torch.Tensor] = load_file(folder.path / section["evidence"])
    return loaded


def test_a_scored_section(images: torch.Tensor, tmp_path: Any) -> None:
    folder = RunFolder.create(tmp_path / "run")
    truth = Records(images[:4], torch.arange(4) % 2, ("a", "b"))
    decoys = Records(images[4:], torch.arange(4) % 2, ("a", "b"))
    centre = images.mean(0)
    pool = found(images[[2, 0, 5]])
    scores = score_margin(secret_of(truth), pool, decoys, centre)
    section = margin_section(
        folder,
        id="margin-i",
        name="Victim i",
        knows=("architecture",),
        found=pool,
        scores=scores,
        decoys=decoys,
        margins=torch.arange(4.0),
    )
    kept = read(folder, section)
    assert section["ranked_by"] == "ssim"
    assert section["metrics"]["good"] == 2
    assert section["metrics"]["records"] == 4  # the truth's, not the attack's guess
    assert section["metrics"]["records_guessed"] == 4
    assert kept["ssim"].tolist() == sorted(kept["ssim"].tolist(), reverse=True)
    assert set(kept["margins"][:2].tolist()) == {0.0, 2.0}  # those that came back are first
    assert torch.equal(kept["targets"][:2], kept["reconstructions"][:2])
    assert float(kept["decoy_ssim"][0]) == pytest.approx(1)  # a decoy was among the candidates
    assert torch.equal(kept["decoy_targets"][0], images[5])
    assert "nearest" not in kept


def test_an_unscored_section_shows_each_image_once(images: torch.Tensor, tmp_path: Any) -> None:
    folder = RunFolder.create(tmp_path / "run")
    again = 0.5 * images[:3] + 0.2  # another contrast is the same image
    centre = torch.full((1, 12, 12), 0.5)
    pool = found(torch.cat([images, again]))
    section = unscored_section(
        folder, id="a", name="A", knows=(), found=pool, centre=centre, confidence="How sure."
    )
    assert section["metrics"]["distinct"] == 8
    assert section["metrics"]["agreed"] == 3
    assert section["notes"] == ["How sure."]
    assert torch.equal(read(folder, section)["reconstructions"], images)


def test_an_attack_that_does_not_apply(tmp_path: Any) -> None:
    section = inapplicable_section("a", "A", NotApplicable("fc2.bias: breaks it", ever=True))
    assert section["status"] == {
        "outcome": "not applicable",
        "reason": "fc2.bias: breaks it",
        "ever": True,
    }
    assert "evidence" not in section
