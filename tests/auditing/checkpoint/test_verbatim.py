"""A file of weights with training records in it, as they are: seen, whatever network it belongs to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import exhume


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    from exhume import readers

    ordered = readers.load("digits")  # by who wrote them
    every = ordered[torch.randperm(len(ordered), generator=torch.Generator().manual_seed(0))]
    folder = tmp_path_factory.mktemp("digits")
    names = np.array(every.classes)
    for name, rows in (("trained", slice(0, 60)), ("others", slice(60, 900))):
        some = every[rows]
        np.savez(
            folder / f"{name}.npz", x=some.inputs.numpy(), y=some.labels.numpy(), classes=names
        )
    return folder, every


def audited(folder, tensors, out):
    torch.save(tensors, folder / "net.pt")
    brief = {
        "checkpoint": {
            "file": str(folder / "net.pt"),
            "trained_on": str(folder / "trained.npz"),
            "decoys": str(folder / "others.npz"),
            "restarts": 1,
            "steps": 5,
        },
        "victim": {"released": False},
        "machine": {"threads": 1},
    }
    return exhume.audit(brief, out)


def network(**more):
    torch.manual_seed(0)
    wide = {"fc1.weight": torch.randn(40, 64) / 8, "fc1.bias": torch.zeros(40)}
    return wide | {"fc2.weight": torch.randn(10, 40) / 6, "fc2.bias": torch.zeros(10)} | more


def stored_in(done):
    return next(one for one in done.result.attacks if one.spec.id == "as-stored")


def test_records_in_the_first_layer(digits, tmp_path):
    folder, every = digits
    tensors = network()
    tensors["fc1.weight"][:20] = every.inputs[:20].flatten(1) - 0.5
    done = audited(folder, tensors, tmp_path / "run")
    assert done.verdict.word == "leaks"
    assert stored_in(done).lineup.identified >= 18
    assert stored_in(done).proved >= 18


def test_records_in_an_embedding_of_a_network_that_no_attack_reads(digits, tmp_path):
    folder, every = digits
    table = torch.cat([torch.randn(9, 64), every.inputs[:20].flatten(1)])
    tensors = network(**{"norm.running_mean": torch.zeros(40), "words.weight": table})
    done = audited(folder, tensors, tmp_path / "run")
    assert done.verdict.word == "leaks"
    assert stored_in(done).lineup.identified >= 18


def test_copies_stand_although_the_records_differ_by_themselves(digits, tmp_path):
    """A line-up would show how they were chosen; that their numbers lie there shows more."""
    _, every = digits
    bright = every.inputs[:60] + 0.3
    names = np.array(every.classes)
    (tmp_path / "files").mkdir()
    for name, inputs, labels in (
        ("trained", bright, every.labels[:60]),
        ("others", every.inputs[60:900], every.labels[60:900]),
    ):
        path = tmp_path / "files" / f"{name}.npz"
        np.savez(path, x=inputs.numpy() / 1.3, y=labels.numpy(), classes=names)
    tensors = network()
    tensors["fc1.weight"][:20] = bright[:20].flatten(1)
    done = audited(tmp_path / "files", tensors, tmp_path / "run")
    assert done.verdict.word == "leaks"
    stored = stored_in(done)
    assert stored.lineup.p == 1
    assert stored.proved == 20


def test_a_look_that_sees_nothing_says_nothing(digits, tmp_path):
    folder, _ = digits
    done = audited(folder, network(), tmp_path / "run")
    assert done.verdict.word == "not audited"
    assert stored_in(done).lineup.adjusted > 0.01
