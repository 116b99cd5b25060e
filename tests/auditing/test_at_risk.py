"""The list of records at risk in a run folder: every target once, worst first, nothing of its content."""

from __future__ import annotations

import csv
import json
import stat
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import exhume
from exhume import readers
from exhume.auditing import at_risk
from exhume.auditing.at_risk import AT_RISK, factors_of_one, factors_of_own
from exhume.models.mlp import MLP
from exhume.models.own import architecture_named
from exhume.score.risk import risk_of

pytestmark = pytest.mark.xdist_group("trained weights")


def test_every_target_is_listed_worst_first(trained):
    rows = list(csv.DictReader((trained.folder / AT_RISK).open()))
    assert [int(row["rank"]) for row in rows] == list(range(1, 13))
    assert len({row["row"] for row in rows}) == 12
    leaks = [float(row["leak"]) for row in rows]
    assert leaks == sorted(leaks, reverse=True)
    assert any(row["brought_back"] == "yes" for row in rows)
    assert set(rows[0]) == {
        *("rank", "row", "brought_back", "leak", "margin", "gradient_norm", "outlier_score", "why"),
    }
    assert stat.S_IMODE((trained.folder / AT_RISK).stat().st_mode) == 0o600


def test_rows_are_places_in_the_data(trained, few_records):
    """The record of that row is the one that the evidence shows for it."""
    from safetensors.torch import load_file

    result = json.loads((trained.folder / "result.json").read_text())
    listed = next(attack for attack in result["attacks"] if "at_risk" in attack)
    assert listed["at_risk"]["csv"] == AT_RISK
    evidence = load_file(trained.folder / listed["evidence"])
    everything = readers.load(few_records)
    assert torch.equal(everything.inputs[evidence["rows"]], evidence["targets"])
    assert torch.equal(everything.labels[evidence["rows"]], evidence["labels"])


def test_the_page_shows_the_worst_and_the_shared_page_does_not(trained):
    page = trained.report.read_text()
    assert "Records at risk" in page
    assert "that leak most" in page
    worst = next(csv.DictReader((trained.folder / AT_RISK).open()))["row"]
    assert f'alt="Record {worst}"' in page
    shared = trained.redacted.read_text()
    assert f"Record {worst}" not in shared
    assert "rank correlation" in shared  # over all records: no record's own


def test_factors_against_one_record_at_a_time(key, make_records):
    mlp = MLP((1, 4, 4), (5,), 3)
    records, others = (
        make_records(4, (1, 4, 4), 3, key),
        make_records(20, (1, 4, 4), 3, key.fold(1)),
    )
    models = torch.stack([mlp.initial(key.fold("model", i)) for i in range(4)])
    own = factors_of_own(mlp, models, records, others)
    one = factors_of_one(mlp, models[0], records, torch.zeros(1, 4, 4))
    for index in range(4):
        leaf = models[index].clone().requires_grad_()
        out = functional_call(mlp.build(), mlp.layout.split(leaf), (records.inputs[index][None],))
        label = records.labels[index]
        (gradient,) = torch.autograd.grad(F.cross_entropy(out, label[None]), leaf)
        rivals = torch.cat([out[0, :label], out[0, label + 1 :]])
        margin = float((out[0, label] - rivals.max()).detach())
        assert float(own["margins"][index]) == pytest.approx(margin, abs=1e-5)
        assert float(own["gradient_norms"][index]) == pytest.approx(
            float(gradient.norm()), rel=1e-4
        )
    torch.testing.assert_close(
        one["gradient_norms"][0], own["gradient_norms"][0], rtol=1e-4, atol=1e-6
    )


def test_places_are_those_of_the_split(key):
    everything = readers.load("digits")
    sizes = readers.Sizes(60, 30, 150, 20, 20)
    target = readers.split(everything, sizes, key).target
    rows = readers.places(len(everything), sizes, key)[1]
    assert torch.equal(target.inputs, everything[rows].inputs)
    assert len(rows) == sizes.target


NETS = """
import torch
import torch.nn.functional as F
from torch import nn

def normed():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10)
    )

def by_batch():
    net = normed()
    net[2] = nn.BatchNorm1d(6, track_running_stats=False)
    return net

def train(model, records, rng):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(records.inputs), records.labels).backward()
        optimiser.step()
"""


@pytest.mark.parametrize(
    ("name", "known"), [("normed", {"margins", "outliers"}), ("by_batch", {"outliers"})]
)
def test_factors_that_cannot_be_had_are_left_out(tmp_path, key, name, known):
    (tmp_path / "nets_at_risk.py").write_text(NETS)
    net = architecture_named(
        f"nets_at_risk.py:{name}", input_shape=(1, 8, 8), classes=10, root=tmp_path
    )
    digits = readers.load("digits")
    models = torch.stack([net.initial(key.fold(i)) for i in range(12)])
    own = factors_of_own(net, models, digits[:12], digits[20:60])
    assert set(own) == known
    assert set(factors_of_one(net, models[0], digits[:12], torch.zeros(1, 8, 8))) == {"outliers"}
    if "margins" in own:
        logits = functional_call(
            net.build(), net.layout.split(models[3]), (digits.inputs[3:4],)
        ).detach()[0]
        label = int(digits.labels[3])
        rivals = torch.cat([logits[:label], logits[label + 1 :]])
        assert float(own["margins"][3]) == pytest.approx(
            float(logits[label] - rivals.max()), abs=1e-5
        )
    scored = {"rows": torch.arange(12), "ssim": torch.linspace(0, 1, 12)}
    for factors in (own, {}):
        risk = risk_of(scored | factors)
        assert set(risk.factors) == set(factors)
        header, *rows = at_risk._table(risk).splitlines()
        assert len(rows) == 12
        assert all(row.count(",") == header.count(",") for row in rows)


def test_batch_norm_in_a_training_function_of_the_owner(small, tmp_path, monkeypatch):
    """An extra never costs the verdict."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "nets_at_risk_too.py").write_text(NETS.replace("6, 10", "6, 3"))
    victim = {"network": "nets_at_risk_too.py:normed", "train": "nets_at_risk_too.py:train"}
    done = exhume.audit({**small, "victim": victim}, tmp_path / "run")
    assert done.verdict.word
    header = (done.folder / AT_RISK).read_text().splitlines()[0]
    assert header == "rank,row,brought_back,leak,margin,outlier_score,why"
