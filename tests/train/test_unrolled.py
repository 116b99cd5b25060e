from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from exhume.attacks.informed.starts import Whitening
from exhume.core.contract import Architecture, Key, NotApplicable, Records
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.models.own import ModuleArchitecture, architecture_named
from exhume.train.dp import Privacy
from exhume.train.least_squares import least_squares, solve_damped
from exhume.train.local import LocalTraining
from exhume.train.optimisers import Adam, Descent
from exhume.train.own import OwnTraining
from exhume.train.recipe import FullBatch, MiniBatch
from exhume.train.stacked import Order
from exhume.train.unrolled import Unknown, Unrolled, smooth_gates, unroll

SHAPE = (1, 6, 6)
NET = CNN(SHAPE, (3,), (3,), (1,), (4,), 3)
ORDER = Order(4, Key.from_seed(3))
RECIPES = {
    "momentum and decay": FullBatch(NET, Descent(7, 0.1, 0.9, 1e-2)),
    "batches": MiniBatch(NET, Descent(9, 0.1, 0.9), ORDER),
    "adam": FullBatch(NET, Adam(6, 0.01, weight_decay=1e-2)),
    "adamw": FullBatch(NET, Adam(6, 0.01, weight_decay=1.0, decoupled=True)),
    "mlp": FullBatch(MLP(SHAPE, (5,), 3), Descent(7, 0.1, 0.9)),
}


def doubled(records: Records) -> Records:
    return Records(records.inputs.double(), records.labels, records.classes)


@pytest.fixture
def game(make_records, key):
    fixed = make_records(9, SHAPE, 3, key.fold("fixed"))
    extra = make_records(2, SHAPE, 3, key.fold("extra"))
    return doubled(fixed), doubled(extra)


def unrolled(recipe, fixed, key, **more) -> Unrolled:
    found = unroll(recipe, recipe.architecture.initial(key).double(), fixed, 2, **more)
    return replace(found, module=found.module.double())


@pytest.mark.parametrize("name", RECIPES)
def test_it_ends_where_training_ends(name, game, key):
    fixed, extra = game
    recipe = RECIPES[name]
    start = recipe.architecture.initial(key)
    single = Records(fixed.inputs.float(), fixed.labels, fixed.classes)
    two = Records(extra.inputs.float()[None], extra.labels[None], extra.classes)
    want = recipe.fit(start, single, two, key)[0]
    got = unroll(recipe, start, single, 2).train(Unknown(two.inputs[0], two.labels[0])).end
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_forward_is_the_derivative_and_adjoint_its_transpose(name, game, key):
    fixed, extra = game
    training = unrolled(RECIPES[name], fixed, key)
    path = training.train(Unknown(extra.inputs, extra.labels))
    along = torch.randn_like(extra.inputs)
    step = 1e-5
    ahead, behind = (
        training.train(Unknown(extra.inputs + sign * step * along, extra.labels)).end
        for sign in (1, -1)
    )
    pushed = training.forward(path, along)
    torch.testing.assert_close(pushed, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-7)
    cotangent = torch.randn_like(pushed)
    pulled = training.adjoint(path, cotangent)
    torch.testing.assert_close((pulled * along).sum(), pushed @ cotangent)


@pytest.mark.parametrize("name", ["momentum and decay", "adam"])
def test_little_memory_changes_the_time_and_not_the_numbers(name, game, key):
    fixed, extra = game
    guess, along = Unknown(extra.inputs, extra.labels), extra.inputs
    roomy, narrow = (unrolled(RECIPES[name], fixed, key, memory=m) for m in (64, 0))
    held, again = roomy.train(guess), narrow.train(guess)
    assert len(held.slopes) == len(held.kept) == len(roomy.steps)
    assert not again.slopes
    assert not again.kept
    assert len(again.states) == -(-len(narrow.steps) // again.every) < len(narrow.steps)
    torch.testing.assert_close(roomy.forward(held, along), narrow.forward(again, along))
    cotangent = torch.ones_like(held.end)
    torch.testing.assert_close(roomy.adjoint(held, cotangent), narrow.adjoint(again, cotangent))


CODE = """
from torch import nn
def normed():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.BatchNorm1d(5), nn.ELU(), nn.Linear(5, 3))
def drops():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(36, 3).requires_grad_(False)
        self.first, self.second = nn.Linear(36, 2, bias=False), nn.Linear(2, 3, bias=False)
    def forward(self, x):
        x = x.flatten(1)
        return self.base(x) + self.second(self.first(x))
def train(model, records, rng): pass
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)

    def made(name: str) -> Architecture:
        return architecture_named(f"mine.py:{name}", input_shape=SHAPE, classes=3, root=tmp_path)

    return made


@pytest.mark.parametrize("name", ["normed", "Adapted"])
def test_batch_norm_and_adapters_are_differentiated(name, own, game, key):
    fixed, extra = game
    recipe = MiniBatch(own(name), Descent(9, 0.1, 0.9, 1e-2), ORDER)
    training = unrolled(recipe, fixed, key)
    path = training.train(Unknown(extra.inputs, extra.labels))
    along = torch.randn_like(extra.inputs)
    step = 1e-5
    ahead, behind = (
        training.train(Unknown(extra.inputs + sign * step * along, extra.labels)).end
        for sign in (1, -1)
    )
    live = training.live
    pushed = live * training.forward(path, along)
    torch.testing.assert_close(pushed, live * (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-7)
    pulled = training.adjoint(path, pushed)
    torch.testing.assert_close((pulled * along).sum(), pushed @ pushed)


def test_what_cannot_be_differentiated(own, game, key, tmp_path):
    fixed, _ = game
    text = ModuleArchitecture(
        nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(36, 3)).train(), SHAPE
    )
    cases = {
        "adds noise the adversary cannot redo": FullBatch(NET, privacy=Privacy(1.0, 1.0)),
        r"3 \(Dropout\) drops inputs|takes statistics": FullBatch(own("drops")),
        "can be called, not differentiated": OwnTraining.of(NET, "mine.py:train", root=tmp_path),
        "no way to differentiate": LocalTraining(NET),
        "drops inputs at random": FullBatch(text),
    }
    for message, recipe in cases.items():
        with pytest.raises(NotApplicable, match=message):
            unroll(recipe, torch.zeros(1), fixed)


def test_conjugate_gradients_solve_damped_least_squares():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(30, 12, generator=generator, dtype=torch.float64)
    right = torch.randn(30, generator=generator, dtype=torch.float64)
    for damping in (0.0, 2.0):
        found = least_squares(
            lambda x: matrix @ x,
            lambda y: matrix.T @ y,
            right,
            iterations=40,
            damping=damping,
            slope=1e-12,
        )
        eye = torch.eye(12, dtype=torch.float64)
        want = torch.linalg.solve(matrix.T @ matrix + damping * eye, matrix.T @ right)
        torch.testing.assert_close(found.step, want)
        left = (matrix @ want - right).norm() / right.norm()
        assert found.left == pytest.approx(float(left))
        gram = matrix.T @ matrix
        scaled = damping / float(gram.diagonal().mean())
        torch.testing.assert_close(solve_damped(gram, matrix.T @ right, scaled), want)
    early = least_squares(
        lambda x: matrix @ x, lambda y: matrix.T @ y, right, iterations=40, left=0.99
    )
    assert early.iterations < 3


def test_whitening_is_symmetric_and_prefers_what_is_smooth():
    generator = torch.Generator().manual_seed(0)
    rough = torch.randn(20, 3, 8, 8, generator=generator)
    smooth = rough.cumsum(2).cumsum(3)
    white = Whitening.of(smooth)
    a, b = rough[:1], rough[1:2]
    torch.testing.assert_close((white.apply(a) * b).sum(), (a * white.apply(b)).sum())
    flat, fine = torch.ones(1, 3, 8, 8), torch.ones(1, 3, 8, 8)
    fine[..., ::2] = -1
    assert white.apply(flat).norm() > 3 * white.apply(fine).norm()


def test_smooth_gates_change_second_derivatives_only():
    module = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.LeakyReLU(), nn.Linear(6, 1)
    )
    smooth, count = smooth_gates(module, 0.3)
    assert count == 2
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(smooth(x), module(x))
    slopes = []
    for one in (module, smooth):
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(one(leaf).sum(), leaf, create_graph=True)
        (bend,) = torch.autograd.grad(slope.square().sum(), leaf, allow_unused=True)
        slopes.append((slope, bend))
    torch.testing.assert_close(slopes[0][0], slopes[1][0])
    assert slopes[0][1] is None or not bool(slopes[0][1].any())
    assert bool(slopes[1][1].any())
    same, none = smooth_gates(nn.Sequential(nn.Linear(2, 2), nn.ELU()), 0.3)
    assert none == 0
    assert isinstance(same[1], nn.ELU)


RELU = FullBatch(MLP(SHAPE, (5, 4), 3, "relu"), Descent(5, 0.1, 0.9))


class Pushing(nn.Module):
    """ReLU whose gates are off by given numbers for the known records, in backward passes."""

    def __init__(self, pushes):
        super().__init__()
        self.pushes, self.calls = pushes, 0

    def forward(self, x):
        known = x.shape[0] == len(self.pushes[0])
        push = self.pushes[self.calls] if known else torch.zeros_like(x)
        self.calls += known
        return torch.relu(x) + push * (x - x.detach())


def test_what_pushed_gates_do_to_training(game, key):
    fixed, extra = game
    training, gates = unrolled(RELU, fixed, key).freed()
    assert gates == 2
    guess = Unknown(extra.inputs, extra.labels)
    path = training.train(guess)
    entered = training.entered(path)
    assert [len(blocks) for blocks in entered] == [1] * 5
    assert [gate.shape for gate in entered[0][0]] == [(9, 5), (9, 4)]
    draw = key.fold("pushes").generator()
    pushes = [
        [tuple(torch.randn(gate.shape, generator=draw).double() for gate in gates)]
        for (gates,) in entered
    ]
    still = torch.zeros_like(extra.inputs)
    moved = training.forward(path, still, pushes)
    step, ends = 1e-6, []
    for sign in (1, -1):
        other = unrolled(RELU, fixed, key)
        names = [n for n, m in other.module.named_modules() if "relu" in repr(m).lower()]
        places = [n for n in names if not list(other.module.get_submodule(n).children())]
        for place, gate in zip(places, range(2), strict=True):
            ones = Pushing([sign * step * blocks[0][gate] for blocks in pushes])
            parent, _, name = place.rpartition(".")
            setattr(other.module.get_submodule(parent), name, ones)
        ends.append(other.train(guess).end)
    torch.testing.assert_close(moved, (ends[0] - ends[1]) / (2 * step), rtol=1e-4, atol=1e-7)
    back: list = []
    cotangent = torch.randn(moved.shape, generator=draw).double()
    training.adjoint(path, cotangent, back)
    together = sum(
        (a * b).sum()
        for there, here in zip(back, pushes, strict=True)
        for a, b in zip(there[0], here[0], strict=True)
    )
    torch.testing.assert_close(together, moved @ cotangent)


def test_free_gates_leave_training_as_it_is(game, key):
    fixed, extra = game
    plain = unrolled(RELU, fixed, key)
    free, _ = plain.freed()
    guess, along = Unknown(extra.inputs, extra.labels), extra.inputs
    ends = [t.train(guess) for t in (plain, free)]
    torch.testing.assert_close(ends[0].end, ends[1].end)
    torch.testing.assert_close(plain.forward(ends[0], along), free.forward(ends[1], along))
    assert unrolled(RECIPES["mlp"], fixed, key).freed()[1] == 0


def test_every_way_through_a_training_can_end_the_work(make_records, key):
    mlp, said = MLP((5,), (4,), 3), []
    fixed = make_records(6, (5,), 3, key)
    unrolled = unroll(FullBatch(mlp, Descent(3)), mlp.initial(key), fixed[:5])
    unrolled = replace(unrolled, progress=lambda *about: said.append(about))
    path = unrolled.train(Unknown(fixed[5:].inputs, fixed[5:].labels))
    unrolled.forward(path, fixed[5:].inputs)
    unrolled.adjoint(path, path.end)
    assert len(said) == 3
