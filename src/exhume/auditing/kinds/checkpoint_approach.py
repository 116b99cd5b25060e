"""How a checkpoint is attacked, by the kind of its network: which attack, what that needs, and an easier one.

Fully connected networks are read from their first two layers (`Strongest`), all others from the first fully
connected layer behind the convolutions (`FeatureSpan`). The rest of an audit does not ask which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

from torch import Tensor

from exhume.attacks.margin.descent import SearchDescent
from exhume.attacks.margin.feature_span import FeatureSpan
from exhume.attacks.margin.hidden_span import HiddenSpan, Strongest
from exhume.attacks.margin.reading import FeaturePremises, Premises, feature_premises, premises_of
from exhume.attacks.margin.stationarity import FirstLayer
from exhume.auditing.kinds.checkpoint_conditions import (
    Fit,
    conditions_of,
    feature_conditions,
    feature_fit,
    fit_of,
)
from exhume.auditing.kinds.checkpoint_records import CONTRAST, Preprocessing
from exhume.core.contract import Architecture, NotApplicable, Records
from exhume.core.evidence import Condition
from exhume.core.results import AttackSpec
from exhume.models.heads import Head
from exhume.models.matrices import DenseNetwork
from exhume.models.mlp import HomogeneousMLP
from exhume.models.own import Convolved
from exhume.readers.checkpoint import TRAINING, Checkpoint
from exhume.settings import CheckpointSettings
from exhume.train.margin import MarginDescent
from exhume.train.optimisers import Descent
from exhume.train.recipe import FullBatch

_EPOCHS = 20_000
_DECAY = 2e-3
_CONVOLVED = Descent(5000, 0.05, 0.9, 0.01)  # as the study `margin-ordinary` trains its network


def recipe_like(network: DenseNetwork, head: Head, *, spans: bool) -> MarginDescent:
    """A training that ends where the attack can read it. spans: by weight decay; else by a small start.

    A small start is there for homogeneous networks only: the others need decay.
    """
    if isinstance(network, HomogeneousMLP) and not spans:
        small = replace(network, first_scale=1e-4)
        return MarginDescent(small, head, growing_steps=0.003, epochs=_EPOCHS)
    return MarginDescent(network, head, weight_decay=_DECAY, stop_loss=0.0, epochs=_EPOCHS)


def decayed(network: Architecture) -> FullBatch:
    """Training of any network with weight decay until the start is gone."""
    return FullBatch(network, _CONVOLVED)


_COUNTED = "The number of training records is read off the {} layer's spectrum."
_AMPLE = 4  # equations for each pixel with which images need no more than a weak prior
_WEAK = 0.3  # of the total variation
_MATCHED = "Images are matched at full resolution, not at half; vectors by cosine."


@runtime_checkable
class Approach(Protocol):
    """To one checkpoint."""

    @property
    def architecture(self) -> Architecture: ...
    @property
    def deviations(self) -> tuple[str, ...]: ...
    @property
    def confidence(self) -> str:
        """What the attack's confidence is, as a sentence."""
        ...

    @property
    def records(self) -> int:
        """That the weights show."""
        ...

    def spec(self, noun: str) -> AttackSpec: ...
    def fit(self, records: Records, preprocessing: Preprocessing, head: Head) -> Fit: ...
    def conditions(self, fit: Fit | None) -> tuple[Condition, ...]: ...
    def mounted(
        self, settings: CheckpointSettings, head: Head, size: float
    ) -> Strongest | FeatureSpan:
        """The attack as the settings ask for it, on records of this size as they enter."""
        ...

    def easier(self, head: Head) -> MarginDescent | FullBatch | None:
        """A training of the same network that ends where the attack can read it."""
        ...

    def of_control(self, architecture: Architecture) -> Approach:
        """To a network of this architecture that was trained here."""
        ...


def approach_to(checkpoint: Checkpoint) -> Approach:
    """Raises `NotApplicable` for a network without a layer that the attack reads."""
    network, flat = checkpoint.architecture, checkpoint.release.parameters[0]
    if isinstance(network, Convolved):
        return _BehindConvolutions(network, flat, _premises(network, flat))
    return _FullyConnected(network, flat)


def _premises(network: Convolved, flat: Tensor) -> FeaturePremises:
    if len(network.input_shape) != 3:
        raise NotApplicable(
            f"records of shape {network.input_shape}: behind convolutions only images are sought; "
            f"{TRAINING}",
            ever=False,
        )
    try:
        return feature_premises(network, flat, FeatureSpan.widen)
    except NotApplicable as why:
        raise NotApplicable(f"{why.why}; {TRAINING}", ever=why.ever) from why


@dataclass(frozen=True, eq=False)
class _FullyConnected:
    architecture: DenseNetwork
    parameters: Tensor  # (p,)

    @cached_property
    def premises(self) -> Premises:
        return premises_of(self.architecture.matrices(self.parameters), HiddenSpan.widen)

    @property
    def deviations(self) -> tuple[str, ...]:
        return (
            "Where weight decay has removed the second layer's start, records are sought one by one in its "
            "span; else, and in doubt besides, only the first layer is explained. Buzaglo23 explains all "
            "layers.",
            _COUNTED.format("first"),
            _MATCHED,
        )

    @property
    def confidence(self) -> str:
        if self.premises.spans:
            return (
                "Confidence is minus the share of a candidate's hidden activations outside the second "
                "layer's span."
            )
        return (
            "Confidence is the cosine with the nearest candidate of another restart; with one restart, the "
            "share of the weights that a candidate explains."
        )

    @property
    def records(self) -> int:
        return self.premises.records

    def spec(self, noun: str) -> AttackSpec:
        if self.premises.spans:
            name = f"Training {noun} from the span of hidden activations"
            return AttackSpec("hidden-span", name, "Buzaglo23", "the released weights")
        name = f"Training {noun} from the first layer"
        return AttackSpec("first-layer", name, "Buzaglo23", "the released weights")

    def fit(self, records: Records, preprocessing: Preprocessing, head: Head) -> Fit:
        return fit_of(self.architecture, self.parameters, records, preprocessing, head)

    def conditions(self, fit: Fit | None) -> tuple[Condition, ...]:
        return conditions_of(self.premises, fit)

    def mounted(self, settings: CheckpointSettings, head: Head, size: float) -> Strongest:
        times, restarts = size / CONTRAST, settings.restarts
        first, hidden = FirstLayer(), HiddenSpan()
        return Strongest(
            replace(
                first,
                head=head,
                restarts=restarts,
                contrast=first.contrast * times,
                largest=first.largest * times,
                labels="own",
                descent=SearchDescent(steps=settings.steps),
            ),
            replace(
                hidden,
                head=head,
                restarts=restarts,
                contrast=hidden.contrast * times,
                largest=hidden.largest * times,
                descent=replace(hidden.descent, steps=settings.steps),
            ),
        )

    def of_control(self, architecture: Architecture) -> Approach:
        assert isinstance(architecture, DenseNetwork)  # as `easier` has it
        return replace(self, architecture=architecture)

    def easier(self, head: Head) -> MarginDescent:
        return recipe_like(self.architecture, head, spans=self.premises.spans)


@dataclass(frozen=True, eq=False)
class _BehindConvolutions:
    architecture: Convolved
    parameters: Tensor  # (p,)
    premises: FeaturePremises

    @property
    def deviations(self) -> tuple[str, ...]:
        return (
            "Images are sought one by one whose features lie in the span of the first fully connected layer, "
            "and smooth ones; Buzaglo23 explains all layers.",
            _COUNTED.format("first fully connected"),
            _MATCHED,
        )

    @property
    def confidence(self) -> str:
        return (
            "Confidence is minus the share of a candidate's features outside the span of "
            f"{self.premises.layer}, the first fully connected layer."
        )

    @property
    def records(self) -> int:
        return self.premises.records

    def spec(self, noun: str) -> AttackSpec:
        name = f"Training {noun} from the span of features behind convolutions"
        return AttackSpec("feature-span", name, "Buzaglo23", "the released weights")

    def fit(self, records: Records, preprocessing: Preprocessing, head: Head) -> Fit:
        entering = Records(preprocessing.entering(records.inputs), records.labels, records.classes)
        return feature_fit(self.architecture, self.parameters, self.premises.layer, entering, head)

    def conditions(self, fit: Fit | None) -> tuple[Condition, ...]:
        return feature_conditions(self.premises, fit)

    def mounted(self, settings: CheckpointSettings, head: Head, size: float) -> FeatureSpan:
        usual = FeatureSpan()
        ample = self.premises.equations >= _AMPLE * self.premises.unknowns
        return replace(
            usual,
            restarts=settings.restarts,
            contrast=usual.contrast * size / CONTRAST,
            largest=usual.largest * size / CONTRAST,
            variation=_WEAK if ample else usual.variation,
            descent=replace(usual.descent, steps=settings.steps),
        )

    def of_control(self, architecture: Architecture) -> Approach:
        assert isinstance(architecture, Convolved)  # as `easier` has it
        return replace(self, architecture=architecture)

    def easier(self, head: Head) -> FullBatch | None:
        """None with one output: full batches are trained by cross-entropy here."""
        return decayed(self.architecture) if head == "multiclass" else None
