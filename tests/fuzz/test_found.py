"""What the fuzzing found, each as small as it gets, with the sentence that it ends in now."""

from __future__ import annotations

import struct
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from exhume.core.contract import ExhumeError, Layout
from exhume.readers.payload import payload_from_named, payload_from_states
from exhume.readers.tensors import read_tensors

NET = nn.Linear(2, 3)
STATE = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}


def test_a_payload_whose_header_is_broken(tmp_path):
    path = tmp_path / "update.safetensors"
    path.write_bytes(struct.pack("<Q", 4) + b"[1, ")
    with pytest.raises(
        ExhumeError, match="payload: .* is truncated, damaged or not a file of weig"
    ):
        payload_from_named(read_tensors(path, "payload")[0], NET)


def test_states_of_other_types_or_shapes():
    with pytest.raises(ExhumeError, match="payload: bias holds bool values, not floating-point"):
        payload_from_states({**STATE, "bias": torch.zeros(3).bool()}, STATE, NET, 0.1)
    with pytest.raises(ExhumeError, match=r"has weight \(2, 3\), the model wants weight \(3, 2\)"):
        payload_from_states(STATE, {**STATE, "weight": torch.zeros(2, 3)}, NET, 0.1)


def test_a_gradient_with_one_more_axis_here_and_there():
    with pytest.raises(ExhumeError, match=r"has bias \(1, 3\), the model wants bias \(3,\)"):
        payload_from_named({**STATE, "bias": torch.zeros(1, 3)}, NET)
    with pytest.raises(ExhumeError, match=r"parameter bias: shape \(1, 3\) given, \(3,\) expected"):
        Layout.of(NET).join({**STATE, "bias": torch.zeros(1, 3)})
    several = {name: tensor.expand(4, *tensor.shape) for name, tensor in STATE.items()}
    assert Layout.of(NET).join(several).shape == (4, 9)  # as long as all have it


def test_endless_names_and_complex_numbers(tmp_path):
    path = tmp_path / "net.safetensors"
    save_file({"w" * 5000: torch.zeros(2)}, path)
    with pytest.raises(ExhumeError, match=r"a tensor's name has 5000 characters \(w{40}\.\.\.\)"):
        read_tensors(path)
    save_file({"w": torch.zeros(2, dtype=torch.complex64)}, path)
    with pytest.raises(ExhumeError, match="checkpoint: w holds complex numbers, which no attack"):
        read_tensors(path)


def test_an_archive_of_a_later_version(tmp_path):
    path = tmp_path / "net.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data.pkl", b"x")
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02")
    content[place + 6] = 98  # needs version 9.8 to extract
    path.write_bytes(content)
    with pytest.raises(ExhumeError, match="is truncated, damaged or not a file of weights"):
        read_tensors(path)
