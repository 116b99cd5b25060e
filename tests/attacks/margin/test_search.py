from __future__ import annotations

import pytest
import torch

from exhume.attacks.margin.descent import Descent
from exhume.attacks.margin.first_layer import FirstLayer
from exhume.attacks.margin.search import BlindSearch, Space, agreement
from exhume.contract import ExhumeError, Gradient, Knowledge, Outcome, Records
from exhume.models.homogeneous import HomogeneousMLP
from exhume.store import FolderStore, NullStore
from exhume.train.margin import MarginDescent
from exhume.victims.margin import release_margin

SEARCH = BlindSearch(FirstLayer(restarts=2, descent=Descent(steps=40)), trials=4, steps=8)


@pytest.fixture
def game(key):
    pictures = torch.rand(6, 1, 5, 5, generator=key.generator())
    records = Records(pictures, torch.arange(6) % 3, ("a", "b", "c"))
    mlp = HomogeneousMLP((1, 5, 5), (40, 30), 3, first_scale=1e-4)
    recipe = MarginDescent(mlp, growing_steps=0.01, stop_loss=1e-4)
    made = release_margin(recipe, records, key=key, store=NullStore())
    return Knowledge(architecture=mlp, centre=made.centre), made.release


def test_halving(game, key):
    knowledge, release = game
    trials = SEARCH.prepare(knowledge, key=key, store=NullStore()).choose(release)
    assert [trial.steps for trial in trials] == [8, 8, 8, 8, 16, 16, 16]
    first, second = trials[:4], trials[4:6]
    better = sorted(first, key=lambda trial: -trial.agreement)[:2]
    assert {trial.attack for trial in second} == {trial.attack for trial in better}
    assert trials[-1].agreement == max(trial.agreement for trial in second)
    assert trials[0].attack == SEARCH.base


def test_killed_and_resumed_it_makes_the_same_choice(game, key, tmp_path):
    knowledge, release = game
    whole = SEARCH.prepare(knowledge, key=key, store=NullStore()).run(release)
    store = FolderStore(tmp_path / "store")

    def stop(stage, done, total):
        if stage == "search, 8 steps" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SEARCH.prepare(knowledge, key=key, store=store, progress=stop).run(release)
    assert len(list(store.folder.iterdir())) == 2
    again = SEARCH.prepare(knowledge, key=key, store=store).run(release)
    assert torch.equal(again.candidates, whole.candidates)


def test_a_single_trial_is_the_base(game, key):
    knowledge, release = game
    lone = BlindSearch(SEARCH.base, trials=1, steps=4)
    (only,) = lone.prepare(knowledge, key=key, store=NullStore()).choose(release)
    assert only.attack == SEARCH.base
    gradient = Gradient(release.parameters, release.layout, release.parameters)
    found = lone.prepare(knowledge, key=key, store=NullStore()).run(gradient)
    assert found.status.outcome == Outcome.NOT_APPLICABLE


def test_draws_stay_in_their_ranges(key):
    space = Space()
    drawn = [space.draw(FirstLayer(), key.fold(i)) for i in range(50)]
    for attack in drawn:
        assert space.alpha[0] <= attack.alpha <= space.alpha[1]
        assert space.rate[0] <= attack.descent.rate <= space.rate[1]
        assert attack.contrast < attack.largest
    assert len({attack.alpha for attack in drawn}) == 50
    with pytest.raises(ExhumeError, match="0 trials of 40 steps given"):
        BlindSearch(trials=0)


def test_agreement_counts_an_image_once(key):
    images = torch.rand(4, 1, 5, 5, generator=key.generator())
    sure = torch.tensor([1.0, 0.9, 0.8, 0.7])
    assert agreement(images, sure, 2) == pytest.approx(0.95)
    repeated = images[[0, 0, 0, 1]]
    assert agreement(repeated, sure, 2) == pytest.approx((1.0 + 0.7) / 2)
