"""Schedules, label smoothing, squared error and dropout, against torch's own training loop."""

import pytest
import torch
import torch.nn.functional as F

import exhume
from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.mlp import MLP
from exhume.models.own import architecture_named
from exhume.train.functional import SideBySide
from exhume.train.objective import Objective
from exhume.train.optimisers import Adam, Descent
from exhume.train.recipe import FullBatch, MiniBatch, follow
from exhume.train.stacked import Order

KEY = Key.from_seed(3)
MSE = Objective("mse")
SCHEDULERS = {
    "constant": lambda o, n: torch.optim.lr_scheduler.ConstantLR(o, 1.0),
    "cosine": torch.optim.lr_scheduler.CosineAnnealingLR,
    "linear": lambda o, n: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, n),
    "step": lambda o, n: torch.optim.lr_scheduler.StepLR(o, n // 3, 0.1),
}
DROPS = """
from torch import nn
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
"""


def by_torch(mlp, start, records, objective, schedule, steps, *, adamw):
    """The same training, as anybody would write it."""
    module = mlp.build()
    torch.nn.utils.vector_to_parameters(start.clone(), module.parameters())
    kind = torch.optim.AdamW if adamw else torch.optim.SGD
    optimiser = kind(module.parameters(), lr=0.05, weight_decay=0.01)
    falls = SCHEDULERS[schedule](optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        if objective.of_numbers:
            loss = F.mse_loss(module(records.inputs[:, :-1]), records.inputs[:, -1:])
        else:
            outputs = module(records.inputs)
            loss = F.cross_entropy(outputs, records.labels, label_smoothing=objective.smoothing)
        loss.backward()
        optimiser.step()
        falls.step()
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("adamw", [False, True], ids=["sgd", "adamw"])
@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize(
    "objective", [Objective(), Objective(smoothing=0.2), MSE], ids=["plain", "smoothed", "mse"]
)
def test_both_engines_train_as_torch_does(make_records, objective, schedule, adamw):
    records = make_records(21, (6,), 3, KEY)
    mlp = MLP((5,), (4,), 1) if objective.of_numbers else MLP((6,), (4,), 3)
    optimiser = (
        Adam(9, 0.05, weight_decay=0.01, decoupled=True, schedule=schedule)
        if adamw
        else Descent(9, 0.05, weight_decay=0.01, schedule=schedule)
    )
    start, fixed, extra = mlp.initial(KEY), records[:20], records[20:].one_each()
    wanted = by_torch(mlp, start, records, objective, schedule, 9, adamw=adamw)
    stacked = FullBatch(mlp, optimiser, objective=objective).fit(start, fixed, extra, KEY)[0]
    side = SideBySide.of(mlp, fixed, extra, objective)
    general = follow(side, optimiser, start[None])[0]
    torch.testing.assert_close(stacked, wanted, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(general, wanted, atol=2e-5, rtol=1e-4)


@pytest.fixture
def dropping(tmp_path):
    (tmp_path / "net.py").write_text(DROPS)
    spec = f"{tmp_path / 'net.py'}:build"
    return architecture_named(spec, input_shape=(6,), classes=3, root=tmp_path)


def test_what_is_dropped_is_alike_in_all_models_or_each_its_own(make_records, dropping):
    records = make_records(24, (6,), 3, KEY)
    fixed, twice = records[:23], Records.joined([records[23:], records[23:]]).one_each()
    start = dropping.initial(KEY)
    for recipe in (
        FullBatch(dropping, Adam(5), dropout=KEY),
        MiniBatch(dropping, Adam(5), Order(8, KEY), dropout=KEY),
    ):
        known = recipe.fit(start, fixed, twice, Key.from_seed(4))
        assert torch.equal(known[0], known[1])
        assert torch.equal(known, recipe.fit(start, fixed, twice, Key.from_seed(5)))
        hidden = type(recipe)(
            *(getattr(recipe, n) for n in recipe.__dataclass_fields__ if n != "dropout")
        )
        models = hidden.fit(start, fixed, twice, Key.from_seed(4))
        assert hidden.random
        assert not recipe.random
        assert not torch.equal(models[0], models[1])
        assert torch.equal(models[1:], hidden.fit(start, fixed, twice[1:], Key.from_seed(4), 1))


def test_dropout_is_that_of_the_module(make_records, dropping):
    """One step by hand, at the seed that the key gives."""
    records = make_records(10, (6,), 3, KEY)
    start = dropping.initial(KEY)
    recipe = FullBatch(dropping, Descent(1, 0.1), dropout=KEY)
    trained = recipe.fit(start, records, records.none_for(1), KEY)[0]
    module = dropping.trainable()
    parts = dropping.layout.split(start)
    module.load_state_dict({**module.state_dict(), **parts})
    torch.manual_seed(KEY.seed())
    F.cross_entropy(module(records.inputs), records.labels).backward()
    weight = module[0].weight
    moved = dropping.layout.split(trained)["0.weight"]
    torch.testing.assert_close(moved, weight.detach() - 0.1 * weight.grad)


def test_smoothing_is_of_classes():
    with pytest.raises(ExhumeError, match="label_smoothing: of classes"):
        Objective("mse", 0.1)


def test_a_regression_is_trained_and_its_rows_come_back(tmp_path):
    """End to end: a table's numbers, an MLP that learns them, and the missing row of each model."""
    generator = KEY.generator()
    x = torch.rand(500, 6, generator=generator)
    y = 3 * x[:, 0] - x[:, 1] + 0.1 * torch.randn(500, generator=generator)
    rows = torch.cat([x, y[:, None]], 1).tolist()
    lines = ["a,b,c,d,e,f,price", *(",".join(f"{v:.5f}" for v in row) for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    brief = {
        "data": {"source": str(tmp_path / "t.csv"), "fixed": 40, "targets": 30, "shadows": 150},
        "victim": {"loss": "mse", "steps": 60, "rate": 0.05},
        "machine": {"threads": 1},
    }
    done = exhume.audit(brief, tmp_path / "run")
    assert done.verdict.word == "leaks"
    assert done.result.victim["test_variance_explained"] > 0.1
    assert "squared error" in done.result.victim["training"]
    assert "test_accuracy" not in done.result.victim


def test_a_table_of_texts_is_no_regression(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(f"{i},x{i % 2}" for i in range(50)))
    brief = {"data": {"source": str(tmp_path / "t.csv")}, "victim": {"loss": "mse"}}
    with pytest.raises(ExhumeError, match="'b' holds texts; mse predicts numbers"):
        exhume.audit(brief, tmp_path / "run")
    with pytest.raises(ExhumeError, match="mse needs numbers"):
        exhume.audit({"data": {"source": "digits"}, "victim": {"loss": "mse"}}, tmp_path / "run")
