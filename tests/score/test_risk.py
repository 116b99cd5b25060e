"""Records at risk: planted reasons are found, and what goes with nothing is no reason."""

from __future__ import annotations

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


def test_few_records_have_no_reasons():
    few = {name: values[:5] for name, values in planted().items()}
    risk = risk_of(few)
    assert risk.sentences() == []
    assert risk.why(0) == ""


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
