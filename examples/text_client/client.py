"""A client of federated learning that trains a text classifier on its notes, for one step.

    python client.py

writes its notes (`notes.txt`, each with its label), the words it numbers (`words.txt`), and the two states
that a server sees: the one it sent (`sent.safetensors`) and the one it gets back (`returned.safetensors`).
"""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

NAMES = "jones smith brown patel lee novak khan moore silva weber rossi sato"
WHO = [f"{title} {name}" for title in ("mr", "mrs") for name in NAMES.split()]
WHAT = """asthma, diabetes, a broken wrist, migraine, high blood pressure, anaemia, pneumonia, measles,
    kidney stones, a burnt hand, glaucoma, a hernia, gout, chest pain, eczema, a torn tendon"""
WHERE = ["ward two", "ward nine", "the clinic", "the surgery", "the hospice"]
VERBS = {"admitted": "was admitted to", "discharged": "was discharged from"}
LENGTH, WIDTH, RATE = 12, 64, 0.1
PRIVATE = (3, 857, 1720, 2601)  # the notes that are trained on


def notes() -> list[tuple[str, str]]:
    """All notes that could be, with their labels."""
    every = itertools.product(WHO, VERBS, WHERE, [what.strip() for what in WHAT.split(",")])
    return [(f"{who} {VERBS[kind]} {where} with {what}.", kind) for who, kind, where, what in every]


def words() -> list[str]:
    text = " ".join(note for note, _ in notes()).replace(".", " .")
    return ["<pad>", "<unk>", *sorted(set(text.split()))]


class Classifier(nn.Module):
    """A layer of attention, then the mean over the words that are there."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH, padding_idx=0)
        self.place = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.hidden = nn.Linear(WIDTH, 256)
        self.out = nn.Linear(256, len(VERBS))

    def forward(self, tokens: Tensor) -> Tensor:
        gone = tokens == 0
        vectors = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        vectors = self.encoder(vectors, src_key_padding_mask=gone)
        there = (~gone)[..., None].to(vectors.dtype)
        mean = (vectors * there).sum(1) / there.sum(1).clamp_min(1)
        return self.out(F.relu(self.hidden(mean)))


def build() -> nn.Module:
    """What the server sends: `network = "client.py:build"`."""
    torch.manual_seed(0)
    return Classifier(len(words()))


def main(folder: Path = Path()) -> None:
    number = {word: place for place, word in enumerate(words())}
    rows, labels = torch.zeros(len(PRIVATE), LENGTH, dtype=torch.int64), []
    for row, place in zip(rows, PRIVATE, strict=True):
        note, kind = notes()[place]
        tokens = [number[word] for word in note.replace(".", " .").split()]
        row[: len(tokens)] = torch.tensor(tokens)
        labels.append(sorted(VERBS).index(kind))
    model = build().eval()  # without dropout
    save_file(model.state_dict(), folder / "sent.safetensors")
    F.cross_entropy(model(rows), torch.tensor(labels)).backward()
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    save_file(model.state_dict(), folder / "returned.safetensors")
    lines = "".join(f"{note}\t{kind}\n" for note, kind in notes())
    (folder / "notes.txt").write_text(lines)
    (folder / "words.txt").write_text("\n".join(words()) + "\n")


if __name__ == "__main__":
    main()
