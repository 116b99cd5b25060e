"""A shadow of the client around the server's own bodies (Ensembler24).

The server knows its bodies' weights and has records like the client's. It trains a head and a tail of its
own around the frozen bodies until that pipeline classifies: the bodies force its head towards the
client's. Which bodies count is the question of the defence; `Reads` says what the server assumes.

With `match` (ours), the shadow's features must also have the moments of those that the client has sent, which
a server keeps: the mean at every place, and the covariances of channels between neighbouring places.

Natural images resemble their negatives, so a head that was only guessed may be right up to a sign, and all
that is decoded comes back with dark and bright exchanged. Anyone who looks at it sees that. So does a
machine, with many pictures at once: along the principal directions of the server's own records, the decoded
ones or their mirror images

    x' = 2·mean(own) - x,      the mean of a channel over all places

are nearer in distribution (skies are above and bright; few coordinates of natural images are symmetric).

Cost: one training of a small head and tail, through the bodies that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exhume.core.contract import (
    ExhumeError,
    Key,
    Knowledge,
    NotApplicable,
    Progress,
    Records,
    Store,
)
from exhume.models.drawing import he_normal
from exhume.models.split.channel import FreshNoise
from exhume.models.split.inverter import OwnForm, ShadowHead
from exhume.store.shards import digest
from exhume.train.single import Schedule, train_module

LEARNED = "learned"
"""Stands for a list of bodies: a weight for each is learned with the shadow (the adaptive attacker)."""
Reads = tuple[int, ...] | str
_JUDGED = 0.1  # share of the records that judges a shadow
_LAGS = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))
_DIRECTIONS = 32  # principal ones that are compared
_EXAMPLES = 1000  # own records that give these
_LEVELS = 99  # quantiles of each
_CLEARLY = 0.5  # of the distance: where mirror images are that much nearer, they are the pictures
_AT_ONCE = 500


@dataclass(frozen=True, eq=False)
class ServerSide:
    """What the adversary holds: its bodies and records like the client's."""

    bodies: tuple[nn.Module, ...]
    records: Records
    features: tuple[int, ...]  # shape of what the client sends for one input
    seen: Tensor | None = None  # (n, *features) what it has sent before
    sigma: float = 0.0  # of the fresh noise on all that it sends

    @property
    def digests(self) -> tuple[str, ...]:
        weights = (t for body in self.bodies for t in body.state_dict().values())
        looked_on = () if self.seen is None else (digest(self.seen),)
        return (digest(self.records), *(digest(t) for t in weights), *looked_on, *self.noise)

    @property
    def noise(self) -> tuple[str, ...]:
        """What fresh noise adds to the address of work that depends on it."""
        return (f"fresh {self.sigma}",) if self.sigma else ()

    def noisy(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Features as the client would send them."""
        if not self.sigma:
            return features
        sent: Tensor = FreshNoise(self.sigma)(features, generator)
        return sent


def server_of(knowledge: Knowledge, who: str) -> ServerSide:
    """The server's side of what is known; bodies are the parts named body0, body1, …"""
    bodies: list[nn.Module] = []
    while f"body{len(bodies)}" in knowledge.parts:
        bodies.append(knowledge.parts[f"body{len(bodies)}"])
    lacking = [*knowledge.lacking("shadow", "features"), *([] if bodies else ["parts"])]
    if lacking:
        raise NotApplicable(f"{who} needs to know: {', '.join(lacking)}", ever=True)
    held, features = knowledge.require(who, "shadow", "features")
    fresh = knowledge.parts.get("fresh")
    sigma = fresh.sigma if isinstance(fresh, FreshNoise) else 0.0
    return ServerSide(tuple(bodies), held, features, knowledge.seen, sigma)


def head_of(knowledge: Knowledge, who: str) -> nn.Module:
    """The client's own head, where it is known."""
    if "head" not in knowledge.parts:
        raise NotApplicable(f"{who} needs the part named head", ever=True)
    return knowledge.parts["head"]


@dataclass(frozen=True, eq=False)
class Shadow:
    """A pipeline of the server's own."""

    head: nn.Module
    accuracy: float  # on records that it was not trained on: the server can observe it
    weights: Tensor  # (N,) how much each body counts


def train_shadow(
    server: ServerSide,
    reads: Reads,
    head: ShadowHead | OwnForm,
    schedule: Schedule,
    *,
    match: float = 0.0,
    key: Key,
    store: Store,
    progress: Progress,
) -> Shadow:
    """Head and tail around the bodies, frozen and in eval mode; a tenth of the records is kept to judge.

    match: weight of the difference between the moments of its features and of those seen.
    """
    count = len(server.bodies)
    chosen = tuple(range(count)) if isinstance(reads, str) else reads
    if not chosen or max(chosen) >= count or (isinstance(reads, str) and reads != LEARNED):
        raise ExhumeError(f"reads: {reads!r} is neither {LEARNED!r} nor a choice of {count} bodies")
    bodies = [server.bodies[i].eval().requires_grad_(False) for i in chosen]
    device = server.records.inputs.device
    made = head.module(server.records.shape, server.features, key).to(device)
    tail = _tail(bodies, server, key)
    own = nn.ModuleDict({"head": made, "tail": tail})
    start = torch.zeros(len(chosen), device=device)
    choice = nn.Parameter(start, requires_grad=isinstance(reads, str))
    own.register_parameter("choice", choice)
    order = torch.randperm(len(server.records), generator=key.fold("judged").generator())
    aside = max(1, round(_JUDGED * len(order)))
    judged, used = server.records[order[:aside]], server.records[order[aside:]]

    wanted = list[Tensor]()
    if match:
        if server.seen is None:
            raise NotApplicable("matching moments needs to know: seen", ever=True)
        wanted = moments(server.seen)

    def answer(features: Tensor) -> Tensor:
        weighed = zip(torch.softmax(choice, 0), bodies, strict=True)
        logits: Tensor = tail(torch.cat([w * body(features).flatten(1) for w, body in weighed], 1))
        return logits

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        features = server.noisy(made(used.inputs[rows]), generator)
        entropy = F.cross_entropy(answer(features), used.labels[rows])
        if not wanted or len(rows) < 2:
            return entropy
        return entropy + match * moment_distance(moments(features), wanted)

    train_module(
        own,
        loss,
        len(used),
        schedule,
        inputs=(*server.digests, str(chosen), str(reads == LEARNED), str(match)),
        key=key,
        store=store,
        progress=progress,
        stage="training the shadow",
    )
    generator = key.fold("judging").generator()
    with torch.no_grad():
        right = [
            answer(server.noisy(made(x), generator)).argmax(1) == y
            for x, y in zip(
                torch.split(judged.inputs, 500), torch.split(judged.labels, 500), strict=True
            )
        ]
    weights = torch.zeros(count)
    weights[list(chosen)] = torch.softmax(choice.detach(), 0).cpu()
    return Shadow(made, float(torch.cat(right).double().mean()), weights)


def _tail(bodies: Sequence[nn.Module], server: ServerSide, key: Key) -> nn.Module:
    device = server.records.inputs.device
    try:
        with torch.no_grad():
            sent = torch.zeros(1, *server.features, device=device)
            answers = [body(sent).flatten(1) for body in bodies]
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ExhumeError(
            f"parts: a body cannot take features of shape {server.features}, so it belongs to another "
            f"network or split ({first})"
        ) from error
    size, classes = sum(answer.shape[1] for answer in answers), len(server.records.classes)
    return he_normal(lambda: nn.Linear(size, classes), key.fold("tail")).to(device)


def moments(features: Tensor) -> list[Tensor]:
    """(n, c, h, w) to the mean (c, h, w) and, for each lag that fits, covariances of channels (c, c).

    (n, k) numbers are maps of one place, (n, l, e) vectors maps of one column.
    """
    if features.ndim == 3:
        features = features.transpose(1, 2)[..., None]
    if features.ndim == 2:
        features = features[:, :, None, None]
    if features.ndim != 4 or len(features) < 2:
        raise ExhumeError(
            f"features of shape {tuple(features.shape)}: at least two maps (c, h, w) have moments"
        )
    mean = features.mean(0)
    centred = features - mean
    height, width = features.shape[2:]
    statistics = [mean]
    for down, across in _LAGS:
        if down >= height or across >= width:
            continue
        here = centred[:, :, : height - down, : width - across]
        there = centred[:, :, down:, across:]
        places = here.shape[0] * here.shape[2] * here.shape[3]
        statistics.append(torch.einsum("nchw,ndhw->cd", here, there) / places)
    return statistics


def moment_distance(ours: list[Tensor], wanted: list[Tensor]) -> Tensor:
    """Sum over the moments of the squared difference, over the squared size of the wanted one."""
    parts = [
        (a - b).square().sum() / b.square().sum().clamp_min(1e-12)
        for a, b in zip(ours, wanted, strict=True)
    ]
    return torch.stack(parts).sum()


def resolve_contrast_sign(
    decoder: nn.Module, head: nn.Module, seen: Tensor, held: Tensor
) -> tuple[nn.Module, nn.Module, dict[str, float]]:
    """Decoder and head, or their mirror images if those turn features seen into records more like one's own.

    seen: (n, *features) that the client has sent; held: (m, *shape). Also how far either is.
    """
    with torch.no_grad():
        drawn = torch.cat([decoder(part) for part in torch.split(seen, _AT_ONCE)])
    mirror = _Mirror(_level(held))
    as_is, mirrored = _distances(drawn, held, mirror)
    observed = {"unlike_own": as_is, "unlike_own_mirrored": mirrored}
    if mirrored > _CLEARLY * as_is:
        return decoder, head, observed
    return nn.Sequential(decoder, mirror).eval(), nn.Sequential(mirror, head).eval(), observed


def _level(images: Tensor) -> Tensor:
    """Brightness of each channel; of numbers without places, the mean of each."""
    return images.mean((0, 2, 3), keepdim=True)[0] if images.ndim == 4 else images.mean(0)


@torch.no_grad()
def _distances(drawn: Tensor, held: Tensor, mirror: nn.Module) -> tuple[float, float]:
    """Squared Wasserstein distances along the principal directions, as it is and mirrored.

    Brightness and contrast are no matter.
    """
    spread = held.std() / drawn.std().clamp_min(1e-12)
    drawn = (drawn - _level(drawn)) * spread + _level(held)
    mean, flat = held.mean(0).flatten(), held.flatten(1)
    some = flat[:_EXAMPLES] - mean
    _, vectors = torch.linalg.eigh(some @ some.T)
    along = some.T @ vectors[:, -_DIRECTIONS:]
    along = along / ((flat - mean) @ along).std(0).clamp_min(1e-12)
    levels = torch.linspace(0, 1, _LEVELS + 2, device=held.device, dtype=held.dtype)[1:-1]

    def quantiles(images: Tensor) -> Tensor:
        return torch.quantile((images.flatten(1) - mean) @ along, levels, dim=0)

    wanted = quantiles(held)
    apart = [(quantiles(one) - wanted).square().mean() for one in (drawn, mirror(drawn))]
    return float(apart[0]), float(apart[1])


class _Mirror(nn.Module):
    def __init__(self, level: Tensor) -> None:
        super().__init__()
        self.register_buffer("level", level)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.get_buffer("level") - x
