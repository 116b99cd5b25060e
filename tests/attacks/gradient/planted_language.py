"""Small language models, and updates with planted texts."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from exhume.core.contract import Gradient, Key, Knowledge, Records
from exhume.core.own_code import seeded_globals
from exhume.models.own_texts import LanguageModel
from exhume.store.shards import NullStore
from exhume.victims.gradient import release_batches

WORDS, PLACES, WIDTH = 120, 8, 48
MASK = WORDS - 1


class Plain(nn.Module):
    """A user's own: sinusoidal positions, separate queries, keys and values, outputs tied by a product."""

    def __init__(self, *, causal: bool = True, width: int = WIDTH, layers: int = 2) -> None:
        super().__init__()
        self.token, self.causal = nn.Embedding(WORDS, width), causal
        nn.init.normal_(self.token.weight, std=0.02)
        each = torch.arange(PLACES)[:, None] / 100 ** (torch.arange(width // 2) / width * 2)
        self.register_buffer("places", 0.02 * torch.cat([each.sin(), each.cos()], 1))
        self.mixes = nn.ModuleList(
            nn.ModuleDict({n: nn.Linear(width, width) for n in ("query", "key", "value", "up")})
            for _ in range(layers)
        )

    def forward(self, tokens):
        x = self.token(tokens) + self.places[: tokens.shape[1]]
        for mix in self.mixes:
            seen = F.layer_norm(x, x.shape[-1:])
            q, k, v = (mix[name](seen) for name in ("query", "key", "value"))
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            x = x + torch.tanh(mix["up"](F.layer_norm(x, x.shape[-1:])))
        return F.layer_norm(x, x.shape[-1:]) @ self.token.weight.T / math.sqrt(x.shape[-1])


def hugging_face(kind: str, *, tied: bool = True) -> nn.Module:
    """With random weights: nothing is fetched."""
    library = pytest.importorskip("transformers", reason="pip install 'exhume[transformers]'")
    ends = {"bos_token_id": 1, "eos_token_id": 1, "tie_word_embeddings": tied}
    if kind == "gpt":
        sizes = {"n_positions": PLACES, "n_embd": WIDTH, "n_layer": 2, "n_head": 2}
        return library.GPT2LMHeadModel(library.GPT2Config(vocab_size=WORDS, **sizes, **ends))
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": PLACES,
    }
    if kind == "bert":
        return library.BertForMaskedLM(library.BertConfig(vocab_size=WORDS, **sizes))
    more = {"num_key_value_heads": 1}  # queries share keys and values
    return library.LlamaForCausalLM(library.LlamaConfig(vocab_size=WORDS, **sizes, **more, **ends))


def language_model(module: nn.Module, loss: str = "next-token", padding=None) -> LanguageModel:
    return LanguageModel.of(module, PLACES, padding, loss, MASK if loss == "masked" else None)


def seeded(make, seed: int = 0):
    with seeded_globals(Key.from_seed(seed)):
        return make()


def texts(count: int, seed: int = 0, shortest: int = PLACES):
    """Frequent words more often; 0 is padding, and never a word."""
    generator = Key.from_seed(seed).fold("texts").generator()
    shares = (1 / torch.arange(1, MASK).float()).expand(count, -1)
    words = 1 + torch.multinomial(shares, PLACES, replacement=True, generator=generator)
    lengths = torch.randint(shortest, PLACES + 1, (count, 1), generator=generator)
    return words.masked_fill(torch.arange(PLACES) >= lengths, 0)


def update(net: LanguageModel, records) -> Gradient:
    labels = torch.zeros(1, len(records), dtype=torch.int64)
    batch = Records(records[None], labels, ("text",))
    return release_batches(net, net.initial(Key.from_seed(0)), batch)[0]


def attacked(attack, net, release):
    known = Knowledge(architecture=net)
    return attack.prepare(known, key=Key.from_seed(0), store=NullStore()).run(release)


def as_set(rows) -> set[tuple[int, ...]]:
    return {tuple(row) for row in rows.long().tolist()}
