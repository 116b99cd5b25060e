from __future__ import annotations

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from exhume.core.contract import ExhumeError, NotApplicable
from exhume.readers.fitted import release_of_sklearn
from exhume.train.glm import Penalty
from exhume.train.stacked import logits
from exhume.victims.informed import release_one_sklearn_each


def fitted(records, **settings):
    inputs = records.inputs.flatten(1).double().numpy()
    return LogisticRegression(**settings).fit(inputs, records.labels.numpy())


def test_the_release_computes_what_the_model_computes(key, make_records):
    for classes in (2, 3):
        records = make_records(30, (2, 2), classes, key)
        model = fitted(records, C=0.5)
        release, recipe = release_of_sklearn(model, (2, 2))
        assert recipe.penalty == Penalty.of_sum(0.5)
        assert recipe.tolerance == model.tol
        ours = logits(recipe.architecture, release.parameters, records.inputs.double())[0]
        theirs = model.decision_function(records.inputs.flatten(1).double().numpy())
        torch.testing.assert_close(ours.squeeze(1), torch.from_numpy(theirs))


def test_how_the_penalty_reads(key, make_records):
    records = make_records(30, (4,), 2, key)
    _, recipe = release_of_sklearn(fitted(records, solver="liblinear", C=2.0), (4,))
    assert recipe.penalty == Penalty(0.5, averaged=False, bias=True)
    _, recipe = release_of_sklearn(fitted(records, C=float("inf")), (4,))
    assert recipe.penalty.strength == 0


def test_what_is_not_one_penalised_softmax_is_refused(key, make_records):
    records = make_records(30, (4,), 2, key)
    cases = {
        "class_weight='balanced'": {"class_weight": "balanced"},
        "l1_ratio=1": {"l1_ratio": 1, "solver": "liblinear"},
        "intercept_scaling=2": {"solver": "liblinear", "intercept_scaling": 2},
        "fit_intercept=False": {"fit_intercept": False},
    }
    for message, settings in cases.items():
        with pytest.raises(NotApplicable, match=message) as why:
            release_of_sklearn(fitted(records, **settings), (4,))
        assert why.value.ever
    several = fitted(make_records(30, (4,), 3, key))
    several.set_params(solver="liblinear")  # one-versus-rest in older versions
    with pytest.raises(NotApplicable, match="only one softmax over all classes"):
        release_of_sklearn(several, (4,))
    with pytest.raises(ExhumeError, match="not fitted"):
        release_of_sklearn(LogisticRegression(), (4,))
    with pytest.raises(
        ExhumeError, match=r"input_shape: \(5,\) does not hold the model's 4 inputs"
    ):
        release_of_sklearn(fitted(records), (5,))


def test_one_copy_per_target(key, make_records):
    fixed = make_records(30, (4,), 3, key)
    targets = make_records(3, (4,), 3, key.fold("targets"))
    model = LogisticRegression(max_iter=2)  # stops early, and is released as it is
    release, _, secret = release_one_sklearn_each(model, fixed, targets)
    assert release.parameters.shape == (3, 15)
    assert secret.open() is targets
    assert not hasattr(model, "coef_")
    inputs = torch.cat([fixed.inputs, targets.inputs[1:2]]).double().numpy()
    with pytest.warns(ConvergenceWarning):
        alone = LogisticRegression(max_iter=2).fit(
            inputs, torch.cat([fixed.labels, targets.labels[1:2]]).numpy()
        )
    expected, _ = release_of_sklearn(alone, (4,))
    torch.testing.assert_close(release.parameters[1:2], expected.parameters)
    with pytest.raises(ExhumeError, match="fixed: no record of class 2"):
        release_one_sklearn_each(model, fixed[fixed.labels != 2], targets)
    with pytest.raises(ExhumeError, match="targets: 0 given"):
        release_one_sklearn_each(model, fixed, targets[:0])
