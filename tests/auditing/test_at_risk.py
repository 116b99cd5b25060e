"""The list of records at risk in a run folder: every target once, worst first, nothing of its content."""

from __future__ import annotations

import csv
import json
import stat

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import exhume
from exhume import data
from exhume.auditing.at_risk import AT_RISK, factors_of_one, factors_of_own
from exhume.models.mlp import MLP
from exhume.report.page import draw
from exhume.settings import Settings

SETTINGS = {
    "data": {
        "source": "digits",
        "fixed": 60,
        "targets": 30,
        "shadows": 150,
        "public": 20,
        "test": 20,
    },
    "victim": {"hidden": [8], "steps": 40},
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return exhume.audit(SETTINGS, tmp_path_factory.mktemp("audit") / "run")


def test_every_target_is_listed_worst_first(done):
    rows = list(csv.DictReader((done.folder / AT_RISK).open()))
    assert len(rows) == 30
    assert [int(row["rank"]) for row in rows] == list(range(1, 31))
    leaks = [float(row["leak"]) for row in rows]
    assert leaks == sorted(leaks, reverse=True)
    assert any(row["brought_back"] == "yes" for row in rows)
    assert set(rows[0]) == {
        *("rank", "row", "brought_back", "leak", "margin", "gradient_norm", "outlier_score", "why"),
    }
    assert stat.S_IMODE((done.folder / AT_RISK).stat().st_mode) == 0o600


def test_rows_are_places_in_the_data(done):
    """The record of that row is the one that the evidence shows for it."""
    from safetensors.torch import load_file

    result = json.loads((done.folder / "result.json").read_text())
    listed = next(attack for attack in result["attacks"] if "at_risk" in attack)
    assert listed["at_risk"]["csv"] == AT_RISK
    evidence = load_file(done.folder / listed["evidence"])
    everything = data.load("digits")
    assert torch.equal(everything.inputs[evidence["rows"]], evidence["targets"])
    assert torch.equal(everything.labels[evidence["rows"]], evidence["labels"])


def test_the_page_shows_the_worst_and_the_shared_page_does_not(done):
    page = done.report.read_text()
    assert "Records at risk" in page
    assert "that leak most" in page
    worst = next(csv.DictReader((done.folder / AT_RISK).open()))["row"]
    assert f'alt="Record {worst}"' in page
    shared = draw(done.folder, redact=True).read_text()
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
    settings = Settings.from_mapping(SETTINGS)
    everything = data.load("digits")
    sizes = data.Sizes(60, 30, 150, 20, 20)
    target = data.split(everything, sizes, key).target
    rows = data.places(len(everything), sizes, key)[1]
    assert torch.equal(target.inputs, everything[rows].inputs)
    assert settings.data.targets == len(rows)
