"""A client's local training against `torch.optim`, and what its update gives back."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import functional_call

from exhume.core.contract import ExhumeError, Key, Records
from exhume.models.mlp import MLP
from exhume.train.local import PLAIN, LocalTraining, Routine, Steps, batch_loss

NET = MLP((5,), (7,), 3, "tanh")
KEY = Key.from_seed(4)
START = NET.initial(KEY).double()


def client(n=6, classes=3):
    generator = KEY.fold("client").generator()
    inputs = torch.rand(n, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (n,), generator=generator)
    return Records(inputs[None], labels[None], ("a", "b", "c"))


def by_torch(routine, records, rows, rate):
    """(p,) where `torch.optim` ends."""
    module = NET.build().double()
    named = NET.layout.split(START)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(named[name])
    how = {"lr": rate, "weight_decay": routine.weight_decay}
    if routine.optimiser == "adam":
        optimiser = torch.optim.Adam(module.parameters(), eps=routine.eps, **how)
    else:
        optimiser = torch.optim.SGD(module.parameters(), momentum=routine.momentum, **how)
    if routine.schedule == "cosine":
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(rows))
    else:
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 1.0)
    for row in rows:
        optimiser.zero_grad()
        outputs = module(records.inputs[0][row])
        batch_loss(outputs, records.labels[0][row], "mean", routine.loss).backward()
        optimiser.step()
        schedule.step()
    return NET.layout.join({n: p.detach() for n, p in module.named_parameters()})


ROUTINES = (
    Routine(epochs=2, local_batch=4),
    Routine(epochs=3, momentum=0.9, weight_decay=0.1),
    Routine(epochs=2, local_batch=2, momentum=0.5, weight_decay=0.01, schedule="cosine"),
    Routine(epochs=2, local_batch=3, optimiser="adam", weight_decay=0.1),
    Routine(epochs=1, optimiser="adam", eps=1e-3),
    Routine(epochs=1, local_batch=3, loss="mse"),
)


@pytest.mark.parametrize("routine", ROUTINES, ids=str)
def test_local_training_is_that_of_torch(routine):
    records, local = client(), LocalTraining(NET, rate=0.05, routine=routine)
    rows = routine.batches(1, 6, KEY.generator())
    update = local.updates(START, records, KEY, order=rows)[0]
    rates = local.rates(6)
    end = by_torch(routine, records, rows, 0.05)
    assert len(rows) == len(rates)
    assert torch.allclose(routine.ended(START, update, rates), end, atol=1e-12)
    assert torch.allclose(routine.average(START, end, rates), update, atol=1e-7)
    drawn = local.updates(START, records, KEY)
    whole = local.fit(
        START, Records(records.inputs[0, :0], records.labels[0, :0], ()), records, KEY
    )
    assert torch.allclose(whole[0], routine.ended(START, drawn[0], rates))


def test_an_average_gradient_has_neither_decay_nor_the_size_of_momentum():
    records = client()
    slope = LocalTraining(NET).updates(START, records, KEY)[0]
    tiny = {"rate": 1e-9, "steps": 5}
    for routine in (PLAIN, Routine(momentum=0.9, weight_decay=2.0), Routine(schedule="step")):
        local = LocalTraining(NET, **tiny, routine=routine)
        assert torch.allclose(local.updates(START, records, KEY)[0], slope, atol=1e-5)


def test_an_epoch_sees_every_record_once_in_an_order_of_the_key():
    routine = Routine(epochs=3, local_batch=4)
    rows = routine.batches(1, 10, KEY.generator())
    assert [len(row) for row in rows] == [4, 4, 2] * 3
    epochs = [torch.cat(rows[3 * e : 3 * e + 3]) for e in range(3)]
    assert all(torch.equal(epoch.sort().values, torch.arange(10)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    ordered = Routine(epochs=1, local_batch=4, shuffled=False)
    assert torch.equal(torch.cat(ordered.batches(1, 10, KEY.generator())), torch.arange(10))
    assert routine.hidden_order(10)
    assert not routine.hidden_order(4)
    assert not ordered.hidden_order(10)


def test_schedules_fall_as_said():
    assert Routine(schedule="linear").rates(1.0, 4) == [1.0, 0.75, 0.5, 0.25]
    assert Routine(schedule="cosine").rates(1.0, 2) == pytest.approx([1.0, 0.5])
    assert Routine(schedule="step").rates(1.0, 3) == pytest.approx([1.0, 0.1, 0.01])


def test_simulated_training_is_training_and_has_a_slope():
    records = client()
    inputs, labels = records.inputs[0], records.labels[0]
    module = NET.build()

    def gradient(at, some, targets):
        def loss(point):
            return batch_loss(functional_call(module, NET.layout.split(point), (some,)), targets)

        return torch.func.grad(loss)(at)

    for routine in (PLAIN, Routine(momentum=0.5), Routine(optimiser="adam", eps=1e-3)):
        local = LocalTraining(NET, steps=3, rate=0.1, routine=routine)
        made = local.simulated(gradient, START, inputs, labels)
        assert torch.allclose(made, local.updates(START, records, KEY)[0])
        slope = torch.func.grad(
            lambda x, how=local: how.simulated(gradient, START, x, labels).square().sum()
        )(inputs)
        assert bool(torch.isfinite(slope).all())
        assert float(slope.norm()) > 0


def test_frozen_parameters_stay_as_they_are():
    frozen = NET.layout.names[:2]
    for routine in (Routine(weight_decay=0.5), Routine(epochs=1)):
        local = LocalTraining(NET, steps=3, rate=0.1, routine=routine, frozen=frozen)
        parts = NET.layout.split(local.updates(START, client(), KEY)[0])
        assert all(float(part.abs().max()) < 1e-12 for n, part in parts.items() if n in frozen)
        assert all(bool(part.any()) for n, part in parts.items() if n not in frozen)


def test_the_first_step_of_adam_is_inverted_only_where_its_sizes_are_left():
    gradient = torch.tensor([1e-2, -3e-4, 0.0, 5e-6], dtype=torch.float64)
    start = torch.tensor([0.1, -0.2, 0.3, 0.01], dtype=torch.float64)
    for eps in (1e-3, 1e-8):
        routine = Routine(optimiser="adam", eps=eps)
        end = routine.trained(start, lambda _, __: gradient, [1e-3])
        assert torch.allclose(routine.average(start, end, [1e-3]), gradient, rtol=1e-4, atol=0)
    with pytest.raises(ExhumeError, match="of its sizes are lost in the rounding of the weights"):
        routine.average(start.float(), end.float(), [1e-3])


def test_a_sum_is_the_mean_at_another_rate():
    records = client()
    for routine in (Routine(momentum=0.5, weight_decay=0.1), Routine(optimiser="adam", eps=1e-2)):
        steps = Steps(3, 0.01, routine)
        summed = steps.of(NET, "sum").updates(START, records, KEY)[0]
        mean = steps.of_mean(6).of(NET).updates(START, records, KEY)[0]
        factor = 1 if routine.optimiser == "adam" else 6
        assert torch.allclose(summed, factor * mean)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"optimiser": "lion"}, "optimiser: 'lion' is not one of sgd, adam"),
        ({"schedule": "warm"}, "schedule: 'warm' is not one of"),
        ({"loss": "hinge"}, "loss: 'hinge' is not one of"),
        ({"epochs": -1}, "epochs, local_batch: must be at least 0"),
        ({"local_batch": 4}, "local_batch: say with epochs"),
        ({"momentum": 1.0}, "momentum, weight_decay, eps: must be in"),
        ({"momentum": 0.9, "optimiser": "adam"}, "momentum: Adam has none"),
    ],
)
def test_impossible_routines_are_refused(said, message):
    with pytest.raises(ExhumeError, match=message):
        Routine(**said)


def test_steps_of_an_epoch_need_the_number_of_records():
    routine = Routine(epochs=2, local_batch=4)
    assert routine.steps(1, 10) == 6
    assert math.isclose(sum(routine.rates(0.5, 6)), 3.0)
    with pytest.raises(ExhumeError, match="without the number of records"):
        routine.steps(1, None)
    with pytest.raises(ExhumeError, match="loss: logistic is of one output, the model has 3"):
        batch_loss(torch.zeros(2, 3), torch.zeros(2).long(), loss="logistic")


def test_a_routine_says_what_it_is():
    said = str(LocalTraining(NET, rate=0.1, routine=ROUTINES[2]))
    assert said == (
        "2 epochs of rate 0.1, batches of 2, momentum 0.5, weight decay 0.01, cosine schedule, mean loss"
    )
    assert "Adam" in str(ROUTINES[3])
    assert "mean mse loss" in str(LocalTraining(NET, routine=ROUTINES[5]))
    assert Steps(routine=ROUTINES[0]).several
    assert not Steps().several
