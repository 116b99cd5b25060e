from __future__ import annotations

import pytest
import torch

from exhume.core.contract import ExhumeError, Records
from exhume.models.heads import margins, pulls
from exhume.models.mlp import MLP, HomogeneousMLP
from exhume.store.shards import FolderStore
from exhume.train import margin
from exhume.train.margin import MarginDescent, train_to_margin


def loss_of(recipe, out, labels):
    sign = 2.0 * labels - 1
    if recipe.head == "multiclass":
        return torch.nn.functional.cross_entropy(out, labels)
    if recipe.head == "binary":
        return torch.nn.functional.softplus(-sign * out[:, 0]).mean()
    return 0.5 * (out[:, 0] - sign).square().mean()


def one_by_one(recipe, initial, records, epochs, key=None):
    """The reference: a module, autograd, torch.optim.SGD, all d inputs."""
    model = recipe.architecture.build().to(initial.dtype)
    torch.nn.utils.vector_to_parameters(initial.clone(), model.parameters())
    weights = [p for p in model.parameters() if p.ndim == 2]
    biases = [p for p in model.parameters() if p.ndim == 1]
    spared = recipe.weight_decay if recipe.decay_biases else 0.0
    optimiser = torch.optim.SGD(
        [
            {"params": weights, "weight_decay": recipe.weight_decay},
            {"params": biases, "weight_decay": spared},
        ],
        lr=recipe.rate,
        momentum=recipe.momentum,
    )
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for epoch in range(epochs):
        order = torch.arange(len(records.labels))
        if recipe.batch:
            order = torch.randperm(len(order), generator=key.fold("epoch", epoch).generator())
        for rows in torch.split(order, recipe.batch or len(order)):
            optimiser.zero_grad()
            loss_of(recipe, model(records.inputs[rows]), records.labels[rows]).backward()
            optimiser.step()
        if recipe.schedule == "cosine":
            falling.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.fixture
def records(make_records, key):
    made = make_records(12, (1, 3, 3), 2, key)
    centred = (made.inputs - made.inputs.mean(0)).double()
    return Records(centred, made.labels, made.classes)


@pytest.mark.parametrize("head", ["multiclass", "binary", "regression"])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_descent_in_the_span_is_descent(head, decay, records, key):
    mlp = HomogeneousMLP((1, 3, 3), (7, 6), 2 if head == "multiclass" else 1)
    recipe = MarginDescent(mlp, head, rate=0.2, weight_decay=decay, stop_loss=0.0, epochs=60)
    initial = mlp.initial(key).double()
    found = train_to_margin(recipe, initial, records)
    torch.testing.assert_close(
        found.parameters, one_by_one(recipe, initial, records, 60), rtol=1e-8, atol=1e-10
    )
    assert found.epochs == 60


@pytest.mark.parametrize("activation", ["gelu", "leaky-relu", "tanh"])
@pytest.mark.parametrize("decay_biases", [True, False])
def test_ordinary_training_in_the_span_is_ordinary_training(activation, decay_biases, records, key):
    """Biases everywhere, any activation, momentum, mini-batches, a falling rate."""
    mlp = MLP((1, 3, 3), (7, 6), 2, activation, "torch")
    recipe = MarginDescent(
        mlp,
        rate=0.1,
        weight_decay=0.05,
        stop_loss=0.0,
        epochs=15,
        momentum=0.9,
        batch=5,
        schedule="cosine",
        decay_biases=decay_biases,
    )
    initial = mlp.initial(key).double()
    found = train_to_margin(recipe, initial, records, key=key)
    reference = one_by_one(recipe, initial, records, 15, key)
    torch.testing.assert_close(found.parameters, reference, rtol=1e-8, atol=1e-10)
    other = train_to_margin(recipe, initial, records, key=key.fold("other order"))
    assert not torch.equal(other.parameters, found.parameters)


def test_it_stops_at_the_loss_and_growing_steps_get_there_sooner(records, key):
    mlp = HomogeneousMLP((1, 3, 3), (20,), 2, first_scale=1e-2)
    plain = MarginDescent(mlp, stop_loss=1e-3, epochs=100_000)
    initial = mlp.initial(key).double()
    slow = train_to_margin(plain, initial, records)
    fast = train_to_margin(
        MarginDescent(mlp, stop_loss=1e-3, epochs=100_000, growing_steps=0.05), initial, records
    )
    assert slow.loss <= 1e-3
    assert fast.loss <= 1e-3
    assert fast.epochs < 0.5 * slow.epochs
    cosine = torch.nn.functional.cosine_similarity(slow.parameters, fast.parameters, dim=0)
    assert float(cosine) > 0.999  # the same path


def test_stopped_and_taken_up_again_the_bits_are_the_same(records, key, tmp_path, monkeypatch):
    monkeypatch.setattr(margin, "_SEGMENT", 10)
    mlp = HomogeneousMLP((1, 3, 3), (5,), 2)
    recipe = MarginDescent(mlp, stop_loss=0.0, epochs=35)
    initial = mlp.initial(key)
    single = Records(records.inputs.float(), records.labels, records.classes)
    whole = train_to_margin(recipe, initial, single)
    seen = []

    def stop(stage, done, total):
        seen.append(done)
        if done == 20:
            raise KeyboardInterrupt

    store = FolderStore(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        train_to_margin(recipe, initial, single, store=store, progress=stop)
    assert seen == [0, 10, 20]
    again = train_to_margin(recipe, initial, single, store=store)
    assert torch.equal(again.parameters, whole.parameters)
    assert torch.equal(again.turning, whole.turning)
    assert again.turning.shape == (4,)
    assert again.turning[-1] < again.turning[0]  # the direction settles


def test_batches_and_momentum_are_taken_up_again_too(records, key, tmp_path, monkeypatch):
    monkeypatch.setattr(margin, "_SEGMENT", 10)
    mlp = MLP((1, 3, 3), (5,), 2, "relu", "torch")
    recipe = MarginDescent(mlp, stop_loss=0.0, epochs=12, momentum=0.9, batch=6)
    initial = mlp.initial(key).double()
    whole = train_to_margin(recipe, initial, records, key=key)
    seen = []

    def stop(stage, done, total):
        seen.append(done)
        if done == 5:
            raise KeyboardInterrupt

    store = FolderStore(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        train_to_margin(recipe, initial, records, key=key, store=store, progress=stop)
    assert seen == [0, 5]  # two steps an epoch
    again = train_to_margin(recipe, initial, records, key=key, store=store)
    assert torch.equal(again.parameters, whole.parameters)


def test_as_a_recipe_it_trains_each_model_on_its_own_extra_records(records, key):
    mlp = HomogeneousMLP((1, 3, 3), (5,), 2)
    recipe = MarginDescent(mlp, stop_loss=0.0, epochs=20)
    initial = mlp.initial(key).double()
    extra = records[:2].one_each()
    both = recipe.fit(initial, records[2:], extra, key)
    order = torch.tensor([*range(2, 12), 1])
    alone = train_to_margin(recipe, initial, records[order])
    torch.testing.assert_close(both[1], alone.parameters)


def test_it_says_what_is_wrong(records, key):
    mlp = HomogeneousMLP((1, 3, 3), (5,), 2)
    with pytest.raises(ExhumeError, match="growing steps follow the same path only without decay"):
        MarginDescent(mlp, weight_decay=0.1, growing_steps=0.1)
    with pytest.raises(ExhumeError, match="given with momentum 0.9 and batches of 2; growing"):
        MarginDescent(mlp, momentum=0.9, batch=2, growing_steps=0.1)
    with pytest.raises(ExhumeError, match="batch: must be at least 0, got -1"):
        MarginDescent(mlp, batch=-1)
    with pytest.raises(ExhumeError, match="schedule: 'sine' is not one of"):
        MarginDescent(mlp, schedule="sine")
    with pytest.raises(ExhumeError, match="binary needs 1 outputs, the network has 2"):
        MarginDescent(mlp, "binary")
    huge = Records(records.inputs * 1e200, records.labels, records.classes)
    with pytest.raises(ExhumeError, match="training diverged"):
        train_to_margin(MarginDescent(mlp), mlp.initial(key).double(), huge)


def test_pulls_keep_their_digits_where_the_loss_is_tiny():
    outputs = torch.tensor([[16.0, 0.0, 1.0]])
    labels = torch.tensor([0])
    loss, pull = pulls("multiclass", outputs, labels)
    exact_loss, exact = pulls("multiclass", outputs.double(), labels)
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(pull.double(), exact, rtol=1e-5, atol=0)
    far, strong = pulls("multiclass", torch.tensor([[-200.0, 0.0]]), labels)
    assert far.tolist() == [200.0]
    assert strong.tolist() == [[1.0, -1.0]]


def test_margins():
    outputs = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    assert margins("multiclass", outputs, torch.tensor([0, 1])).tolist() == [1.0, -2.0]
    assert margins("binary", outputs[:, :1], torch.tensor([0, 1])).tolist() == [-3.0, 3.0]
