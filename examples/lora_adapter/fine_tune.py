"""A base model, and a LoRA adapter of it: one step of SGD on one private digit, saved as PEFT saves it."""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from exhume import readers

RANK = int(os.environ.get("RANK", "8"))
ALPHA, RATE = 16, 0.1
PRIVATE = [5]  # the row of the private digit; the base was trained on rows from 200 on


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def pretrained(digits) -> nn.Module:
    torch.manual_seed(0)
    model = build()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(300):
        rows = torch.randint(200, 1700, (64,))
        optimiser.zero_grad()
        F.cross_entropy(model(digits.inputs[rows]), digits.labels[rows]).backward()
        optimiser.step()
    return model


def adapter_of(base: nn.Module, inputs, labels) -> dict:
    """W = W_0 + alpha / rank · B A in both layers, after one step."""
    layers = {"1": base[1], "3": base[3]}
    first = {n: torch.randn(RANK, m.in_features) / m.in_features**0.5 for n, m in layers.items()}
    second = {n: torch.zeros(m.out_features, RANK) for n, m in layers.items()}
    for matrix in (*first.values(), *second.values()):
        matrix.requires_grad_()
    weights = {n: m.weight + ALPHA / RANK * second[n] @ first[n] for n, m in layers.items()}
    hidden = F.relu(F.linear(inputs.flatten(1), weights["1"], base[1].bias))
    F.cross_entropy(F.linear(hidden, weights["3"], base[3].bias), labels).backward()
    named = {"lora_A": first, "lora_B": second}
    return {
        f"base_model.model.{layer}.{kind}.weight": (t - RATE * t.grad).detach()
        for kind, matrices in named.items()
        for layer, t in matrices.items()
    }


if __name__ == "__main__":
    digits = readers.load("digits")
    base = pretrained(digits)
    save_file(dict(base.state_dict()), "base.safetensors")
    adapter = adapter_of(base, digits.inputs[PRIVATE], digits.labels[PRIVATE])
    save_file(adapter, "adapter_model.safetensors")
    with open("adapter_config.json", "w") as file:
        json.dump({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}, file)
