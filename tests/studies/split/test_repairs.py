from __future__ import annotations

import pytest
import torch

from exhume.studies import run_study
from exhume.studies.split import repairs


@pytest.mark.network
@pytest.mark.slow
def test_smoke(tmp_path):
    result = run_study("split-repairs", "smoke", tmp_path / "run").to_json()
    metrics = result["metrics"]
    names = list(repairs.STUDY.scales["smoke"].repairs)
    assert {"fresh_1", "rotated", "adversarial_1", "after_block2"} < set(names)
    for name in names:
        for attacker in ("own_form", "true_head"):
            assert 0 <= metrics[f"{name}.{attacker}.identified"] <= 1
            assert 0 < metrics[f"{name}.{attacker}.p"] <= 1
        assert metrics[f"{name}.leaks"] + metrics[f"{name}.at_risk"] <= 1
    looked = {n.removesuffix(".lookalike.p") for n in metrics if n.endswith(".lookalike.p")}
    assert looked == {"none", "ensembler", "fresh_1", "adversarial_1"}
    claims = {claim["id"]: claim for claim in result["claims"]}
    assert set(claims) == {"published", "repaired", "hidden", "cheaply"}
    if not metrics["none.leaks"]:  # the attackers find nothing where all is to be found
        assert not claims["repaired"]["holds"]
        assert not claims["hidden"]["holds"]
    again = run_study("split-repairs", "smoke", tmp_path / "run").to_json()
    assert again["metrics"] == metrics


def found(p):
    return {"p": torch.tensor(p)}


@pytest.mark.parametrize(
    ("without", "given", "word"),
    [(1e-4, 1e-4, "leaks"), (0.4, 1e-4, "at risk"), (0.4, 0.4, "nothing found")],
)
def test_the_word_is_that_of_an_audit(without, given, word):
    made = {"a.own_form": found(without), "a.true_head": found(given), "ab.own_form": found(1e-4)}
    assert repairs._word(made, "a") == word
