from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from exhume.attacks.informed.glm import GlmClosedForm, missing_gradient, read_record
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Knowledge,
    Layout,
    NotApplicable,
    Outcome,
    Records,
    Weights,
)
from exhume.models.glm import softmax_regression
from exhume.models.mlp import MLP
from exhume.store.shards import NullStore
from exhume.train.glm import Optimum, Penalty
from exhume.train.recipe import FullBatch
from exhume.victims.informed import release_one_each, release_one_sklearn_each

PENALTIES = [
    Penalty.of_mean(1e-2),
    Penalty.of_mean(1e-3, bias=False),
    Penalty.of_sum(1.0),
    Penalty.of_sum(10.0, bias=True),
]


@pytest.fixture
def game(key, make_records):
    def play(classes, penalty):
        fixed = make_records(80, (2, 3), classes, key.fold("fixed"))
        targets = make_records(12, (2, 3), classes, key.fold("targets"))
        shape = (2, 3)
        architecture = MLP(shape, (), 1) if classes == 2 else softmax_regression(shape, classes)
        recipe = Optimum(architecture, penalty)
        initial = architecture.initial(key)
        release, secret = release_one_each(
            recipe, initial, fixed, targets, key=key, store=NullStore(), chunk=8
        )
        return Knowledge(recipe=recipe, fixed=fixed), release, secret.open()

    return play


def attacked(knowledge, release, key):
    return GlmClosedForm().prepare(knowledge, key=key, store=NullStore()).run(release)


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
@pytest.mark.parametrize("classes", [2, 3])
def test_record_and_label_come_back_exactly(penalty, classes, game, key):
    knowledge, release, truth = game(classes, penalty)
    found = attacked(knowledge, release, key)
    assert (found.candidates[:, 0] - truth.inputs).abs().max() < 1e-7
    assert torch.equal(found.labels[:, 0], truth.labels)
    assert found.status.outcome is Outcome.CONVERGED
    assert found.cost.models == 0
    assert found.observed["certificate_worst"] < 1e-6
    assert ("rank_one_residual_worst" in found.observed) == (classes == 3)


def test_the_missing_gradient_is_that_of_the_record(game, key):
    knowledge, release, truth = game(3, Penalty.of_sum(1.0))
    found = missing_gradient(knowledge.recipe, release.parameters, knowledge.fixed)
    for i in range(3):
        module = knowledge.recipe.architecture.build().double()
        torch.nn.utils.vector_to_parameters(release.parameters[i], module.parameters())
        loss = torch.nn.functional.cross_entropy(
            module(truth.inputs[i : i + 1].double()), truth.labels[i : i + 1]
        )
        weight, bias = torch.autograd.grad(loss, list(module.parameters()))
        torch.testing.assert_close(
            found[i], torch.cat([weight, bias[:, None]], 1), atol=1e-9, rtol=0
        )


def test_an_equivalent_optimum_gives_the_same_record(game, key):
    """Softmax does not notice a common shift of all logits; a free bias is released with any."""
    knowledge, release, truth = game(3, Penalty.of_sum(1.0))
    shifted = release.parameters.clone()
    shifted[:, -3:] += 5.0
    found = attacked(knowledge, Weights(shifted, release.layout), key)
    assert (found.candidates[:, 0] - truth.inputs).abs().max() < 1e-7


@pytest.mark.parametrize("classes", [2, 3])
def test_wrong_knowledge_shows_in_the_certificate(classes, game, key):
    knowledge, release, truth = game(classes, Penalty.of_sum(1.0))
    right = attacked(knowledge, release, key)
    other_penalty = replace(
        knowledge, recipe=replace(knowledge.recipe, penalty=Penalty.of_sum(1.5))
    )
    one_less = replace(knowledge, fixed=knowledge.fixed[1:])
    rounded = Weights(release.parameters.half().double(), release.layout)
    for wrong in (
        attacked(other_penalty, release, key),
        attacked(one_less, release, key),  # two unknown records
        attacked(knowledge, rounded, key),
    ):
        assert (wrong.candidates[:, 0] - truth.inputs).abs().max() > 1e-3
        assert (wrong.confidence < 1e3 * right.confidence).all()


def test_confidence_orders_the_errors_of_a_sloppy_fit(key, make_records):
    fixed = make_records(60, (6,), 3, key.fold("fixed"))
    targets = make_records(30, (6,), 3, key.fold("targets"))
    model = LogisticRegression(tol=1e-3)
    release, recipe, _ = release_one_sklearn_each(model, fixed, targets)
    found = attacked(Knowledge(recipe=recipe, fixed=fixed), release, key)
    errors = (found.candidates[:, 0] - targets.inputs).square().sum(1)
    order = found.confidence[:, 0].argsort(descending=True)
    assert errors[order[:10]].mean() < errors[order[-10:]].mean()


def test_a_scikit_learn_model(key, make_records):
    for classes in (2, 3):
        fixed = make_records(60, (6,), classes, key.fold("fixed"))
        targets = make_records(4, (6,), classes, key.fold("targets"))
        model = LogisticRegression(solver="newton-cholesky", tol=1e-10)
        release, recipe, _ = release_one_sklearn_each(model, fixed, targets)
        found = attacked(Knowledge(recipe=recipe, fixed=fixed), release, key)
        assert (found.candidates[:, 0] - targets.inputs).abs().max() < 1e-5
        assert torch.equal(found.labels[:, 0], targets.labels)


def test_a_gradient_of_nothing_is_an_answer_without_confidence():
    records, labels = read_record(torch.zeros(2, 3, 5, dtype=torch.float64))
    assert (records == 0).all()
    assert labels.shape == (2,)


@dataclass(frozen=True)
class Biasless:
    """An architecture of one weight matrix."""

    input_shape: tuple[int, ...] = (4,)

    @property
    def layout(self):
        return Layout(("weight",), ((3, 4),))

    def initial(self, key):
        return torch.zeros(12)

    def build(self):
        return torch.nn.Linear(4, 3, bias=False)


@dataclass(frozen=True)
class Unbiased:
    architecture: Biasless = Biasless()

    def fit(self, initial, fixed, extra, key):
        raise AssertionError("the attack trains nothing")


def test_where_it_does_not_apply(key, make_records):
    records: Records = make_records(5, (4,), 3, key)

    def refused(**known):
        with pytest.raises(NotApplicable) as why:
            GlmClosedForm().prepare(Knowledge(**known), key=key, store=NullStore())
        return why.value

    assert refused(fixed=records).why.endswith("needs to know: recipe")
    assert refused().why.endswith("needs to know: recipe, fixed")
    hidden = refused(recipe=FullBatch(MLP((4,), (2,), 3)), fixed=records)
    assert "has hidden layers" in hidden.why
    assert not hidden.ever
    steps = refused(recipe=FullBatch(softmax_regression((4,), 3)), fixed=records)
    assert "stops elsewhere" in steps.why
    biasless = refused(recipe=Unbiased(), fixed=records)
    assert "has no bias" in biasless.why
    assert biasless.ever


def test_other_releases_are_refused(game, key):
    knowledge, release, _ = game(3, Penalty.of_sum(1.0))
    gradient = Gradient(release.parameters, release.layout, release.parameters[0])
    assert attacked(knowledge, gradient, key).status.outcome is Outcome.NOT_APPLICABLE
    with pytest.raises(ExhumeError, match="release: 5 parameters, the recipe's model has 21"):
        attacked(knowledge, Weights(torch.zeros(1, 5), release.layout), key)
