"""What a guard lets pass, what it stops, and that it stops whatever it cannot check."""

from __future__ import annotations

import copy
import logging
import time

import pytest
import torch
from torch import nn

from exhume.core.contract import ExhumeError, Key
from exhume.guard import Guard, GuardPolicy, noisy
from exhume.models.ordinary import fully_connected

RATE = 0.1


def sent(records=4, model=None):
    """A model's state, what training on made-up records makes of it, and the module."""
    generator = Key.from_seed(3).generator()
    inputs = torch.rand(records, 1, 8, 8, generator=generator)
    labels = torch.arange(records) % 10
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model or fully_connected(64, 64, 10)
    before = copy.deepcopy(model.state_dict())
    loss = nn.functional.cross_entropy(model(inputs), labels)
    torch.autograd.backward(loss)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(RATE * parameter.grad)
    return before, copy.deepcopy(model.state_dict()), model


def check(states, records=4, **policy):
    guard = Guard(GuardPolicy(shape=(1, 8, 8), **{"seconds": 120.0, **policy}))
    return guard.check(*states, rate=RATE, records=records, name="client 5")


def test_a_batch_of_four_is_stopped_and_the_log_has_no_record(caplog):
    caplog.set_level(logging.INFO, "exhume.guard")
    answer = check(sent())
    assert not answer.passes
    assert answer.state is None
    assert answer.why.endswith(" 4 records")
    (line,) = caplog.messages
    assert line.startswith(f"client 5: refused: {answer.why}, ")
    assert "tensor" not in line
    assert len(line) < 200


def test_noise_that_hides_the_records_passes():
    before, after, model = sent()
    hidden = noisy(before, after, 50.0)
    answer = check((before, hidden, model))
    assert (answer.passes, answer.why, answer.noise) == (True, "nothing was found", 0.0)
    assert answer.state is hidden


def test_what_stands_out_of_its_noise_is_stopped_though_no_exact_attack_reads_it():
    before, after, model = sent()
    answer = check((before, noisy(before, after, 1.0), model))
    assert (answer.passes, answer.why) == (
        False,
        "no noise covers it: a layer stands out of what noise alone would be",
    )


def test_noise_is_added_until_nothing_is_found():
    before, after, model = sent()
    answer = check((before, after, model), action="noise", noise=0.5, tries=9)
    assert answer.passes
    assert answer.noise > 0.5
    change, whole = (
        torch.cat([(a[n] - b[n]).flatten() for n in before])
        for a, b in ((answer.state, after), (after, before))
    )
    assert float(change.square().mean() / whole.square().mean()) ** 0.5 == pytest.approx(
        answer.noise, 0.05
    )
    again = check((before, after, model), action="noise", noise=0.5, tries=9)
    assert not torch.equal(again.state["1.weight"], answer.state["1.weight"])  # nobody's seed
    weak = check((before, after, model), action="noise", noise=1e-6, tries=1)
    assert (weak.passes, weak.state) == (False, None)


def test_running_statistics_get_no_noise():
    before = {"weight": torch.zeros(4, 4), "running_var": torch.ones(4), "count": torch.tensor(1)}
    after = {"weight": torch.ones(4, 4), "running_var": 2 * torch.ones(4), "count": torch.tensor(2)}
    hidden = noisy(before, after, 5.0, {"weight"})
    assert not torch.equal(hidden["weight"], after["weight"])
    for name in ("running_var", "count"):
        assert hidden[name] is after[name]


def test_a_warning_lets_it_pass(caplog):
    before, after, model = sent()
    answer = check((before, after, model), action="warn")
    assert answer.passes
    assert answer.state is after
    assert "WARNING" in caplog.messages[0]


def test_a_model_whose_updates_no_exact_attack_reads_is_stopped():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.Tanh(),
        nn.AvgPool2d(6),
        nn.Conv2d(4, 10, 1),
        nn.Flatten(),
    )
    before, after, model = sent(model=model)
    answer = check((before, noisy(before, after, 10.0), model))
    assert not answer.passes


def test_what_cannot_be_checked_is_stopped(monkeypatch):
    before, after, model = sent()
    broken = {**after, "1.weight": after["1.weight"] * float("nan")}
    assert "it could not be checked: " in check((before, broken, model)).why
    started = time.perf_counter()

    def slow(*_):
        time.sleep(3)

    monkeypatch.setattr(Guard, "leak_in", slow)
    late = check((before, after, model), seconds=0.3)
    assert (late.passes, late.why) == (False, "it could not be checked in time")
    assert time.perf_counter() - started < 3

    def failing(*_):
        raise ValueError("tensor([0.25, 0.75])")

    monkeypatch.setattr(Guard, "leak_in", failing)
    failed = check((before, after, model))
    assert (failed.passes, failed.why) == (False, "it could not be checked: ValueError")


def test_the_policy_is_a_file(tmp_path):
    path = tmp_path / "guard.toml"
    path.write_text('[guard]\naction = "noise"\nshape = [1, 8, 8]\nseconds = 3\n')
    policy = GuardPolicy.from_toml(path)
    assert policy == GuardPolicy("noise", 3.0, shape=(1, 8, 8))
    path.write_text('[guard]\nacton = "noise"\n')
    with pytest.raises(ExhumeError, match="unknown key 'acton'"):
        GuardPolicy.from_toml(path)
    path.write_text('action = "noise"\n')
    with pytest.raises(ExhumeError, match=r"one section \[guard\]"):
        GuardPolicy.from_toml(path)
    with pytest.raises(ExhumeError, match="action: 'stop' is not one of refuse, noise, warn"):
        GuardPolicy("stop")
