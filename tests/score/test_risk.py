"""Records at risk: planted reasons are found, and what goes with nothing is no reason."""

from __future__ import annotations

import pytest
import torch

from exhume.score.risk import outlier_scores, risk_of


def planted(count: int = 100) -> dict[str, torch.Tensor]:
    """Small margins leak; gradients are noise."""
    generator = torch.Generator().manual_seed(0)
    margins = torch.rand(count, generator=generator)
    return {
        "rows": torch.arange(count) + 1000,
        "mse": 0.01 + margins * 0.05 + 0.002 * torch.rand(count, generator=generator),
        "oracle_mse": torch.full((count,), 0.03),
        "null_mse": torch.full((count,), 0.08),
        "margins": margins,
        "gradient_norms": torch.rand(count, generator=generator),
    }


def test_the_planted_reason_is_found():
    evidence = planted()
    risk = risk_of(evidence)
    most, least = risk.order[0], risk.order[-1]
    assert int(risk.rows[most]) == 1000 + most
    assert evidence["margins"][most] < 0.1 < evidence["margins"][least]
    assert risk.back.tolist() == (evidence["mse"] < 0.03).tolist()
    assert risk.why(most).startswith("a smaller margin than ")
    assert "gradient" not in risk.why(most)
    assert risk.why(least) == ""
    margin, gradient = risk.sentences()
    assert margin.startswith(
        "The smaller its margin, the more a record leaks (rank correlation -1.00"
    )
    assert gradient.startswith("The gradient norm does not tell who leaks")


def test_similarity_where_there_is_no_oracle():
    evidence = {"rows": torch.arange(12), "ssim": torch.linspace(0, 1, 12)}
    evidence["outliers"] = evidence["ssim"] ** 2
    risk = risk_of(evidence)
    assert risk.order == list(range(11, -1, -1))
    assert risk.back.tolist() == (evidence["ssim"] > 0.4).tolist()
    assert risk.why(11) == "more unlike the others than 100% of the records"


def test_what_leaking_is():
    """How many times closer than another's answer; or the cosine, where the rank decides."""
    evidence = planted(12)
    leak = 0.08 / evidence["mse"].double()
    torch.testing.assert_close(risk_of(evidence).leak, leak)
    assert risk_of(evidence).order == leak.argsort(descending=True).tolist()
    assert risk_of(evidence).measure.startswith("error of another record's answer")
    exact = {**evidence, "mse": torch.zeros(12)}
    assert risk_of(exact).leak.tolist() == pytest.approx([0.08e12] * 12)
    cosine = torch.linspace(-1, 1, 12)
    risk = risk_of({"rows": torch.arange(12), "cosine": cosine, "rank": torch.arange(12)})
    assert risk.leak.tolist() == cosine.double().tolist()
    assert risk.back.tolist() == [i == 1 for i in range(12)]
    assert risk.measure.startswith("cosine")
    equal = {"rows": torch.arange(3), "ssim": torch.tensor([0.4, 0.4, 0.41], dtype=torch.float64)}
    assert risk_of(equal).order == [2, 0, 1]
    assert risk_of(equal).back.tolist() == [False, False, True]
    assert risk_of(equal).measure == "structural similarity (SSIM)"


@pytest.mark.parametrize("rising", [True, False])
def test_a_reason_exceeds_a_fifth_of_the_records(rising):
    """Among eleven: the third at the risky end is beyond 8 of 10 others, the fourth beyond 7."""
    ssim = torch.linspace(0, 1, 11)
    evidence = {"rows": torch.arange(11), "ssim": ssim, "margins": ssim if rising else -ssim}
    risk = risk_of(evidence)
    way = "larger" if rising else "smaller"
    reasons = [f"a {way} margin than {share}% of the records" for share in (100, 90, 80)]
    assert [risk.why(10 - place) for place in range(4)] == [*reasons, ""]
    assert risk.sentences() == [
        f"The {way} its margin, the more a record leaks (rank correlation {'+' if rising else '-'}1.00 "
        f"({'+' if rising else '-'}1.00 to {'+' if rising else '-'}1.00))."
    ]


def test_few_records_have_no_reasons():
    for count, sentences in ((9, 0), (10, 2)):
        few = {name: values[:count] for name, values in planted().items()}
        risk = risk_of(few)
        assert len(risk.sentences()) == sentences
        assert count > 9 or [risk.why(i) for i in range(count)] == [""] * count


def test_a_reason_may_be_one_of_several():
    both = {**planted(40), "outliers": -planted(40)["margins"]}
    risk = risk_of(both)
    assert risk.why(risk.order[0]) == (
        "a smaller margin than 100% of the records; more unlike the others than 100% of the records"
    )


def test_without_rows_there_is_nothing_to_list():
    assert risk_of({"mse": torch.zeros(3)}) is None


def test_outliers_are_far_from_their_nearest():
    generator = torch.Generator().manual_seed(1)
    crowd = torch.randn(50, 2, 3, generator=generator)
    strange = crowd.clone()
    strange[7] += 20
    scores = outlier_scores(strange, strange)
    assert int(scores.argmax()) == 7
    assert scores[7] > 5
    assert abs(float(scores.median()) - 1) < 1e-6
    naive = (strange.flatten(1)[3] - strange.flatten(1)).norm(dim=1).sort().values[1:6].mean()
    other = (strange.flatten(1)[4] - strange.flatten(1)).norm(dim=1).sort().values[1:6].mean()
    torch.testing.assert_close((scores[3] / scores[4]).float(), naive / other)
    some, others = torch.rand(2, 300, 4, generator=generator)
    near = torch.stack([(one - others).norm(dim=1).sort().values[:5].mean() for one in some])
    found = outlier_scores(some, others)
    torch.testing.assert_close(found.float(), near / near.median(), atol=1e-4, rtol=0)
    few = outlier_scores(some, others[:2])  # fewer than five
    near = torch.stack([(one - others[:2]).norm(dim=1).mean() for one in some])
    torch.testing.assert_close(few.float(), near / near.median(), atol=1e-4, rtol=0)
    alone = outlier_scores(torch.zeros(2, 3), torch.zeros(1, 3))  # nothing but copies
    assert alone.isfinite().all()


def test_where_nothing_leaks_being_unlike_the_others_is_no_reason():
    """An answer that says nothing is far from strange records, and so is everything that is held."""
    generator = torch.Generator().manual_seed(2)
    outliers = 1 + torch.rand(200, generator=generator)
    evidence = {
        "rows": torch.arange(200),
        "outliers": outliers,
        "mse": 0.05 * outliers * (1 + 0.1 * torch.rand(200, generator=generator)),
        "null_mse": 0.05 * outliers * (1 + 0.1 * torch.rand(200, generator=generator)),
        "oracle_mse": 0.03 * outliers**2,
    }
    assert risk_of(evidence).sentences()[0].startswith("The outlier score does not tell who leaks")
