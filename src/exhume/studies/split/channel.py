"""A channel of few bits between client and server: what it costs, and what attackers still get.

One network of a thin client and a wide server is trained without a channel. From there it is trained further,
with channels of several sizes and without one, all for the same number of epochs. At the cut in use each
channel is met with an attacker without the head (a lookalike of the client's own form, trained around the
server's body), with one who knows the head, and with the best namer there is. Other cuts show accuracy
against bits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from exhume import readers
from exhume.attacks.split.inversion import ShadowInversion, TrueHeadInversion
from exhume.bounds.channel import naming
from exhume.bounds.prior import Certificate, certify
from exhume.core.contract import Attack, Key
from exhume.core.results import Chart
from exhume.defences.split.channel import Channel
from exhume.models.drawing import he_normal
from exhume.models.split.channel import likeliest
from exhume.models.split.cost import multiply_adds
from exhume.models.split.cut import Split as SplitNetwork
from exhume.models.split.cut import cut
from exhume.models.split.inverter import Decoder, OwnForm
from exhume.models.split.networks import ThinClient
from exhume.models.split.pipeline import Pipeline, SplitClient
from exhume.readers import RecordsByRole, Sizes
from exhume.score.features import InputScores, score_inputs
from exhume.score.measures import ssim
from exhume.studies.arms import mounted
from exhume.studies.claims import line, paired, spread
from exhume.studies.framework import Outcome, Run, Scale, Study
from exhume.studies.split.game import Row, pictured
from exhume.train.single import Schedule, SplitJob, train_split
from exhume.victims.split import release_features, server_knowledge

SHOWN = 16
_AID = 1.0  # weight of what the client alone can tell, in all trainings alike
_SHIFT = 2  # pixels that training images are moved by at most: few epochs learn more with less
_SECOND = "pool"  # last layer of the body
NAMED = {"lookalike": "lookalike", "true_head": "head known"}


@dataclass(frozen=True)
class Effort:
    """The attackers' shadows, epochs, and size of decoders."""

    channels: int
    schedule: Schedule
    starts: int
    match: float = 10.0


@dataclass(frozen=True)
class Setting:
    sizes: Sizes  # fixed: the client's; shadow: the attacker's; public: what the client sent before
    network: ThinClient
    training: Schedule  # without a channel, once for all
    tuning: Schedule  # from there on: with a channel, or without one for comparison
    effort: Effort
    bits: tuple[int, ...]  # at the cut in use, the first one
    cuts: tuple[str, ...]
    others: tuple[int, ...]  # bits at the other cuts
    numbers: int  # k
    named: tuple[int, ...]  # K
    requests: int  # whose input is to be named
    source: str = "cifar10"


@dataclass(frozen=True)
class Arm:
    """One network: cut where, with how many bits (0: no channel), and whether it is attacked."""

    cut: str
    bits: int = 0
    alone: bool = False  # the client's layers and a dense one, nothing on a server
    attacked: bool = False


@dataclass(frozen=True)
class _Alone:
    """What a client could compute by itself: its layers, and one dense layer for the classes."""

    network: ThinClient
    first: str

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.network.input_shape

    def module(self, key: Key) -> nn.Sequential:
        parts = cut(self.network.module(key), self.first, _SECOND)
        size = torch.Size(parts.feature_shape(self.input_shape)).numel()
        dense = he_normal(lambda: nn.Linear(size, self.network.outputs), key.fold("alone"))
        chain: OrderedDict[str, nn.Module] = OrderedDict(head=parts.head, flat=nn.Flatten())
        chain["fc"] = dense
        return nn.Sequential(chain)


def arms(setting: Setting) -> dict[str, Arm]:
    """By name."""
    own, most_first = setting.cuts[0], sorted(setting.bits, reverse=True)
    arms = {"free": Arm(own)}
    arms |= {f"bits{bits}": Arm(own, bits, attacked=True) for bits in most_first}
    for place in setting.cuts[1:]:
        arms |= {f"{place}.bits{bits}": Arm(place, bits) for bits in setting.others}
    return arms | {"alone": Arm(own, alone=True)}


@lru_cache(maxsize=1)  # one in each process
def _parts(run: Run[Setting]) -> RecordsByRole:
    setting = run.setting
    return readers.split(run.placed(setting.source), setting.sizes, run.key.fold("split"))


def _base(run: Run[Setting], place: str) -> SplitNetwork:
    """The network without a channel, cut somewhere, as all go on from it; trained now or before."""
    setting, key = run.setting, run.key.fold("split-channel", "base")
    job = SplitJob(
        setting.network,
        setting.cuts[0],
        _SECOND,
        _parts(run).fixed,
        setting.training,
        shift=_SHIFT,
        aid=_AID,
    )
    trained = train_split(job, **run.working(key))
    chain = nn.Sequential(OrderedDict(_pieces(trained)))
    return cut(chain, place, _SECOND)


def _pieces(parts: SplitNetwork) -> list[tuple[str, nn.Module]]:
    pieces = (parts.head, parts.body, parts.tail)
    return [stage for piece in pieces for stage in piece.named_children()]


def start(run: Run[Setting], _: str) -> dict[str, Tensor]:
    """Train the network that all go on from, and say how well it does by then."""
    parts, test = _base(run, run.setting.cuts[0]), _parts(run).test
    client = SplitClient(parts.head, torch.zeros((), device=test.inputs.device), (0,), parts.tail)
    accuracy = Pipeline(client, (parts.body,), parts.first).accuracy(test.inputs, test.labels)
    return {"accuracy": torch.tensor(accuracy)}


def make(run: Run[Setting], arm: Arm) -> dict[str, Tensor]:
    """Train one network further, count its work, and meet it with its attackers."""
    setting, parts = run.setting, _parts(run)
    key = run.key.fold("split-channel", arm.cut)
    job = SplitJob(
        setting.network, arm.cut, _SECOND, parts.fixed, setting.tuning, shift=_SHIFT, aid=_AID
    )
    base = _base(run, arm.cut)
    defence = Channel.of_bits(float(arm.bits), setting.numbers) if arm.bits else Channel()
    if arm.alone:
        job = replace(job, network=_Alone(setting.network, arm.cut), first="head", second="flat")
        alone = job.fresh(key)
        alone.head.get_submodule("head").load_state_dict(base.head.state_dict())
        base = alone
    pipeline = defence.fine_tune(job, base, **run.working(key))
    test = parts.test
    accuracy = pipeline.accuracy(test.inputs, test.labels, key.fold("test"))
    found = {"accuracy": torch.tensor(accuracy), **_work(pipeline, job.records.shape)}
    if arm.attacked:
        found["sigma"] = torch.tensor(defence.sigma, dtype=torch.float64)
        found |= _named(run, pipeline, key.fold("named", arm.bits))
        found |= _seen(run, pipeline, defence.job(job), key.fold("attack", arm.bits))
    return found


def _work(pipeline: Pipeline, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Multiply-adds of the client (head and tail) and of the server, and bytes that one input sends."""
    sent = pipeline.released(torch.zeros(1, *shape, device=pipeline.client.noise.device))
    answer = pipeline.bodies[0](sent)
    client = multiply_adds(pipeline.client.head, shape)
    client += multiply_adds(pipeline.client.tail, tuple(answer.shape[1:]))
    server = multiply_adds(pipeline.bodies[0], tuple(sent.shape[1:]))
    numbers = {"client": client, "server": server, "bytes_up": float(sent.nbytes)}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}


def _named(run: Run[Setting], pipeline: Pipeline, key: Key) -> dict[str, Tensor]:
    """How many inputs of so many the best namer names, each sent with noise of its own."""
    records, found = run.placed(run.setting.source), {}
    order = torch.randperm(len(records), generator=key.fold("order").generator())
    plain = replace(pipeline, client=replace(pipeline.client, sigma=0.0))
    words = plain.released(records.inputs[order[: max(run.setting.named)]])
    for count in run.setting.named:
        own = key.fold("requests", count)
        which = torch.randint(count, (run.setting.requests,), generator=own.generator())
        sent = pipeline.released(records.inputs[order[which]], own.fold("noise"))
        right = likeliest(sent, words[:count])[0] == which
        found[f"named.k{count}"] = right.sum()
    return found


def _seen(run: Run[Setting], pipeline: Pipeline, job: SplitJob, key: Key) -> dict[str, Tensor]:
    """Images of two attackers: SSIM of each, and the first few."""
    parts, effort = _parts(run), run.setting.effort
    form = OwnForm(job.network, job.first, job.second)
    decoder, schedule = Decoder(effort.channels), effort.schedule
    attacks: dict[str, Attack] = {
        "lookalike": ShadowInversion(
            (0,), form, decoder, schedule, schedule, effort.match, effort.starts
        ),
        "true_head": TrueHeadInversion(decoder, schedule),
    }
    release, secret = release_features(pipeline, parts.target, key.fold("release"))
    found = {}
    for name, attack in attacks.items():
        knowledge = server_knowledge(
            pipeline,
            parts.shadow,
            earlier=parts.public,
            with_head=name == "true_head",
            key=key.fold("earlier"),
        )
        scores = score_inputs(secret, mounted(attack, knowledge, release, key, run), None)
        found[f"{name}.ssim"] = scores.each["ssim"]
        found[f"{name}.mse"] = scores.each["mse"]
        found[f"{name}.images"] = scores.reconstructions[:SHOWN].contiguous()
    return found


def class_mean(run: Run[Setting]) -> InputScores:
    """The null: the mean of the attacker's own records of the right class, which nobody has told it."""
    parts = _parts(run)
    held, target = parts.shadow, parts.target
    means = torch.stack(
        [held.inputs[held.labels == label].mean(0) for label in range(len(held.classes))]
    )
    drawn = means[target.labels].nan_to_num(0.5)  # a class of which it holds nothing
    each = {
        "ssim": ssim(drawn, target.inputs),
        "mse": (drawn - target.inputs).square().flatten(1).mean(1),
    }
    return InputScores(each, target.inputs, drawn)


_SCALES: dict[Scale, Setting] = {
    "smoke": Setting(
        Sizes(120, 12, 60, 30, 40),
        ThinClient(channels=(4, 4, 8), wide=16),
        Schedule(1, 40, 0.05),
        Schedule(1, 40, 0.05),
        Effort(4, Schedule(1, 30, 3e-3, "adam", 0.0), 2),
        bits=(4, 24),
        cuts=("conv3", "conv2"),
        others=(24,),
        numbers=6,
        named=(20, 50),
        requests=60,
    ),
    "cpu": Setting(
        Sizes(45_000, 200, 5_000, 1_000, 5_000),
        ThinClient(channels=(24, 48, 96), wide=200),
        Schedule(4, 100, 0.1),
        Schedule(3, 100, 0.1),
        Effort(32, Schedule(6, 50, 3e-3, "adam", 0.0), 2),
        bits=(4, 8, 12, 24),
        cuts=("conv3", "conv2"),
        others=(12, 24),
        numbers=10,
        named=(3_000, 50_000),
        requests=4_000,
    ),
    "paper": Setting(
        Sizes(40_000, 1_000, 9_000, 2_000, 8_000),
        ThinClient(channels=(32, 64, 128), wide=272),
        Schedule(60, 128, 0.1),
        Schedule(40, 128, 0.1),
        Effort(64, Schedule(30, 128, 3e-3, "adam", 0.0), 3),
        bits=(4, 8, 12, 24),
        cuts=("conv3", "conv2", "conv1"),
        others=(4, 8, 12, 24),
        numbers=10,
        named=(3_000, 50_000),
        requests=20_000,
    ),
}


def _run(run: Run[Setting]) -> Outcome:
    setting, key = run.setting, run.key.fold("split-channel study")
    base = run.tensors("training the network", start, {"base": ""})["base"]
    made = run.tensors("channels and attackers", make, arms(setting))
    null = class_mean(run)
    metrics = {"base.accuracy": float(base["accuracy"])} | _metrics(setting, made)
    metrics |= spread("class_mean.ssim", null.each["ssim"], key)
    for bits in setting.bits:
        for who in NAMED:
            name = f"bits{bits}.{who}.ssim"
            metrics |= spread(name, made[f"bits{bits}"][f"{who}.ssim"], key)
    pictures, labels = pictured({"Pictures": _rows(setting, made, null)})
    return Outcome(
        said=compared(setting, metrics, made, null, key.fold("claims")),
        metrics=metrics,
        attacks=pictures,
        classes=labels,
        charts=_charts(setting, metrics),
    )


def _metrics(setting: Setting, made: Mapping[str, Mapping[str, Tensor]]) -> dict[str, float]:
    metrics = {}
    for name, found in made.items():
        client, server = float(found["client"]), float(found["server"])
        metrics[f"{name}.accuracy"] = float(found["accuracy"])
        metrics[f"{name}.share"] = client / (client + server)
        metrics[f"{name}.bytes_up"] = float(found["bytes_up"])
    metrics["client.share"] = max(metrics[f"bits{bits}.share"] for bits in setting.bits)
    metrics["client.multiply_adds"] = float(made["free"]["client"])
    metrics["server.multiply_adds"] = float(made["free"]["server"])
    for (bits, count), one in _certificates(setting, made).items():
        metrics |= one.metrics(f"bits{bits}.named.k{count}")
        metrics[f"bits{bits}.bound.k{count}"] = one.bound
    return metrics | {f"bits{b}.sigma": float(made[f"bits{b}"]["sigma"]) for b in setting.bits}


def _certificates(
    setting: Setting, made: Mapping[str, Mapping[str, Tensor]]
) -> dict[tuple[int, int], Certificate]:
    """The best namer beside the bound, for every number of bits and of inputs."""
    games = [(bits, count) for bits in setting.bits for count in setting.named]
    return {
        (bits, count): certify(
            int(made[f"bits{bits}"][f"named.k{count}"]),
            setting.requests,
            kappa=1 / count,
            bound=naming(count, setting.numbers, float(made[f"bits{bits}"]["sigma"])),
            comparisons=len(games),
            of="the channel",
        )
        for bits, count in games
    }


def compared(
    setting: Setting,
    metrics: Mapping[str, float],
    made: Mapping[str, Mapping[str, Tensor]],
    null: InputScores,
    key: Key,
) -> dict[str, object]:
    """What the claims ask for: accuracy lost, certificates, and drawings beside the mean of the class."""
    certificates = _certificates(setting, made)
    few, many = min(setting.bits), max(setting.bits)
    drawn = made[f"bits{few}"]["lookalike.ssim"]
    looks = paired(drawn, null.each["ssim"], key.fold(f"bits{few}", "class_mean"), "SSIM")
    costs = {
        f"bits{b}.cost": metrics["free.accuracy"] - metrics[f"bits{b}.accuracy"]
        for b in setting.bits
    }
    return {
        **{"few": few, "many": many, "games": len(certificates), "looks": looks, **costs},
        **{f"{name}.points": 100 * cost for name, cost in costs.items()},
        "above": sum(one.alarm for one in certificates.values()),
        "nearest": max(certificates.values(), key=lambda one: one.rate / one.bound),
    }


def _rows(
    setting: Setting, made: Mapping[str, Mapping[str, Tensor]], null: InputScores
) -> dict[str, Row]:
    rows = {"mean of the class": Row(null)}
    for bits in setting.bits:
        for who, label in NAMED.items():
            found = made[f"bits{bits}"]
            each = {"ssim": found[f"{who}.ssim"], "mse": found[f"{who}.mse"]}
            scores = InputScores(each, null.targets[:SHOWN], found[f"{who}.images"])
            rows[f"{bits} bits, {label}"] = Row(scores)
    return rows


def _charts(setting: Setting, metrics: Mapping[str, float]) -> list[Chart]:
    def named(place: str, all_bits: tuple[int, ...]) -> dict[float, str]:
        prefix = "" if place == setting.cuts[0] else f"{place}."
        return {float(bits): f"{prefix}bits{bits}" for bits in all_bits}

    frontier = {}
    for place in setting.cuts:
        own = named(place, setting.bits if place == setting.cuts[0] else setting.others)
        share = metrics[f"{next(iter(own.values()))}.share"]
        frontier[f"after {place} (client {share:.1%})"] = line(own, "accuracy", metrics)
    main = named(setting.cuts[0], setting.bits)
    for name in ("free", "alone"):
        label = {"free": "without a channel", "alone": "client alone"}[name]
        frontier[label] = line(dict.fromkeys(main, name), "accuracy", metrics)
    naming_lines = {}
    for count in setting.named:
        naming_lines[f"best namer, 1 of {count:,}"] = line(main, f"named.k{count}", metrics)
        naming_lines[f"bound, 1 of {count:,}"] = line(main, f"bound.k{count}", metrics)
    looks = {label: line(main, f"{who}.ssim", metrics) for who, label in NAMED.items()}
    looks["mean of the class"] = line(dict.fromkeys(main, "class_mean"), "ssim", metrics)
    return [
        Chart("What a channel costs", "bits a request, at most", "accuracy", frontier),
        Chart("Naming the input", "bits a request, at most", "named rightly", naming_lines),
        Chart("Drawing the input", "bits a request, at most", "SSIM", looks),
    ]


STUDY = Study(
    "split-channel", _SCALES, _run, spreads=True, on_device=True, threads={"cpu": 1, "smoke": 1}
)
