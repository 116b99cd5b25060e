"""Records of clients that made several local steps, on small networks whose records are known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from exhume.attacks.gradient.local_steps import LocalStepsAttack
from exhume.core.contract import Key, Knowledge, NotApplicable, Outcome, Records, silent
from exhume.core.errors import OutOfTime
from exhume.core.own_code import seeded_globals
from exhume.models.own import ModuleArchitecture
from exhume.store.shards import NullStore
from exhume.train.local import LocalTraining, Routine
from exhume.train.order import rows_behind
from exhume.victims.gradient import release_updates

KEY = Key.from_seed(11)
QUICK = LocalStepsAttack(rounds=2, attempts=1)


def client(records=6, gate=None):
    generator = KEY.fold("records").generator()
    inputs = torch.rand(1, records, 20, generator=generator)
    inputs = inputs * (torch.rand(inputs.shape, generator=generator) > 0.6)
    labels = torch.randint(4, (1, records), generator=generator)
    with seeded_globals(KEY.fold("weights")):
        module = nn.Sequential(nn.Linear(20, 64), gate or nn.ReLU(), nn.Linear(64, 4))
    return ModuleArchitecture.of(module, (20,)), Records(inputs, labels, tuple("abcd"))


def attacked(local, batch, attack=QUICK, known=None, progress=silent):
    start = local.architecture.initial(KEY)
    release, _ = release_updates(local, start, batch, KEY.fold("client"))
    knowledge = Knowledge(architecture=local.architecture, local=known or local)
    prepared = attack.prepare(
        knowledge, key=KEY.fold("attack"), store=NullStore(), progress=progress
    )
    return prepared.run(release)


@pytest.mark.parametrize(
    "routine",
    [
        Routine(epochs=2, local_batch=3),
        Routine(epochs=3, momentum=0.5, weight_decay=0.01, schedule="cosine"),
    ],
    ids=str,
)
def test_records_and_labels_come_back_through_the_steps(routine):
    network, batch = client(gate=nn.LeakyReLU(0.1) if routine.momentum else None)
    found = attacked(LocalTraining(network, rate=0.02, routine=routine), batch)
    assert found.status.converged
    assert found.observed["residual"] < 1e-4
    error = torch.cdist(found.found().double(), batch.inputs[0].double())
    best, which = (error / batch.inputs[0].double().norm(dim=1)).min(0)
    assert float(best.max()) < 1e-3
    assert torch.equal(found.labels[0][which], batch.labels[0])


def test_what_is_said_of_the_training_decides():
    network, batch = client(4)
    local = LocalTraining(network, rate=0.1, routine=Routine(epochs=2, local_batch=3))
    wrong = LocalTraining(network, rate=0.4, routine=local.routine)
    found = attacked(local, batch, LocalStepsAttack(rounds=1, attempts=1), known=wrong)
    assert found.status.outcome is Outcome.STOPPED_EARLY
    assert found.observed["residual"] > 1e-3


def test_what_cannot_be_fitted_says_why():
    network, batch = client()
    for routine, message in (
        (Routine(epochs=2, optimiser="adam"), "several steps of Adam do not stay in the span"),
        (Routine(epochs=2, loss="mse"), "the squared error are not fitted yet"),
    ):
        with pytest.raises(NotApplicable, match=message):
            attacked(LocalTraining(network, rate=0.1, routine=routine), batch)
    with pytest.raises(NotApplicable, match="0.bias is frozen"):
        attacked(LocalTraining(network, 2, 0.1, frozen=("0.bias",)), batch)
    smooth, batch = client(gate=nn.Tanh())
    found = attacked(LocalTraining(smooth, 2, 0.1), batch)
    assert "no chain of fully connected layers with gates" in found.status.reason
    unknown = Knowledge(architecture=network)
    with pytest.raises(NotApplicable, match="how the client trained"):
        QUICK.prepare(unknown, key=KEY, store=NullStore())


def test_the_order_of_a_clients_records_is_in_its_update():
    network, batch = client()
    routine = Routine(epochs=2, local_batch=3)
    local = LocalTraining(network, rate=0.05, routine=routine)
    start = network.initial(KEY)
    drawn = routine.batches(1, 6, KEY.fold("client").fold("order", 0).generator())
    release, _ = release_updates(local, start, batch, KEY.fold("client"))
    found = rows_behind(local, start, batch.inputs[0], batch.labels[0], release.values[0])
    assert [set(row.tolist()) for row in found] == [set(row.tolist()) for row in drawn]
    again = local.updates(start, batch, KEY, order=found)
    assert torch.allclose(again, release.values, atol=1e-5)
    plain = LocalTraining(network, 2, 0.05)
    assert rows_behind(plain, start, batch.inputs[0], batch.labels[0], release.values[0]) is None


def test_where_the_time_is_over_it_ends_with_what_it_has():
    network, batch = client()
    local = LocalTraining(network, rate=0.01, routine=Routine(epochs=2, local_batch=3))
    seen = []

    def progress(stage, done, total):
        seen.append(stage)
        if stage == "fitting records through local steps":
            raise OutOfTime("the budget ended")

    found = attacked(local, batch, progress=progress)
    assert {"opening gates", "fitting records through local steps"} <= set(seen)
    assert len(found.found()) == 6
    assert found.status.outcome is Outcome.STOPPED_EARLY
