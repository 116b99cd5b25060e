from __future__ import annotations

import pytest
import torch
from planted_gradients import attacked, unit_batches

from exhume.attacks.gradient.span import SpanAttack, decode, features_below
from exhume.attacks.gradient.tensor import DrawnRows, TensorAttack, blocks
from exhume.core.contract import (
    ExhumeError,
    Gradient,
    Knowledge,
    NotApplicable,
    Outcome,
    QueryingAttack,
    Weights,
)
from exhume.defences.release import NoiseRelease
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.models.two_layer import TwoLayer
from exhume.score.batches import score_batches
from exhume.store.shards import NullStore
from exhume.victims.gradient import release_batches

NETWORKS = {
    "tanh": TwoLayer((1, 6, 6), 1200, 1, "tanh"),
    "relu": TwoLayer((1, 6, 6), 1200, 1, "relu"),
    "relu, four outputs": TwoLayer((1, 6, 6), 1200, 4, "relu"),
    "tanh, four outputs": TwoLayer((1, 6, 6), 1200, 4, "tanh"),
    "elu, biases": MLP((1, 6, 6), (1200,), 4, "elu"),
    "relu, biases, one output": MLP((1, 6, 6), (1200,), 1, "relu"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_span_attack_is_exact_with_norms_signs_labels_and_batch_size(name, key):
    network = NETWORKS[name]
    batches = unit_batches(2, 4, (1, 6, 6), max(network.outputs, 2), key)
    batches.inputs.mul_(1.5)
    found, secret = attacked(SpanAttack(), network, batches, key)
    scores = score_batches(secret, found)
    metrics = scores.metrics()
    assert metrics["min_cosine"] > 1 - 1e-6
    assert metrics["psnr"] > 60
    assert metrics["batch_size_right"] == metrics["label_accuracy"] == 1
    assert found.status.outcome is Outcome.CONVERGED


def test_signs_need_no_prior_with_three_outputs_and_a_summed_loss(key):
    network = TwoLayer((30,), 1200, 3, "tanh")
    batches = unit_batches(1, 4, (30,), 3, key, positive=False)
    attack = SpanAttack(nonnegative=False, averaged=False)
    found, secret = attacked(attack, network, batches, key, reduction="sum")
    assert score_batches(secret, found).metrics()["min_cosine"] > 1 - 1e-6


def test_more_directions_than_the_fit_is_for_are_refused_at_once(key):
    network = TwoLayer((30,), 300, 1, "tanh")
    batches = unit_batches(1, 4, (30,), 2, key)
    found, _ = attacked(SpanAttack(largest=3), network, batches, key)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert found.status.reason.startswith(
        "dL/dW spans 4 directions; the fit is for at most 3 records"
    )


def test_one_odd_output_cannot_tell_a_record_from_its_negative(key):
    """Not a weakness of the attack: (x, y) and (-x, 1 - y) have the same gradient."""
    network = TwoLayer((30,), 300, 1, "tanh")
    batches = unit_batches(1, 4, (30,), 2, key, positive=False)
    parameters = SpanAttack().query(network, key)
    plain, _ = release_batches(network, parameters, batches)
    batches.inputs.neg_()
    batches.labels.copy_(1 - batches.labels)
    mirrored, _ = release_batches(network, parameters, batches)
    torch.testing.assert_close(plain.values, mirrored.values)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_tensor_attack_from_the_last_layer_alone(activation, key):
    network = TwoLayer((20,), 40_000, 1, activation)
    batches = unit_batches(1, 3, (20,), 2, key, positive=False)
    attack = TensorAttack(nonnegative=False, largest=6)
    found, secret = attacked(attack, network, batches, key)
    scores = score_batches(secret, found, up_to_sign=activation == "tanh")
    assert scores.sizes.tolist() == [3]
    assert float(scores.errors.max()) < 6 * found.observed["expected_error"]
    assert found.observed["expected_error"] == pytest.approx((20 / 40_000) ** 0.5)


def test_tensor_attack_does_not_look_at_the_first_layer(key):
    network = TwoLayer((12,), 20_000, 1, "relu")
    attack = TensorAttack(largest=4)
    release, _ = release_batches(
        network, attack.query(network, key), unit_batches(1, 2, (12,), 2, key)
    )
    prepared = attack.prepare(Knowledge(architecture=network), key=key, store=NullStore())
    before = prepared.run(release).candidates
    release.layout.split(release.values)["fc1.weight"].zero_()
    assert torch.equal(before, prepared.run(release).candidates)


def test_what_linear_and_quadratic_networks_reveal(key):
    batches = unit_batches(1, 3, (20,), 2, key)
    truth = batches.inputs[0].double()
    for attack in (SpanAttack(), TensorAttack(largest=4)):
        network = TwoLayer((20,), 5000, 1, "identity")
        found, _ = attacked(attack, network, batches, key)
        assert found.status.outcome is Outcome.NOT_APPLICABLE
        assert "one linear combination" in found.status.reason
        line = torch.linalg.lstsq(truth.T, found.candidates[0].double().T)
        assert found.candidates.shape[1] == 1
        assert float((truth.T @ line.solution - found.candidates[0].double().T).norm()) < 1e-4
    found, _ = attacked(SpanAttack(), TwoLayer((20,), 5000, 1, "square"), batches, key)
    assert "the span of the records" in found.status.reason
    basis = found.candidates[0].double()
    assert basis.shape == (3, 20)
    torch.testing.assert_close(truth @ basis.T @ basis, truth, rtol=1e-4, atol=1e-4)


def test_features_of_a_deeper_network_and_the_records_behind_them(key):
    network = MLP((16,), (24, 1200), 3, "tanh")
    batches = unit_batches(1, 4, (16,), 3, key)
    attack = SpanAttack(spread=0.5)
    parameters = attack.query(network, key)
    release, _ = release_batches(network, parameters, batches)
    prepared = attack.prepare(Knowledge(architecture=network), key=key, store=NullStore())
    found = prepared.run(release).candidates[0].double()
    wanted = features_below(network, parameters.double())(batches.inputs[0].double())
    near = torch.cdist(wanted, found).argmin(1)
    torch.testing.assert_close(found[near], wanted, rtol=1e-3, atol=1e-4)
    records = decode(network, parameters, found[near], key)
    torch.testing.assert_close(records, batches.inputs[0].double(), rtol=1e-2, atol=1e-3)


def test_queried_parameters(key):
    attack = SpanAttack(spread=0.5)
    assert isinstance(attack, QueryingAttack)
    network = MLP((40,), (2000,), 4, "tanh")
    named = network.layout.split(attack.query(network, key))
    assert float(named["fc1.weight"].std()) == pytest.approx(0.5, rel=0.02)
    assert named["fc2.weight"][:, 0].tolist() == pytest.approx([5e-4, -5e-4, 5e-4, -5e-4])


def test_refusals(key):
    network = TwoLayer((20,), 50, 2, "tanh")
    for attack in (SpanAttack(), TensorAttack()):
        prepare = attack.prepare
        cnn = CNN((1, 6, 6), (2,), (3,), (1,), (4,), 3)
        with pytest.raises(NotApplicable, match="reads TwoLayer and MLP networks, not CNN"):
            prepare(Knowledge(architecture=cnn), key=key, store=NullStore())
        with pytest.raises(NotApplicable, match="no hidden layer"):
            prepare(Knowledge(architecture=MLP((4,), (), 2)), key=key, store=NullStore())
        prepared = prepare(Knowledge(architecture=network), key=key, store=NullStore())
        weights = Weights(torch.zeros(1, network.layout.size), network.layout)
        assert "not weights" in prepared.run(weights).status.reason
        other = TwoLayer((20,), 51, 2, "tanh")
        with pytest.raises(ExhumeError, match="its layout is not that of"):
            prepared.run(Gradient(torch.zeros(1, 9), other.layout, torch.zeros(9)))
        nan = torch.full((1, network.layout.size), torch.nan)
        with pytest.raises(ExhumeError, match="release 0: the gradient holds NaN"):
            prepared.run(Gradient(nan, network.layout, network.initial(key)))
        real = torch.ones(1, network.layout.size)
        status = prepared.run(Gradient(real, network.layout, network.initial(key))).status
        assert status.outcome is Outcome.NOT_APPLICABLE
        assert "weigh the neurons differently" in status.reason


def test_too_few_neurons_are_said_to_be_too_few(key):
    network = TwoLayer((30,), 50, 1, "tanh")
    found, _ = attacked(TensorAttack(), network, unit_batches(1, 8, (30,), 2, key), key)
    assert found.status.outcome is Outcome.NOT_APPLICABLE
    assert "too few neurons" in found.status.reason


@pytest.mark.parametrize("activation", ["relu", pytest.param("tanh", marks=pytest.mark.slow)])
def test_several_outputs_are_decomposed_jointly(activation, key):
    """Each output has noise of its own, so that ten tell more than their combination."""
    batches = unit_batches(1, 3, (16,), 10, key, positive=activation == "tanh")
    network = TwoLayer((16,), 6000, 10, activation)
    release, secret = release_batches(network, TensorAttack().query(network, key), batches)
    noisy = NoiseRelease(1.0, ("fc2",)).protect(release, key)
    known = Knowledge(architecture=network)
    errors = {}
    for jointly in (False, True):
        attack = TensorAttack(jointly=jointly, largest=6, nonnegative=activation == "tanh")
        found = attack.prepare(known, key=key, store=NullStore()).run(noisy)
        errors[jointly] = float(score_batches(secret, found).errors.mean())
        assert int(found.real.sum()) == 3 or not jointly
    assert errors[True] < 0.2
    assert errors[True] < 0.8 * errors[False]


def test_joint_outputs_need_no_pattern_of_outer_weights(key):
    batches = unit_batches(1, 3, (16,), 10, key)
    network = TwoLayer((16,), 8000, 10, "relu")
    named = {
        n: p.clone() for n, p in network.layout.split(TensorAttack().query(network, key)).items()
    }
    drawn = torch.randn(named["fc2.weight"].shape, generator=key.fold("outer").generator())
    release, secret = release_batches(
        network, network.layout.join(named | {"fc2.weight": drawn / 8000}), batches
    )
    known = Knowledge(architecture=network)
    alone = TensorAttack().prepare(known, key=key, store=NullStore()).run(release)
    assert "weigh the neurons differently" in alone.status.reason
    found = TensorAttack(jointly=True).prepare(known, key=key, store=NullStore()).run(release)
    assert float(score_batches(secret, found).errors.max()) < 0.2


def test_weights_that_are_drawn_block_by_block(key):
    """The same rows whenever they are read, in parts and as a whole; the same records as from a tensor."""
    rows = DrawnRows(key, 6000, 16)
    whole = torch.cat(list(blocks(rows)))
    assert whole.shape == rows.shape == (6000, 16)
    assert torch.equal(torch.cat(list(blocks(rows[2048:5000]))), whole[2048:5000])
    with pytest.raises(ExhumeError, match="a part begins at a multiple of 2048, not at 5"):
        rows[5:]
    network = TwoLayer((16,), 6000, 1, "relu")
    records = unit_batches(1, 3, (16,), 2, key).inputs[0]
    outputs = torch.tensor([[0.5, -0.7, 0.4]]) @ torch.relu(records @ whole.T)
    drawn, held = (
        TensorAttack().records_behind(network, each, outputs.double(), key)
        for each in (rows, whole)
    )
    assert torch.allclose(drawn, held, atol=1e-5)
    assert float((drawn @ records.T).max(0).values.min()) > 0.98
    with pytest.raises(NotApplicable, match="stands out from noise"):
        TensorAttack().records_behind(network, rows, torch.ones(1, 6000).double(), key)
