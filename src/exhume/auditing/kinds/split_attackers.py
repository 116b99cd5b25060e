"""The attackers of a split network, by name: those of the papers, ours, and one who knows the head; how what
came back is scored, and what each attacker takes: counted, not timed.

A shadow is trained through the frozen bodies, a decoder on the shadow's features. Both are counted layer by
layer: products of matrices by their operations, all else by the numbers that come out and by the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from exhume import readers
from exhume.attacks.split.as_sent import AsSent, WordsAsSent
from exhume.attacks.split.cipher import FOUND, NO_POSITIONS, SubstitutionCipher
from exhume.attacks.split.inversion import ShadowInversion
from exhume.attacks.split.lookalike import Lookalike, Pass
from exhume.attacks.split.shadow import LEARNED
from exhume.attacks.split.strongest import MOST_PAIRS, StrongestInversion, StrongestReading
from exhume.attacks.split.token_search import KnownHead, ShadowReading
from exhume.auditing.case import Scored
from exhume.auditing.kinds.split_files import LoadedSplit, TextForm, positions_of
from exhume.auditing.plan import seconds_of
from exhume.choices import threads_for
from exhume.core.contract import Attack, Key, NotApplicable, Reconstruction, Shard
from exhume.models.probes import after, leaves
from exhume.models.split.blueprint import OwnNetwork
from exhume.models.split.cost import multiply_adds
from exhume.models.split.inverter import Decoder, OwnForm, ShadowHead
from exhume.models.split.pipeline import Pipeline
from exhume.score.features import Distance, recognise
from exhume.score.lineup import Alike
from exhume.score.texts import NOTHING, alike_texts, score_texts
from exhume.settings import SplitSettings
from exhume.train.single import Schedule
from exhume.victims import keep_secret, secret_of

HEAD_KNOWN = "head-known"
FEW = ("as-sent", "shadow", "matched", HEAD_KNOWN)
"""Those who are tried at depths that are not in use."""

TEXT_NAMES = ("as-sent", "frequency", "cipher", "shadow", HEAD_KNOWN)
TEXT_FEW = ("as-sent", "cipher", HEAD_KNOWN)
"""Those who are tried at depths that are not in use."""

SHADOWLESS = ("as-sent", "lookalike", "frequency", "cipher", HEAD_KNOWN)
_MATCH = 10.0  # weight of the moments
_STARTS = 2  # shadows of the client's own form; the one that classifies best is inverted
_FULL = 8  # epochs from which searches take all their steps
_KEPT = 6  # starts of a lookalike that are compared, mirror images included
_REFINED = 4  # times that one of them is refined
_WINDOW = 9  # features of each channel in one of its windows
_SORTING = 1.5e-7  # seconds of one number


@dataclass(frozen=True)
class Attacker:
    id: str
    name: str
    attack: Attack
    paper: str = "ours"
    why_not: NotApplicable | None = None  # it cannot be mounted on this head


def names_for(bodies: int) -> tuple[str, ...]:
    """Every attacker of a client that reads so many bodies; the last one knows its head."""
    if bodies == 1:
        return ("as-sent", "shadow", "own-form", "lookalike", "matched", HEAD_KNOWN)
    alone = tuple(f"body-{i + 1}" for i in range(bodies))
    return ("as-sent", *alone, "adaptive", "own-form", "lookalike", "matched", HEAD_KNOWN)


def attacker_named(
    name: str,
    settings: SplitSettings,
    pipeline: Pipeline,
    shape: tuple[int, ...],
    form: OwnForm,
) -> Attacker:
    """One of `names_for`, against any pipeline: one of several bodies becomes the same of a single one.

    shape: of the inputs; form: of the client's head, which is no secret.
    """
    schedule = Schedule(settings.attack_epochs, settings.batch, 3e-3, "adam", 0.0)
    head, decoder = ShadowHead(settings.channels), Decoder(settings.channels)
    alone = [
        ShadowInversion((i,), head, decoder, schedule, schedule)
        for i in range(len(pipeline.bodies))
    ]
    several = replace(alone[0], reads=LEARNED) if len(alone) > 1 else alone[0]
    paper = "Ensembler24"
    if name.startswith("body-"):
        place = min(int(name.removeprefix("body-")), len(alone)) - 1
        return Attacker(
            name, f"Inverting a shadow of {name.replace('-', ' ')}", alone[place], paper
        )
    own = replace(several, head=form, starts=_STARTS)
    if name == "own-form":
        return Attacker(name, "Inverting shadows of the client's own form", own)
    if name == "lookalike" and pipeline.client.sigma:  # numbers have no windows to look at
        alike = replace(own, match=_MATCH)
        return Attacker(name, "Inverting a lookalike of the client's own form", alike)
    if name == "lookalike":
        return _lookalike(settings, pipeline.client.head, shape, decoder, schedule)
    found = (
        Attacker("as-sent", "What was sent, looked at", AsSent()),
        Attacker("shadow", "Inverting a shadow of the head", several, paper),
        Attacker("adaptive", "Inverting a shadow of all bodies", several, paper),
        Attacker(
            "matched", "Inverting a shadow that matches moments", replace(several, match=_MATCH)
        ),
        Attacker(HEAD_KNOWN, "Inverting the true head", _knowing(settings, decoder, schedule)),
    )
    return {one.id: one for one in found}[name]


def _knowing(settings: SplitSettings, decoder: Decoder, schedule: Schedule) -> StrongestInversion:
    """Its search, too, is shorter where shadows are trained for few epochs."""
    usual = StrongestInversion(decoder, schedule)
    return replace(usual, steps=_steps(usual.steps, settings))


def _lookalike(
    settings: SplitSettings,
    head: nn.Module,
    shape: tuple[int, ...],
    decoder: Decoder,
    schedule: Schedule,
) -> Attacker:
    kernel, why_not = 3, None
    try:
        kernel = _kernel(head, shape)
    except NotApplicable as why:
        why_not = why
    attack = replace(_searching(settings, kernel), decoder=decoder, decoder_schedule=schedule)
    name = "Inverting a lookalike of the first layer"
    return Attacker("lookalike", name, attack, why_not=why_not)


def _searching(settings: SplitSettings, kernel: int = 3) -> Lookalike:
    own = Lookalike(kernel)

    def shortened(part: Pass) -> Pass:
        return replace(part, steps=_steps(part.steps, settings))

    return replace(
        own,
        search=shortened(own.search),
        compare=shortened(own.compare),
        refine=shortened(own.refine),
    )


def _steps(usual: int, settings: SplitSettings) -> int:
    """Steps of a search; fewer where shadows are trained for few epochs, too."""
    return max(3, round(usual * min(1.0, settings.attack_epochs / _FULL)))


@torch.no_grad()
def _kernel(head: nn.Module, shape: tuple[int, ...]) -> int:
    """Side of the one convolution that a head consists of, besides batch norm, ReLU and pooling."""
    weighted = [part for part in head.modules() if list(part.parameters(recurse=False))]
    layers = [part for part in weighted if isinstance(part, nn.Conv2d)]
    others = [p for p in weighted if not isinstance(p, nn.Conv2d | nn.BatchNorm2d)]
    needs = "a lookalike is one convolution of odd size with a ReLU, and the client's head "
    if len(layers) != 1 or others:
        count = f"{len(layers)} convolutions" if layers else "no convolution"
        kinds = sorted({type(part).__name__ for part in others})
        more = f" and {', '.join(kinds)}" if kinds else ""
        raise NotApplicable(f"{needs}has {count}{more}", ever=True)
    one = layers[0]
    side = int(one.kernel_size[0])
    plain = one.padding in ("same", (side // 2, side // 2)) and one.padding_mode == "zeros"
    plain &= set(one.kernel_size) == {side} and {*one.stride, *one.dilation, one.groups} == {1}
    if not plain or side % 2 == 0:
        raise NotApplicable(f"{needs}has {one}", ever=True)
    probe = torch.rand(8, *shape, generator=Key.from_seed(0).generator())
    if float(head(probe).amin()) < 0:
        raise NotApplicable(f"{needs}sends values below zero", ever=True)
    return side


# What they take


def models_of(name: str) -> int:
    """Shadows and decoders that an attacker trains which no other one has trained."""
    return {"as-sent": 0, "lookalike": 1, "own-form": _STARTS + 1, HEAD_KNOWN: 1}.get(name, 2)


def shadows_of(name: str, *, own_form: bool = False) -> int:
    """Shadow heads that an attacker trains which no other one has trained."""
    if name == "lookalike":
        return _STARTS if own_form else 0
    if name == "own-form":
        return _STARTS
    return 0 if name in ("as-sent", HEAD_KNOWN) else 1


def rounds_of(name: str, bodies: int) -> int:
    """How often the records held pass one body in an epoch, roughly."""
    if name in ("shadow", "adaptive", "matched"):
        return bodies
    if name == "own-form":
        return _STARTS * bodies
    return 0 if name == "as-sent" else 1


def lookalike_applies(pipeline: Pipeline, shape: tuple[int, ...]) -> bool:
    try:
        _kernel(pipeline.client.head, shape)
    except NotApplicable:
        return False
    return True


def lookalike_seconds(settings: SplitSettings, channels: int) -> float:
    """Seconds of the search for the first layer, which sorts projections of windows."""
    own = _searching(settings)
    starts = ((own.search, own.starts), (own.compare, _KEPT), (own.refine, _REFINED))
    sorted_ = sum(n * part.steps * part.windows * part.directions for part, n in starts)
    return sorted_ * (_SORTING + seconds_of(6.0 * _WINDOW * channels))


@dataclass(frozen=True, eq=False)
class Images:
    """Compared by what a viewer would say; see `recognise`."""

    settings: SplitSettings
    shape: tuple[int, ...]
    second: str  # last layer of the body
    distance: Distance | None = None
    padding: int | None = None
    alike: Alike | None = None

    def attacker(self, name: str, pipeline: Pipeline, form: OwnForm | None) -> Attacker:
        if form is None:  # the network's own, cut
            form = OwnForm(OwnNetwork(self.settings.model, self.shape), pipeline.cut, self.second)
        return attacker_named(name, self.settings, pipeline, self.shape, form)

    def score(self, parts: readers.RecordsByRole, found: Reconstruction) -> Scored:
        mean = parts.shadow.inputs.mean(0)
        scored = recognise(secret_of(parts.target), found, mean, distance=self.distance)
        m = scored.metrics
        sentence = (
            f"Mean SSIM {m['ssim']:.2f}, after an affine fit {m['affine_ssim']:.2f}; the mean image has "
            f"{m['mean_image_affine_ssim']:.2f}."
        )
        return Scored(m, scored.evidence, (sentence,))


_ANY = Key.from_seed(0)


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts of one length; places of padding do not count."""

    settings: SplitSettings
    text: TextForm
    shape: tuple[int, ...]
    second: str  # last layer of the body

    @property
    def padding(self) -> int | None:
        return self.text.padding

    @property
    def alike(self) -> Alike | None:
        return alike_texts(self.padding, ordered=True)

    def attacker(self, name: str, pipeline: Pipeline, form: OwnForm | None) -> Attacker:
        """form: of the client's head, where it is not the network's own, cut."""
        if form is None:
            form = OwnForm(OwnNetwork(self.settings.model, self.shape), pipeline.cut, self.second)
        reading = KnownHead(self.text.vocabulary)
        if name in ("frequency", "cipher"):
            return self._cipher(name, pipeline, form)
        if name == "shadow":
            schedule = Schedule(self.settings.attack_epochs, self.settings.batch, 1e-2, "adam", 0.0)
            attack = ShadowReading(form, reading, schedule)
            return Attacker(name, "Reading through a shadow of the head", attack, "Ensembler24")
        if name == HEAD_KNOWN:
            return Attacker(name, "Reading with the true head", StrongestReading(reading))
        return Attacker(name, "What was sent, looked at", WordsAsSent(self.text.vocabulary))

    def score(self, parts: readers.RecordsByRole, found: Reconstruction) -> Scored:
        answers = [
            (
                keep_secret(parts.target[place : place + 1]),
                replace(found, candidates=found.candidates[at], confidence=found.confidence[at]),
            )
            for place in range(len(parts.target))
            for at in [slice(place, place + 1)]
        ]
        scores = score_texts(answers, parts.test, _ANY, padding=self.padding, ordered=True)
        m = scores.metrics
        usual = m.get("usual_token_accuracy")
        beside = (
            "" if usual is None else f"; the usual word of every place is right for {usual:.0%}"
        )
        sentence = (
            f"{m['token_accuracy']:.0%} of the tokens are right in their place, {m['whole_texts']:.0%} of "
            f"the texts whole{beside}."
        )
        lexicon = {"lexicon": self._lexicon(scores.evidence)}
        return Scored(m, Shard(scores.evidence, lexicon), (sentence,))

    def _lexicon(self, evidence: Mapping[str, Tensor]) -> dict[str, object]:
        """What the token numbers of the evidence mean: for the page."""
        kept = [
            evidence[n].flatten()
            for n in ("targets", "reconstructions", "nearest")
            if n in evidence
        ]
        used = torch.unique(torch.cat(kept).long()).tolist()
        words = {str(n): self.text.words[n] for n in used if 0 <= n < len(self.text.words)}
        return {"padding": self.padding, "ordered": True, "words": {**words, str(NOTHING): "?"}}

    def _cipher(self, name: str, pipeline: Pipeline, form: OwnForm) -> Attacker:
        words = {
            "frequency": "Reading the vectors as a cipher, by how often each occurs",
            "cipher": "Reading the vectors as a cipher",
        }[name]
        positions, why_not = NO_POSITIONS, None
        features = tuple(pipeline.client.noise.shape)
        if len(features) == 2 and features[:1] == self.shape:
            try:
                head = form.module(self.shape, features, _ANY)
                positions = positions_of(head, self.shape[0], self.text.vocabulary)
            except NotApplicable as why:
                why_not = why
            if bool(pipeline.client.noise.any()):
                positions = FOUND  # fixed noise is a position, too
        rounds = 0 if name == "frequency" else SubstitutionCipher().rounds
        attack = SubstitutionCipher(rounds, 0.0, positions, self.padding, NOTHING)
        return Attacker(name, words, attack, why_not=why_not)


_BACK = 3  # forward and backward, in forward passes
_SPEED = (
    60e9  # operations a second and thread, of products in batches of convolutions and dense layers
)
_NUMBER = 4e-9  # seconds of a number that a layer puts out, there and back: norms, ReLUs, pooling
_STEP = 4e-3  # seconds of a step besides
_SCORED = 2e-3  # seconds to score one target
_LINED = 0.6  # seconds of a line-up
_EIGEN = 6e-10  # seconds of a ridge, times the cube of its pairs
_DECIPHERED = 4e-9  # seconds of a round, times the cube of the words


@dataclass(frozen=True, eq=False)
class Seconds:
    """For one set of settings. bodies: of the split in use."""

    settings: SplitSettings
    owned: LoadedSplit
    bodies: int

    def attack(self, names: Sequence[str], first: str = "") -> float:
        """All these attackers, one after another. first: the depth; empty: the split in use."""
        alone = sum(
            self._text(n, first) if self.owned.text else self._image(n, first) for n in names
        )
        lined = _LINED + _SCORED * len(self.owned.parts.target)
        return alone + lined * len(names)

    def training(self) -> float:
        """N bodies one after another, the client's part, and a plain network to compare with."""
        records = len(self.owned.parts.fixed) or 10_000
        one = self._pass(self.owned.module, self.owned.shape)
        return (self.bodies + 2) * self._trained(one, records, self.settings.epochs)

    def _image(self, name: str, first: str) -> float:
        settings, shape = self.settings, self.owned.shape
        pipeline = self.owned.pipeline(first or self.owned.first[0])
        features = tuple(pipeline.client.noise.shape)
        bodies = 1 if first else self.bodies
        channel = settings.defend == "channel" and not first
        sent = (settings.numbers,) if channel else features
        head = self._pass(ShadowHead(settings.channels).module(shape, sent, _ANY), shape)
        body = self._pass(pipeline.bodies[0], features)
        shadows = shadows_of(name, own_form=channel)
        decoders = 0 if name == "as-sent" else 1
        made = shadows * head + rounds_of(name, bodies) * body
        if decoders:
            made += self._pass(Decoder(settings.channels).module(sent, shape, _ANY), sent)
        held = len(self.owned.parts.shadow)
        seconds = self._trained(made, held, settings.attack_epochs, max(1, shadows + decoders))
        if name == HEAD_KNOWN:
            seconds += self._searched(self._pass(pipeline.client.head, shape))
        if name == "lookalike" and not channel and lookalike_applies(pipeline, shape):
            return seconds + lookalike_seconds(settings, features[0])
        if name == "as-sent" or (name == "lookalike" and not channel):
            return 0.0
        return seconds

    def _text(self, name: str, first: str) -> float:
        text, settings, parts = self.owned.text, self.settings, self.owned.parts
        assert text is not None  # asked before
        pipeline = self.owned.pipeline(first or self.owned.first[0])
        whole = self._pass(self.owned.module, self.owned.shape)
        head = self._pass(pipeline.client.head, self.owned.shape)
        if name == "cipher":
            kinds = len(torch.unique(parts.shadow.inputs))
            return 25 * _DECIPHERED * kinds**3
        if name not in ("shadow", HEAD_KNOWN):
            return 0.0
        how = KnownHead(text.vocabulary)
        each = how.sweeps * how.options * self.owned.shape[0]
        read = (text.vocabulary + len(parts.target) * each) * head
        if name == HEAD_KNOWN:  # two ways, judged on held pairs
            judged = (text.vocabulary + StrongestReading.judged_of(len(parts.shadow)) * each) * head
            return read + 2 * judged + self._ridge(len(parts.shadow))
        return read + self._trained(whole, len(parts.shadow), settings.attack_epochs)

    def _searched(self, one: float) -> float:
        """Seconds of whoever knows the head, besides a decoder; one: of a record's way through it."""
        usual, parts = _knowing(self.settings, Decoder(), Schedule()), self.owned.parts
        sought = len(parts.target) + StrongestInversion.judged_of(len(parts.shadow))
        steps = usual.steps * StrongestInversion.starts
        return steps * (sought * _BACK * one + _STEP) + self._ridge(len(parts.shadow))

    def _ridge(self, held: int) -> float:
        """Seconds of an eigendecomposition and a penalty's path."""
        return _EIGEN * min(held, MOST_PAIRS) ** 3

    def _trained(self, one: float, records: int, epochs: int, models: int = 1) -> float:
        """So many passes of all records there and back, of which one record's takes `one` second."""
        steps = models * epochs * -(-records // self.settings.batch)
        return epochs * records * _BACK * one + _STEP * steps

    def _pass(self, module: nn.Module, shape: tuple[int, ...]) -> float:
        """Seconds of one record's way through it."""
        threads = threads_for(self.settings.threads)
        products = 2 * multiply_adds(module, shape) / (_SPEED * threads)
        return products + _NUMBER / _BACK * _numbers(module, shape)


@torch.no_grad()
def _numbers(module: nn.Module, shape: tuple[int, ...]) -> int:
    """That the layers of a network put out for one record."""
    count = 0

    def counted(_: str, __: object, outputs: object) -> None:
        nonlocal count
        if isinstance(outputs, torch.Tensor):
            count += outputs.numel()

    with after(module, leaves(module), counted):
        module.eval()(torch.zeros(1, *shape))
    return count
