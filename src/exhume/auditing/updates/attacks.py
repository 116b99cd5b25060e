"""Which attacks an update is put to, in which order, and with how much effort."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from exhume.attacks.gradient.analytic import BiasRatio
from exhume.attacks.gradient.features import FeatureDecoding
from exhume.attacks.gradient.gates import GateAttack
from exhume.attacks.gradient.language import LanguageAttack
from exhume.attacks.gradient.local_steps import LocalStepsAttack
from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.patches import PatchAttack
from exhume.attacks.gradient.reading import decode
from exhume.attacks.gradient.span import SpanAttack
from exhume.attacks.gradient.tensor import TensorAttack
from exhume.attacks.gradient.text import TextAttack, WordRows
from exhume.attacks.gradient.token_bag import TokenBag
from exhume.auditing.cached import cached_reconstruction
from exhume.auditing.updates.proofs import Proof, proof_of
from exhume.auditing.updates.reading import Case
from exhume.core.contract import (
    Attack,
    Key,
    Knowledge,
    NotApplicable,
    Outcome,
    Progress,
    Reconstruction,
    Store,
)
from exhume.core.results import AttackSpec
from exhume.models.mlp import MLP
from exhume.settings import UpdateSettings
from exhume.store.shards import address
from exhume.train.local import Steps

__all__ = [
    "Answer",
    "UpdateAttack",
    "attack_all",
    "attacks_on_language",
    "attacks_on_records",
    "attacks_on_texts",
]

_IF_NEEDED = (
    *("gates", "local-steps", "patches", "features"),
    *("tolerant-ratio", "tensor", "matching"),
)
_ONE = Steps()
_AFTER_STEPS = 0.1  # relative misfit of a text's vector after several local steps


@dataclass(frozen=True)
class UpdateAttack:
    spec: AttackSpec
    attack: Attack
    whole: bool = True  # records come back, and not parts of them: training on them can prove them
    certain: bool = True  # of parts: they need no further proof

    @property
    def id(self) -> str:
        return self.spec.id


_WORDS = UpdateAttack(
    AttackSpec(
        "words", "Words that occur", "Melis19", "which rows of the embedding have a gradient"
    ),
    WordRows(),
    whole=False,
)


@dataclass(frozen=True, eq=False)
class Answer:
    case: Case
    found: Reconstruction
    proof: Proof


def attacks_on_records(
    settings: UpdateSettings, *, images: bool, averaged: bool, decoding: int, steps: Steps = _ONE
) -> list[UpdateAttack]:
    """Cheap and exact ones first. The later ones run only where the earlier have left something.

    decoding: steps for features; steps: how the clients trained.
    """
    every = _on_records(settings, images=images, averaged=averaged, decoding=decoding)
    if steps.several and steps.routine.optimiser == "adam":
        return [one for one in every if one.id == "matching"]  # the mean step is no gradient
    return [one for one in every if one.id != "local-steps" or steps.several]


def _on_records(
    settings: UpdateSettings, *, images: bool, averaged: bool, decoding: int
) -> list[UpdateAttack]:
    matching = GradientMatching(
        steps=settings.search_steps,
        rate=settings.search_rate,
        restarts=settings.restarts,
        variation=settings.tv if images else 0.0,
        falls=1e-3,
        signed=images,
        polish=settings.polish,
    )
    return [
        UpdateAttack(
            AttackSpec(
                "bias-ratio",
                "Ratio of the first layer's gradients",
                "Phong17",
                "the gradient of the first layer",
            ),
            BiasRatio(),
        ),
        UpdateAttack(
            AttackSpec(
                "span",
                "Moments and fit inside the span of the gradient",
                "Wang23",
                "the gradients of the last two layers",
            ),
            SpanAttack(nonnegative=images, averaged=averaged),
        ),
        UpdateAttack(
            AttackSpec(
                "gates",
                "Gates of the fully connected layers",
                "ours, after Dimitrov24",
                "the gradients of the fully connected layers",
            ),
            GateAttack(),
        ),
        UpdateAttack(
            AttackSpec(
                "local-steps",
                "Gates of averaged gradients, fitted through the local steps",
                "ours",
                "the gradients of the fully connected layers",
            ),
            LocalStepsAttack(),
        ),
        UpdateAttack(
            AttackSpec(
                "patches",
                "Patches at their places",
                "ours, after Lu22",
                "the gradients of the patches' layer and of the places' vectors",
            ),
            PatchAttack(),
        ),
        UpdateAttack(
            AttackSpec(
                "features",
                "Features first, then decoded",
                "ours",
                "the gradients of the fully connected layers",
            ),
            FeatureDecoding(steps=decoding),
        ),
        UpdateAttack(
            AttackSpec(
                "tolerant-ratio",
                "Ratio of the first layer's gradients, allowing for noise",
                "Phong17",
                "the gradient of the first layer",
            ),
            BiasRatio(tolerance=0.3),
        ),
        UpdateAttack(
            AttackSpec("tensor", "Tensor method", "Wang23", "the gradient of the last layer"),
            TensorAttack(nonnegative=images),
        ),
        UpdateAttack(
            AttackSpec("matching", "Gradient matching", "Geiping20", "the gradients of all layers"),
            matching,
        ),
    ]


def attacks_on_texts(steps: Steps) -> list[UpdateAttack]:
    """Of a text model. After several local steps the vectors are averages, and fit less closely."""
    tolerance = _AFTER_STEPS if steps.several else TextAttack.tolerance
    return [
        UpdateAttack(
            AttackSpec(
                "texts",
                "Texts from the vectors behind the embedding",
                "Wang23",
                "the gradients of the embedding and of the layers behind it",
            ),
            TextAttack(tolerance=tolerance),
        ),
        _WORDS,
    ]


def attacks_on_language() -> list[UpdateAttack]:
    """Of a model that answers for every place of a text."""
    return [
        UpdateAttack(
            AttackSpec(
                "language",
                "Texts from the spans of the layers",
                "ours, after Petrov24",
                "the gradients of all linear layers",
            ),
            LanguageAttack(),
        ),
        _WORDS,
        UpdateAttack(
            AttackSpec(
                "bag",
                "Tokens that occur, and about how often",
                "ours, after Geng21",
                "the rows of the outputs' gradient",
            ),
            TokenBag(),
            whole=False,
            certain=False,
        ),
    ]


def attack_all(
    case: Case, attacks: list[UpdateAttack], *, key: Key, store: Store, progress: Progress
) -> dict[str, Answer]:
    """Attack one update; once the whole batch is proved, what is left is not run."""
    answers: dict[str, Answer] = {}
    for attack in attacks:
        case = _counted(case, answers)
        if attack.id in _IF_NEEDED and _settled(case, answers):
            continue
        found = _kept(case, attack, key=key, store=store, progress=progress)
        proof = Proof(0)
        if attack.whole and found.status.outcome is not Outcome.NOT_APPLICABLE:
            proof = proof_of(case.gradient, case.architecture, found, case.steps, attack.id)
            found = _proved(found, proof)
        answers[attack.id] = Answer(case, found, proof)
    return answers


def _proved(found: Reconstruction, proof: Proof) -> Reconstruction:
    """Only the candidates that explain the whole update, with their labels, where there are such."""
    if proof.chosen is None or proof.labels is None:
        return found
    return replace(
        found,
        candidates=found.candidates[:, proof.chosen],
        confidence=found.confidence[:, proof.chosen],
        labels=proof.labels[None],
    )


def _counted(case: Case, answers: dict[str, Answer]) -> Case:
    """The batch size, where an attack has counted it and proved its count."""
    if case.batch_size is None:
        for answer in answers.values():
            if answer.proof.residual is not None and answer.proof.records:
                return replace(case, batch_size=answer.proof.records)
        span = answers.get("span")
        if span is not None and "batch_size" in span.found.observed:
            return replace(case, batch_size=int(span.found.observed["batch_size"]))
    return case


def _settled(case: Case, answers: dict[str, Answer]) -> bool:
    """Every record of the batch is proved."""
    most = max((answer.proof.records for answer in answers.values()), default=0)
    return case.batch_size is not None and most >= case.batch_size


def _kept(
    case: Case, attack: UpdateAttack, *, key: Key, store: Store, progress: Progress
) -> Reconstruction:
    size = case.batch_size or 0
    local = case.steps.of(case.architecture) if case.steps != Steps() else None
    said = (case.fingerprint(),) + ((repr(case.steps),) if local else ())
    place = address(f"audit-update {attack.id} 1", attack.attack, said, key, size)

    def run() -> Reconstruction:
        knowledge = Knowledge(
            architecture=case.architecture, batch_size=case.batch_size, local=local
        )
        prepared = attack.attack.prepare(
            knowledge, key=key.fold(attack.id), store=store, progress=progress
        )
        try:
            found = prepared.run(case.gradient)
        except LinAlgError as why:
            raise NotApplicable(f"the equations are singular ({why})", ever=False) from why
        return _as_records(case, found, key) if attack.whole else found

    return cached_reconstruction(store, place, run)


def _as_records(case: Case, found: Reconstruction, key: Key) -> Reconstruction:
    """Features of a deeper network, carried back through the known layers below."""
    shape = tuple(case.architecture.input_shape)
    if found.candidates.shape[2:] == shape or found.status.outcome is Outcome.NOT_APPLICABLE:
        return found
    assert isinstance(case.architecture, MLP)  # only its deeper layers are read so
    records = decode(case.architecture, case.start(), found.candidates[0], key.fold("decode"))
    return replace(found, candidates=records[None].to(case.gradient.values.dtype))
