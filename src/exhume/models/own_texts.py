"""Somebody else's text classifier: which layer takes the tokens, and what the layers behind it see.

Found out by running it on drawn tokens, not by reading its code:
- the embedding is the `nn.Embedding` (or `nn.EmbeddingBag`) that is given the tokens themselves
- the head is the first fully connected layer that sees one vector a record
- local layers see one vector a place, which depends on that place's token alone
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from exhume.core.contract import ExhumeError, Key, Layout
from exhume.models.probes import after, before, change_inputs, change_outputs, inputs_of

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
        weight, rows, padding = _embedding(own, length, padding)
        drawn = drawn_tokens((_RECORDS, length), rows, padding, _PROBE)
        outputs, calls = called(own, drawn)
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != _RECORDS:
            found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ExhumeError(
                f"model: for {_RECORDS} sequences it must return ({_RECORDS}, classes) numbers, it "
                f"returns {found}; a model that writes text needs --loss next-token or masked"
            )
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
        with _as_trained(), inputs_of(self.module, layer) as seen:
            functional_call(self.module, self.layout.split(at), (tokens,))
        return seen[0]

    def __str__(self) -> str:
        return (
            f"{type(self.module).__name__} with {self.layout.size:,} parameters, for {self.length} "
            f"tokens of {self.vocabulary:,}"
        )


@contextmanager
def _as_trained() -> Iterator[None]:
    """No gradients, and yet attention on the path on which clients train: the fast one rounds otherwise."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


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


def _embedding(module: nn.Module, length: int, padding: int | None) -> tuple[str, int, int | None]:
    """The name of the embedding's weight, its rows, and the padding: as given, or as the embedding says."""
    embedding = embedding_of(module, length)
    if embedding is None:
        raise ExhumeError(
            "model: it takes no token sequences: no nn.Embedding of it is given its inputs"
        )
    name, rows, usual = embedding
    padding = usual if padding is None else padding
    _check_row("padding", padding, rows)
    return f"{name}.weight" if name else "weight", rows, padding


def _check_row(what: str, number: int | None, rows: int) -> None:
    if number is not None and number >= rows:
        raise ExhumeError(f"{what}: {number} given, the model's embedding has {rows} rows")


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
    alike_layers: list[tuple[Call, str]] = []
    if len(again) != len(calls):
        return ()
    for call, twin in zip(calls, again, strict=True):
        weight = _weight(call)
        if not weight or call.seen.ndim != 3 or call.seen.shape[:2] != tokens.shape:
            continue
        here, there = call.seen[:, ::2], twin.seen[:, ::2]
        same = _alike(here, there)
        if same and (not alike_layers or _alike(alike_layers[0][0].seen, call.seen)):
            alike_layers.append((call, f"{call.name}.{weight}"))
    return tuple(dict.fromkeys(name for _, name in alike_layers))


def _weight(call: Call) -> str:
    attention = isinstance(call.layer, nn.MultiheadAttention)
    name = "in_proj_weight" if attention else "weight"
    known = attention or isinstance(call.layer, nn.Linear)
    return name if known and _trained(call.layer, name) else ""


def _trained(layer: nn.Module, *names: str) -> bool:
    own = dict(layer.named_parameters(recurse=False))
    return all(name in own and own[name].requires_grad for name in names)


LOSSES = ("next-token", "masked")
NO_TARGET = -100  # a place that the loss leaves out
_LANGUAGE_PROBE = Key.from_seed(0).fold("language probe")


@dataclass(frozen=True)
class Site:
    """A vector a place, and the weights of the trained layers that see it."""

    layer: str  # the first of these layers
    weights: tuple[tuple[str, bool], ...]  # name in the layout; True: inputs are its rows
    local: bool

    def slopes(self, parts: Mapping[str, Tensor]) -> list[Tensor]:
        """The gradients by these weights, each (m, d): rows are sums of the vectors."""
        return [parts[name].T if turned else parts[name] for name, turned in self.weights]


@dataclass(frozen=True, eq=False)
class LanguageModel(TextModel):
    """A module at its present weights, without dropout, and the loss it is trained with.

    next-token: every place is asked for the token that follows; padding is not asked for.
    masked: a number v + y stands for a hidden token y: the model is fed `mask` there, and asked for y.
    """

    loss: str = "next-token"
    mask: int | None = None
    causal: bool = True  # a place sees no later one
    sites: tuple[Site, ...] = ()  # in the order of use
    output: str = ""  # the weight with a row a token that gives the outputs; empty: none is trained

    @staticmethod
    def of(
        module: nn.Module,
        length: int,
        padding: int | None = None,
        loss: str = "next-token",
        mask: int | None = None,
    ) -> LanguageModel:
        """Raises `ExhumeError` where the module takes no tokens, or gives no row of numbers a place."""
        if loss not in LOSSES:
            raise ExhumeError(f"loss: {loss!r} is not one of {', '.join(LOSSES)}")
        if length < 2:
            raise ExhumeError(
                f"length: a language model's text has at least 2 tokens, not {length}"
            )
        own = copy.deepcopy(module).eval()
        plainly = change_inputs(own, as_numbers)
        change_outputs(own, _logits)
        weight, rows, padding = _embedding(own, length, padding)
        _check_row("mask", mask, rows)
        if loss == "masked" and mask is None:
            raise ExhumeError(
                "mask: a masked loss needs the number that hides a token; name [MASK] or <mask> in the "
                "vocabulary, or give --mask"
            )
        plainly.remove()
        change_inputs(own, _Fed(rows, mask, padding, _taken(own)), first=True)
        net = LanguageModel(own, length, rows, padding, weight, "", (), loss, mask)
        return net._probed()

    def _probed(self) -> LanguageModel:
        """What its layers see, by running it on drawn tokens."""
        shape = (_RECORDS, self.length)
        drawn = drawn_tokens(shape, self.vocabulary, self.padding, _LANGUAGE_PROBE)
        outputs, _ = called(self.module, drawn)
        wanted = (*shape, self.vocabulary)
        if not isinstance(outputs, Tensor) or outputs.ndim != 3 or outputs.shape[:2] != shape:
            found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ExhumeError(
                f"model: with a {self.loss} loss it must return {wanted} numbers for {_RECORDS} texts, it "
                f"returns {found}"
            )
        if outputs.shape[2] < self.vocabulary:
            raise ExhumeError(
                f"model: it takes {self.vocabulary} tokens and answers with {outputs.shape[2]}"
            )
        other = drawn.clone()
        other[:, -1] = (other[:, -1] + 1) % self.vocabulary
        causal = _alike(outputs[:, :-1], self.module(other)[:, :-1])
        if self.loss == "next-token" and not causal:
            raise ExhumeError(
                "loss: next-token given, but the model's answers depend on later tokens; say --loss masked"
            )
        return LanguageModel(
            *(self.module, self.length, self.vocabulary, self.padding, self.embedding, "", ()),
            *(self.loss, self.mask, causal),
            _sites(self, drawn),
            _output(self, drawn),
        )

    # The loss

    def targets(self, tokens: Tensor) -> Tensor:
        """(n, l) records to (n, l) tokens that each place is asked for, or `NO_TARGET`."""
        tokens = tokens.long()
        if self.loss == "masked":
            return torch.where(tokens >= self.vocabulary, tokens - self.vocabulary, NO_TARGET)
        after = torch.full_like(tokens, NO_TARGET)
        after[:, :-1] = tokens[:, 1:]
        if self.padding is not None:
            after = after.masked_fill(after == self.padding, NO_TARGET)
        return after

    def batch_loss(self, outputs: Tensor, tokens: Tensor, reduction: str = "mean") -> Tensor:
        """() cross-entropy over all places that are asked for a token."""
        targets = self.targets(tokens)
        if not bool((targets != NO_TARGET).any()):
            raise ExhumeError(f"loss: no place of these texts has a target of a {self.loss} loss")
        flat = outputs.flatten(0, 1)
        return F.cross_entropy(flat, targets.flatten(), reduction=reduction, ignore_index=NO_TARGET)

    def fed(self, tokens: Tensor) -> Tensor:
        """(n, l) as the model sees them: hidden tokens are masks."""
        if self.mask is None:
            return tokens.long()
        return torch.where(tokens.long() >= self.vocabulary, self.mask, tokens.long())

    def masked(self, tokens: Tensor, key: Key, share: float = 0.15) -> Tensor:
        """(n, l) texts with some tokens hidden, at least one each."""
        draws = torch.rand(tokens.shape, generator=key.generator())
        if self.padding is not None:
            draws = draws.masked_fill(tokens == self.padding, 2.0)
        hidden = (draws < share) | (draws == draws.min(1, keepdim=True).values)
        return torch.where(hidden, tokens.long() + self.vocabulary, tokens.long())

    # What its layers see

    def seen(self, at: Tensor, tokens: Tensor, sites: Sequence[Site]) -> list[Tensor]:
        """(n, l) to what each site sees, (n, l, d); what lies behind the last one is not run."""
        vectors: dict[str, Tensor] = {}
        last = sites[-1].layer

        def note(name: str, given: Tensor) -> None:
            vectors[name] = given
            if name == last:
                raise _EnoughError

        layers = [site.layer for site in sites]
        with suppress(_EnoughError), _as_trained(), before(self.module, layers, note):
            functional_call(self.module, self.layout.split(at), (tokens,))
        return [vectors[site.layer] for site in sites]

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.loss} loss"


def writes_text(module: nn.Module, length: int) -> bool:
    """Whether it returns a row of numbers for every place of a sequence of tokens."""
    own = copy.deepcopy(module).eval()
    change_inputs(own, as_numbers)
    change_outputs(own, _logits)
    tokens = torch.zeros(_RECORDS, length, dtype=torch.long)
    try:
        outputs, _ = called(own, tokens)
    except ExhumeError:
        return False
    return isinstance(outputs, Tensor) and outputs.ndim == 3 and outputs.shape[:2] == tokens.shape


# How it is called


class _EnoughError(Exception):
    """Everything that was asked for has been seen."""


@dataclass(frozen=True)
class _Fed:
    """Hidden tokens become masks, and padding is told to a model that wants to know it."""

    vocabulary: int
    mask: int | None
    padding: int | None
    taken: frozenset[str]  # names that its forward takes

    def __call__(self, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        tokens = args[0].long()
        if self.mask is not None:
            tokens = torch.where(tokens >= self.vocabulary, self.mask, tokens)
        more = dict(kwargs)
        if "attention_mask" in self.taken and self.padding is not None:
            more.setdefault("attention_mask", (tokens != self.padding).long())
        if "use_cache" in self.taken:
            more.setdefault("use_cache", False)
        return (tokens, *args[1:]), more


def _taken(module: nn.Module) -> frozenset[str]:
    names = set(inspect.signature(module.forward).parameters)
    return frozenset(names & {"attention_mask", "use_cache"})


def _logits(_: nn.Module, __: Any, outputs: Any) -> Any:
    """The outputs of Hugging Face models have a name."""
    return outputs["logits"] if isinstance(outputs, Mapping) and "logits" in outputs else outputs


# Sites


def _sites(net: LanguageModel, tokens: Tensor) -> tuple[Site, ...]:
    """All that are traced, in the order of use."""
    names = {id(p): n for n, p in net.module.named_parameters() if n in net.layout.names}
    other = (tokens + 1) % net.vocabulary
    mixed = torch.where(torch.arange(tokens.shape[1]) % 2 == 1, tokens, other)
    calls, again = (called(net.module, some)[1] for some in (tokens, mixed))
    traced = _traced(net, tokens)
    found: list[tuple[Tensor, Site]] = []
    if len(calls) != len(again):
        return ()
    for call, twin in zip(calls, again, strict=True):
        if call.seen.ndim != 3 or call.seen.shape[:2] != tokens.shape:
            continue
        weight = _linear_weight(call.layer, call.seen)
        if weight is None or id(weight[0]) not in names or call.name not in traced:
            continue
        if weight[0].shape[int(weight[1])] == net.vocabulary:
            continue  # the outputs
        one = (names[id(weight[0])], weight[1])
        local = _alike(call.seen[:, 1::2], twin.seen[:, 1::2])
        if found and _alike(found[-1][0], call.seen):
            seen, site = found[-1]
            found[-1] = (seen, Site(site.layer, (*site.weights, one), site.local))
        else:
            found.append((call.seen, Site(call.name, (one,), local)))
    return tuple(site for _, site in found)


def _linear_weight(layer: nn.Module, seen: Tensor) -> tuple[nn.Parameter, bool] | None:
    """Its weight, and whether inputs are the rows of it; None: it is no linear layer."""
    own = dict(layer.named_parameters(recurse=False))
    if isinstance(layer, nn.MultiheadAttention):
        both = own.get("in_proj_weight")
        return None if both is None else (both, False)
    weight = own.get("weight")
    if weight is None or weight.ndim != 2 or isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return None
    with torch.no_grad():
        given = layer(seen)
        bias = own.get("bias", torch.zeros(1))
        for turned, matrix in ((False, weight.T), (True, weight)):
            if matrix.shape[0] == seen.shape[2] and _alike(given, seen @ matrix + bias):
                return weight, turned
    return None


def _traced(net: LanguageModel, tokens: Tensor) -> set[str]:
    """Layers whose outputs have a gradient at every place that may be asked for."""
    kept: list[tuple[str, Tensor]] = []

    def note(name: str, _: Any, given: Any) -> None:
        out = given[0] if isinstance(given, tuple) else given
        if isinstance(out, Tensor) and out.requires_grad and out.ndim == 3:
            kept.append((name, out))

    layers = [
        name
        for name, layer in net.module.named_modules()
        if name and (not list(layer.children()) or isinstance(layer, nn.MultiheadAttention))
    ]
    records = (
        tokens if net.loss == "next-token" else net.masked(tokens, _LANGUAGE_PROBE.fold("masks"))
    )
    with after(net.module, layers, note):
        loss = net.batch_loss(net.module(records), records)
    if not kept:
        return set()
    slopes = torch.autograd.grad(loss, [out for _, out in kept], allow_unused=True)
    places = net.length - 1 if net.loss == "next-token" else net.length
    return {
        name
        for (name, _), slope in zip(kept, slopes, strict=True)
        if slope is not None
        and slope.shape[:2] == tokens.shape
        and bool((slope[:, 1:places].abs().sum(2) > 0).all())
    }


def _output(net: LanguageModel, tokens: Tensor) -> str:
    """The weight whose row of a token is what gives that token's output."""
    used = set(tokens.flatten().tolist())
    unused = [v for v in range(net.vocabulary) if v not in used]
    own = {n: p for n, p in net.module.named_parameters() if n in net.layout.names}
    wide = {n: p for n, p in own.items() if p.ndim == 2 and len(p) >= net.vocabulary}
    if len(unused) < 2 or not wide:
        return ""
    one, other = unused[:2]
    logit = net.module(tokens)[0, 0, one]
    slopes = torch.autograd.grad(logit, list(wide.values()), allow_unused=True)
    for name, slope in zip(wide, slopes, strict=True):
        if slope is not None and bool(slope[one].any()) and not bool(slope[other].any()):
            return name
    return ""


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return float((one - other).detach().norm()) <= _SAME * float(one.detach().norm())
