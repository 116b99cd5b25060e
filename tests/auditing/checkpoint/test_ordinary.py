"""Ordinary checkpoints: torch's own start, biases everywhere, SGD with and without weight decay; vectors."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from exhume.attacks.margin.reading import Premises, premises_of
from exhume.auditing import audit
from exhume.auditing.kinds.checkpoint import mixed_alike
from exhume.auditing.kinds.checkpoint_approach import recipe_like
from exhume.auditing.kinds.checkpoint_conditions import Fit, conditions_of, doubt_of
from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.matrices import Matrices
from exhume.models.mlp import MLP, HomogeneousMLP
from exhume.settings import Brief, CheckpointSettings

TRAINED, ALL, WIDTH = 12, 160, 80
pytestmark = pytest.mark.xdist_group("ordinary checkpoint")


def trained(inputs, labels, decay, epochs):
    """As a stranger trains: nothing of exhume's."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(inputs[0].numel(), WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 3),
        )
    optimiser = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimiser.step()
        schedule.step()
    return net.state_dict()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """decayed.pt and kept.pt on the first rows of images.npz; table.pt on those of table.npz."""
    folder, key = tmp_path_factory.mktemp("ordinary"), Key.from_seed(5)
    images = torch.rand(ALL, 1, 8, 8, generator=key.generator())
    labels = torch.arange(ALL) % 3
    torch.save(trained(images[:TRAINED] - 0.5, labels[:TRAINED], 5e-3, 2000), folder / "decayed.pt")
    torch.save(trained(images[:TRAINED] - 0.5, labels[:TRAINED], 0.0, 10), folder / "kept.pt")
    scale = torch.logspace(-1, 2, 64)
    vectors = 3 * scale + scale * (images.flatten(1) - 0.5)
    names = np.array([f"column {number}" for number in range(64)])
    np.savez(folder / "images.npz", x=images.numpy(), y=labels.numpy())
    np.savez(folder / "table.npz", x=vectors.numpy(), y=labels.numpy(), columns=names)
    np.savez(folder / "scale.npz", mean=3 * scale.numpy(), std=scale.numpy())
    return folder


@pytest.fixture
def settings(folder):
    return CheckpointSettings(
        str(folder / "decayed.pt"),
        mean="0.5",
        trained_on=str(folder / "images.npz"),
        rows=f"0:{TRAINED}",
        restarts=2,
        steps=150,
    )


def test_with_decay_it_leaks_and_every_condition_holds(settings, tmp_path):
    done = audit(Brief.of(settings), tmp_path / "run", redact=True)
    assert done.verdict.word == "leaks"
    assert done.leak.successes >= TRAINED / 3
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    names = list(written)
    assert names.index("conditions") < names.index("verdict")
    assert [one["holds"] for one in written["conditions"]] == [True] * 5
    assert written["conditions"][0]["found"].startswith(
        f"{TRAINED + 1} by the first layer's spectrum"
    )
    assert written["attacks"][0]["id"] == "hidden-span"
    for page in (done.report.read_text(), done.redacted.read_text()):
        assert page.index("5 of 5 conditions hold") < page.index('aria-label="Verdict"')


def test_without_decay_the_table_says_why_nothing_can_be_said(settings, folder, tmp_path):
    kept = replace(settings, checkpoint=str(folder / "kept.pt"))
    done = audit(Brief.of(kept), tmp_path / "run")
    assert done.verdict.word == "not audited"
    failed = [one for one in done.result.conditions if not one.holds]
    assert "its random start is still there" in failed[0].why
    assert "only training with weight decay removes" in done.verdict.sentence
    holds = [one.holds for one in done.result.conditions]
    assert holds[1] is False
    assert "✗" in done.report.read_text()


def test_the_wrong_activation_shows(settings, tmp_path):
    done = audit(Brief.of(replace(settings, activation="tanh", steps=3)), tmp_path / "run")
    learnt, explain = done.result.conditions[3:]
    assert learnt.holds  # the signs are the same
    assert not explain.holds
    assert "of the first layer unexplained" in explain.why
    assert any("see whether --activation" in note for note in done.result.attacks[0].notes)


def test_vectors_are_scored_by_cosine_and_shown_value_by_value(settings, folder, tmp_path):
    """The same records as a table in units of its own; the network takes them standardised."""
    scale = str(folder / "scale.npz")
    table = replace(
        settings,
        mean=scale,
        std=scale,
        trained_on=str(folder / "table.npz"),
        pictures=str(folder / "images.npz"),
    )
    done = audit(Brief.of(table), tmp_path / "run", redact=True)
    assert done.verdict.word == "leaks"
    assert done.metrics["above_cosine_bar"] >= TRAINED / 3
    assert done.metrics["decoys"] == 147  # in the classes' shares
    assert done.result.attacks[0].spec.name.startswith("Training records from")
    page = done.report.read_text()
    assert '<th scope="row">column 7</th>' in page
    assert "data:image/png" in page  # the images behind the vectors
    assert "column 7" not in done.redacted.read_text()
    listed = (tmp_path / "run" / "records-at-risk.csv").read_text().splitlines()
    assert len(listed) == 1 + TRAINED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"pictures": "table.npz"},
            "--pictures: 160 records of shape .64,. given; needed is an image",
        ),
        ({"trained_on": "tokens.npz"}, "torch.int64; images and vectors can be scored"),
        ({"trained_on": "bad.npz"}, r"columns has shape \(2,\) .* legal is a list of 64 texts"),
        ({"trained_on": "nolabels.npz"}, "nolabels.npz: holds the arrays x; needed is y"),
        ({"trained_on": "nan.npz"}, "holds NaN or infinity, first in record 3"),
    ],
)
def test_records_that_cannot_be_used(folder, tmp_path, change, message):
    table = np.load(folder / "table.npz")
    x, y = table["x"], table["y"]
    for name, arrays in {
        "tokens": {"tokens": np.ones((9, 4), dtype=np.int64), "y": np.arange(9) % 2},
        "bad": {"x": x, "y": y, "columns": np.array(["a", "b"])},
        "nolabels": {"x": x},
        "nan": {"x": np.where(np.arange(len(x))[:, None] == 3, np.nan, x), "y": y},
    }.items():
        np.savez(folder / f"{name}.npz", **arrays)
    said = {"trained_on": "table.npz", "rows": "0:4"} | change
    for name in ("trained_on", "pictures"):
        if name in said:
            said[name] = str(folder / said[name])
    settings = CheckpointSettings(str(folder / "decayed.pt"), **said)
    with pytest.raises(ExhumeError, match=message):
        audit(Brief.of(settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Conditions


GOOD = Premises(
    records=101,
    fall=40.0,
    whole=False,
    left_first=1e-9,
    left_second=1e-7,
    directions=152,
    unknowns=100,
    neurons=1000,
)
FITS = Fit(100, right=1.0, residual=0.05)


def test_what_weights_show(key):
    """Layers that are sums over 6 records, and a start that is not gone."""
    generator = key.generator()
    records = torch.randn(6, 40, generator=generator)
    first = torch.randn(30, 6, generator=generator) @ records
    hidden = (records @ first.T).clamp_min(0)
    second = torch.randn(30, 6, generator=generator) @ hidden
    last = torch.randn(4, 30, generator=generator)
    found = premises_of(Matrices(first, torch.zeros(30), (second, last)), widen=1.5)
    assert (found.records, found.unknowns, found.whole) == (7, 6, False)
    assert found.fall == float("inf")
    assert found.left_second < 1e-10
    assert found.spans
    assert found.equations == 30 - found.directions
    start = torch.randn(30, 30, generator=generator)
    kept = premises_of(Matrices(first, torch.zeros(30), (second + 1000 * start, last)), widen=1.5)
    assert kept.left_second > 0.1
    assert not kept.spans
    shallow = premises_of(Matrices(first, torch.zeros(30), (last,)), widen=1.5)
    assert shallow.left_second is None


def test_all_that_is_needed():
    rows = conditions_of(GOOD, FITS)
    assert [row.holds for row in rows] == [True] * 5
    assert doubt_of(rows) == ""
    assert len(conditions_of(GOOD, None)) == 3  # nobody gave the training records
    assert rows[0].found == "101 by the first layer's spectrum, behind them 40 times less"
    assert rows[2].found == "848 equations for the 100 unknowns of each record"


@pytest.mark.parametrize(
    ("premises", "fit", "place", "why"),
    [
        ({"fall": 1.1}, {}, 0, "runs into the noise of its random start without a gap"),
        ({"records": 12}, {}, 0, "show 12 records where 100 were trained on"),
        (
            {"left_second": 0.83, "left_first": 0.5},
            {},
            1,
            r"random start \(83% of the second layer\)",
        ),
        (
            {"left_second": None, "left_first": 0.5},
            {},
            1,
            r"random start \(50% of the first layer\)",
        ),
        (
            {"left_second": None, "neurons": 100},
            {},
            2,
            "too many records for so few neurons: 100 neurons for 101 records",
        ),
        ({}, {"right": 0.5, "residual": None}, 3, "gets only 50% of its training records right"),
        ({}, {"right": None, "unfit": "more classes"}, 3, "more classes"),
        ({}, {"residual": 0.6}, 4, "leave 60% of the first layer unexplained"),
        ({}, {"residual": None, "unfit": "checked up to 500"}, 4, "checked up to 500"),
    ],
)
def test_each_condition_that_fails_is_said(premises, fit, place, why):
    rows = conditions_of(replace(GOOD, **premises), replace(FITS, **fit))
    assert [at for at, row in enumerate(rows) if not row.holds] == [place]
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(doubt_of(rows))


def test_what_cannot_be_counted_cannot_be_told_either():
    rows = conditions_of(replace(GOOD, whole=True), FITS)
    assert [row.holds for row in rows] == [False, False, True, True, True]
    assert doubt_of(rows).count("uses all of its 100 directions") == 1


# Controls


def test_a_control_is_the_same_network_with_decay():
    mlp = MLP((3,), (4, 4), 2, "gelu", init="torch")
    recipe = recipe_like(mlp, "multiclass", spans=False)
    assert recipe.architecture == mlp
    assert recipe.weight_decay > 0
    plain = HomogeneousMLP((3,), (4, 4), 2)
    small = recipe_like(plain, "multiclass", spans=False)
    assert small.architecture == replace(plain, first_scale=1e-4)
    assert not small.weight_decay


def test_a_control_has_the_mix_of_classes(key):
    own = Records(torch.zeros(20, 2), torch.tensor([0] * 18 + [1] * 2), ("a", "b"))
    others = Records(torch.zeros(50, 2), torch.arange(50) % 2, ("b", "a"))
    chosen = mixed_alike(own, others, 20, key)
    assert others.labels[chosen].bincount().tolist() == [2, 18]
    assert len(set(chosen.tolist())) == 20
    few = Records(torch.zeros(22, 2), torch.tensor([0] * 20 + [1] * 2), ("b", "a"))
    assert len(mixed_alike(own, few, 20, key)) == 20  # as far as they go


def test_a_smooth_network_that_keeps_its_start_is_not_audited(tmp_path):
    """The first layer's attack runs; the conditions say what silence would be worth."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(9, 30), nn.GELU(), nn.Linear(30, 30), nn.GELU(), nn.Linear(30, 3)
        )
    torch.save(net.state_dict(), tmp_path / "net.pt")
    said = CheckpointSettings(
        str(tmp_path / "net.pt"), shape=(9,), activation="gelu", restarts=1, steps=3
    )
    done = audit(Brief.of(said), tmp_path / "run")
    assert done.verdict.word == "not audited"
    failed = [one for one in done.result.conditions if not one.holds]
    assert "its random start is still there" in failed[0].why
