"""Batches from one gradient of a two-layer network (Wang23), and what becomes of them: size,
start, place, depth, defence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from exhume.attacks.gradient.matching import GradientMatching
from exhume.attacks.gradient.span import SpanAttack, decode, features_below
from exhume.attacks.gradient.tensor import TensorAttack
from exhume.core.contract import Attack, Gradient, Key, Knowledge, Records, ReleaseDefence
from exhume.core.results import Chart, Point
from exhume.defences.release import ClipRelease, NoiseRelease, PruneRelease, QuantiseRelease
from exhume.models.mlp import MLP
from exhume.models.two_layer import TwoLayer
from exhume.score.batches import RECOVERED, score_batches
from exhume.score.intervals import bootstrap
from exhume.studies.arms import mounted
from exhume.studies.claims import Range, flattened, line, prefixed, said_of, share_range
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.gradient.batches import attacked, even_odd_batches, utility
from exhume.train.functional import logits
from exhume.victims.gradient import release_batches


@dataclass(frozen=True)
class _Case:
    name: str  # of its metrics
    source: str
    activation: str
    batch: int
    width: int
    attack: SpanAttack | TensorAttack | GradientMatching = SpanAttack()
    unit: bool = True  # records of unit norm; False: raw values in [0, 1]
    batches: int = 10
    bar: float = 0.0  # smallest cosine that the claim asks for; 0: no claim
    seconds: float | None = None  # a batch


def _tensor(batch: int) -> TensorAttack:
    return TensorAttack(largest=2 * batch)


_SMALL = (
    _Case("tanh.b4", "digits", "tanh", 4, 1000, batches=2, bar=0.9999),
    _Case("relu.b4", "digits", "relu", 4, 1000, batches=2, bar=0.99),
    _Case("tanh.b4.raw", "digits", "tanh", 4, 1500, SpanAttack(0.3), False, 1),
    _Case("tanh.b4.nabla_a", "digits", "tanh", 4, 1500, _tensor(4), batches=1),
    _Case("tanh.b4.matching", "digits", "tanh", 4, 300, GradientMatching(steps=5), batches=1),
)
_MATCHING = GradientMatching(steps=100, restarts=1)
_CPU = (
    _Case("tanh.b8", "mnist", "tanh", 8, 5000, bar=0.9999, seconds=20),
    _Case("relu.b8", "mnist", "relu", 8, 5000, bar=0.99),
    _Case("cifar10.tanh.b16", "cifar10", "tanh", 16, 5000, bar=0.99),
    _Case("cifar10.relu.b16", "cifar10", "relu", 16, 5000, bar=0.99),
    _Case("tanh.b8.raw", "mnist", "tanh", 8, 5000, SpanAttack(0.1), False),
    _Case("relu.b8.raw", "mnist", "relu", 8, 5000, SpanAttack(0.1), False),
    _Case("cifar10.tanh.b16.raw", "cifar10", "tanh", 16, 5000, SpanAttack(0.035), False, 4),
    _Case("cifar10.relu.b16.raw", "cifar10", "relu", 16, 5000, SpanAttack(0.035), False, 4),
    _Case("tanh.b8.nabla_a", "mnist", "tanh", 8, 5000, _tensor(8), batches=4),
    _Case("relu.b8.nabla_a", "mnist", "relu", 8, 5000, _tensor(8), batches=4),
    _Case("relu.b2.nabla_a.wide", "mnist", "relu", 2, 40_000, _tensor(2), batches=2),
    _Case("tanh.b8.matching", "mnist", "tanh", 8, 5000, _MATCHING, batches=1),
    _Case("faces.tanh.b8", "faces", "tanh", 8, 5000, batches=1),
    _Case("faces.relu.b8", "faces", "relu", 8, 5000, batches=1),
    _Case("tanh.b16", "mnist", "tanh", 16, 5000, batches=4),
    _Case("relu.b16", "mnist", "relu", 16, 5000, batches=4),
    _Case("relu.b32", "mnist", "relu", 32, 20_000, batches=4, bar=0.99),
    _Case("relu.b64", "mnist", "relu", 64, 5000, batches=2),
    _Case("tanh.b32", "mnist", "tanh", 32, 20_000, batches=1, bar=0.99),
)
_PAPER = tuple(replace(case, batches=max(case.batches, 10)) for case in _CPU)


@dataclass(frozen=True)
class _Setting:
    cases: tuple[_Case, ...]

    @property
    def claimed(self) -> list[dict[str, object]]:
        """Cases that a claim asks something of, as it names them."""
        return [
            {
                **vars(case),
                "limit": f", in {case.seconds:g} s a batch at most" if case.seconds else "",
                "most_seconds": case.seconds or math.inf,
            }
            for case in self.cases
            if case.bar
        ]


_SCALES: dict[Scale, _Setting] = {
    "smoke": _Setting(_SMALL),
    "cpu": _Setting(_CPU),
    "paper": _Setting((*_PAPER, _Case("tanh.b64", "mnist", "tanh", 64, 80_000))),
}


def _run(run: Run[_Setting]) -> Outcome:
    """How large a batch a gradient gives away: dL/da, dL/da + dL/dW and matching, on MNIST and CIFAR-10.

    One-to-one matching by signed cosine; the batch size is not given to the tensor attacks (matching
    needs it).
    """
    summaries: dict[str, dict[str, float]] = {}
    pictures: dict[str, Tensor] = {}
    for case in run.setting.cases:
        jobs = {f"{case.name}, batch {i}": (case, i) for i in range(case.batches)}
        rows = list(run.tensors(case.name, _one, jobs).values())
        summaries[case.name] = _summary(case, rows)
        pictures |= {f"{case.name}.{side}": rows[0][side] for side in ("truth", "found")}
    run.folder.write_tensors("batches.safetensors", pictures)
    return Outcome(flattened(summaries))


def _one(run: Run[_Setting], job: tuple[_Case, int]) -> dict[str, Tensor]:
    case, i = job
    records, own = run.records(case.source), run.key.fold("records", case.source)
    private = even_odd_batches(records, case.batches, case.batch, own, unit=case.unit)[i : i + 1]
    key, network = (
        run.key.fold(case.name, i),
        TwoLayer(private.shape, case.width, 1, case.activation),
    )
    asker, size = case.attack, None
    if isinstance(asker, GradientMatching):  # asks for nothing itself, and needs the batch size
        asker, size = SpanAttack(), case.batch
    seen, _ = release_batches(network, asker.query(network, key), private)
    found, scores = attacked(case.attack, network, seen, private, key, size=size)
    return {
        "cosines": scores.cosines[0],
        "psnr": scores.psnr[0],
        "size": scores.sizes.double(),
        "seconds": torch.tensor([found.cost.seconds]),
        "truth": private.inputs[0],
        "found": scores.matched[0],
    }


def _summary(case: _Case, rows: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    cosines, psnr = (torch.stack([row[name] for row in rows]) for name in ("cosines", "psnr"))
    sizes = torch.cat([row["size"] for row in rows])
    return {
        "min_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
        "recovered": float((cosines >= RECOVERED).double().mean()),
        "psnr": float(psnr.mean()),
        "batch_size_right": float((sizes == case.batch).double().mean()),
        "seconds": max(float(row["seconds"]) for row in rows),
    }


STUDY = Study("gradient-batch", _SCALES, _run)


@dataclass(frozen=True)
class _StartSetting:
    width: int
    batch: int
    batches: int
    matching: GradientMatching
    rates: tuple[float, ...]  # for a good start
    source: str = "digits"

    @property
    def tensor(self) -> TensorAttack:
        return TensorAttack(largest=2 * self.batch)

    def attacks(self) -> dict[str, list[Attack]]:
        """By name: one, or several of which the smallest mismatch of its own decides."""
        started = replace(self.matching, start=self.tensor)
        return {
            "tensor": [self.tensor],
            "fitted": [replace(self.tensor, refined=True)],
            "noise_start": [self.matching],
            "tensor_start": [replace(started, rate=rate) for rate in self.rates],
        }


_RATES = (0.02, 0.005, 0.0005)
_START_SCALES: dict[Scale, _StartSetting] = {
    "smoke": _StartSetting(
        8000, 2, 1, GradientMatching(steps=20, rate=0.02, restarts=2), (0.02, 0.002)
    ),
    "cpu": _StartSetting(20_000, 3, 8, GradientMatching(steps=100, rate=0.02, restarts=2), _RATES),
    "paper": _StartSetting(
        160_000, 4, 50, GradientMatching(steps=2000, rate=0.02, restarts=8), _RATES
    ),
}


def _run_start(run: Run[_StartSetting]) -> Outcome:
    """Gradient matching from noise against matching from the tensor estimate (Wang23, its last step)."""
    jobs = {f"batch {i}": i for i in range(run.setting.batches)}
    rows, attacks = list(run.tensors("matching", _one_start, jobs).values()), run.setting.attacks()
    metrics: dict[str, float] = {}
    for name in attacks:
        right = [(row[name] >= RECOVERED).double() for row in rows]
        metrics[f"{name}.mean_cosine"] = fmean(float(row[name].mean()) for row in rows)
        metrics[f"{name}.recovered"] = fmean(float(each.mean()) for each in right)
    for row in said_of("gradient-start")["claims"]["<name>"]["each"]["name"]:
        name, after, before = row["name"], row["after"], row["before"]
        gains = torch.stack([one[after].mean() - one[before].mean() for one in rows])
        low, high = bootstrap(gains, run.key.fold("bootstrap"))
        metrics |= {f"{name}.gain_low": low, f"{name}.gain_high": high}
    points = [Point(name.replace("_", " "), metrics[f"{name}.mean_cosine"]) for name in attacks]
    chart = Chart("How close each comes", "attack", "mean cosine", {"ReLU, digits": points})
    return Outcome(metrics, charts=[chart])


def _one_start(run: Run[_StartSetting], i: int) -> dict[str, Tensor]:
    """Cosines of one batch's records, by attack."""
    setting, key = run.setting, run.key.fold("batch", i)
    records, own = run.records(setting.source), run.key.fold("records")
    private = even_odd_batches(records, setting.batches, setting.batch, own)[i : i + 1]
    network = TwoLayer(private.shape, setting.width, 1, "relu")
    seen, _ = release_batches(network, setting.tensor.query(network, key), private)
    cosines = {}
    for name, several in setting.attacks().items():
        tried = [
            attacked(attack, network, seen, private, key, size=setting.batch) for attack in several
        ]
        _, scores = min(tried, key=lambda pair: pair[0].observed.get("mismatch", 0.0))
        cosines[name] = scores.cosines[0]
    return cosines


START = Study("gradient-start", _START_SCALES, _run_start, threads={"smoke": 1, "cpu": 1})


@dataclass(frozen=True)
class _QuerySetting:
    width: int
    batch: int
    batches: int
    steps: tuple[int, ...]  # of training before the query; the first is random
    rate: float
    activations: tuple[str, ...] = ("tanh", "relu")
    source: str = "digits"


_QUERY_SCALES: dict[Scale, _QuerySetting] = {
    "smoke": _QuerySetting(800, 3, 2, (0, 5), 0.01, ("tanh",)),
    "cpu": _QuerySetting(2000, 6, 10, (0, 50, 1000), 0.005),
    "paper": _QuerySetting(5000, 8, 50, (0, 50, 500, 5000), 0.002),
}


def _run_query(run: Run[_QuerySetting]) -> Outcome:
    """Where to ask for a gradient: at random, moderately trained or well trained weights.

    Folklore says that a random network has not seen the data and a well trained one has no gradient left. The
    seed of Wang23 calls both wrong impressions.
    """
    setting = run.setting
    arms = run.arms("networks", _asked, {name: name for name in setting.activations})
    shares = {
        name: {f"{s} steps": arms[name][f"steps{s}.recovered"] for s in setting.steps}
        for name in arms
    }
    records = setting.batch * setting.batches
    series = {
        name: [Point(when, share, *share_range(share, records)) for when, share in own.items()]
        for name, own in shares.items()
    }
    chart = Chart("Where the gradient is asked for", "training before it", "recovered", series)
    said = [
        {
            "name": name,
            "shares": ", ".join(
                f"{p.y:.0%} ({p.low:.0%} to {p.high:.0%}) after {p.x}" for p in points
            ),
            "first": Range(points[0].low or 0.0, points[0].high or 0.0),
            "last": Range(points[-1].low or 0.0, points[-1].high or 0.0),
        }
        for name, points in series.items()
    ]
    return Outcome(flattened(arms), said={"asked": said}, charts=[chart])


def _asked(run: Run[_QuerySetting], activation: str) -> dict[str, float]:
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


QUERY = Study("gradient-query", _QUERY_SCALES, _run_query)


@dataclass(frozen=True)
class _DeepSetting:
    width: int
    batch: int
    batches: int
    depths: tuple[int, ...]  # layers below the last two
    below: int = 96
    source: str = "digits"


_DEEP_SCALES: dict[Scale, _DeepSetting] = {
    "smoke": _DeepSetting(1200, 3, 1, (1,)),
    "cpu": _DeepSetting(4000, 6, 5, (1, 2, 3)),
    "paper": _DeepSetting(5000, 8, 50, (1, 2, 3, 5)),
}


def _run_deep(run: Run[_DeepSetting]) -> Outcome:
    """Deeper networks: the features that enter the last two layers, and the records behind them.

    The seed: if the last two layers are fully connected, the features before them can be recovered, and depth
    neither helps nor hurts. With the layers below known, the features are decoded further down to the
    records.
    """
    metrics = flattened(
        run.arms("layers below", _one_depth, {f"depth{d}": d for d in run.setting.depths})
    )
    depths = {d: f"depth{d}" for d in run.setting.depths}
    sides = {"features": "above", "records": "below"}  # of these layers
    series = {what: line(depths, f"{what}.min_cosine", metrics) for what in sides}
    chart = Chart("Depth", "layers below the last two", "smallest cosine", series)
    said: dict[str, object] = {
        f"{what}_said": ", ".join(
            f"smallest cosine {p.y:.5f} {sides[what]} {p.x} layers" for p in points
        )
        for what, points in series.items()
    }
    said |= {what: min(p.y for p in points) for what, points in series.items()}
    return Outcome(metrics, said=said | {"bar": RECOVERED}, charts=[chart])


def _one_depth(run: Run[_DeepSetting], depth: int) -> dict[str, float]:
    setting, key = run.setting, run.key
    records = run.records(setting.source)
    batches = even_odd_batches(records, setting.batches, setting.batch, key.fold("records"))
    network = MLP(batches.shape, (*[setting.below] * depth, setting.width), 1, "tanh")
    attack = SpanAttack(nonnegative=False)
    at = attack.query(network, key.fold("depth", depth))
    release, secret = release_batches(network, at, batches)
    found = mounted(attack, Knowledge(architecture=network), release, key)
    scores = score_batches(secret, found, through=features_below(network, at))
    decoded = decode(network, at, found.candidates.flatten(0, 1), key.fold("decode"))
    shaped = decoded.reshape(*found.candidates.shape[:2], *batches.shape)
    behind = score_batches(secret, replace(found, candidates=shaped.to(batches.inputs.dtype)))
    return prefixed("features", scores.metrics()) | prefixed("records", behind.metrics())


DEEP = Study("gradient-deep", _DEEP_SCALES, _run_deep)


_LONG_MATCHING = GradientMatching(steps=2000, rate=0.05)
_DEFENCES: dict[str, ReleaseDefence] = {
    "none": NoiseRelease(),
    "noise.1e-4": NoiseRelease(1e-4),
    "noise.1e-2": NoiseRelease(1e-2),
    "noise.1e-1": NoiseRelease(1e-1),
    "noise.1": NoiseRelease(1.0),
    "clip.norm1e-3": ClipRelease(1e3),
    "bits.8": QuantiseRelease(8),
    "bits.4": QuantiseRelease(4),
    "bits.2": QuantiseRelease(2),
    "bits.1": QuantiseRelease(1),
    "prune.0.1": PruneRelease(0.1),
    "prune.0.5": PruneRelease(0.5),
    "prune.0.9": PruneRelease(0.9),
    "prune.0.99": PruneRelease(0.99),
}


@dataclass(frozen=True)
class _DefenceSetting:
    width: int
    batch: int
    batches: int
    defences: tuple[str, ...]
    local_steps: tuple[int, ...]
    larger: tuple[int, ...]  # batch sizes
    matching: GradientMatching | None
    source: str = "digits"

    @property
    def attacks(self) -> dict[str, Attack]:
        most = max((self.batch, *self.larger))  # a wider span is noise, not records
        span: dict[str, Attack] = {"span": SpanAttack(largest=most)}
        return span if self.matching is None else span | {"matching": self.matching}


_DEFENCE_SCALES: dict[Scale, _DefenceSetting] = {
    "smoke": _DefenceSetting(500, 2, 1, ("none", "noise.1", "prune.0.9"), (2,), (), None),
    "cpu": _DefenceSetting(
        2000,
        4,
        5,
        tuple(_DEFENCES),
        (2, 5),
        (8, 16),
        replace(_LONG_MATCHING, steps=100, restarts=2),
    ),
    "paper": _DefenceSetting(5000, 8, 50, tuple(_DEFENCES), (2, 5, 20), (16, 32), _LONG_MATCHING),
}


def _run_defences(run: Run[_DefenceSetting]) -> Outcome:
    """Which defence of an update stops which attack, and what it costs the update."""
    setting = run.setting
    jobs = {name: _Arm(_DEFENCES[name]) for name in setting.defences}
    jobs |= {f"local_steps.{steps}": _Arm(steps=steps) for steps in setting.local_steps}
    jobs |= {f"batch.{size}": _Arm(batch=size) for size in setting.larger}
    metrics = flattened(run.arms("defences", _one_defence, jobs))
    names = {name: name for name in setting.defences}
    series = {attack: line(names, f"{attack}.mean_cosine", metrics) for attack in setting.attacks}
    series["utility"] = line(names, "utility", metrics)
    charts = [Chart("Defences of an update", "defence", "mean cosine", series)]
    records = setting.batch * setting.batches
    said = {
        name: Range(*share_range(metrics[f"{defence}.span.recovered"], records))
        for name, defence in {"noisy": "noise.1", "pruned": "prune.0.9"}.items()
    }
    return Outcome(metrics, said=said, charts=charts)


@dataclass(frozen=True)
class _Arm:
    defence: ReleaseDefence = NoiseRelease()
    steps: int = 1
    batch: int = 0  # another size than the setting's, of other records


def _one_defence(run: Run[_DefenceSetting], arm: _Arm) -> dict[str, float]:
    setting, key = run.setting, run.key
    drawn, size = ("larger", arm.batch) if arm.batch else ("records", setting.batch)
    private = even_odd_batches(run.records(setting.source), setting.batches, size, key.fold(drawn))
    network = TwoLayer(private.shape, setting.width, 1, "tanh")
    at = SpanAttack().query(network, key)
    plain, _ = release_batches(network, at, private)
    made, _ = release_batches(network, at, private, steps=arm.steps, rate=10.0)
    seen = arm.defence.protect(made, key.fold("defence"))
    assert isinstance(seen, Gradient)  # a defended gradient is one
    numbers = {} if arm.batch else {"utility": utility(seen, plain)}
    for name, attack in setting.attacks.items():
        scores = attacked(attack, network, seen, private, key, size=size)[1].metrics()
        numbers |= {f"{name}.{n}": scores[n] for n in ("mean_cosine", "recovered")}
    return numbers


DEFENCES = Study("gradient-defences", _DEFENCE_SCALES, _run_defences)
