from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from exhume.core.contract import ExhumeError, Recipe, Records
from exhume.models.glm import softmax_regression
from exhume.models.mlp import MLP
from exhume.train import glm as newton
from exhume.train.glm import Optimum, Penalty


def gradient_by_autograd(recipe, flat, fixed, extra):
    """The naive reference: one model, its objective written out, differentiated."""
    flat = flat.clone().requires_grad_()
    weight, bias = recipe.architecture.layout.split(flat).values()
    inputs = torch.cat([fixed.inputs, extra.inputs]).flatten(1).double()
    labels = torch.cat([fixed.labels, extra.labels])
    logits = inputs @ weight.T + bias
    if recipe.architecture.outputs == 1:
        loss = F.binary_cross_entropy_with_logits(logits[:, 0], labels.double(), reduction="sum")
    else:
        loss = F.cross_entropy(logits, labels, reduction="sum")
    total = len(labels)
    norm = weight.square().sum() + (bias.square().sum() if recipe.penalty.bias else 0)
    factor = recipe.penalty.strength * (total if recipe.penalty.averaged else 1)
    return torch.autograd.grad((loss + factor / 2 * norm) / total, flat)[0]


PENALTIES = [
    Penalty.of_mean(1e-2),
    Penalty.of_mean(1e-3, bias=False),
    Penalty.of_sum(1.0),
    Penalty.of_sum(100.0, bias=True),
]


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
@pytest.mark.parametrize("classes", [2, 3])
def test_every_model_is_at_its_own_optimum(penalty, classes, key, make_records):
    architecture = MLP((2, 3), (), 1) if classes == 2 else softmax_regression((2, 3), classes)
    recipe = Optimum(architecture, penalty)
    assert isinstance(recipe, Recipe)
    fixed = make_records(60, (2, 3), classes, key.fold("fixed"))
    extra = make_records(5, (2, 3), classes, key.fold("extra"))
    found = recipe.fit(architecture.initial(key), fixed, extra.one_each(), key)
    assert found.dtype == torch.float64
    for i in range(5):
        gradient = gradient_by_autograd(recipe, found[i], fixed, extra[i : i + 1])
        assert gradient.norm() <= 1.1e-12


def test_it_agrees_with_scikit_learn(key, make_records):
    from sklearn.linear_model import LogisticRegression

    fixed = make_records(80, (4,), 3, key)
    recipe = Optimum(softmax_regression((4,), 3), Penalty.of_sum(0.7))
    found = recipe.fit(recipe.architecture.initial(key), fixed, fixed.none_for(2), key)
    assert torch.equal(found[0], found[1])
    model = LogisticRegression(C=0.7, solver="newton-cholesky", tol=1e-12)
    model.fit(fixed.inputs.double().numpy(), fixed.labels.numpy())
    weight, bias = recipe.architecture.layout.split(found[0]).values()
    torch.testing.assert_close(weight, torch.from_numpy(model.coef_), rtol=1e-6, atol=1e-8)
    theirs = torch.from_numpy(model.intercept_)
    torch.testing.assert_close(bias, theirs - theirs.mean(), rtol=1e-6, atol=1e-8)


def test_the_start_and_the_company_do_not_matter(key, make_records):
    recipe = Optimum(softmax_regression((5,), 3), Penalty.of_mean(1e-2), tolerance=1e-13)
    fixed = make_records(50, (5,), 3, key)
    extra = make_records(4, (5,), 3, key.fold("extra")).one_each()
    together = recipe.fit(recipe.architecture.initial(key), fixed, extra, key)
    rows = torch.stack([recipe.architecture.initial(key.fold(i)) for i in range(2)])
    apart = recipe.fit(rows, fixed, extra[1:3], key)
    torch.testing.assert_close(apart, together[1:3], rtol=0, atol=1e-9)


def test_an_input_that_is_always_zero_gets_weight_zero(key, make_records):
    records = make_records(40, (5,), 3, key)
    records.inputs[:, 2] = 0
    recipe = Optimum(softmax_regression((5,), 3), Penalty.of_sum(1.0))
    found = recipe.fit(recipe.architecture.initial(key), records[:39], records[39:].one_each(), key)
    assert (recipe.architecture.layout.split(found)["fc1.weight"][:, :, 2] == 0).all()
    assert gradient_by_autograd(recipe, found[0], records[:39], records[39:]).norm() <= 1.1e-12


def test_a_class_only_the_extra_record_has(key, make_records):
    """With a free bias the fixed records alone have no optimum; with the extra one they do."""
    records = make_records(40, (5,), 3, key)
    known = records[records.labels != 2]
    extra = records[records.labels == 2][:1]
    recipe = Optimum(softmax_regression((5,), 3), Penalty.of_sum(1.0))
    found = recipe.fit(recipe.architecture.initial(key), known, extra.one_each(), key)
    assert gradient_by_autograd(recipe, found[0], known, extra).norm() <= 1.1e-12


def test_what_cannot_be_fitted_is_refused(key, make_records, monkeypatch):
    fixed = make_records(20, (5,), 2, key)
    architecture = softmax_regression((5,), 2)
    initial = architecture.initial(key)
    with pytest.raises(ExhumeError, match="has hidden layers"):
        Optimum(MLP((5,), (3,), 2), Penalty.of_sum(1.0))
    with pytest.raises(ExhumeError, match="strength 0 leaves separable records"):
        Optimum(architecture, Penalty.of_mean(0.0)).fit(initial, fixed, fixed.none_for(1), key)
    other = Optimum(softmax_regression((6,), 2), Penalty.of_sum(1.0))
    with pytest.raises(ExhumeError, match=r"shape \(5,\) do not fit"):
        other.fit(initial, fixed, fixed.none_for(1), key)
    with pytest.raises(ExhumeError, match="strength -1.0 is not a number of at least 0"):
        Penalty.of_mean(-1.0)
    with pytest.raises(ExhumeError, match="C 0.0 is not above 0"):
        Penalty.of_sum(0.0)
    monkeypatch.setattr(newton, "_STEPS", 2)
    with pytest.raises(ExhumeError, match="stopped at a gradient norm of .* above the tolerance"):
        Optimum(architecture, Penalty.of_sum(1.0)).fit(initial, fixed, fixed.none_for(1), key)


def test_a_hard_case_leaves_single_precision(key, make_records):
    """Inputs of very different sizes and hardly any penalty."""
    records = make_records(60, (4,), 3, key)
    scaled = records.inputs.double() * torch.tensor([1.0, 1e3, 1e-2, 30.0], dtype=torch.float64)
    scaled = Records(scaled, records.labels, records.classes)
    recipe = Optimum(softmax_regression((4,), 3), Penalty.of_sum(1e3), tolerance=1e-10)
    found = recipe.fit(recipe.architecture.initial(key), scaled, scaled.none_for(1), key)
    assert gradient_by_autograd(recipe, found[0], scaled, scaled[:0]).norm() <= 1.1e-10


def test_a_hessian_vector_product_is_the_derivative_of_the_gradient(key, make_records):
    fixed = make_records(30, (4,), 3, key)
    extra = make_records(4, (4,), 3, key.fold("extra")).one_each()
    recipe = Optimum(softmax_regression((4,), 3), Penalty.of_mean(0.1))
    problem = recipe._problem(fixed, extra, torch.ones(5, dtype=torch.bool))
    theta = torch.randn(4, 3, 5, generator=key.generator(), dtype=torch.float64)
    along = torch.randn(4, 3, 5, generator=key.fold("along").generator(), dtype=torch.float64)

    def gradient(at):
        return problem.gradient(at, problem.logits(at))

    found = problem.curvature(newton.probabilities(problem.logits(theta)), along)
    naive = (gradient(theta + 1e-5 * along) - gradient(theta - 1e-5 * along)) / 2e-5
    torch.testing.assert_close(found, naive, rtol=1e-6, atol=1e-8)


def test_words():
    recipe = Optimum(MLP((3,), (), 1), Penalty.of_sum(2.0))
    assert str(recipe).startswith(
        "logistic regression at its optimum, L2 penalty 1/C = 0.5, bias free"
    )
    assert "lambda = 0.1, bias penalised" in str(Penalty.of_mean(0.1))
    assert recipe.bytes_per_model(200) > recipe.bytes_per_model(100)
