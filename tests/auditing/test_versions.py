"""Two versions of a model, audited for the person between them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import exhume
from exhume.core.contract import ExhumeError

PERSON, FITTED, EVERYBODY = 7, 60, 1500


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A file of people, and a function that saves a logistic regression of some of them."""
    dump = pytest.importorskip("skops.io").dump
    folder = tmp_path_factory.mktemp("versions")
    drawn = np.random.default_rng(0).normal(size=(EVERYBODY, 5))
    labels = (drawn.sum(1) + np.random.default_rng(1).normal(size=EVERYBODY) > 0).astype(int)
    np.savez(folder / "people.npz", x=drawn, y=labels)

    def fitted(name, rows):
        model = LogisticRegression(solver="newton-cholesky", tol=1e-12)
        dump(model.fit(drawn[rows], labels[rows]), folder / name)
        return str(folder / name)

    return str(folder / "people.npz"), fitted


def audited(table, rows_before, rows_after, out, **more):
    source, fitted = table
    before, after = fitted("before.skops", rows_before), fitted("after.skops", rows_after)
    said = {"person": str(PERSON), "others": f"{FITTED}:{EVERYBODY}"} | more
    return exhume.audit(
        {"data": {"source": source}, "versions": {"before": before, "after": after, **said}}, out
    )


def without(row):
    return [other for other in range(FITTED) if other != row]


def test_the_erased_person_is_in_the_difference(table, tmp_path):
    audit = audited(table, list(range(FITTED)), without(PERSON), tmp_path / "run")
    assert audit.verdict.word == "leaks"
    attacks = {attack.spec.id: attack for attack in audit.result.attacks}
    known = attacks["remaining"]
    assert (known.proved, known.metrics["exact"]) == (1, 1)
    assert known.metrics["largest_error_worst"] < 1e-6
    assert known.metrics["mse"] < 1e-6 * known.metrics["never_saw_mse"]
    assert known.extent.premise.holds
    (beside,) = known.baselines
    assert beside["mse"] == known.metrics["never_saw_mse"]


def test_an_added_person_is_as_well(table, tmp_path):
    audit = audited(table, without(PERSON), list(range(FITTED)), tmp_path / "run", change="added")
    assert audit.verdict.word == "leaks"


def test_versions_that_another_person_separates_say_nothing_of_this_one(table, tmp_path):
    audit = audited(table, list(range(FITTED)), without(PERSON + 1), tmp_path / "run")
    assert audit.verdict.word == "not audited"
    assert all(not attack.proved for attack in audit.result.attacks)


def test_a_network_that_was_trained_on_without_the_person(few_records, tmp_path):
    audit = exhume.audit(
        {
            "data": {"source": few_records, "fixed": 30},
            "victim": {"released": False, "steps": 20, "hidden": [8]},
            "versions": {"made": 8, "steps": 3, "search_steps": 20},
            "machine": {"threads": 1},
        },
        tmp_path / "run",
    )
    assert audit.verdict.word == "leaks"
    attacks = {attack.spec.id: attack for attack in audit.result.attacks}
    assert set(attacks) == {"ratio", "matching", "through-training"}
    assert attacks["through-training"].lineup.identified >= 6
    assert attacks["through-training"].proved == 0  # recognised among strangers, not proved


def test_settings_that_make_no_sense(table, tmp_path):
    with pytest.raises(ExhumeError, match="give before, after, person and others"):
        exhume.audit({"versions": {"before": "a.skops"}}, tmp_path / "run")
    with pytest.raises(ExhumeError, match="one row and different others"):
        audited(table, [1, 2, 3], [1, 2], tmp_path / "run", others="99999")
    with pytest.raises(ExhumeError, match="one row and different others"):
        audited(table, [1, 2, 3], [1, 2], tmp_path / "run", others=f"{PERSON},70")
