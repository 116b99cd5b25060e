"""The attacks on updates: cheap and exact ones first, each with what it takes, and what comes back.

The server that chooses the weights (Wang23) gets them from a client that does not check what it is sent. This
adversary changes what is sent, so that what it gets stands beside the verdict and never in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from exhume.attacks.gradient.analytic import BiasRatio
from exhume.attacks.gradient.features import FeatureDecoding
from exhume.attacks.gradient.gates import GateAttack
from exhume.attacks.gradient.language import LanguageAttack, TokenBag
from exhume.attacks.gradient.local_steps import LocalStepsAttack
from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.patches import PatchAttack
from exhume.attacks.gradient.span import SpanAttack
from exhume.attacks.gradient.tensor import TensorAttack
from exhume.attacks.gradient.text import TextAttack, WordRows
from exhume.auditing.attack import confidences, pooled
from exhume.auditing.augmented import compare_with_named
from exhume.auditing.case import Answer, Row
from exhume.auditing.kinds.update_files import ClientUpdate, Truth, updates_of_batches
from exhume.auditing.plan import KEPT_BACK, language_seconds, seconds_of, text_seconds
from exhume.bounds.dp_sgd import gaussian
from exhume.core.contract import (
    Architecture,
    Attack,
    NotApplicable,
    Outcome,
    QueryingAttack,
    Reconstruction,
    Records,
    Shard,
    Status,
    Vocabulary,
)
from exhume.core.results import AttackSpec, Findings, Section, Verdict
from exhume.models.mlp import MLP
from exhume.models.own_texts import LanguageModel, TextModel
from exhume.models.two_layer import TwoLayer
from exhume.score.lineup import USUAL
from exhume.score.verdict import found_something
from exhume.settings import UpdateSettings
from exhume.train.dp import Privacy
from exhume.train.fleet import forward_operations
from exhume.train.local import Steps
from exhume.train.order import search_seconds

_FIRST, _DENSE = "the gradient of the first layer", "the gradients of the fully connected layers"
_LAST_TWO, _LAST = "the gradients of the last two layers", "the gradient of the last layer"
_PLACES = "the gradients of the patches' layer and of the places' vectors"
_EMBEDDING = "the gradients of the embedding and of the layers behind it"
_BY_ID = {
    spec.id: spec
    for spec in (
        AttackSpec("bias-ratio", "Ratio of the first layer's gradients", "Phong17", _FIRST),
        AttackSpec("span", "Moments and fit inside the span of the gradient", "Wang23", _LAST_TWO),
        AttackSpec(
            "gates", "Gates of the fully connected layers", "ours, after Dimitrov24", _DENSE
        ),
        AttackSpec(
            "local-steps",
            "Gates of averaged gradients, fitted through the local steps",
            "ours",
            _DENSE,
        ),
        AttackSpec("patches", "Patches at their places", "ours, after Lu22", _PLACES),
        AttackSpec("features", "Features first, then decoded", "ours", _DENSE),
        AttackSpec(
            "tolerant-ratio",
            "Ratio of the first layer's gradients, allowing for noise",
            "Phong17",
            _FIRST,
        ),
        AttackSpec("tensor", "Tensor method", "Wang23", _LAST),
        AttackSpec("matching", "Gradient matching", "Geiping20", "the gradients of all layers"),
        AttackSpec("texts", "Texts from the vectors behind the embedding", "Wang23", _EMBEDDING),
        AttackSpec(
            "language",
            "Texts from the spans of the layers",
            "ours, after Petrov24",
            "the gradients of all linear layers",
        ),
        AttackSpec(
            "words",
            "Words that occur",
            "Melis19",
            "which rows of the embedding have a gradient",
        ),
        AttackSpec(
            "bag",
            "Tokens that occur, and about how often",
            "ours, after Geng21",
            "the rows of the outputs' gradient",
        ),
    )
}
_SERVER = AttackSpec(
    "server", "A server that chooses the weights", "Wang23", "updates at weights that it chose"
)
SERVERS = ("server-span", "server-tensor")
_THREAT = "sees a client's update; knows the weights it was sent"
_EXACT, _CHEAP = 0.7, 7  # seconds of an exact attack on one update at most, and how many there are
_LITTLE, _EACH_NUMBER = 0.17, 2e-6  # seconds of its line-up, and for each number that is sent
_ORDERS = 8  # times what finding the order of known records takes, where the records are not known
_LEAST = 1e-3  # seconds of a search, which then makes the fewest steps there are
_FEWEST, _MOST = 50, 2000  # steps of gradient matching
_PATIENT = 400  # steps of a restart before there is another
_FEW = 100  # steps of a search that is asked to be short: decoding follows it
_TOLD = 3  # times what decoding takes where the statistics of batch norm are sent
_AFTER_STEPS = 0.1  # relative misfit of a text's vector after several local steps
_POOLED = Status(Outcome.CONVERGED)  # of what came back from several updates
_SHARES = (0.0, 1 / 16, 1 / 4)  # of the client's noise, on the rungs of the ladder


def rows_on(settings: UpdateSettings, updates: Sequence[ClientUpdate]) -> list[Row]:
    """Every attack on these updates. The later ones run only where the earlier have left something."""
    network, local = updates[0].architecture, steps_behind(updates)
    if isinstance(network, LanguageModel):
        seconds = sum(language_seconds(network, u.batch_size or 1) for u in updates)
        return [
            _row(updates, "language", LanguageAttack(), seconds),
            _row(updates, "words", WordRows(), whole=False),
            _row(updates, "bag", TokenBag(), whole=False, certain=False),
        ]
    if isinstance(network, TextModel):
        seconds = sum(text_seconds(network, u.batch_size or 1) for u in updates)
        # after several local steps the vectors are averages, and fit less closely
        tolerance = _AFTER_STEPS if local.several else TextAttack.tolerance
        return [
            _row(updates, "texts", TextAttack(tolerance=tolerance), seconds),
            _row(updates, "words", WordRows(), whole=False),
        ]
    rows = _on_records(settings, updates, images=len(network.input_shape) == 3)
    if local.several and local.routine.optimiser == "adam":
        return [row for row in rows if row.id == "matching"]  # the mean step is no gradient
    return [row for row in rows if row.id != "local-steps" or local.several]


def steps_behind(updates: Sequence[ClientUpdate]) -> Steps:
    """How the clients trained: of one that made several steps, if there is such."""
    several = (update.steps for update in updates if update.steps.several)
    return next(several, updates[0].steps)


def _row(
    updates: Sequence[ClientUpdate],
    name: str,
    attack: Attack,
    seconds: float | None = None,
    steps: int = 0,
    *,
    needed: bool = False,
    whole: bool = True,
    certain: bool = True,
) -> Row:
    """seconds: on all updates; None: it is exact and cheap. needed: if the earlier left something."""
    return Row(
        _BY_ID[name],
        attack,
        _THREAT,
        exact_seconds(updates) if seconds is None else seconds,
        sum(update.batch_size or 0 for update in updates),
        steps=steps,
        when="if needed" if needed else "always",
        exact=seconds is None,
        whole=whole,
        certain=certain,
    )


def _on_records(
    settings: UpdateSettings, updates: Sequence[ClientUpdate], *, images: bool
) -> list[Row]:
    matching = GradientMatching(
        steps=settings.search_steps,
        rate=settings.search_rate,
        restarts=settings.restarts,
        variation=settings.tv if images else 0.0,
        falls=1e-3,
        signed=images,
        polish=settings.polish,
    )
    searching = settings.search_steps * settings.restarts * _step_seconds(updates)
    steps = decoding_steps(settings, updates)
    decoding = exact_seconds(updates)
    if not isinstance(updates[0].architecture, MLP | TwoLayer):
        decoding += steps * _decoding_seconds(updates) * len(updates)
    first, later = partial(_row, updates), partial(_row, updates, needed=True)
    return [
        first("bias-ratio", BiasRatio()),
        first("span", SpanAttack(nonnegative=images, averaged=updates[0].averaged)),
        later("gates", GateAttack()),
        later("local-steps", LocalStepsAttack(), _local_seconds(updates)),
        later("patches", PatchAttack()),
        later("features", FeatureDecoding(steps=steps), decoding, steps),
        later("tolerant-ratio", BiasRatio(tolerance=0.3)),
        later("tensor", TensorAttack(nonnegative=images)),
        later("matching", matching, searching * len(updates), matching.steps),
    ]


# What they take: counted, not timed


def seconds_to_search(budget: float, updates: Sequence[ClientUpdate]) -> float:
    """What decoding and matching may take each: half of what controls and exact attacks leave of a budget."""
    left = (1 - KEPT_BACK) * budget - _CHEAP * _EXACT * len(updates)
    return max(_LEAST, left / 2)


def exact_seconds(updates: Sequence[ClientUpdate]) -> float:
    """Seconds of an exact attack on all updates, by the numbers that it decomposes."""
    numbers = updates[0].architecture.layout.size
    return _LITTLE + min(_EXACT, _EACH_NUMBER * numbers) * len(updates)


def _local_seconds(updates: Sequence[ClientUpdate]) -> float | None:
    """Seconds of going back through local steps; None: the order is known, so it is cheap."""
    trained = [(u.steps.of(u.architecture), u.batch_size or 0) for u in updates]
    searched = sum(search_seconds(local, records) for local, records in trained)
    return exact_seconds(updates) + _ORDERS * searched if searched else None


def with_search(settings: UpdateSettings, updates: Sequence[ClientUpdate]) -> UpdateSettings:
    """Steps and restarts of gradient matching, within its budget: a restart only once each has its steps."""
    within = settings.search_seconds / len(updates) / _step_seconds(updates)
    restarts = max(1, min(settings.restarts, int(within / _PATIENT)))
    steps = max(_FEWEST, min(_MOST, int(within / restarts)))
    return replace(settings, restarts=restarts, search_steps=steps)


def _step_seconds(updates: Sequence[ClientUpdate]) -> float:
    """One step of one restart: two passes back, and overhead."""
    return seconds_of(9 * _forward(updates)) + 2e-3


def decoding_steps(settings: UpdateSettings, updates: Sequence[ClientUpdate]) -> int:
    """Steps of decoding: as many as it wants, within the budget of a search; few where few are asked for."""
    within = int(settings.search_seconds / len(updates) / _decoding_seconds(updates))
    wanted = FeatureDecoding.steps if settings.search_steps >= _FEW else settings.search_steps
    return max(1, min(wanted, max(_FEWEST, within)))


def _decoding_seconds(updates: Sequence[ClientUpdate]) -> float:
    """One step of decoding: a pass forward and back; more where batch norm's statistics are met, too."""
    times = _TOLD if updates[0].gradient.statistics else 1
    return times * (seconds_of(3 * _forward(updates)) + 2e-3)


def _forward(updates: Sequence[ClientUpdate]) -> float:
    """Operations of the largest batch's way through the network."""
    batch = max(update.batch_size or 1 for update in updates)
    return batch * forward_operations(updates[0].architecture)


# What came back: candidates, evidence, words


def by_client(answers: Sequence[Answer], truth: Truth) -> list[tuple[list[Answer], Records]]:
    """What was answered to each client's updates, and its records."""
    return [
        ([answer for answer in answers if answer.question.name == client], records)
        for client, records in truth.private.items()
    ]


def wrong_records(answers: Sequence[Answer], truth: Truth) -> tuple[frozenset[str], str]:
    """Clients whose named records are not those of their updates, and a sentence; empty: there are none.

    What is proved is compared with the named records, unless these give the update themselves. A client
    without a proof stands as its update was recomputed.
    """
    compared: dict[str, str] = {}
    for mine, records in by_client(answers, truth) if truth.chosen else ():
        proved = [a.found.found() for a in mine if a.proof.chosen is not None]
        client = mine[0].question.name if mine else ""
        if proved and client not in truth.exact and records.inputs.is_floating_point():
            compared[client] = compare_with_named(torch.cat(proved), records.inputs).sentence
    told = "; ".join(f"client {client}: {words}" for client, words in compared.items() if words)
    strange = frozenset(client for client, words in compared.items() if words)
    strange |= truth.strange - set(compared)
    return strange, (told or truth.wrong) if strange else ""


def candidates_of(answers: Sequence[Answer], records: Records) -> Reconstruction:
    """Everything found in any of a client's updates, as candidates for its records."""
    whole = pooled(answers, records.shape)[None]
    every = [torch.zeros(0, dtype=torch.int64)]
    for found in (answer.found for answer in answers):
        labels = torch.full(found.real.shape, -1) if found.labels is None else found.labels
        every.append(labels[0][found.real[0]])
    labels = torch.cat(every)[None]
    return Reconstruction(whole, confidences(answers)[None], _POOLED, labels=labels)


def tokens_of(answers: Sequence[Answer], records: Records, row: Row) -> Reconstruction:
    """Every different text found in any of a client's updates; of parts, every different token."""
    shape = records.shape if row.whole else (1,)
    tokens = [answer.found.found().long() for answer in answers]
    whole = torch.unique(torch.cat([torch.zeros(0, *shape).long(), *tokens]), dim=0)[None]
    return Reconstruction(whole, torch.zeros(whole.shape[:2]), _POOLED)


def keeps_order(answers: Sequence[Answer]) -> bool:
    """Whether what was found says at which place of a text each token stands."""
    return all(answer.found.observed.get("ordered", 1.0) > 0 for answer in answers)


def observed_metrics(answers: Sequence[Answer], proved: int) -> dict[str, float]:
    """What the proofs and the attack itself say."""
    metrics: dict[str, float] = {"certified": float(proved)}
    residuals = [r for answer in answers if (r := answer.proof.residual) is not None]
    if residuals:
        metrics["update_residual"] = max(residuals)
    for name in sorted({name for answer in answers for name in answer.found.observed}):
        values = [a.found.observed[name] for a in answers if name in a.found.observed]
        metrics[f"own_{name}"] = sum(values) / len(values)
    metrics.pop("own_ordered", None)
    return metrics


def unscored_evidence(answers: Sequence[Answer]) -> dict[str, Tensor]:
    """What came back, with nothing to compare it with."""
    records, confidence, labels = [], [], []
    for answer in answers:
        real = answer.found.real[0]
        candidates = answer.found.candidates[0][real]
        records.append(candidates.float() if candidates.is_floating_point() else candidates)
        confidence.append(answer.found.confidence[0][real])
        if answer.found.labels is not None:
            labels.append(answer.found.labels[0][real])
    evidence = {"reconstructions": torch.cat(records), "confidence": torch.cat(confidence)}
    whole = len(labels) == len(answers) and all(bool((part >= 0).all()) for part in labels)
    return evidence | ({"inferred": torch.cat(labels)} if whole else {})


def with_words(
    evidence: dict[str, Tensor],
    vocabulary: Vocabulary | None,
    padding: int | None,
    *,
    ordered: bool,
) -> Shard:
    """The evidence, and what its token numbers mean: for the page."""
    names = vocabulary.words if vocabulary is not None else ()
    fields = ("targets", "reconstructions", "nearest", "listed")
    tokens = [evidence[n].long().flatten() for n in fields if n in evidence]
    used = torch.unique(torch.cat(tokens)).tolist() if tokens else []
    lexicon = {
        "padding": padding,
        "ordered": ordered,
        "words": {str(n): names[n] for n in used if 0 <= n < len(names)},
    }
    return Shard(evidence, {"lexicon": lexicon})


NOTHING_KNOWN = Verdict(
    "not audited",
    "Not audited: there are no private records to compare the reconstructions with (--data, --records), and "
    "no reconstruction proves itself.",
    "The report shows what the attacks brought back; whether it is right is not known.",
)


def unproved_verdict(answers: Sequence[Answer]) -> Verdict:
    """With what speaks against what is said about the updates: that may be why nothing proves itself."""
    doubts = dict.fromkeys(doubt for answer in answers for doubt in answer.question.source.doubts)
    if not doubts:
        return NOTHING_KNOWN
    return replace(
        NOTHING_KNOWN, detail=f"{NOTHING_KNOWN.detail} What was found: {'; '.join(doubts)}."
    )


def listed_words_verdict(answers: Sequence[Answer]) -> Verdict:
    """Without texts to compare with. A row that is not zero was used: that needs no further proof."""
    counts = [len(answer.found.found()) for answer in answers]
    some = (
        f"{counts[0]} words" if len(counts) == 1 else f"{min(counts)} to {max(counts)} words each"
    )
    return Verdict(
        "leaks",
        f"The update leaks words: it lists which {some} the client's texts are made of.",
        "Only the rows of these words have changed. In which text each stands is not told by this.",
    )


# What the noise of a private client allows at most, and the same client with less of it


@dataclass(frozen=True)
class NoiseBound:
    """What no attack on one client can exceed: naming its record among equally likely ones."""

    chance: float  # of an attack that knows nothing
    most: float  # Hayes et al. 2023

    @property
    def sentence(self) -> str:
        return (
            f"the noise that is said allows no attack to name more than {self.most:.1%} of the records among "
            f"{USUAL} strangers each (by chance {self.chance:.1%})"
        )


def noise_bound(steps: Steps, updates: int, *, images: bool) -> NoiseBound | None:
    """Bound for a client that sent so many updates of the same records; None: it adds no noise.

    A record is in every step, or in one batch of every epoch. Images are lined up by two measures, which
    doubles the chance.
    """
    if not steps.privacy.noise:
        return None
    seen = updates * (steps.routine.epochs or steps.count)
    chance = (2 if images else 1) / (USUAL + 1)
    return NoiseBound(chance, gaussian(chance, steps.privacy.noise, seen))


def with_less_noise(steps: Steps) -> list[tuple[Steps, str, str]]:
    """Easier versions of a private client, easiest first: how it trains, the noise, and words for it."""
    private = steps.privacy
    rungs = []
    for share in _SHARES:
        easier = Privacy(private.clip, share * private.noise)
        value = f"{easier.noise:.2g}"
        words = f"with noise of {value} times the clip" if share else "without the noise"
        rungs.append((replace(steps, privacy=easier), value, words))
    return rungs


# The server that chooses the weights


def server_rows(network: Architecture, records: int) -> list[Row]:
    """Weights of about 1 / norm of a record, whose numbers are taken to be about a half."""
    images = len(network.input_shape) == 3
    spread = 2 / math.sqrt(math.prod(network.input_shape))
    attacks: tuple[Attack, ...] = (
        SpanAttack(spread=spread, nonnegative=images),
        TensorAttack(spread=spread, nonnegative=images),
    )
    threat = "sees a client's update at weights that it chose itself"
    seconds = 0.1 * records
    return [
        Row(
            replace(_SERVER, id=name),
            attack,
            threat,
            seconds,
            records,
            role="beside",
            view=_at_chosen_weights,
        )
        for name, attack in zip(SERVERS, attacks, strict=True)
    ]


def _at_chosen_weights(case: Any, *_: object) -> Any:
    """The batches once more, each an update at the weights that the attacks ask for, both for the same."""
    network: Architecture = case.net
    query = server_rows(network, 0)[0].attack
    assert isinstance(query, QueryingAttack)
    try:
        start = query.query(network, case.key.fold("server").fold("query"))
    except NotApplicable:
        why = f"weights to ask at are known for fully connected networks; this is {network}"
        raise NotApplicable(why, ever=False) from None
    batches: list[Records] = list(case.truth.private.values())
    updates = updates_of_batches(network, start, Records.joined(batches), len(batches[0]))[0]
    return replace(case, updates=updates)


def best_server(servers: Sequence[Findings]) -> Findings:
    """The better of the two, with a sentence; its p-value allows for the two alone (Bonferroni)."""
    best = max(servers, key=lambda each: each.section.leak.share if each.section.leak else -1.0)
    section, row = best.section, best.section.lineup
    if row is not None:
        lineup = replace(row, adjusted=min(1.0, len(servers) * row.p))
        section = replace(section, lineup=lineup)
    section = replace(section, spec=_SERVER, counts=False)
    return replace(best, section=replace(section, beside=_sentence(section)), facts={})


def _sentence(section: Section) -> str:
    who = "A server that chooses the weights"
    if not section.applies:
        return f"{who} was not tried: {section.status.reason}."
    leak = section.leak
    if leak is None or not found_something(section):
        return f"{who} gets no more than chance explains by these attacks; others may get more."
    got = f"{leak.successes} of {leak.trials} records"
    return f"{who} gets {got}: a client that does not check what it is sent gives them away."
