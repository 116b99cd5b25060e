"""Where to ask for a gradient: at random, moderately trained or well trained weights.

Folklore says that a random network has not seen the data and a well trained one has no gradient left. The
seed of Wang23 calls both wrong impressions.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from exhume.attacks.gradient.span import SpanAttack
from exhume.core.contract import Key, Records
from exhume.models.two_layer import TwoLayer
from exhume.studies.claims import flattened, prefixed
from exhume.studies.framework import Chart, Claims, Outcome, Point, Run, Scale, Study
from exhume.studies.gradient.batches import attacked, even_odd_batches, recovered_range
from exhume.train.functional import logits
from exhume.victims.gradient import release_batches

__all__ = ["STUDY"]

DEVIATIONS = (
    "8x8 digits of unit norm, even against odd; full-batch gradient descent from the queried start.",
    "The attacked batches are part of the training set: the case in which the gradient is smallest.",
)


@dataclass(frozen=True)
class _Setting:
    width: int
    batch: int
    batches: int
    steps: tuple[int, ...]  # of training before the query; the first is random
    rate: float
    activations: tuple[str, ...] = ("tanh", "relu")
    source: str = "digits"


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(800, 3, 2, (0, 5), 0.01, ("tanh",)),
    "cpu": _Setting(2000, 6, 10, (0, 50, 1000), 0.005),
    "paper": _Setting(5000, 8, 50, (0, 50, 500, 5000), 0.002),
}


def _run(run: Run[_Setting]) -> Outcome:
    setting = run.setting
    arms = run.arms("networks", _one, {name: name for name in setting.activations})
    shares = {
        name: {f"{s} steps": arms[name][f"steps{s}.recovered"] for s in setting.steps}
        for name in arms
    }
    records = setting.batch * setting.batches
    series = {
        name: [Point(when, share, *recovered_range(share, records)) for when, share in own.items()]
        for name, own in shares.items()
    }
    chart = Chart("Where the gradient is asked for", "training before it", "recovered", series)
    claims: Claims = {}
    for name, points in series.items():
        claims |= _claims(name, points)
    return Outcome(claims, flattened(arms), deviations=list(DEVIATIONS), charts=[chart])


def _one(run: Run[_Setting], activation: str) -> dict[str, float]:
    """One network, asked again and again as it is trained."""
    setting, key = run.setting, run.key
    records, own = run.records(setting.source), key.fold("records")
    batches = even_odd_batches(records, setting.batches, setting.batch, own)
    network = TwoLayer(batches.shape, setting.width, 1, activation)
    here, done, found = SpanAttack().query(network, key), 0, dict[str, float]()
    for steps in setting.steps:
        here = _trained(network, here, batches, steps - done, setting.rate)
        found |= prefixed(f"steps{steps}", _measured(network, here, batches, key))
        done = steps
    return found


def _trained(network: TwoLayer, start: Tensor, batches: Records, steps: int, rate: float) -> Tensor:
    if not steps:
        return start
    whole = Records(
        batches.inputs.flatten(0, 1)[None], batches.labels.flatten()[None], batches.classes
    )
    update, _ = release_batches(network, start, whole, steps=steps, rate=rate)
    # for one step the update is the gradient, for several their mean: the same formula
    return start - rate * steps * update.values[0]


def _measured(network: TwoLayer, at: Tensor, batches: Records, key: Key) -> dict[str, float]:
    seen, _ = release_batches(network, at, batches)
    scores = attacked(SpanAttack(), network, seen, batches, key.fold("attack"))[1].metrics()
    positive = logits(network, at[None], batches.inputs.flatten(0, 1))[0, :, 0] > 0
    return {
        **{name: scores[name] for name in ("min_cosine", "mean_cosine", "recovered")},
        "train_accuracy": float((positive == (batches.labels.flatten() == 1)).double().mean()),
        "gradient_norm": float(seen.values.norm(dim=1).mean()),
    }


def _claims(name: str, points: list[Point]) -> Claims:
    """Most records come back, for certain, from the first and from the last network."""
    shares = ", ".join(f"{p.y:.0%} ({p.low:.0%} to {p.high:.0%}) after {p.x}" for p in points)
    random = f"{name}: a random network gives the records away"
    unseen = "'a random network has not memorised the data' is a wrong impression"
    vanished = "'a well trained model makes the gradient vanish' is a wrong impression"
    first, last = ((p.low or 0) >= 0.5 for p in (points[0], points[-1]))
    return {
        f"random.{name}": (random, unseen, shares, first),
        f"trained.{name}": (f"{name}: so does a trained one", vanished, shares, last),
    }


_TITLE = "Where to ask for a gradient: random, moderately and well trained weights"
STUDY = Study("gradient-query", _TITLE, "Wang23", _SCALES, _run)
