"""A client of federated learning that fine-tunes a small language model on its messages, for one step.

    python client.py

writes its messages (`messages.txt`), the words it numbers (`words.txt`), and the two states that a server sees:
the one it sent (`sent.safetensors`) and the one it gets back (`returned.safetensors`).
"""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

WHO = "anna ben carla david emma felix greta hugo ida jonas".split()
WHAT = """call me about the loan, bring my passport, cancel the flight, pay the rent, feed the cat,
    sign the contract, sell the shares, see the doctor, book the hall, move the meeting"""
WHEN = ["before noon", "on monday", "tonight", "next week", "as soon as you can", "by friday"]
PLACES, WIDTH, HEADS, RATE = 16, 96, 4, 0.1
PRIVATE = (7, 123, 301, 452)  # the messages that are trained on


def messages() -> list[str]:
    """All messages that could be."""
    every = itertools.product(WHO, [what.strip() for what in WHAT.split(",")], WHEN)
    return [f"{who}, please {what} {when}." for who, what, when in every]


def words() -> list[str]:
    text = " ".join(messages()).replace(".", " .").replace(",", " ,")
    return ["<pad>", "<unk>", *sorted(set(text.split()))]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.second, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.view(n, length, HEADS, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Writer(nn.Module):
    """Like GPT-2: learned positions, norms first, the embedding is the output weight, too."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(3)), nn.LayerNorm(WIDTH)
        for table in (self.token, self.place):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.token.weight.T


def build() -> nn.Module:
    """What the server sends: `model = "client.py:build"`."""
    torch.manual_seed(0)
    return Writer(len(words()))


def main(folder: Path = Path()) -> None:
    number = {word: place for place, word in enumerate(words())}
    rows = torch.zeros(len(PRIVATE), PLACES, dtype=torch.int64)
    for row, place in zip(rows, PRIVATE, strict=True):
        text = messages()[place].replace(".", " .").replace(",", " ,")
        tokens = [number[word] for word in text.split()]
        row[: len(tokens)] = torch.tensor(tokens)
    model = build()
    save_file(model.state_dict(), folder / "sent.safetensors")
    answers = model(rows)[:, :-1].flatten(0, 1)  # each place is asked for the token that follows
    F.cross_entropy(answers, rows[:, 1:].flatten(), ignore_index=0).backward()
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    save_file(model.state_dict(), folder / "returned.safetensors")
    (folder / "messages.txt").write_text("".join(f"{text}\n" for text in messages()))
    (folder / "words.txt").write_text("\n".join(words()) + "\n")


if __name__ == "__main__":
    main()
