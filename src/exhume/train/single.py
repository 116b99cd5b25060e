"""One loop for one module: mini-batches, a rate that rises and falls, checkpoints after every epoch.

Whatever is trained (a classifier, a shadow of one, a decoder) gives its loss on some rows; the loop owns
order, optimiser and resume. Epoch e draws its order from `key.fold("epoch", e)` and everything else
random from generators that the loss is handed, so that a killed job ends with the same bits.

While a module is trained its images lie channel by channel for every pixel (channels last), in which a CPU's
convolutions are some 1.4 times as fast.

Training a network that will be cut: head, fixed noise, body, tail, end to end.

Training a translator on sentence pairs, and translating with it, word by word.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import ExhumeError, Key, Progress, Records, Store, silent
from exhume.models.drawing import he_normal
from exhume.models.split.blueprint import Blueprint
from exhume.models.split.channel import FreshNoise
from exhume.models.split.cut import Split, cut
from exhume.models.split.networks import KeyedNetwork
from exhume.models.split.pipeline import Pipeline
from exhume.models.split.seq2seq import END, PADDING, START, TranslatorBody, TranslatorWords
from exhume.store.shards import address, describe, digest
from exhume.train.optimisers import FusedRMSProp

Loss = Callable[[Tensor, torch.Generator], Tensor]
"""(rows of the batch, a generator for this step) to the scalar to be lowered."""
_WARM = 0.1  # share of the steps in which the rate rises
FEATURES, ANSWERS = "features", "answers"
"""Where dropout works: on what the client sends, or on what the bodies answer."""
_SHIFT = 4  # pixels that an augmented image moves by at most, unless told otherwise
_SMOOTH = 0.1  # label smoothing
_AT_ONCE = 250  # sentences of one forward pass


@dataclass(frozen=True)
class Schedule:
    """How long and how fast. The rate rises linearly over a tenth of the steps, then falls as a cosine."""

    epochs: int = 10
    batch: int = 128
    rate: float = 0.1
    optimiser: str = "sgd"  # with momentum 0.9, or "adam"
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        if self.optimiser not in ("sgd", "adam"):
            raise ExhumeError(f"optimiser: {self.optimiser!r} is not one of sgd, adam")
        if self.epochs < 0 or self.batch < 1 or not self.rate > 0 or self.weight_decay < 0:
            raise ExhumeError(f"epochs, batch, rate and weight_decay are not legal: {self}")

    def factor(self, step: int, steps: int) -> float:
        """Learning-rate multiplier at `step` of `steps`."""
        warm = max(1, round(_WARM * steps))
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def train_module(
    module: nn.Module,
    loss: Loss,
    count: int,
    schedule: Schedule,
    *,
    inputs: tuple[str, ...],
    key: Key,
    store: Store,
    progress: Progress = silent,
    stage: str,
) -> nn.Module:
    """Train the module's parameters that require a gradient, in place, on rows 0 to count - 1.

    inputs: digests of all that the loss depends on besides the module, for the address in the store.
    The module is returned in eval mode, without gradients.
    """
    module.train()
    _lay_out(module, _layout())
    trained = [p for p in module.parameters() if p.requires_grad]
    optimiser = _optimiser(trained, schedule)
    start = tuple(digest(tensor) for tensor in module.state_dict().values())
    name = address(f"train_module {stage}", schedule, (*inputs, *start), key, count)
    done = _resume(store.load(name), module, optimiser)
    batches = math.ceil(count / schedule.batch)
    steps = schedule.epochs * batches
    progress(stage, done, schedule.epochs)
    for epoch in range(done, schedule.epochs):
        order = torch.randperm(count, generator=key.fold("epoch", epoch).generator())
        generator = key.fold("noise", epoch).generator()
        for index, rows in enumerate(torch.split(order, schedule.batch)):
            _step(optimiser, loss(rows, generator), schedule, epoch * batches + index, steps)
        if not all(bool(torch.isfinite(p).all()) for p in trained):
            raise ExhumeError(
                f"{stage}: training diverged in epoch {epoch + 1} (rate {schedule.rate}); lower the rate"
            )
        ended = epoch + 1 == schedule.epochs
        store.save(name, _state(module, None if ended else optimiser, epoch + 1))
        progress(stage, epoch + 1, schedule.epochs)
    _lay_out(module, torch.contiguous_format)
    return module.requires_grad_(False).eval()


def _layout() -> torch.memory_format:
    """Channels last is the faster one; without AVX-512 its backward pass aborts the process."""
    wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
    return torch.channels_last if wide else torch.contiguous_format


def _lay_out(module: nn.Module, form: torch.memory_format) -> None:
    """Rearrange the weights of convolutions in memory; images follow them through the network."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=form)


def _optimiser(trained: list[nn.Parameter], schedule: Schedule) -> torch.optim.Optimizer:
    if schedule.optimiser == "sgd":
        return torch.optim.SGD(
            trained, schedule.rate, momentum=0.9, weight_decay=schedule.weight_decay
        )
    return torch.optim.Adam(trained, schedule.rate, weight_decay=schedule.weight_decay)


def _step(
    optimiser: torch.optim.Optimizer, loss: Tensor, schedule: Schedule, step: int, steps: int
) -> None:
    for group in optimiser.param_groups:
        group["lr"] = schedule.rate * schedule.factor(step, steps)
    optimiser.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimiser.step()


def _state(
    module: nn.Module, optimiser: torch.optim.Optimizer | None, epochs: int
) -> dict[str, Tensor]:
    """What a run has to keep: once it is finished, only what it ends with."""
    state = {f"module.{n}": t for n, t in module.state_dict().items()}
    state["epochs"] = torch.tensor(epochs)
    return state if optimiser is None else state | optimiser_state("optimiser", optimiser)


def _resume(
    saved: Mapping[str, Tensor] | None, module: nn.Module, optimiser: torch.optim.Optimizer
) -> int:
    """Take up what was put down; the number of epochs already done."""
    if saved is None:
        return 0
    named = module.state_dict()
    module.load_state_dict({n: saved[f"module.{n}"].to(named[n].device) for n in named})
    restore_optimiser("optimiser", optimiser, saved)
    return int(saved["epochs"])


def optimiser_state(prefix: str, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state without RMSProp's first moment, which each step overwrites unread."""
    unread = {"exp_avg"} if isinstance(optimiser, FusedRMSProp) else set()
    return {
        f"{prefix}.{index}.{name}": torch.as_tensor(value)
        for index, values in optimiser.state_dict()["state"].items()
        for name, value in values.items()
        if name not in unread and value is not None
    }


def restore_optimiser(
    prefix: str, optimiser: torch.optim.Optimizer, kept: Mapping[str, Tensor]
) -> None:
    """The inverse of `optimiser_state`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in kept.items():
        if name.startswith(f"{prefix}."):
            index, quantity = name.removeprefix(f"{prefix}.").split(".")
            state.setdefault(int(index), {})[quantity] = tensor
            if quantity == "exp_avg_sq":
                state[int(index)].setdefault("exp_avg", torch.zeros_like(tensor))
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


@dataclass(frozen=True, eq=False)
class SplitJob:
    """What is to be trained, on what, and where it will be cut."""

    network: KeyedNetwork
    first: str  # last layer of the head
    second: str  # last layer of the body
    records: Records
    schedule: Schedule = Schedule()
    augment: bool = True  # images are moved and mirrored at random
    shift: int = _SHIFT  # pixels that they are moved by at most
    aid: float = (
        0.0  # weight of the loss of a dense layer that reads what is sent, in training only
    )

    @property
    def blueprint(self) -> Blueprint:
        return Blueprint(self.network, self.first, self.second)

    def fresh(self, key: Key) -> Split:
        return cut(self.network.module(key).to(self.device), self.first, self.second)

    @property
    def device(self) -> torch.device:
        """Where the records are: all that is trained on them goes there."""
        return self.records.inputs.device

    def feature_shape(self, key: Key) -> tuple[int, ...]:
        return self.fresh(key).feature_shape(self.records.shape)

    def batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some rows, augmented."""
        inputs = self.records.inputs[rows]
        if self.augment and inputs.ndim == 4:
            inputs = augmented_images(inputs, generator, self.shift)
        return inputs, self.records.labels[rows]

    @property
    def digests(self) -> tuple[str, ...]:
        """All that a loss on this job's batches depends on."""
        moved = () if self.shift == _SHIFT else (f"shift {self.shift}",)
        aided = (f"aid {self.aid}",) if self.aid else ()
        return (
            digest(self.records),
            str(describe(self.network)),
            str(self.augment),
            *moved,
            *aided,
        )


@runtime_checkable
class SplitDefence(Protocol):
    """A way to train a split network. Strength zero is plain training."""

    @property
    def strength(self) -> float: ...
    def train(
        self, job: SplitJob, *, key: Key, store: Store, progress: Progress = silent
    ) -> Pipeline: ...


def augmented_images(images: Tensor, generator: torch.Generator, shift: int = _SHIFT) -> Tensor:
    """(n, c, h, w): mirrored with probability one half, moved by up to `shift` pixels, borders black."""
    n, _, height, width = images.shape
    device = images.device
    mirrored = (torch.rand(n, generator=generator) < 0.5).to(device)
    moves = torch.randint(0, 2 * shift + 1, (2, n), generator=generator).to(device)
    padded = F.pad(torch.where(mirrored[:, None, None, None], images.flip(3), images), [shift] * 4)
    down = (moves[0][:, None] + torch.arange(height, device=device))[:, None, :, None]
    across = (moves[1][:, None] + torch.arange(width, device=device))[:, None, None, :]
    which, channel = (
        torch.arange(n, device=device)[:, None, None, None],
        torch.arange(images.shape[1], device=device)[:, None, None],
    )
    return padded[which, channel, down, across]


def fixed_noise(shape: tuple[int, ...], sigma: float, key: Key) -> Tensor:
    """One map of N(0, sigma), the same for every input (eq. 2)."""
    return sigma * torch.randn(shape, generator=key.fold("noise map").generator())


def apply_dropout(values: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Each value dropped with this probability, the others scaled up so that the mean stays."""
    if not rate:
        return values
    left = (torch.rand(values.shape, generator=generator) >= rate).to(values.device)
    return values * left / (1 - rate)


def check_dropped(rate: float, dropped: str) -> None:
    if not 0 <= rate < 1:
        raise ExhumeError(f"rate: must lie in [0, 1), got {rate}")
    if dropped not in (FEATURES, ANSWERS):
        raise ExhumeError(f"dropped: {dropped!r} is not one of {FEATURES}, {ANSWERS}")


def train_split(
    job: SplitJob,
    *,
    noise: Tensor | None = None,
    dropout: float = 0.0,
    dropped: str = FEATURES,
    random_head: bool = False,
    sigma: float = 0.0,
    start: Split | None = None,
    key: Key,
    store: Store,
    progress: Progress = silent,
    stage: str = "training the split network",
) -> Split:
    """Cross-entropy of tail(body(head(x) + noise)), features or the body's answers dropped if asked.

    random_head: the head stays as it was drawn, except for batch-norm statistics.
    sigma: of Gaussian noise on the features that is new at every step. start: where training begins; it is
    copied. None: weights drawn from the key. With the job's aid, a dense layer that is thrown away afterwards
    also names the classes from what is sent, so that the head learns to tell them apart by itself: what few
    bits carry is what the client knows.
    """
    parts = job.fresh(key)
    if start is not None:
        parts = copy.deepcopy(start)
        parts.whole.requires_grad_(True)
    if random_head:
        parts.head.requires_grad_(False)
    added = torch.zeros(()) if noise is None else noise.to(job.device)
    fresh = FreshNoise(sigma)
    whole, reader = parts.whole, _reader(job, parts, key)
    if reader is not None:
        whole["reader"] = reader

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        inputs, labels = job.batch(rows, generator)
        features = parts.head(inputs) + added
        if sigma:
            features = fresh(features, generator)
        if dropped == FEATURES:
            features = apply_dropout(features, dropout, generator)
        answer = parts.body(features)
        if dropped == ANSWERS:
            answer = apply_dropout(answer, dropout, generator)
        entropy = F.cross_entropy(parts.tail(answer), labels)
        if reader is None:
            return entropy
        return entropy + job.aid * F.cross_entropy(reader(features.flatten(1)), labels)

    train_module(
        whole,
        loss,
        len(job.records),
        job.schedule,
        inputs=(
            *job.digests,
            digest(added),
            str(dropout) if dropped == FEATURES else f"{dropped} {dropout}",
            str(random_head),
            job.first,
            job.second,
            *([f"fresh {sigma}"] if sigma else []),
        ),
        key=key,
        store=store,
        progress=progress,
        stage=stage,
    )
    return parts


def _reader(job: SplitJob, parts: Split, key: Key) -> nn.Module | None:
    if not job.aid:
        return None
    size, classes = math.prod(parts.feature_shape(job.records.shape)), len(job.records.classes)
    return he_normal(lambda: nn.Linear(size, classes), key.fold("reader")).to(job.device)


def train_translator(
    words: TranslatorWords,
    body: TranslatorBody,
    source: Tensor,
    target: Tensor,
    schedule: Schedule,
    *,
    frozen: bool = False,
    key: Key,
    store: Store,
    progress: Progress = silent,
    stage: str = "training the translator",
) -> None:
    """Lower the cross-entropy of the next word, in place. Both end in eval mode, without gradients.

    source: (n, l), target: (n, m), the latter from START to END. frozen: the body stays as it is.
    """
    if len(source) != len(target) or not len(source):
        raise ExhumeError(f"pairs: {len(source)} sentences and {len(target)} translations given")
    body.requires_grad_(not frozen)
    whole = nn.ModuleDict({"words": words} if frozen else {"words": words, "body": body})

    def loss(rows: Tensor, _: torch.Generator) -> Tensor:
        logits = _next_words(words, body, source[rows], target[rows])
        return F.cross_entropy(
            logits.transpose(1, 2),
            target[rows, 1:].long(),
            ignore_index=PADDING,
            label_smoothing=_SMOOTH,
        )

    given = [digest(source), digest(target)]
    if frozen:
        given += [digest(tensor) for tensor in body.state_dict().values()]
    train_module(
        whole,
        loss,
        len(source),
        schedule,
        inputs=tuple(given),
        key=key,
        store=store,
        progress=progress,
        stage=stage,
    )
    body.requires_grad_(False).eval()


@torch.no_grad()
def translate(
    words: TranslatorWords,
    body: TranslatorBody,
    source: Tensor,
    longest: int,
    noise: Tensor | None = None,
) -> Tensor:
    """(n, l) to (n, longest): the likeliest next word each time; END and padding after the last.

    noise: (l, e) or (n, l, e), added to what the client sends.
    """
    sent = torch.split(words.send(source, noise), _AT_ONCE)
    return torch.cat([_greedy(words, body, part, longest) for part in sent])


def _greedy(words: TranslatorWords, body: TranslatorBody, sent: Tensor, longest: int) -> Tensor:
    memory, real = body.encode(sent), (sent != 0).any(2)
    begun = torch.full((len(sent), 1), START, device=sent.device)
    over = torch.zeros(len(sent), dtype=torch.bool, device=sent.device)
    for _ in range(longest):
        answer = body.decode(memory, real, words.begin(begun))
        following = words.name(answer[:, -1]).argmax(1).masked_fill(over, PADDING)
        over |= following == END
        begun = torch.cat([begun, following[:, None]], 1)
    return begun[:, 1:]


@torch.no_grad()
def word_accuracy(
    words: TranslatorWords, body: TranslatorBody, source: Tensor, target: Tensor
) -> float:
    """Share of the words of translations that are named right, given all before them."""
    right, count = 0, 0
    for x, y in zip(torch.split(source, _AT_ONCE), torch.split(target, _AT_ONCE), strict=True):
        wanted = y[:, 1:].long()
        real = wanted != PADDING
        named = _next_words(words, body, x, y).argmax(2)
        right += int((named == wanted)[real].sum())
        count += int(real.sum())
    return right / count


def _next_words(
    words: TranslatorWords, body: TranslatorBody, source: Tensor, target: Tensor
) -> Tensor:
    """(n, m - 1, v) logits, each given the words before it."""
    answer = body(words.send(source), words.begin(target[:, :-1]))
    logits: Tensor = words.name(answer)
    return logits
