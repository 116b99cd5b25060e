"""The owner's network of a split, its cuts, and who holds which records, from the settings of an audit; for
texts also their words, and what the head's architecture does with places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from exhume import readers
from exhume.attacks.split.cipher import FOUND, NO_POSITIONS
from exhume.core.contract import ExhumeError, Key, NotApplicable, Records
from exhume.models.own import module_named
from exhume.models.own_texts import drawn_tokens, embedding_of, whole_numbers
from exhume.models.split.cut import cut, layer_named, mixes, points
from exhume.models.split.inverter import halvings
from exhume.models.split.pipeline import Pipeline, undefended
from exhume.readers.tensors import read_tensors
from exhume.settings import SplitSettings
from exhume.store.shards import digest

_PROBE = Key.from_seed(0).fold("places")
_WORDS = 4  # of a probe
_SAME = 1e-4  # relative


@dataclass(frozen=True)
class TextForm:
    """What the numbers of the texts stand for."""

    vocabulary: int  # rows of the embedding
    padding: int | None
    words: tuple[str, ...]  # by number; empty: not known


def text_form(module: nn.Module, records: Records, settings: SplitSettings) -> TextForm | None:
    """None for records that are no texts; raises `ExhumeError` where texts and network do not fit."""
    if records.vocabulary is None:
        return None
    if not records.vocabulary.given:
        raise ExhumeError(
            "vocabulary: say with --vocabulary how the words of the texts are numbered, as the network has "
            "its own numbers"
        )
    found = embedding_of(module, records.shape[0])
    if found is None:
        raise ExhumeError(
            "model: it takes no token sequences: no nn.Embedding of it is given its inputs"
        )
    _, rows, usual = found
    if int(records.inputs.max()) >= rows:
        odd = int((records.inputs >= rows).any(1).nonzero()[0, 0])
        raise ExhumeError(
            f"data: record {odd} has the token {int(records.inputs[odd].max())}, the model's embedding has "
            f"{rows} rows"
        )
    padding = settings.padding if settings.padding >= 0 else records.vocabulary.padding
    return TextForm(rows, usual if padding is None else padding, records.vocabulary.words)


@torch.no_grad()
def positions_of(head: nn.Module, length: int, vocabulary: int) -> str:
    """What is added to a word's vector at its place: nothing, or something that has to be found out.

    head: of the client's form. Its weights are drawn anew, here: nothing but the architecture is looked at.
    Raises `NotApplicable` where a vector is not its word's but for such a sum.
    """
    draw = _PROBE.fold("weights").generator()
    for weight in head.parameters():
        weight.copy_(torch.randn(weight.shape, generator=draw))
    head.eval()
    text = drawn_tokens((1, length), vocabulary, None, _PROBE).expand(length, -1)
    changed = torch.where(torch.eye(length, dtype=torch.bool), (text + 1) % vocabulary, text)
    apart = (head(changed) - head(text)).norm(dim=2).fill_diagonal_(0)  # but for the changed word
    if float(apart.norm()) > _SAME * float(head(text).norm()):
        raise NotApplicable(
            "what is sent for a word depends on the words around it, so that it is no cipher",
            ever=False,
        )
    words = torch.arange(min(vocabulary, _WORDS))[:, None].expand(-1, length)
    vectors = head(words)  # (w, l, e)
    moved = vectors - vectors[:, :1]
    if float(moved.norm()) <= _SAME * float(vectors.norm()):
        return NO_POSITIONS
    if not _alike(moved, moved[:1].expand_as(moved)):
        raise NotApplicable(
            "a word's position is not only added to its vector, so that a word has no vector of its own",
            ever=False,
        )
    return FOUND


def _alike(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= _SAME * float(one.norm())


_DEPTHS = 3  # tried if none is named
_PROBED = 100  # records by which it is seen whether a head mixes


@dataclass(frozen=True, eq=False)
class LoadedSplit:
    """The owner's network and records, ready to be cut and attacked."""

    module: nn.Module  # eval mode, at its released weights
    parts: readers.RecordsByRole  # fixed: to train a defended one on; public: sent before
    first: tuple[str, ...]  # depths; the first is the one in use
    second: str
    notes: tuple[str, ...]
    text: TextForm | None = None  # None: images

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts.target.shape

    def pipeline(self, first: str) -> Pipeline:
        return undefended(self.module, first, self.second, self.shape)

    def shallower(self) -> tuple[str, ...]:
        """Points before the split in use at which an attack's success says something, shallowest first.

        The network can be cut and attacked there, behind a layer of its own that mixes: what works on the
        input as it is says nothing of what works behind layers.
        """
        legal = points(self.module, self.first[:1])
        before = legal[: legal.index(self.first[0])] if self.first[0] in legal else ()
        find = _readable if self.text else _invertible
        earlier = find(self.module, self.second, self.shape, before)
        return tuple(name for name in earlier if self.mixed(name))

    def mixed(self, first: str) -> bool:
        """Whether what is sent there comes from a layer that mixes; of texts, from one with weights."""
        head = self.pipeline(first).client.head
        if self.text is not None:
            return any(True for _ in head.parameters())
        return mixes(head, self.parts.shadow.inputs[:_PROBED])

    def fingerprint(self) -> str:
        """Digest of the weights and of the function that they are used in."""
        probe = torch.rand(2, *self.shape, generator=Key.from_seed(0).generator())
        if self.text:
            rows = (64, self.shape[0])
            probe = drawn_tokens(rows, self.text.vocabulary, None, Key.from_seed(0)).float()
        with torch.no_grad():
            return digest(self.module(probe).double().round(decimals=4))


@dataclass(frozen=True, eq=False)
class LoadedNetwork:
    """The owner's network with its weights, and the layers that were named for its cuts."""

    module: nn.Module  # eval mode
    first: tuple[str, ...]  # empty: not named
    second: str
    notes: tuple[str, ...]


def read_network(settings: SplitSettings) -> LoadedNetwork:
    """All that can be checked before records are read: the factory, the weights, the names of layers."""
    module = whole_numbers(module_named(settings.model, Key.from_seed(settings.seed)))
    notes: list[str] = []
    if settings.weights:
        notes += _load(module, Path(settings.weights))
    else:
        notes.append("No --weights given: the network is as the factory made it.")
    module.eval().requires_grad_(False)
    legal = points(module)
    if len(legal) < 2:
        raise ExhumeError(
            "model: it has fewer than two points at which it can be cut: nothing but one layer's output may "
            "cross a point (a mask, for instance, has to be made of the vectors, not of the tokens)"
        )
    first = tuple(layer_named(module, name) for name in settings.first)
    second = layer_named(module, settings.second) if settings.second else legal[-1]
    for name in first:
        cut(module, name, second)
    if len(set(first)) < len(first):
        raise ExhumeError(f"first: {', '.join(settings.first)} names a layer twice")
    for given, taken in zip((*settings.first, settings.second), (*first, second), strict=True):
        if given and given != taken:
            notes.append(f"{given!r} is several layers: the cut is behind its last one, {taken!r}.")
    return LoadedNetwork(module, first, second, tuple(notes))


def read_split(
    settings: SplitSettings, records: Records, network: LoadedNetwork | None = None
) -> LoadedSplit:
    """Everything checked before anything is written; raises `ExhumeError` with what does not fit.

    network: where it was read before the records were.
    """
    if len(records.shape) != 3 and records.vocabulary is None:
        raise ExhumeError(
            f"data: records of shape {records.shape}; only images and texts are covered so far"
        )
    key = Key.from_seed(settings.seed)
    network = network or read_network(settings)
    module = network.module
    text = text_form(module, records, settings)
    outputs = _outputs(module, records.shape)
    if outputs < len(records.classes):
        raise ExhumeError(
            f"data: {len(records.classes)} classes, but the network has {outputs} outputs"
        )
    first, second = _cuts(network, records.shape, texts=text is not None)
    parts = readers.split(records, sizes_of(settings, len(records)), key.fold("split"))
    _enough(parts)
    return LoadedSplit(module, parts, first, second, network.notes, text)


def sizes_of(settings: SplitSettings, records: int) -> readers.Sizes:
    """Who gets how many; sizes that were not given are shares of the records."""
    train = 0
    if settings.defend:
        train = settings.train or min(10_000, records * 2 // 5)
    return readers.Sizes(
        fixed=train,
        target=settings.targets or min(100, records // 10),
        shadow=settings.held or min(5_000, records * 3 // 10),
        public=settings.seen or min(1_000, records // 10),
        test=min(2_000, records // 10),
    )


def _load(module: nn.Module, path: Path) -> list[str]:
    state, notes = read_tensors(path, "weights")
    own = {n: tuple(t.shape) for n, t in module.state_dict().items()}
    given = {n: tuple(t.shape) for n, t in state.items()}
    odd = sorted(n for n in {*own, *given} if own.get(n) != given.get(n))
    odd = [n for n in odd if not n.endswith("num_batches_tracked")]
    if odd:
        raise ExhumeError(
            f"weights: {path} does not fit the network: {odd[0]} has shape {given.get(odd[0], 'none')} "
            f"in the file and {own.get(odd[0], 'none')} in the network"
        )
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise ExhumeError(f"weights: {name} holds NaN or infinite values")
    module.load_state_dict(state, strict=False)
    return notes


@torch.no_grad()
def _outputs(module: nn.Module, shape: tuple[int, ...]) -> int:
    try:
        logits = module(torch.zeros(2, *shape))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ExhumeError(
            f"model: it cannot take records of shape {shape} ({str(error).splitlines()[0]})"
        ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        raise ExhumeError(
            "model: its output for n inputs must be (n, classes); of models that write or translate text, "
            "only the study split-text has an audit"
        )
    return int(logits.shape[1])


def _cuts(
    network: LoadedNetwork, shape: tuple[int, ...], *, texts: bool
) -> tuple[tuple[str, ...], str]:
    """Depths and the second point, as given or chosen; every one is tried before anything is trained."""
    module, second = network.module, network.second
    if texts:
        first = network.first or _readable(module, second, shape, points(module))[:_DEPTHS]
        if not first:
            raise ExhumeError("model: no point before the second one sends anything for a text")
        return first, second
    first = network.first or _invertible(module, second, shape, points(module))[:_DEPTHS]
    if not first:
        raise ExhumeError("model: no point before the second one gives maps that halve the images")
    for name in first:
        halvings(shape, cut(module, name, second).feature_shape(shape))
    return first, second


def _invertible(
    module: nn.Module, second: str, shape: tuple[int, ...], legal: Sequence[str]
) -> tuple[str, ...]:
    """Points at which maps leave the client that an inverter can be built for."""
    found = []
    for name in legal:
        try:
            halvings(shape, cut(module, name, second).feature_shape(shape))
        except ExhumeError:
            continue
        found.append(name)
    return tuple(found)


def _readable(
    module: nn.Module, second: str, shape: tuple[int, ...], legal: Sequence[str]
) -> tuple[str, ...]:
    """Points at which something leaves the client for a text."""
    found = []
    for name in legal:
        try:
            sent = cut(module, name, second).feature_shape(shape)
        except ExhumeError:
            continue
        if sent:
            found.append(name)
    return tuple(found)


def _enough(parts: readers.RecordsByRole) -> None:
    for name, least in (("target", 10), ("shadow", 20), ("public", 2), ("test", 1)):
        count = len(getattr(parts, name))
        if count < least:
            raise ExhumeError(f"data: {count} records for the part {name}, at least {least} needed")
