"""What Opacus did while the owner's function ran, read from its engine; or why there is no certificate."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from exhume.core.contract import NotApplicable
from exhume.train.dp import ClaimedPrivacy, Privacy, read_from_opacus

opacus = pytest.importorskip(
    "opacus", reason="opacus is not installed: pip install 'exhume[opacus]'"
)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def trains(batch=4, epochs=2, change=None, make="make_private", **options):
    """A function as an owner would write it: 12 records, DP-SGD by Opacus."""
    given = {"noise_multiplier": 0.7, "max_grad_norm": 1.5, **options}
    given |= {"epochs": epochs} if make != "make_private" else {}
    given = {name: value for name, value in given.items() if value is not None}

    def train() -> None:
        torch.manual_seed(0)
        everybody = TensorDataset(torch.rand(12, 3), torch.arange(12) % 2)
        model = nn.Linear(3, 2)
        engine = opacus.PrivacyEngine(accountant="rdp")
        private, optimiser, loader = getattr(engine, make)(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(everybody, batch),
            **given,
        )
        for epoch in range(epochs):
            if change is not None and epoch:
                change(optimiser)
            for inputs, labels in loader:
                optimiser.zero_grad()
                F.cross_entropy(private(inputs), labels).backward()
                optimiser.step()

    return train


def test_what_was_done_is_read():
    made = opacus.PrivacyEngine.make_private
    assert read_from_opacus(trains()) == ClaimedPrivacy(Privacy(1.5, 0.7, 1 / 3), 6, "Opacus")
    assert read_from_opacus(trains(batch=12, epochs=5)) == ClaimedPrivacy(
        Privacy(1.5, 0.7), 5, "Opacus"
    )
    assert opacus.PrivacyEngine.make_private is made  # as it was
    assert str(read_from_opacus(trains(batch=12))).endswith(
        "noise multiplier 0.7, 2 steps, by Opacus"
    )


def test_an_epsilon_may_be_the_owners_choice():
    asked = {"target_epsilon": 5.0, "target_delta": 1e-5, "noise_multiplier": None}
    read = read_from_opacus(trains(make="make_private_with_epsilon", **asked))
    assert (read.steps, read.privacy.sampling) == (6, pytest.approx(1 / 3))
    assert 0.5 < read.privacy.noise < 5


def test_without_opacus_nothing_is_read():
    assert read_from_opacus(lambda: None) is None


def louder(optimiser) -> None:
    optimiser.noise_multiplier = 2.0


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (trains(epochs=0), "no private step was taken"),
        (trains(noise_multiplier=0.0), "noise multiplier 0; without noise nothing is guaranteed"),
        (trains(change=louder), r"noise or sampling rate changed while it trained \(2 of them\)"),
        (trains(poisson_sampling=False), "not drawn by Poisson sampling, so that a rate of 0.33"),
        (trains(clipping="per_layer", max_grad_norm=[1.0, 1.0]), "only flat clipping to one norm"),
        (lambda: (trains()(), trains()()), "2 private trainings in one are not certified so far"),
    ],
    ids=["no step", "no noise", "changing noise", "shuffled", "per layer", "twice"],
)
def test_what_has_no_certificate(train, why):
    with pytest.raises(NotApplicable, match=why):
        read_from_opacus(train)
