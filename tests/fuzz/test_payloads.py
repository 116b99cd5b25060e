"""4,400 files of weights and updates that are damaged or odd: each is read or refused in one sentence."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest
import torch
from fuzzing import blocks, clean, scrambled
from safetensors.torch import save
from torch import Tensor, nn

from exhume.models.mlp import MLP
from exhume.readers.adapters import BaseReference, weights_in
from exhume.readers.checkpoint import read_checkpoint
from exhume.readers.payload import DeclaredTraining, check_payload, payload_from_named
from exhume.readers.tensors import read_tensors
from exhume.readers.updates import from_gradient, from_states

SHAPE = (1, 4, 4)
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int8, torch.int64, torch.bool, torch.uint8, torch.complex64),
)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))


torch.manual_seed(0)
MODULE = network()
USUAL = {name: tensor.clone() for name, tensor in MODULE.state_dict().items()}


def odd_tensor(tensor: Tensor, chance: random.Random) -> Tensor:
    kind = chance.randrange(8)
    if kind == 0:
        return tensor.to(chance.choice(DTYPES))
    if kind == 1:
        spoilt = tensor.clone().flatten()
        spoilt[chance.randrange(len(spoilt))] = chance.choice((torch.nan, torch.inf, 1e38, -1e38))
        return spoilt.reshape(tensor.shape)
    if kind == 2:
        return torch.zeros([chance.randrange(0, 4) for _ in range(chance.randrange(0, 5))])
    if kind == 3:
        return tensor.new_zeros(tensor.shape)
    if kind == 4:
        return tensor.T.contiguous() if tensor.ndim == 2 else tensor[None]
    if kind == 5:
        return tensor[:1].clone()
    return tensor


def odd_state(chance: random.Random) -> dict[str, Tensor]:
    """Tensors changed, lost, renamed, added; prefixes put before some."""
    state = {}
    for name, tensor in USUAL.items():
        if chance.random() < 0.1:
            continue
        spelt = name
        if chance.random() < 0.15:
            spelt = chance.choice(("module.", "_orig_mod.", "model.", "x.", "", "9" * 5000)) + name
        state[spelt] = odd_tensor(tensor, chance) if chance.random() < 0.4 else tensor
    if chance.random() < 0.2:
        name = chance.choice(
            ("0.running_mean", "1.lora_A.weight", "bias", "weight", "", ".", "1.weight.")
        )
        state[name] = torch.zeros(chance.choice(((5,), (5, 16), (), (2, 2, 2))))
    return state


def run_all(path: Path, other: Path) -> list:
    """Every reader of such a file."""
    module = MODULE

    def checked() -> None:
        payload = payload_from_named(read_tensors(path, "payload")[0], module)
        check_payload(payload, module, DeclaredTraining(batch_size=4), SHAPE)

    def updated() -> None:
        update = from_gradient(path, module)
        check_payload(update.payload, update.module, DeclaredTraining(batch_size=4), SHAPE)

    def against(base: BaseReference) -> None:
        read_checkpoint(path, activation="relu", shape=SHAPE, against=base)

    return [
        lambda: read_tensors(path),
        lambda: read_checkpoint(path, activation="relu", shape=SHAPE),
        checked,
        updated,
        lambda: from_states(other, path, module, rate=0.1),
        lambda: weights_in(path, MLP(SHAPE, (5,), 3)),
        lambda: against(BaseReference(other, "delta")),
        lambda: against(BaseReference(other, scaling=1.0)),
    ]


@pytest.fixture
def sound(room) -> Path:
    path = room / "sound.safetensors"
    path.write_bytes(save(USUAL))
    return path


def each_case(name: str, cases: range, write, path: Path, other: Path) -> list[str | None]:
    """One reader a case, in turn; what they said."""
    said = []
    for case in cases:
        write(random.Random(f"{name} {case}"))
        readers = run_all(path, other)
        said.append(clean(readers[case % len(readers)], case))
    return said


@blocks(150, 2000)
def test_odd_tensors(cases, room, sound):
    path = room / "odd.safetensors"

    def write(chance: random.Random) -> None:
        path.write_bytes(save(odd_state(chance)))

    said = each_case("odd", cases, write, path, sound)
    assert 0.1 < sum(text is None for text in said) / len(cases) < 0.9


@blocks(70, 700)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_damaged_files(suffix, cases, room, sound):
    path = room / f"damaged{suffix}"
    torch.save(USUAL, room / "whole.pt")
    whole = sound.read_bytes() if suffix == ".safetensors" else (room / "whole.pt").read_bytes()

    def write(chance: random.Random) -> None:
        path.write_bytes(scrambled(whole, chance))

    said = each_case(f"damaged{suffix}", cases, write, path, sound)
    assert sum(text is not None for text in said) > 2 / 7 * len(cases)


@blocks(150, 500)
def test_headers_that_lie(cases, room, sound):
    """The JSON before the tensors says other shapes, types and places than there are."""
    path = room / "lying.safetensors"
    whole = sound.read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    odd = (
        -1,
        0,
        10**18,
        2**64,
        1.5,
        "x",
        None,
        [],
        {},
        [2**40, 2**40],
        [-1],
        ["a"],
        "F7",
        "F64",
        "I8",
    )

    def write(chance: random.Random) -> None:
        told = json.loads(json.dumps(header))
        for _ in range(chance.randrange(1, 4)):
            entry = told[chance.choice(list(told))]
            if isinstance(entry, dict):
                entry[chance.choice(("dtype", "shape", "data_offsets", "new"))] = chance.choice(odd)
        text = json.dumps(told).encode()
        length = len(text) if chance.random() < 0.9 else chance.choice((0, 2**63, 2**64 - 1, 3))
        path.write_bytes(struct.pack("<Q", length) + text + whole[8 + size :])

    said = each_case("lying", cases, write, path, sound)
    assert sum(text is not None for text in said) > 0.85 * len(
        cases
    )  # some lies are about what nobody reads


@blocks(70, 500)
def test_containers_of_anything(cases, room, sound):
    """What torch.save takes besides tensors."""
    path = room / "anything.pt"
    parts = (
        None,
        1,
        "x",
        [],
        {},
        [torch.zeros(2)],
        {"state_dict": 3},
        {"model": {"a": "b"}},
        {1: torch.zeros(2)},
    )

    def write(chance: random.Random) -> None:
        content = {str(i): chance.choice(parts) for i in range(chance.randrange(0, 4))}
        if chance.random() < 0.3:
            content[chance.choice(("state_dict", "model", "model_state_dict"))] = odd_state(chance)
        torch.save(content if chance.random() < 0.8 else chance.choice(parts), path)

    each_case("anything", cases, write, path, sound)
