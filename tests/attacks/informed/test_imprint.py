from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from exhume.attacks.informed.closed_form import ClosedForm, find_imprint, fit_imprint
from exhume.attacks.informed.ridge import fit_mapping
from exhume.core.contract import Key, Knowledge, Weights
from exhume.models.cnn import CNN
from exhume.models.mlp import MLP
from exhume.store.shards import NullStore
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

NETWORK = CNN(
    (1, 12, 12), (8, 16), (3, 3), (2, 1), (8,), 3
)  # 144 numbers enter its first dense layer


@pytest.fixture(scope="module")
def trained(make_mixtures):
    key = Key.from_seed(3)
    records = make_mixtures(220, (1, 12, 12), 3, key)
    fixed, shadow = records[:6], records[10:70]
    target, further = records[80:100], records[100:]
    recipe = FullBatch(NETWORK, Descent(steps=30, rate=0.05))
    initial = NETWORK.initial(key)
    base = recipe.fit(initial, fixed, fixed.none_for(1), key)[0]
    fit = lambda extra: recipe.fit(initial, fixed, extra.one_each(), key)  # noqa: E731
    knowledge = Knowledge(
        recipe=recipe, initial=initial, fixed=fixed, shadow=shadow, public=further
    )
    return knowledge, base, fit(shadow), (target, fit(target))


def entering(flat, inputs):
    """The network written out, up to what enters its first dense layer."""
    named = NETWORK.layout.split(flat)
    hidden = F.elu(F.conv2d(inputs, named["conv1.weight"], named["conv1.bias"], 2))
    hidden = F.elu(F.conv2d(hidden, named["conv2.weight"], named["conv2.bias"], 1))
    return hidden.flatten(1).double()


def test_a_planted_imprint_is_read_whatever_the_fixed_records_do(trained, key):
    knowledge, base, _, _ = trained
    fixed = knowledge.fixed
    imprint = find_imprint(NETWORK, knowledge.initial, base, fixed)
    generator = key.generator()
    known = torch.cat([entering(knowledge.initial, fixed.inputs), entering(base, fixed.inputs)])
    record = torch.rand(1, 1, 12, 12, generator=generator)
    scores = torch.tensor([[0.0, 1.0, 0.0]])
    signal = NETWORK.layout.split(base)["fc2.weight"][1] - NETWORK.layout.split(base)[
        "fc2.weight"
    ].mean(0)
    reaction = torch.randn(8, len(known), generator=generator).double() @ known
    change = torch.outer(signal.double(), entering(knowledge.initial, record)[0]) + reaction
    named = {name: t.clone() for name, t in NETWORK.layout.split(base.double()).items()}
    named["fc1.weight"] += change
    planted = NETWORK.layout.join(named)[None]
    expected = entering(knowledge.initial, record)[0]
    basis = torch.linalg.svd(known, full_matrices=False).Vh
    expected = F.normalize(expected - (expected @ basis.T) @ basis, dim=0)
    found = imprint.read(planted, scores)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    assert (
        float(imprint.read(planted, 1 - scores)[0] @ expected) < 0.999
    )  # another label, less sure
    torch.testing.assert_close(imprint.features(record)[0], expected, rtol=0, atol=1e-5)


def test_trained_models_carry_it(trained):
    knowledge, base, _, (target, models) = trained
    imprint = find_imprint(NETWORK, knowledge.initial, base, knowledge.fixed)
    cosine = (
        imprint.read(models, F.one_hot(target.labels, 3)) * imprint.features(target.inputs)
    ).sum(1)
    assert (cosine > 0.5).double().mean() > 0.9


@pytest.mark.parametrize(("shadows", "reads_imprint"), [(36, True), (60, False)])
def test_the_closed_form_takes_the_reading_with_the_smaller_error_on_the_shadows(
    trained, key, shadows, reads_imprint
):
    """Twelve patterns from 12 shadows a label, which are too few for a regression each, or from 20."""
    knowledge, _, _, (target, models) = trained
    knowledge = replace(knowledge, shadow=knowledge.shadow[:shadows])
    per_label = ClosedForm(imprint=False).prepare(knowledge, key=key, store=NullStore())
    both = ClosedForm().prepare(knowledge, key=key, store=NullStore())
    assert per_label.imprint is None
    assert (both.imprint is not None) == reads_imprint
    release = Weights(models, NETWORK.layout)
    found, other = both.run(release), per_label.run(release)
    if reads_imprint:
        assert found.observed["mse_on_shadows"] == both.imprint.regression.held_out_error
        error = (found.candidates[:, 0] - target.inputs).square().mean()
        mean = (knowledge.shadow.inputs.mean(0) - target.inputs).square().mean()
        assert error < 0.5 * mean
    else:
        assert torch.equal(found.candidates, other.candidates)
        assert found.observed == other.observed


def test_wrong_labels_count_in_its_error(trained):
    knowledge, base, shadows, _ = trained
    imprint = find_imprint(NETWORK, knowledge.initial, base, knowledge.fixed)
    right = F.one_hot(knowledge.shadow.labels, 3).double()
    coin = F.one_hot((knowledge.shadow.labels + torch.arange(60)) % 3, 3).double()
    sure, unsure = (
        fit_imprint(imprint, shadows, scores, knowledge.shadow, None).regression.held_out_error
        for scores in (right, coin)
    )
    assert sure < 0.9 * unsure


def test_fixed_records_that_fill_the_layer_leave_no_imprint(make_records, key):
    network = MLP((40,), (5,), 3)
    initial = network.initial(key)
    fits, fills = make_records(10, (40,), 3, key), make_records(11, (40,), 3, key)
    assert find_imprint(network, initial, initial, fits) is not None
    assert find_imprint(network, initial, initial, fills) is None


def test_a_network_without_dense_layers_has_none(make_records, key):
    class Bare:
        layout = NETWORK.layout
        input_shape = (1, 12, 12)

        def initial(self, key):
            return NETWORK.initial(key)

        def build(self):
            return torch.nn.Sequential(torch.nn.Conv2d(1, 3, 12), torch.nn.Flatten())

    flat = NETWORK.initial(key)
    assert find_imprint(Bare(), flat, flat, make_records(3, (1, 12, 12), 3, key)) is None


def test_the_judged_rows_alone_choose_the_penalty(key):
    """Rows that cannot be predicted at all stand behind rows that can."""
    generator = key.generator()
    x = F.normalize(torch.randn(60, 5, generator=generator).double(), dim=1)
    records = 0.5 + 0.1 * x @ torch.randn(5, 4, generator=generator).double()
    records[30:] = torch.rand(30, 4, generator=generator).double()
    judged = fit_mapping(x, records, low=-1.0, high=2.0, judged=30)
    clean = (judged.ridge.held_out[:30] + judged.mean - records[:30]).square().mean()
    assert judged.held_out_error == pytest.approx(float(clean))
    whole = fit_mapping(x, records, low=-1.0, high=2.0)
    assert whole.held_out_error > judged.held_out_error
