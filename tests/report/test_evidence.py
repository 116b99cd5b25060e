"""What evidence shows: galleries by similarity, pairs around the threshold, a scatter, texts word by word."""

from __future__ import annotations

import re

import pytest
import torch
from report_runs import MakeRun, attack, audit

from exhume.auditing.kinds.checkpoint_findings import margin_findings, unscored
from exhume.core.contract import (
    ExhumeError,
    NotApplicable,
    Outcome,
    Reconstruction,
    Records,
    Shard,
    Status,
)
from exhume.core.results import AttackSpec, Section
from exhume.core.typed_json import to_json
from exhume.report.evidence import sides_of_threshold, ssim_against_margin, texts_of
from exhume.report.gallery import make_gallery
from exhume.report.page import draw
from exhume.score.margin import score_margin
from exhume.victims import secret_of

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
    leak = {"successes": 16, "trials": 30, "low": 0.3, "high": 0.7, "chance": 0.01}
    one = attack(metrics=metrics, leak=leak, ranked_by="ssim", baselines=[])
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
        "Records brought back",
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
    seen = Shard(
        {
            "reconstructions": torch.rand(5, 1, 4, 4),
            "confidence": torch.tensor([3.0, 1, 5, 2, 4]),
        }
    )
    gallery = make_gallery(seen, [], size=10**6, ranked_by="confidence")
    assert gallery is not None
    assert not gallery.truth
    assert [card.confidence for card in gallery.cards] == [5, 4, 3, 2, 1]
    assert (gallery.best_first, gallery.worst_first) == ("surest", "least sure")
    assert make_gallery(seen, [], size=10**6, ranked_by="mse") is None
    with pytest.raises(
        ExhumeError, match="ranked_by: 'size' is not one of ratio, mse, ssim, cosine, confidence"
    ):
        make_gallery(seen, [], size=10**6, ranked_by="size")


# The findings behind it

SPEC = AttackSpec("margin-i", "Victim i", "Buzaglo23", "the released weights")


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


def test_scored_findings(images: torch.Tensor) -> None:
    truth = Records(images[:4], torch.arange(4) % 2, ("a", "b"))
    decoys = Records(images[4:], torch.arange(4) % 2, ("a", "b"))
    pool = found(images[[2, 0, 5]])
    scores = score_margin(secret_of(truth), pool, decoys, images.mean(0))
    done = margin_findings(SPEC, ("architecture",), pool, scores, decoys, margins=torch.arange(4.0))
    kept = done.evidence
    assert done.section.ranked_by == "ssim"
    assert done.metrics["good"] == 2
    assert done.metrics["records"] == 4  # the truth's, not the attack's guess
    assert done.metrics["records_guessed"] == 4
    assert kept["ssim"].tolist() == sorted(kept["ssim"].tolist(), reverse=True)
    assert set(kept["margins"][:2].tolist()) == {0.0, 2.0}  # those that came back are first
    assert torch.equal(kept["targets"][:2], kept["reconstructions"][:2])
    assert float(kept["decoy_ssim"][0]) == pytest.approx(1)  # a decoy was among the candidates
    assert torch.equal(kept["decoy_targets"][0], images[5])
    assert "nearest" not in kept


def test_unscored_findings_show_each_image_once(images: torch.Tensor) -> None:
    again = 0.5 * images[:3] + 0.2  # another contrast is the same image
    centre = torch.full((1, 12, 12), 0.5)
    pool = found(torch.cat([images, again]))
    done = unscored(pool, centre, confidence="How sure.")
    assert done.metrics["distinct"] == 8
    assert done.metrics["agreed"] == 3
    assert done.notes == ("How sure.",)
    assert torch.equal(done.evidence["reconstructions"], images)


def test_an_attack_that_does_not_apply() -> None:
    section = Section.inapplicable(SPEC, NotApplicable("fc2.bias: breaks it", ever=True))
    assert to_json(section)["status"] == {
        "outcome": "not applicable",
        "reason": "fc2.bias: breaks it",
        "ever": True,
    }
    assert not section.evidence


WORDS = {"1": "the", "2": "cat", "3": "sat", "4": "<b>"}


def read(tensors, classes=(), *, ordered=True):
    """What the page shows of this evidence."""
    lexicon = {"padding": 0, "ordered": ordered, "words": WORDS}
    return texts_of(Shard(tensors, {"lexicon": lexicon}), list(classes))


def told(words):
    return [(word.text, word.right) for word in words]


def test_words_at_their_place():
    evidence = {
        "targets": torch.tensor([[2, 1, 3, 0], [1, 2, 3, 3]]),
        "reconstructions": torch.tensor([[-1, -1, -1, -1], [1, 3, 3, 0]]),
        "right_share": torch.tensor([0.0, 0.5]),
        "labels": torch.tensor([1, 0]),
    }
    texts = read(evidence, ["good", "bad"])
    first, second = texts.rows  # the one that came back best is first
    assert told(first.original) == [("the", True), ("cat", False), ("sat", True), ("sat", False)]
    assert told(first.found) == [("the", True), ("sat", False), ("sat", True)]
    assert (first.label, first.share, second.found) == ("good", 0.5, None)
    assert told(second.original) == [("cat", False), ("the", False), ("sat", False)]


def test_words_anywhere():
    evidence = {
        "targets": torch.tensor([[2, 1, 1, 0]]),
        "reconstructions": torch.tensor([[0, 1, 2, 9]]),
    }
    row = read(evidence, ordered=False).rows[0]
    assert told(row.original) == [("cat", True), ("the", True), ("the", False)]
    assert told(row.found) == [("the", True), ("cat", True), ("#9", False)]


def test_lists_and_nothing_to_compare_with():
    lists = read({"listed": torch.tensor([2, 3])})
    assert (lists.listed, lists.rows, lists.truth) == (("cat", "sat"), (), False)
    covered = {
        "targets": torch.tensor([[2, 3, 0]]),
        "covered": torch.tensor([[True, False, True]]),
        "listed": torch.tensor([2]),
    }
    row = read(covered, ordered=False).rows[0]
    assert told(row.original) == [("cat", True), ("sat", False)]
    alone = read({"reconstructions": torch.tensor([[2, 3]])})
    assert told(alone.rows[0].found) == [("cat", None), ("sat", None)]
    assert texts_of(Shard({"targets": torch.zeros(1, 2)}), []) is None


def test_a_damaged_lexicon():
    broken = Shard({}, {"lexicon": {"padding": 0}})
    with pytest.raises(ExhumeError, match="its words are damaged"):
        texts_of(broken, [])
