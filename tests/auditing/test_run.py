"""The whole audit: several releases in one run, a plan within a budget, fixes, the user's own model."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import exhume
from exhume.auditing.plan import seconds_per_model
from exhume.choices import sized
from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.settings import Settings
from exhume.store.shards import FolderStore, NullStore
from exhume.train.fleet import forward_operations
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

pytestmark = pytest.mark.xdist_group("several releases")


def result_of(done: exhume.auditing.Audit) -> dict:
    return json.loads((done.folder / "result.json").read_text())


# Weights and updates, with fixes


@pytest.fixture(scope="module")
def both(small):
    """The updates are of other records, which no dozen patterns tell."""
    update = {"made": 4, "batch_size": 1, "search_steps": 5, "restarts": 1, "data": "digits"}
    return {**small, "update": update, "budget": {"fixes": True}}


@pytest.fixture(scope="module")
def whole(both, tmp_path_factory):
    return exhume.audit(both, tmp_path_factory.mktemp("whole") / "run")


def test_both_releases_are_attacked(whole):
    result = result_of(whole)
    ids = [attack["id"] for attack in result["attacks"]]
    assert ids[0] == "closed-form"
    assert {"bias-ratio", "span"} & set(ids)
    assert all(
        attack["verdict"] in ("leaks", "no leak found", "not audited")
        for attack in result["attacks"]
    )
    assert result["title"] == "What you release, and what it gives away"
    assert result["victim"]["updates"] == 4


def test_every_release_has_its_word_and_its_fix(whole):
    assert whole.verdict.word == "leaks"
    assert whole.verdict.sentence == "2 of 2 releases leak."
    glance = {release["name"]: release for release in result_of(whole)["releases"]}
    assert set(glance) == {"the trained weights", "the updates of clients"}
    assert all(release["word"] == "leaks" for release in glance.values())
    assert glance["the trained weights"]["fix"].endswith("is shown to stop it.")  # of 20 records


def test_what_was_left_out_is_in_the_plan(whole):
    left = {row["id"]: row["why"] for row in result_of(whole)["plan"] if not row["run"]}
    assert set(left) == {"corrected", "through-training"}
    assert all(why.startswith("only with --budget") for why in left.values())


def test_fixes_are_ranked_in_words(whole):
    rows = result_of(whole)["fixes"]
    ids = [row["id"] for row in rows]
    assert {"secret-start", "int8", "private-100", "noise-1", "pruned"} <= set(ids)
    tried = [row for row in rows if row["tried"]]
    stopped = [row["verdict"] == "no leak found" for row in tried]
    assert stopped == sorted(stopped, reverse=True)  # those that stop it first
    secret = next(row for row in rows if row["id"] == "secret-start")
    assert secret["words"] == "initial weights that stay secret"
    assert "records recovered" in secret["outcome"]
    assert secret["verdict"] == "not audited"  # too little came back without it
    assert secret["kept"] == secret["before"]
    assert whole.advice == tuple(f"{row['words']}: {row['outcome']}." for row in rows)
    titles = [chart["title"] for chart in result_of(whole)["charts"]]
    assert titles == [
        "What stops the leak of the trained weights",
        "What stops the leak of the updates of clients",
    ]


def test_noise_as_large_as_the_update_stops_what_reads_it(whole):
    row = next(row for row in result_of(whole)["fixes"] if row["id"] == "noise-1")
    assert row["leak"]["successes"] < row["without"]["successes"]
    assert 0.5 < row["kept"] < 0.9  # the cosine with noise of the same size is about .7


def test_the_page_tells_the_plan_and_the_fixes(whole):
    page = whole.report.read_text()
    assert "What stops it" in page
    assert "What was tried, and what was left out" in page
    assert "initial weights that stay secret" in page


def test_in_a_notebook_it_shows_its_page(whole):
    shown = whole._repr_html_()
    assert whole.verdict.sentence in shown
    assert "<iframe srcdoc=" in shown
    assert "&lt;!doctype html&gt;" in shown


@pytest.mark.slow
def test_a_second_run_is_the_same(whole, tmp_path):
    again = exhume.audit(whole.folder / "config.toml", tmp_path / "again")
    first, second = result_of(whole), result_of(again)
    for result in (first, second):
        del result["wall_seconds"]
        for row in [*result["attacks"], *result["plan"], *result["fixes"]]:
            row.pop("cost", None)
            row.pop("seconds", None)
            row.pop("cpu_seconds", None)
    assert first == second


def test_a_budget_too_small_for_anything_audits_nothing(tmp_path):
    settings = {"data": {"source": "digits"}, "victim": {"steps": 10**6}, "budget": "1s"}
    done = exhume.audit(settings, tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert "of the budget were left" in done.verdict.sentence
    assert result_of(done)["attacks"] == []


def test_a_budget_chooses_targets_and_shadows():
    plain = Settings()
    many = sized(plain, 70_000, per_model=1e-3, budget=600.0).data
    few = sized(plain, 70_000, per_model=1.0, budget=600.0).data
    assert (many.targets, many.shadows) == (200, 2000)
    assert (few.targets, few.shadows) == (50, 200)  # so that a control fits, too
    assert (few.targets + few.shadows) * 1.0 <= 0.7 * 600
    hopeless = sized(plain, 70_000, per_model=1e6, budget=600.0).data
    assert (hopeless.targets, hopeless.shadows) == (20, 50)  # the planner then leaves it out
    given = sized(plain.with_values("data", targets=7), 70_000, per_model=1.0, budget=600.0).data
    assert given.targets == 7


def test_estimates_count_operations():
    mlp = MLP((784,), (10,), 10, "relu")
    assert forward_operations(mlp) == 2 * (784 * 10 + 10 * 10)
    cnn = CNN((3, 32, 32), hidden=(10,), outputs=10)
    by_hand = 2 * (15 * 15 * 16 * 48 + 12 * 12 * 32 * 256 + 4608 * 10 + 10 * 10)
    assert forward_operations(cnn) == pytest.approx(by_hand, rel=1e-6)


def test_estimates_grow_with_the_work(tmp_path):
    records = Records(torch.rand(40, 6), torch.zeros(40, dtype=torch.int64), ("a", "b"))
    mlp = MLP((6,), (4,), 2, "relu")

    def seconds(steps: int, threads: int) -> float:
        recipe = FullBatch(mlp, Descent(steps))
        key = Key.from_seed(0)
        start = mlp.initial(key)
        return seconds_per_model(
            recipe, records, threads=threads, initial=start, key=key, store=NullStore()
        )

    assert seconds(200, 1) == pytest.approx(2 * seconds(100, 1))
    assert seconds(100, 1) == pytest.approx(2 * seconds(100, 2))


# The owner's own network and training

OWN = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ELU(), nn.Flatten(), nn.Linear(36, 3))

def train(model, records, rng):
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(10):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(records.inputs), records.labels).backward()
        optimiser.step()
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    (tmp_path / "net.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def fewer(small):
    """Training of one's own is not stacked: every model takes its time."""
    return {**small, "data": {**small["data"], "fixed": 12, "targets": 10, "shadows": 30}}


def test_an_own_network_trained_here(own, small):
    done = exhume.audit({**small, "victim": {"network": "net.py:make", "steps": 20}}, own / "run")
    result = result_of(done)
    assert result["victim"]["architecture"].startswith("net.py:make with ")
    assert done.verdict.word == "leaks"
    exact = next(p for p in result["plan"] if p["id"] == "through-training")
    assert not exact["why"].startswith("does not apply")


def test_an_own_training_function(own, fewer):
    victim = {"network": "net.py:make", "train": "net.py:train"}
    brief = {**fewer, "victim": victim, "budget": "5m"}
    done = exhume.audit(brief, own / "run")
    facts = result_of(done)["victim"]
    assert facts["training"] == "the owner's own function net.py:train"
    assert facts["deterministic"] == "yes"
    again = exhume.audit(brief, own / "run")  # the time taken once is kept, so the plan is the same
    assert result_of(again)["plan"][0]["run"]
    assert again.metrics == done.metrics


@pytest.mark.parametrize(
    ("private", "missing"),
    [
        ({"dp_clip": 1.0}, "dp_noise: .* trains its own way; .* dp_noise, dp_steps is missing"),
        ({"dp_clip": 1.0, "dp_noise": 2.0}, "dp_steps: .* dp_steps is missing"),
        ({"dp_sampling": 0.5}, "dp_clip: .* dp_clip, dp_noise, dp_steps is missing"),
    ],
)
def test_own_training_that_is_private_is_said_to_be_so_in_full(own, small, private, missing):
    victim = {"network": "net.py:make", "train": "net.py:train", **private}
    with pytest.raises(ExhumeError, match=missing):
        exhume.audit({**small, "victim": victim}, own / "run")
    assert not (own / "run").exists()
    with pytest.raises(ExhumeError, match="dp_steps: 3 given; without a train of your own, say"):
        exhume.audit({**small, "victim": {"dp_steps": 3}}, own / "run")


def test_own_training_is_certified_as_it_is_said_to_be(own, fewer):
    """The function adds no noise at all, and is said to be private: that is noticed."""
    victim = {"network": "net.py:make", "train": "net.py:train", "dp_clip": 1.0, "dp_noise": 50.0}
    brief = {
        **fewer,
        "data": {**fewer["data"], "shadows": 60},
        "victim": {**victim, "dp_steps": 10},
    }
    done = exhume.audit(brief, own / "run")
    assert "ALARM" in done.alarm
    assert done.verdict.sentence == "The stated privacy does not hold."
    facts = result_of(done)["victim"]
    assert facts["privacy"] == "clip 1, noise multiplier 50, 10 steps, by the settings"
    assert "What the stated privacy allows" in done.report.read_text()


def test_updates_alone_need_no_weights_to_be_released(own, few_records):
    brief = {
        "data": {"source": few_records},
        "victim": {"network": "net.py:make", "released": False},
        "update": {"made": 1, "batch_size": 1, "search_steps": 60, "restarts": 1},
    }
    done = exhume.audit(brief, own / "run")
    result = result_of(done)
    assert result["title"] == "What the updates of clients give away"
    assert {attack["id"] for attack in result["attacks"]} >= {"matching"}
    assert done.metrics["targets"] == 1


def test_more_updates_than_records_are_refused(own):
    brief = {
        "data": {"source": "digits"},
        "victim": {"released": False},
        "update": {"made": 100, "batch_size": 100},
    }
    with pytest.raises(ExhumeError, match="100 updates of 100 records need 10000"):
        exhume.audit(brief, own / "run")


def test_a_time_of_an_own_function_is_kept(own):
    from exhume.models.own import architecture_named
    from exhume.train.own import OwnTraining

    architecture = architecture_named("net.py:make", input_shape=(1, 8, 8), classes=3)
    recipe = OwnTraining.of(architecture, "net.py:train")
    records = Records(torch.rand(6, 1, 8, 8), torch.arange(6) % 3, tuple("abc"))
    key = Key.from_seed(0)
    given = {"threads": 1, "initial": architecture.initial(key), "key": key}
    store = FolderStore(own / "shards")
    first = seconds_per_model(recipe, records, **given, store=store)
    assert first > 0
    assert seconds_per_model(recipe, records, **given, store=store) == first


def test_a_base_that_is_fine_tuned(own, fewer):
    """Training starts from a file; whoever has the base knows the start, so it is no secret to keep."""
    from safetensors.torch import save_file

    from exhume.models.own import architecture_named

    architecture = architecture_named("net.py:make", input_shape=(1, 8, 8), classes=3)
    start = architecture.initial(Key.from_seed(5))
    save_file(
        {f"module.{n}": t.clone() for n, t in architecture.layout.split(start).items()},
        own / "base.safetensors",
    )
    victim = {"network": "net.py:make", "steps": 20, "start": "base.safetensors"}
    done = exhume.audit({**fewer, "victim": victim}, own / "run")
    other = exhume.audit({**fewer, "victim": {**victim, "start": ""}}, own / "other")
    assert result_of(done)["victim"]["start"] == "base.safetensors"
    assert done.metrics["mse"] != other.metrics["mse"]
    with pytest.raises(ExhumeError, match="there is no file"):
        exhume.audit({**fewer, "victim": {**victim, "start": "no.pt"}}, own / "third")


# Fitted linear models


def credit(tol: float, rows: int = 200):
    """Two classes, a dozen columns, and the model that a bank would fit."""
    from sklearn.linear_model import LogisticRegression

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 12, generator=generator).double().numpy()
    y = (x[:, 0] + 0.5 * x[:, 1] + 0.3 * x[:, 2] ** 2 > 0).astype(int)
    names = ["refused", "granted"]
    labels = [names[int(one)] for one in y]
    return LogisticRegression(tol=tol, max_iter=10_000).fit(x, labels), x, labels


def test_a_fitted_linear_model_gives_its_records_away(tmp_path):
    model, x, y = credit(1e-12)
    done = exhume.audit_fitted(model, x, y, tmp_path / "run", targets=30)
    assert done.verdict.word == "leaks"
    assert done.metrics["success"] == 1.0
    assert done.metrics["label_accuracy"] == 1.0
    assert done.metrics["mse"] < 1e-4
    result = result_of(done)
    assert result["title"] == "What the fitted model gives away"
    assert result["classes"] == ["granted", "refused"]
    again = exhume.audit_fitted(model, x, y, tmp_path / "run", targets=30)
    assert again.metrics == done.metrics
    other, _, _ = credit(1e-12, rows=150)
    with pytest.raises(ExhumeError, match="other settings"):
        exhume.audit_fitted(other, x[:150], y[:150], tmp_path / "run", targets=30)


@pytest.fixture(scope="module")
def disguised():
    """A fit of 200 records, and models that look like it: name to the model; and the records."""
    model, x, y = credit(1e-12)
    _, more_x, more_y = credit(1e-12, rows=300)
    made = {"weighed": copy.deepcopy(model).fit(x, y, sample_weight=np.full(len(x), 2.0))}
    made["of others"] = copy.deepcopy(model).fit(more_x[200:], more_y[200:])
    for name, scale in (("scaled", 1.3), ("zero", 0.0)):
        made[name] = copy.deepcopy(model)
        made[name].coef_, made[name].intercept_ = scale * model.coef_, scale * model.intercept_
    return made, x, y


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("scaled", "they nearly are with all logits times 0.78"),
        ("weighed", "a weight of 2 for each record"),
        ("zero", "not at the optimum"),
        ("of others", "not at the optimum"),
    ],
)
def test_silence_of_a_linear_model_is_no_evidence(disguised, tmp_path, name, cause):
    """What is not at the optimum of these records says nothing about them, and the page says why."""
    models, x, y = disguised
    done = exhume.audit_fitted(models[name], x, y, tmp_path / "run", targets=60)
    assert done.verdict.word == "not audited"
    assert cause in done.verdict.sentence


def test_many_columns_and_unequal_classes_raise_no_alarm(tmp_path):
    """All other records enter an answer: among them nobody can be lined up."""
    from sklearn.linear_model import LogisticRegression

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 3000, generator=generator).double().numpy()
    y = (torch.rand(60, generator=generator) < 0.3).long().numpy()
    model = LogisticRegression(tol=1e-8).fit(x, y)
    model.coef_, model.intercept_ = 0 * model.coef_, 0 * model.intercept_
    assert exhume.audit_fitted(model, x, y, tmp_path / "run").verdict.word == "not audited"


def test_a_fitted_model_in_a_file(tmp_path):
    skops = pytest.importorskip("skops.io")
    model, x, y = credit(1e-12)
    skops.dump(model, tmp_path / "credit.skops")
    import numpy as np

    np.savez(tmp_path / "credit.npz", x=x.astype(np.float32), y=(np.array(y) == "refused"))
    brief = {
        "data": {"source": str(tmp_path / "credit.npz")},
        "fitted": {"file": str(tmp_path / "credit.skops"), "targets": 20},
    }
    done = exhume.audit(brief, tmp_path / "run")
    assert done.verdict.word == "leaks"


def test_a_model_of_another_kind_is_not_audited(tmp_path):
    from sklearn.tree import DecisionTreeClassifier

    _, x, y = credit(1e-4)
    tree = DecisionTreeClassifier().fit(x, y)
    done = exhume.audit_fitted(tree, x, y, tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert (
        "only LogisticRegression, LinearRegression and Ridge are at the optimum"
        in done.verdict.sentence
    )


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        ([[1.0, 2.0]], ["granted", "refused"], "shapes .* given"),
        ([[float("nan")] * 12], ["granted"], "NaN or infinite values"),
        ([[0.0] * 12], ["unknown"], "unknown is not one of the model's classes"),
    ],
)
def test_what_was_fitted_on_must_fit(tmp_path, x, y, sentence):
    model, _, _ = credit(1e-4)
    with pytest.raises(ExhumeError, match=sentence):
        exhume.audit_fitted(model, x, y, tmp_path / "run")
