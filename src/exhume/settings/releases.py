"""The sections of a brief that say what is released, one for each kind besides trained weights.

Of a seed, a number of threads, records or a model that a section leaves open (None), the brief's own hold;
`Brief.resolved` fills them in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from exhume.core.errors import ExhumeError
from exhume.settings.schema import SettingsSection, SharedNumber, SharedText, setting

DEFENCES = (
    "channel",
    "ensembler",
    "single",
    "shredder",
    "dropout",
    "dropout-ensemble",
    "random-head",
)

_SEED = "Seed of everything random; default: the brief's."
_THREADS = "Processor threads; default: the brief's."


_VOCABULARY = ("", "Texts: a file of words, one per line, in the order of their token numbers.")
_LENGTH = (0, "Texts: tokens of a record; 0: as many as the longest has.")
_PADDING = (-1, "Texts: the padding token; -1: what the vocabulary or the model says.")
_BASE = ("", "The state that an adapter or a difference is added to.")
_ADAPTER = ("", "A LoRA adapter of --base.")
_DELTA = ("", "Differences to --base.")
_SCALING = (0.0, "Scaling of --adapter; default: what adapter_config.json beside it says.")


@dataclass(frozen=True)
class ReleaseSettings(SettingsSection):
    """The base of all sections that say what is released; a kind of another package has one, too."""

    @property
    def label(self) -> str:
        """Names the run folder; empty: the section's name does."""
        return ""


@dataclass(frozen=True)
class CheckpointSettings(ReleaseSettings):
    """A file of weights, as it is. An empty text or 0 means: not given."""

    checkpoint: str = setting(
        "",
        "A .safetensors file or a saved state dict; nothing in it is run.",
        argument=True,
        file=True,
    )
    base: str = setting(*_BASE, file=True)
    adapter: str = setting(*_ADAPTER, file=True)
    delta: str = setting(*_DELTA, file=True)
    scaling: float = setting(*_SCALING, example=2.0)
    part: str = setting(
        "",
        "Use only the tensors below this name: the head of a larger network, on its input vectors.",
        example="classifier",
    )
    model: SharedText = setting(
        None,
        "With convolutions: package.module:factory or file.py:factory, your nn.Module.",
        shared="model",
    )
    activation: str = setting("relu", "Between the layers: relu, gelu, tanh, elu, silu, …")
    head: str = setting(
        "",
        "multiclass, binary or regression; default: by the outputs.",
        choices=("multiclass", "binary", "regression"),
    )
    shape: tuple[int, ...] = setting(
        (), "Shape of one record, such as 3,32,32; known with --trained-on.", example=(3, 32, 32)
    )
    mean: str = setting(
        "",
        "What your preprocessing subtracts: an .npz file, a number, one per channel or column; 0: nothing.",
        example="0.5",
    )
    std: str = setting(
        "", "What it then divides by, given like --mean; default: nothing.", example="0.25"
    )
    trained_on: SharedText = setting(
        None,
        "A named set or path: what it was trained on, used to score only.",
        shared="data",
    )
    rows: str = setting(
        "",
        "Which rows were trained on: 0:100,205 or an .npy file; the others serve as decoys.",
        example="0:100",
    )
    decoys: str = setting("", "Records of the same kind that were not trained on.")
    pictures: str = setting(
        "", "For vectors: the images behind --trained-on, in its order, to show on the page."
    )
    restarts: int = setting(  # as `FirstLayer` has it
        6, "Restarts of the attack. More restarts find more records, and take longer.", least=1
    )
    steps: int = setting(300, "Steps of each restart.", least=1)  # as the attack's `Descent` has it
    trust: bool = setting(
        False, "Read a pickle or torch.export file; that runs code in it.", flag="--trust"
    )
    seed: SharedNumber = setting(None, _SEED, shared="seed")
    threads: SharedNumber = setting(None, _THREADS, shared="threads", least=0)

    @property
    def file(self) -> Path:
        """What is released."""
        return Path(self.checkpoint or self.adapter or self.delta)

    @property
    def label(self) -> str:
        return self.file.stem or "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_fine_tuned(self)
        if self.checkpoint and self.base:
            raise ExhumeError("checkpoint: give it, or an adapter or difference and its base")
        if not (self.checkpoint or self.base):
            raise ExhumeError(
                "checkpoint: no file of weights is named: exhume audit-weights net.pt"
            )
        if any(size < 1 for size in self.shape):
            raise ExhumeError(f"shape: {self.shape} given, every size must be at least 1")
        if self.trained_on == "" and (self.rows or self.decoys or self.pictures):
            raise ExhumeError("--rows, --decoys and --pictures: only together with --trained-on")


@dataclass(frozen=True)
class UpdateSettings(ReleaseSettings):
    """What clients send. Empty or 0 means: not said, or choose it here."""

    renamed: ClassVar[Mapping[str, str]] = {"budget": "search_seconds"}

    model: SharedText = setting(
        None, "package.module:factory or file.py:factory, your nn.Module.", shared="model"
    )
    update: str = setting(
        "",
        "A gradient (safetensors or state dict), or a folder of recorded ones.",
        argument=True,
        file=True,
        example="update.safetensors",
    )
    before: str = setting("", "The state the client was sent.", file=True)
    after: str = setting("", "The state the client returned.", file=True)
    base: str = setting(*_BASE, file=True)
    adapter: str = setting(*_ADAPTER, file=True)
    delta: str = setting(*_DELTA, file=True)
    scaling: float = setting(*_SCALING, example=2.0)
    made: int = setting(0, "Instead of files: make this many updates here, from --data.", least=0)
    server: str = setting(
        "honest",
        "chooses: also attack as a malicious server that chooses the weights; reported beside the verdict.",
        choices=("honest", "chooses"),
    )
    rate: float = setting(0.0, "Learning rate of the client's training.")
    steps: int = setting(1, "Local steps of the client, each on all its records.", least=1)
    epochs: int = setting(0, "Instead of --steps: local epochs, in batches.", least=0)
    local_batch: int = setting(0, "Records in a local batch; 0: all of --batch-size.", least=0)
    shuffle: bool = setting(True, "The client shuffles its records before every epoch.")
    optimiser: str = setting(
        "sgd", "sgd, or adam (its weight decay is added to the gradient).", choices=("sgd", "adam")
    )
    momentum: float = setting(0.0, "Momentum of SGD.", least=0, below=1)
    weight_decay: float = setting(
        0.0, "Weight decay, added to the gradient as torch does.", least=0
    )
    eps: float = setting(1e-8, "Epsilon of Adam.", above=0, noun="a number")
    schedule: str = setting(
        "constant",
        "Learning-rate schedule over the local steps; step: a tenth after each third.",
        choices=("constant", "linear", "cosine", "step"),
    )
    dp_clip: float = setting(
        0.0, "The client clips each record's gradient to this norm; 0: it does not.", least=0
    )
    dp_noise: float = setting(
        0.0,
        "Standard deviation of the noise that the client adds, as a multiple of the clip.",
        least=0,
    )
    loss: str = setting(
        "cross-entropy",
        "cross-entropy (one output: logistic), logistic, mse; of language models next-token or masked.",
        choices=("cross-entropy", "logistic", "mse", "next-token", "masked"),
    )
    reduction: str = setting(
        "mean", "Reduction of the loss over the batch: mean or sum.", choices=("mean", "sum")
    )
    batch_norm: str = setting(
        "train", "Mode of batch norm at the client: train or eval.", choices=("train", "eval")
    )
    batch_size: int = setting(
        0, "Records behind the update; 0: not known, the attack finds out.", least=0
    )
    shape: tuple[int, ...] = setting(
        (), "Shape of one record, such as 1,28,28.", example=(1, 28, 28)
    )
    data: SharedText = setting(
        None, "The set that holds the private records, used to score only.", shared="data"
    )
    records: str = setting(
        "", "Which of them were trained on: 3,17,40-43, or a file of indices.", example="0-7"
    )
    vocabulary: str = setting(*_VOCABULARY, example="vocab.txt")
    length: int = setting(*_LENGTH, example=64)
    padding: int = setting(*_PADDING, example=0)
    mask: int = setting(
        -1,
        "Masked loss: the mask token; -1: what the vocabulary says.",
        example=103,
        least=-1,
    )
    restarts: int = setting(
        4, "Restarts of gradient matching; one until --search-seconds buys each 400 steps.", least=1
    )
    search_rate: float = setting(
        0.1, "Gradient matching: the largest step.", above=0, noun="a rate"
    )
    tv: float = setting(
        0.03, "Gradient matching: initial weight of the total variation of images.", least=0
    )
    polish: int = setting(0, "L-BFGS steps after gradient matching.", least=0)
    search_steps: int = setting(
        0, "Steps of gradient matching; 0: what --search-seconds allows.", least=0
    )
    search_seconds: float = setting(
        120.0, "Seconds for gradient matching, over all updates.", above=0, noun="seconds"
    )
    seed: SharedNumber = setting(None, _SEED, shared="seed")
    threads: SharedNumber = setting(None, _THREADS, shared="threads", least=0)

    @property
    def label(self) -> str:
        given = self.update or self.after or self.adapter or self.delta
        return f"update-{Path(given or 'made').stem}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(size < 1 for size in self.shape):
            raise ExhumeError(f"shape: sizes must be at least 1, got {self.shape}")
        if self.records and self.data == "":
            raise ExhumeError("records: say with --data which set they belong to")
        if self.data == "" and self.length:
            raise ExhumeError("length: say with --data which texts are meant")
        if self.length < 0 or self.padding < -1:
            raise ExhumeError(
                f"length, padding: at least 0 and -1 are needed, got {self.length} and {self.padding}"
            )
        if self.mask != -1 and self.loss != "masked":
            raise ExhumeError("mask: only together with --loss masked")
        self._check_sources()

    def _check_sources(self) -> None:
        """One way of saying what the update is, and no half of another."""
        _check_fine_tuned(self)
        tuned = bool(self.adapter or self.delta)
        if tuned and not self.rate:
            raise ExhumeError("rate: an adapter or a difference needs the rate of its SGD")
        if bool(self.after) != (self.rate != 0) and not tuned and not self.made:
            raise ExhumeError("rate: --after and --rate belong together")
        if tuned and (self.update or self.before or self.after):
            raise ExhumeError(
                "adapter, delta: give them with --base alone, no other update or state"
            )
        if self.after and not self.before:
            raise ExhumeError("before: --after needs the state before it")
        if self.after and self.update:
            raise ExhumeError("update: give a gradient, or --before and --after, not both")
        if self.made and (self.update or self.after or tuned):
            raise ExhumeError("made: updates are given, or made here, not both")
        if self.made and (self.data == "" or not self.batch_size):
            raise ExhumeError("made: say with --data and --batch-size what updates are made of")
        if self.server == "chooses" and not self.made:
            raise ExhumeError(
                "server: an update that was sent has its weights; chooses needs --made"
            )
        if not (self.after or self.update or self.made or tuned):
            raise ExhumeError(
                "update: give a gradient, a recorded folder, or --before and --after; or have updates made "
                "of your records: --made 4 --batch-size 8 --data …"
            )
        self._check_training(bool(self.after or tuned))

    def _check_training(self, of_states: bool) -> None:
        """Several steps, of what can be several steps."""
        several = "epochs" if self.epochs else "steps" if self.steps > 1 else ""
        if self.steps > 1 and self.epochs:
            raise ExhumeError("epochs: give --steps on all records, or --epochs, not both")
        if self.local_batch and not self.epochs:
            raise ExhumeError(
                "local-batch: say with --epochs how often the client sees its records"
            )
        if self.local_batch and of_states and not self.batch_size:
            raise ExhumeError(
                "local-batch: say with --batch-size how many records the client has: the steps of an epoch"
            )
        if self.momentum and self.optimiser == "adam":
            raise ExhumeError("momentum: Adam has none besides its betas")
        if self.dp_noise and not self.dp_clip:
            raise ExhumeError("dp-noise: it is a multiple of --dp-clip; give both")
        if self.dp_clip and (self.optimiser == "adam" or self.loss in ("next-token", "masked")):
            raise ExhumeError(
                "dp-clip: private updates are of SGD, and of models that do not write texts"
            )
        if several and self.made and not self.rate:
            raise ExhumeError(f"rate: {several} of updates that are made here need it")
        if self.steps > 1 and not (of_states or self.made):
            raise ExhumeError("steps: several local steps need --before, --after and --rate")


@dataclass(frozen=True)
class SplitSettings(ReleaseSettings):
    """Features of a split network. Empty or 0 means: not said, or choose it here."""

    model: SharedText = setting(
        None,
        "package.module:factory or file.py:factory, your nn.Module.",
        argument=True,
        shared="model",
    )
    data: SharedText = setting(
        None, "A named set or path: records like your clients'.", shared="data"
    )
    weights: str = setting(
        "",
        "The network's state dict or .safetensors; nothing in it is run.",
        file=True,
        example="net.safetensors",
    )
    first: tuple[str, ...] = setting(
        (),
        "Last layer that the client keeps; after a comma, others to compare: conv1,block1.",
        example=("conv1", "block1"),
    )
    second: str = setting(
        "", "Last layer on the server; default: the last one possible.", example="pool"
    )
    defend: str = setting(
        "",
        f"Train this defence, and attack again: {', '.join(DEFENCES)}.",
        choices=DEFENCES,
        example="ensembler",
    )
    bodies: int = setting(4, "Bodies of an ensemble (N).", least=1)
    selected: int = setting(2, "Bodies that the Ensembler selects (P).", least=1)
    sigma: float = setting(0.1, "Standard deviation of the noise on the features.", least=0)
    bits: float = setting(
        8.0, "Bits per request that a channel lets through, at most, on average.", above=0
    )
    numbers: int = setting(16, "Numbers per request that a channel sends.", least=1)
    epochs: int = setting(
        10, "Epochs to train the defence, and a plain network beside it.", least=1
    )
    rate: float = setting(0.1, "Learning rate of that training.", above=0, noun="a rate")
    batch: int = setting(128, "Batch size of that training, and of the attackers'.", least=1)
    augment: bool = setting(False, "Shift and mirror the training images; wrong for digits.")
    attack_epochs: int = setting(8, "Epochs to train the attackers' shadow and decoder.", least=1)
    channels: int = setting(64, "Channels of the attackers' shadow and decoder.", least=1)
    targets: int = setting(0, "Inputs to attack.", least=0)
    held: int = setting(0, "Records that the attacker holds.", least=0)
    seen: int = setting(0, "Earlier inputs whose features the server has seen.", least=0)
    train: int = setting(0, "Records to train a defence on.", least=0)
    lpips: bool = setting(True, "Also measure LPIPS, on images in colour.")
    vocabulary: str = setting(*_VOCABULARY, file=True, example="vocab.txt")
    length: int = setting(*_LENGTH, least=0, example=64)
    padding: int = setting(*_PADDING, least=-1, example=0)
    device: SharedText = setting(None, "cpu or cuda; not given: the brief's.", shared="device")
    seed: SharedNumber = setting(None, _SEED, shared="seed")
    threads: SharedNumber = setting(None, _THREADS, shared="threads", least=0)

    @property
    def label(self) -> str:
        return f"split-{(self.model or 'net').rpartition(':')[2]}"

    def __post_init__(self) -> None:
        if self.model == "" or self.data == "":
            raise ExhumeError("model, data: both are needed")
        super().__post_init__()
        if len(set(self.first)) < len(self.first):
            raise ExhumeError(f"first: {', '.join(self.first)} names a layer twice")


@dataclass(frozen=True)
class FittedSettings(ReleaseSettings):
    """A fitted linear model of scikit-learn's."""

    file: str = setting("", "A .skops file; a model in memory has none.", file=True)
    targets: int = setting(
        0,
        "Training records that are the unknown one, each in its turn; 0: all, as far as a minute goes.",
        least=0,
    )
    others: str = setting(
        "", "A named set or path: records like those, on which it was not fitted, for a line-up."
    )

    @property
    def label(self) -> str:
        return Path(self.file or "fitted").stem


@dataclass(frozen=True)
class VersionsSettings(ReleaseSettings):
    """Two versions of a model that one person separates."""

    before: str = setting(
        "", "The earlier version: a fitted linear model, .skops.", file=True, example="before.skops"
    )
    after: str = setting("", "The later version.", file=True, example="after.skops")
    change: str = setting(
        "erased", "What happened to the person in between.", choices=("erased", "added")
    )
    person: str = setting("", "Its row of the data.", example="17")
    others: str = setting(
        "", "Rows of the data that neither version was fitted on.", example="1000:3000"
    )
    made: int = setting(
        0, "Instead of files: make versions of [victim] for this many persons.", least=0
    )
    steps: int = setting(5, "Versions made here: steps of training on without the person.", least=1)
    search_steps: int = setting(300, "Steps of gradient matching on the difference.", least=1)

    @property
    def label(self) -> str:
        return f"versions-{Path(self.before or 'made').stem}"

    def __post_init__(self) -> None:
        super().__post_init__()
        files = (self.before, self.after, self.person, self.others)
        if (self.made and any(files)) or not (self.made or all(files)):
            raise ExhumeError(
                "versions: give before, after, person and others, or say with made how many to make here"
            )


def _check_fine_tuned(said: CheckpointSettings | UpdateSettings) -> None:
    """An adapter or a difference, with its base; nothing else."""
    if said.adapter and said.delta:
        raise ExhumeError("delta: an adapter is given too; give one of the two")
    if (said.adapter or said.delta) and not said.base:
        kind = "adapter" if said.adapter else "delta"
        raise ExhumeError(f"base: {kind} needs the state that it is added to")
    if said.base and not (said.adapter or said.delta):
        raise ExhumeError("base: only together with adapter or delta")
    if said.scaling and not said.adapter:
        raise ExhumeError("scaling: only together with adapter")
    if not (math.isfinite(said.scaling) and said.scaling >= 0):
        raise ExhumeError(f"scaling: {said.scaling} given, a finite number above 0 needed")
