from __future__ import annotations

import pytest
import torch

from exhume.contract import Outcome, Reconstruction, Records, Status
from exhume.studies import run_study
from exhume.studies.margin.ordinary import _SCALES, _lined_up


def test_smoke(tmp_path):
    result = run_study("margin-ordinary", "smoke", tmp_path / "run")
    claimed = {claim.id for claim in result.claims}
    assert claimed == {"relu", "gelu", "minibatch", "cnn", "decoys"}
    for arm in ("relu", "gelu", "minibatch"):
        assert result.metrics[f"{arm}.records"] == 9
        assert 0 <= result.metrics[f"{arm}.decoy_rate"] <= 1
    assert result.metrics["relu.ssim_median"] > 0.8
    assert run_study("margin-ordinary", "smoke", tmp_path / "run").metrics == result.metrics


def test_the_arms_are_what_they_are_called():
    arms = _SCALES["cpu"].arms
    assert sum(arms["unbalanced"].mix) == sum(arms["relu"].mix) == 100
    assert arms["minibatch"].batch == 10
    recipe = arms["small.adamw"].recipe((3, 32, 32))
    assert "decoupled" in str(recipe)
    assert "none on biases" in str(arms["small.weights-only"].recipe((3, 32, 32)))
    assert arms["small.mse"].recipe((3, 32, 32)).architecture.outputs == 1


def test_vectors_are_lined_up_by_cosine_after_clustering(key):
    """Candidates along the records, of another length, each there many times."""
    generator = key.generator()
    train = Records(torch.randn(20, 16, generator=generator), torch.arange(20) % 2, ("a", "b"))
    others = Records(torch.randn(300, 16, generator=generator), torch.arange(300) % 2, ("a", "b"))
    centre = train.inputs.mean(0)
    copies = (2 * (train.inputs - centre) + centre).repeat(3, 1)
    noisy = copies + 0.1 * torch.randn(copies.shape, generator=generator)

    def lined_up(candidates):
        found = Reconstruction(
            candidates[None], torch.zeros(1, len(candidates)), Status(Outcome.CONVERGED)
        )
        return _lined_up(found, train, others, centre, key)

    row, cosine = lined_up(noisy)
    assert row.share == 1
    assert cosine == pytest.approx(1, abs=0.05)
    by_luck, _ = lined_up(torch.randn(60, 16, generator=generator))
    assert by_luck.share < 0.3
