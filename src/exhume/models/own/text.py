"""Somebody else's text classifier: which layer takes the tokens, and what the layers behind it see.

Found out by running it on drawn tokens, not by reading its code:
- the embedding is the `nn.Embedding` (or `nn.EmbeddingBag`) that is given the tokens themselves
- the head is the first fully connected layer that sees one vector a record
- local layers see one vector a place, which depends on that place's token alone
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exhume.core.contract import ExhumeError, Key, Layout
from exhume.models.probes import before, change_inputs, inputs_of

__all__ = [
    "Call",
    "TextModel",
    "called",
    "drawn_tokens",
    "embedding_of",
    "takes_tokens",
    "whole_numbers",
]

_RECORDS = 3  # of a probe
_SAME = 1e-4  # relative: fp32 outputs of the same function
_PROBE = Key.from_seed(0).fold("text probe")


@dataclass(frozen=True, eq=False)
class TextModel:
    """A module at its present weights, without dropout. Records are (length,) token numbers.

    A token number may come as a float, like any record's numbers. The layout has what is trained; what is
    frozen is known.
    """

    module: nn.Module
    length: int
    vocabulary: int  # rows of the embedding
    padding: int | None
    embedding: str  # the name of its weight
    head: str  # the name of a fully connected layer; empty: there is none that has a bias
    local: tuple[str, ...]  # names of weights; all of them see the same vectors

    @staticmethod
    def of(module: nn.Module, length: int, padding: int | None = None) -> TextModel:
        """Raises `ExhumeError` where the module takes no tokens, or not so many.

        padding: None: as the embedding says, if it does.
        """
        own = copy.deepcopy(module).eval()
        change_inputs(own, as_numbers)
        embedding = embedding_of(own, length)
        if embedding is None:
            raise ExhumeError(
                "model: it takes no token sequences: no nn.Embedding of it is given its inputs"
            )
        name, rows, usual = embedding
        padding = usual if padding is None else padding
        if padding is not None and padding >= rows:
            raise ExhumeError(f"padding: {padding} given, the model's embedding has {rows} rows")
        drawn = drawn_tokens((_RECORDS, length), rows, padding, _PROBE)
        outputs, calls = called(own, drawn)
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != _RECORDS:
            found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ExhumeError(
                f"model: for {_RECORDS} sequences it must return ({_RECORDS}, classes) numbers, it "
                f"returns {found}; a model that writes text needs --loss next-token or masked"
            )
        weight = f"{name}.weight" if name else "weight"
        return TextModel(
            own, length, rows, padding, weight, _head(calls), _local(own, calls, drawn)
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.length,)

    @cached_property
    def layout(self) -> Layout:
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        return Layout(tuple(n for n, _ in named), tuple(tuple(p.shape) for _, p in named))

    def initial(self, key: Key) -> Tensor:
        """(p,) the module's present parameters, whatever the key."""
        own = dict(self.module.named_parameters())
        return self.layout.join({name: own[name].detach() for name in self.layout.names})

    def trained(self, flat: Tensor) -> Tensor:
        """(..., all parameters of the module) to (..., p): those of the layout."""
        named = Layout.of(self.module).split(flat)
        return self.layout.join({name: named[name] for name in self.layout.names})

    def build(self) -> nn.Module:
        return copy.deepcopy(self.module)

    def table(self, at: Tensor) -> Tensor:
        """(v, e) the embedding at these parameters (p,)."""
        known = self.module.get_parameter(self.embedding).detach()
        return self.layout.split(at).get(self.embedding, known)

    def features(self, at: Tensor, tokens: Tensor) -> Tensor:
        """(n, l) to (n, d): what enters the head."""
        return self._seen(at, tokens, self.head)

    def vectors(self, at: Tensor, tokens: Sequence[int]) -> Tensor:
        """(a,) tokens to (l, a, e): what local layers see of each at every place."""
        same = torch.tensor(tokens)[:, None].expand(-1, self.length)
        layer = self.local[0].rpartition(".")[0]
        return self._seen(at, same, layer).transpose(0, 1)

    def _seen(self, at: Tensor, tokens: Tensor, layer: str) -> Tensor:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # clients train on the other path
        try:
            with torch.no_grad(), inputs_of(self.module, layer) as found:
                functional_call(self.module, self.layout.split(at), (tokens,))
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
        return found[0]

    def __str__(self) -> str:
        return (
            f"{type(self.module).__name__} with {self.layout.size:,} parameters, for {self.length} "
            f"tokens of {self.vocabulary:,}"
        )


def takes_tokens(module: nn.Module, length: int) -> bool:
    """Whether an embedding of it is given its inputs."""
    if not any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in module.modules()):
        return False
    try:
        return embedding_of(copy.deepcopy(module).eval(), length) is not None
    except ExhumeError:
        return False


def whole_numbers(module: nn.Module) -> nn.Module:
    """The module itself; from now on its embeddings take tokens that come as floats, like any other input."""
    for layer in module.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            change_inputs(layer, as_numbers)
    return module


# By running it


def as_numbers(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Token numbers as they are, whatever type they come in."""
    return (args[0].long(), *args[1:]), kwargs


@dataclass(frozen=True, eq=False)
class Call:
    """What a layer was given."""

    name: str
    layer: nn.Module
    seen: Tensor


def called(module: nn.Module, tokens: Tensor) -> tuple[Any, list[Call]]:
    """The outputs, and what every layer was given, in the order of use."""
    calls: list[Call] = []

    def note(name: str, seen: Any) -> None:
        if isinstance(seen, Tensor):
            calls.append(Call(name, module.get_submodule(name), seen.detach()))

    layers = [name for name, _ in module.named_modules() if name or not list(module.children())]
    try:
        with before(module, layers, note):
            outputs = module(tokens)  # with gradients: the fast path of transformers has no hooks
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ExhumeError(
            f"model: it does not take sequences of {tokens.shape[1]} tokens: {first}"
        ) from error
    return outputs, calls


def embedding_of(module: nn.Module, length: int) -> tuple[str, int, int | None] | None:
    """The embedding of tokens: its name, rows and padding. Small numbers, so that any table has them."""
    tokens = torch.randint(2, (_RECORDS, length), generator=_PROBE.generator())
    _, calls = called(module, tokens)
    for call in calls:
        if isinstance(call.layer, nn.Embedding | nn.EmbeddingBag) and torch.equal(
            call.seen.long(), tokens
        ):
            return call.name, call.layer.num_embeddings, call.layer.padding_idx
    return None


def drawn_tokens(shape: tuple[int, int], vocabulary: int, padding: int | None, key: Key) -> Tensor:
    """(n, l) tokens that are no padding."""
    tokens = torch.randint(vocabulary, shape, generator=key.generator())
    if padding is None or vocabulary == 1:
        return tokens
    return torch.where(tokens == padding, (tokens + 1) % vocabulary, tokens)


def _head(calls: Sequence[Call]) -> str:
    names = [call.name for call in calls]
    for call in calls:
        linear = isinstance(call.layer, nn.Linear) and _trained(call.layer, "weight", "bias")
        if linear and call.seen.ndim == 2 and names.count(call.name) == 1:
            return call.name
    return ""


def _local(module: nn.Module, calls: Sequence[Call], tokens: Tensor) -> tuple[str, ...]:
    """Weights of the first layers that see the places one by one, and see the same."""
    other = (tokens + 1) % (int(tokens.max()) + 1)
    mixed = torch.where(torch.arange(tokens.shape[1]) % 2 == 0, tokens, other)
    again = called(module, mixed)[1]
    found: list[tuple[Call, str]] = []
    if len(again) != len(calls):
        return ()
    for call, twin in zip(calls, again, strict=True):
        weight = _weight(call)
        if not weight or call.seen.ndim != 3 or call.seen.shape[:2] != tokens.shape:
            continue
        here, there = call.seen[:, ::2], twin.seen[:, ::2]
        same = _alike(here, there)
        if same and (not found or _alike(found[0][0].seen, call.seen)):
            found.append((call, f"{call.name}.{weight}"))
    return tuple(dict.fromkeys(name for _, name in found))


def _weight(call: Call) -> str:
    attention = isinstance(call.layer, nn.MultiheadAttention)
    name = "in_proj_weight" if attention else "weight"
    known = attention or isinstance(call.layer, nn.Linear)
    return name if known and _trained(call.layer, name) else ""


def _trained(layer: nn.Module, *names: str) -> bool:
    own = dict(layer.named_parameters(recurse=False))
    return all(name in own and own[name].requires_grad for name in names)


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and float((one - other).norm()) <= _SAME * float(one.norm())
