"""The attacks on updates: cheap and exact ones first, each with what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exhume.attacks.gradient.analytic import BiasRatio
from exhume.attacks.gradient.features import FeatureDecoding
from exhume.attacks.gradient.gates import GateAttack
from exhume.attacks.gradient.language import LanguageAttack
from exhume.attacks.gradient.local_steps import LocalStepsAttack
from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.patches import PatchAttack
from exhume.attacks.gradient.span import SpanAttack
from exhume.attacks.gradient.tensor import TensorAttack
from exhume.attacks.gradient.text import TextAttack, WordRows
from exhume.attacks.gradient.token_bag import TokenBag
from exhume.auditing.case import Row
from exhume.auditing.cost import language_seconds, seconds_of, text_seconds
from exhume.auditing.kinds.update_files import ClientUpdate
from exhume.core.contract import Attack
from exhume.core.results import AttackSpec
from exhume.models.mlp import MLP
from exhume.models.own_texts import LanguageModel, TextModel
from exhume.models.two_layer import TwoLayer
from exhume.settings import UpdateSettings
from exhume.train.fleet import forward_operations
from exhume.train.local import Steps

_THREAT = "sees a client's update; knows the weights it was sent"
_EXACT = 0.7  # seconds of an exact attack on one update
_FEWEST, _MOST = 50, 2000  # steps of gradient matching
_FEW = 100  # steps of a search that is asked to be short: decoding follows it
_AFTER_STEPS = 0.1  # relative misfit of a text's vector after several local steps


def rows_on(settings: UpdateSettings, updates: Sequence[ClientUpdate]) -> list[Row]:
    """Every attack on these updates. The later ones run only where the earlier have left something."""
    network = updates[0].architecture
    records = sum(update.batch_size or 0 for update in updates)
    if isinstance(network, LanguageModel):
        seconds = sum(language_seconds(network, u.batch_size or 1) for u in updates)
        return _on_language(records, seconds, len(updates))
    if isinstance(network, TextModel):
        seconds = sum(text_seconds(network, u.batch_size or 1) for u in updates)
        return _on_texts(steps_behind(updates), records, seconds, len(updates))
    images = len(network.input_shape) == 3
    rows = _on_records(settings, updates, images=images, records=records)
    local = steps_behind(updates)
    if local.several and local.routine.optimiser == "adam":
        return [row for row in rows if row.id == "matching"]  # the mean step is no gradient
    return [row for row in rows if row.id != "local-steps" or local.several]


def steps_behind(updates: Sequence[ClientUpdate]) -> Steps:
    """How the clients trained: of one that made several steps, if there is such."""
    return next((one.steps for one in updates if one.steps.several), updates[0].steps)


@dataclass(frozen=True)
class _Listed:
    """What a row of the table says."""

    id: str
    name: str
    paper: str
    sees: str
    attack: Attack
    seconds: float = _EXACT  # of one update
    needed: bool = False  # only where the earlier have left something
    steps: int = 0


def _on_records(
    settings: UpdateSettings, updates: Sequence[ClientUpdate], *, images: bool, records: int
) -> list[Row]:
    first, dense = "the gradient of the first layer", "the gradients of the fully connected layers"
    decoding = decoding_steps(settings, updates)
    matching = GradientMatching(
        steps=settings.search_steps,
        rate=settings.search_rate,
        restarts=settings.restarts,
        variation=settings.tv if images else 0.0,
        falls=1e-3,
        signed=images,
        polish=settings.polish,
    )
    behind = 0.0 if isinstance(updates[0].architecture, MLP | TwoLayer) else _pass(updates)
    listed = (
        _Listed(
            "bias-ratio", "Ratio of the first layer's gradients", "Phong17", first, BiasRatio()
        ),
        _Listed(
            "span",
            "Moments and fit inside the span of the gradient",
            "Wang23",
            "the gradients of the last two layers",
            SpanAttack(nonnegative=images, averaged=updates[0].averaged),
        ),
        _Listed(
            "gates",
            "Gates of the fully connected layers",
            "ours, after Dimitrov24",
            dense,
            GateAttack(),
            needed=True,
        ),
        _Listed(
            "local-steps",
            "Gates of averaged gradients, fitted through the local steps",
            "ours",
            dense,
            LocalStepsAttack(),
            needed=True,
        ),
        _Listed(
            "patches",
            "Patches at their places",
            "ours, after Lu22",
            "the gradients of the patches' layer and of the places' vectors",
            PatchAttack(),
            needed=True,
        ),
        _Listed(
            "features",
            "Features first, then decoded",
            "ours",
            dense,
            FeatureDecoding(steps=decoding),
            _EXACT + decoding * behind,
            needed=True,
            steps=decoding,
        ),
        _Listed(
            "tolerant-ratio",
            "Ratio of the first layer's gradients, allowing for noise",
            "Phong17",
            first,
            BiasRatio(tolerance=0.3),
            needed=True,
        ),
        _Listed(
            "tensor",
            "Tensor method",
            "Wang23",
            "the gradient of the last layer",
            TensorAttack(nonnegative=images),
            needed=True,
        ),
        _Listed(
            "matching",
            "Gradient matching",
            "Geiping20",
            "the gradients of all layers",
            matching,
            settings.search_steps * _step_seconds(settings, updates),
            needed=True,
            steps=settings.search_steps,
        ),
    )
    return [
        Row(
            AttackSpec(one.id, one.name, one.paper, one.sees),
            one.attack,
            _THREAT,
            one.seconds * len(updates),
            records,
            steps=one.steps,
            when="if needed" if one.needed else "always",
        )
        for one in listed
    ]


def _on_texts(steps: Steps, records: int, seconds: float, updates: int) -> list[Row]:
    """After several local steps the vectors are averages, and fit less closely."""
    tolerance = _AFTER_STEPS if steps.several else TextAttack.tolerance
    sees = "the gradients of the embedding and of the layers behind it"
    spec = AttackSpec("texts", "Texts from the vectors behind the embedding", "Wang23", sees)
    attack = TextAttack(tolerance=tolerance)
    return [Row(spec, attack, _THREAT, seconds, records), _words(records, updates)]


def _on_language(records: int, seconds: float, updates: int) -> list[Row]:
    """Of a model that answers for every place of a text."""
    texts = AttackSpec(
        "language",
        "Texts from the spans of the layers",
        "ours, after Petrov24",
        "the gradients of all linear layers",
    )
    bag = AttackSpec(
        "bag",
        "Tokens that occur, and about how often",
        "ours, after Geng21",
        "the rows of the outputs' gradient",
    )
    each = _EXACT * updates
    return [
        Row(texts, LanguageAttack(), _THREAT, seconds, records),
        _words(records, updates),
        Row(bag, TokenBag(), _THREAT, each, records, whole=False, certain=False),
    ]


def _words(records: int, updates: int) -> Row:
    sees = "which rows of the embedding have a gradient"
    spec = AttackSpec("words", "Words that occur", "Melis19", sees)
    return Row(spec, WordRows(), _THREAT, _EXACT * updates, records, whole=False)


# What they take: counted, not timed


def matching_steps(settings: UpdateSettings, updates: Sequence[ClientUpdate]) -> int:
    """Of gradient matching, within its budget."""
    within = settings.search_seconds / len(updates) / _step_seconds(settings, updates)
    return max(_FEWEST, min(_MOST, int(within)))


def _step_seconds(settings: UpdateSettings, updates: Sequence[ClientUpdate]) -> float:
    """One step of all restarts: two passes back, and overhead."""
    batch = max(update.batch_size or 1 for update in updates)
    forward = forward_operations(updates[0].architecture)
    return settings.restarts * (seconds_of(9 * batch * forward) + 2e-3)


def decoding_steps(settings: UpdateSettings, updates: Sequence[ClientUpdate]) -> int:
    """As many as decoding wants, within the budget of a search; few where few are asked for."""
    within = int(settings.search_seconds / len(updates) / _pass(updates))
    wanted = FeatureDecoding.steps if settings.search_steps >= _FEW else settings.search_steps
    return max(1, min(wanted, max(_FEWEST, within)))


def _pass(updates: Sequence[ClientUpdate]) -> float:
    """Seconds of a pass forward and back of the largest batch."""
    batch = max(update.batch_size or 1 for update in updates)
    return seconds_of(3 * batch * forward_operations(updates[0].architecture)) + 2e-3
