from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exhume.core.contract import Outcome, Reconstruction, Records, Status
from exhume.store.shards import read_shard
from exhume.studies import run_study
from exhume.studies.margin.ordinary import _SCALES, _TINY, _lined_up


@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("margin-ordinary", "smoke", tmp_path / "run")
    claimed = {claim.id for claim in result.claims}
    assert claimed == {"relu", "gelu", "minibatch", "cnn", "decoys"}
    for arm in ("relu", "gelu", "minibatch"):
        assert result.metrics[f"{arm}.records"] == 9
        assert 0 <= result.metrics[f"{arm}.decoy_rate"] <= 1
    assert result.metrics["relu.ssim_median"] > 0.8
    assert run_study("margin-ordinary", "smoke", tmp_path / "run").metrics == result.metrics


def test_a_head_shows_the_images_behind_its_vectors(tmp_path, monkeypatch):
    """The backbone of this test passes its images on as vectors."""

    def flat(run, records):
        return Records(records.inputs.flatten(1), records.labels, records.classes)

    small = replace(_TINY, mix=(3,) * 5, epochs=1500)
    setting = replace(
        _SCALES["smoke"], arms={"relu": _TINY}, embedded=small, convolved=None, strangers=20
    )
    monkeypatch.setitem(_SCALES, "smoke", setting)
    monkeypatch.setattr("exhume.studies.margin.ordinary._features", flat)
    result = run_study("margin-ordinary", "smoke", tmp_path / "run")
    assert {"relu", "head", "decoys"} == {claim.id for claim in result.claims}
    assert result.metrics["head.records"] == 15
    assert result.metrics["head.p"] <= 0.01
    (found,) = (tmp_path / "run").glob("*margin-head*")
    evidence = read_shard(found)
    assert evidence["target_pictures"].shape == (15, 1, 8, 8)
    assert evidence["decoy_pictures"].shape == (15, 1, 8, 8)


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
