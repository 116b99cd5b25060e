"""Fitted linear models with strangers: a line-up whose answers are worked out anew in every permutation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

import exhume
from exhume.attacks.informed.glm import GlmClosedForm, LinearClosedForm
from exhume.auditing.attack import line_up_row
from exhume.auditing.case import Answer
from exhume.auditing.kinds.fitted import fitted_case
from exhume.core.contract import Key, Knowledge
from exhume.core.errors import ExhumeError
from exhume.readers.fitted import records_of_fitted
from exhume.score.lineup import likeness_anew
from exhume.settings import FittedSettings
from exhume.store.shards import NullStore


def drawn(seed, count=120, width=6, rare=0.3):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(count, width)), (generator.random(count) < rare).astype(int)


def case_of(model, x, y, own=40, targets=12, seed=0):
    """The first `own` records are named as fitted on, the others are strangers."""
    every = records_of_fitted(model, x, y)
    settings = FittedSettings(targets=targets)
    return fitted_case(settings, every[:own], seed, "", model, others=every[own:])


def answered(case):
    (row,) = case.rows()
    answers = []
    for asked in case.questions(row):
        ready = row.attack.prepare(asked.knowledge, key=asked.key, store=NullStore())
        answers.append(Answer(asked, ready.run(asked.release)))
    return row, answers


@pytest.mark.parametrize("model", [LogisticRegression(), Ridge(alpha=2.0)])
@pytest.mark.parametrize("swapped", [False, True])
def test_answers_are_those_of_whoever_sits_in_the_targets_places(model, swapped):
    x, y = drawn(0)
    y = y if isinstance(model, LogisticRegression) else x[:, 0] + 0.1 * y
    case = case_of(model.fit(x[:40], y[:40]), x, y)
    row, answers = answered(case)
    seats = case.seats(row, answers)
    places, anew = seats.places, seats.redealt
    seated = torch.arange(anew.records)
    targets, strangers = ((places.target >= 0).nonzero()[:, 0], (places.target < 0).nonzero()[:, 0])
    if swapped:
        seated[targets[0]], seated[strangers[0]] = strangers[0], targets[0]
    labels = places.stratum
    gone = sorted(set(range(12)) - set(places.target[targets].tolist()))
    rows = case._targets(row)
    stay = torch.ones(40, dtype=torch.bool)
    stay[rows[places.target[targets]]] = False
    assert len(gone) + len(targets) == 12
    attack = LinearClosedForm() if isinstance(model, Ridge) else GlmClosedForm()
    fixed = case.records[stay]
    for release, _, (found,) in anew.each(seated[None]):
        (place,) = (places.release == release).nonzero()[:, 0].tolist()
        mates = seated[[other for other in targets.tolist() if other != place]]
        known = fixed.with_extra(
            type(fixed)(places.inputs[mates][None], labels[mates][None], fixed.classes), 0
        )
        knowledge = Knowledge(
            architecture=case.recipe.architecture, recipe=case.recipe, fixed=known
        )
        ready = attack.prepare(knowledge, key=Key.from_seed(0), store=NullStore())
        naive = ready.run(case.release).candidates[0, 0]
        scale = places.inputs.std(0)
        expected = -((naive - places.inputs) / scale).square().mean(1)
        torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-6)
    if not swapped:
        own = torch.stack([answer.found.candidates[0, 0] for answer in answers])
        released = places.release[targets]
        expected = -((own[released, None] - places.inputs) / scale).square().mean(2)
        torch.testing.assert_close(likeness_anew(anew)[0][released], expected, rtol=1e-5, atol=1e-6)


def test_a_fit_that_stopped_early_leaks_by_its_line_up(tmp_path):
    """No answer explains the missing gradient to a thousandth, and the records are told all the same."""
    x, y = drawn(1, 300, 20)
    model = LogisticRegression(C=10.0, tol=1e-2).fit(x[:80], y[:80])
    alone = exhume.audit_fitted(model, x[:80], y[:80], tmp_path / "alone", targets=40)
    assert alone.verdict.word == "not audited"
    done = exhume.audit_fitted(
        model, x[:80], y[:80], tmp_path / "run", others=(x[80:], y[80:]), targets=40
    )
    (section,) = done.result.attacks
    assert (done.verdict.word, section.proved) == ("leaks", 0)
    assert section.lineup.adjusted <= 1e-3
    assert section.lineup.strangers >= 30
    assert section.surest is None  # confidences, too, depend on who sits where


def test_a_model_of_others_is_not_audited(tmp_path):
    x, y = drawn(3, 300, 20)
    model = LogisticRegression(tol=1e-8).fit(x[:80], y[:80])
    own, others = slice(80, 160), slice(160, 300)
    done = exhume.audit_fitted(
        model, x[own], y[own], tmp_path / "run", others=(x[others], y[others]), targets=40
    )
    assert done.verdict.word == "not audited"
    assert done.result.attacks[0].lineup.p > 0.01


def test_strangers_of_another_shape_are_one_sentence(tmp_path):
    x, y = drawn(3)
    model = LogisticRegression().fit(x, y)
    with pytest.raises(ExhumeError, match="strangers: shape"):
        exhume.audit_fitted(model, x, y, tmp_path / "run", others=(x[:, :3], y))


@pytest.mark.slow
@pytest.mark.parametrize("rare", [0.5, 0.3])
def test_p_values_of_models_of_others(rare, fewer_draws):
    """Few records, many columns, unequal classes: coefficients all but zero, where answers are means."""
    p_values = []
    for draw in range(400):
        x, y = drawn(draw, 150, 100, rare)
        model = LogisticRegression(C=1e-3).fit(x[:40], y[:40])
        case = case_of(model, x[40:], y[40:], own=40, targets=20, seed=draw)
        row, answers = answered(case)
        p_values.append(line_up_row(case.seats(row, answers), row.tests).row.p)
    low = torch.tensor(p_values) <= 0.05
    assert low.double().mean() <= 0.08
