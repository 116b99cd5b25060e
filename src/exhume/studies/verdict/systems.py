"""Systems whose right verdict is known, each audited as a stranger would: files, a brief, the public API."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import exhume
from exhume.auditing import Audit
from exhume.core.contract import Key, Records
from exhume.models.mlp import HomogeneousMLP
from exhume.readers.updates import Recording
from exhume.store.shards import NullStore
from exhume.studies.verdict import nets
from exhume.train.margin import MarginDescent
from exhume.victims.margin import release_margin

NETS = nets.__name__


@dataclass(frozen=True, eq=False)
class Draw:
    """One system to be drawn and audited."""

    folder: Path
    key: Key
    digits: Records  # (n, 1, 8, 8), in an order of this draw's own
    seed: int

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def file(self, name: str, records: Records) -> str:
        path = self.folder / f"{name}.npz"
        names = np.array(records.classes)
        np.savez(path, x=records.inputs.numpy(), y=records.labels.numpy(), classes=names)
        return str(path)

    def number(self, most: int) -> int:
        """A whole number below most."""
        generator = self.key.fold("number", most).generator()
        return int(torch.randint(most, (1,), generator=generator))


def of_class(records: Records, label: int) -> Records:
    return records[records.labels == label]


# Weights that are trained here


def trained(
    draw: Draw, records: Records | str, *, sizes: dict[str, int] | None = None, **victim: Any
) -> Audit:
    dealt = {"fixed": 60, "targets": 40, "shadows": 200, "public": 10, "test": 900}
    source = records if isinstance(records, str) else draw.file("data", records)
    usual = {"hidden": [20], "steps": 20, "rate": 0.1, "momentum": 0.9}
    return exhume.audit(
        {
            "seed": draw.seed,
            "data": {"source": source, **dealt, **(sizes or {})},
            "victim": usual | victim,
            "machine": {"threads": 1},
        },
        draw.out,
    )


def undefended(draw: Draw) -> Audit:
    return trained(draw, draw.digits)


def undefended_mnist(draw: Draw) -> Audit:
    sizes = {"fixed": 200, "targets": 30, "shadows": 300, "public": 10, "test": 600}
    return trained(draw, "mnist", sizes=sizes, hidden=[10])


def private(draw: Draw) -> Audit:
    return trained(draw, draw.digits, dp_clip=1.0, dp_noise=100.0)


def drowned(draw: Draw) -> Audit:
    """Noise only."""
    return trained(draw, draw.digits, dp_clip=1.0, dp_noise=1e4)


def few_shadows(draw: Draw) -> Audit:
    """Noise only, met with next to no effort."""
    return trained(draw, draw.digits, sizes={"shadows": 30}, dp_clip=1.0, dp_noise=1e4)


def classes_only(draw: Draw) -> Audit:
    return trained(draw, draw.digits, train=f"{NETS}:class_only")


def many_classes(draw: Draw) -> Audit:
    """Each digit in five classes, by its brightness: within a class records are alike."""
    return trained(draw, _finer(draw.digits, 5), train=f"{NETS}:class_only")


def duplicates(draw: Draw) -> Audit:
    """Every record twice."""
    half = draw.digits[: len(draw.digits) // 2]
    twice = Records(half.inputs.repeat(2, 1, 1, 1), half.labels.repeat(2), half.classes)
    return trained(draw, twice, train=f"{NETS}:class_only")


def constants(draw: Draw) -> Audit:
    """All records of a class are the same."""
    level = (draw.digits.labels.float() + 1) / 11
    flat = level[:, None, None, None].expand_as(draw.digits.inputs).contiguous()
    return trained(draw, replace(draw.digits, inputs=flat))


def kept_in_a_buffer(draw: Draw) -> Audit:
    return trained(
        draw,
        draw.digits,
        sizes={"shadows": 30, "targets": 20},
        network=f"{NETS}:memory",
        train=f"{NETS}:keeper",
    )


def _finer(records: Records, parts: int) -> Records:
    bright = records.inputs.flatten(1).mean(1)
    labels = torch.zeros_like(records.labels)
    for label in range(len(records.classes)):
        own = (records.labels == label).nonzero()[:, 0]
        rank = bright[own].argsort().argsort()
        labels[own] = parts * label + rank * parts // len(own)
    names = tuple(f"{name}{part}" for name in records.classes for part in range(parts))
    return Records(records.inputs, labels, names)


# A linear model


def _linear(draw: Draw, model: LogisticRegression, records: Records, targets: int = 100) -> Audit:
    inputs = records.inputs.flatten(1).numpy()
    labels = records.labels.numpy()
    return exhume.audit_fitted(model, inputs, labels, draw.out, seed=draw.seed, targets=targets)


def _fitted(records: Records, **options: Any) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(**{"tol": 1e-9, "max_iter": 5000} | options)
        return model.fit(
            records.inputs.flatten(1).numpy().astype("float64"), records.labels.numpy()
        )


def _two(draw: Draw) -> Records:
    """Two classes, so that a fit takes no time."""
    one = draw.number(9)
    some = draw.digits[(draw.digits.labels == one) | (draw.digits.labels == one + 1)]
    return Records(some.inputs, some.labels - one, draw.digits.classes[one : one + 2])


def linear(draw: Draw) -> Audit:
    return _linear(draw, _fitted(_two(draw)), _two(draw))


def linear_of_others(draw: Draw) -> Audit:
    """The model never saw the records."""
    both = _two(draw)
    half = len(both) // 2
    return _linear(draw, _fitted(both[:half]), both[half:])


def noisy_linear(draw: Draw) -> Audit:
    """Coefficients with noise as large as themselves."""
    both = _two(draw)
    model = _fitted(both)
    size = float(np.abs(model.coef_).mean())
    noise = torch.randn(model.coef_.shape, generator=draw.key.fold("noise").generator())
    model.coef_ = model.coef_ + size * noise.double().numpy()
    return _linear(draw, model, both)


# Checkpoints and split networks, whose right verdict is known.


# Checkpoints


def _checkpoint(
    draw: Draw, trained: Records, named: Records, first: float | None, **settings: Any
) -> Audit:
    """Trained on some records; the owner names others, or the same."""
    net = HomogeneousMLP((1, 8, 8), (100, 100), 10, first_scale=first)
    growing = 0.01 if first is not None else 0.0
    recipe = MarginDescent(net, growing_steps=growing, stop_loss=1e-5, epochs=3000)
    victim = release_margin(recipe, trained, key=draw.key, store=NullStore())
    module = net.build()
    nn.utils.vector_to_parameters(victim.release.parameters[0].clone(), module.parameters())
    torch.save(module.state_dict(), draw.folder / "net.pt")
    np.savez(draw.folder / "mean.npz", mean=victim.centre.numpy())
    count = len(trained)
    return exhume.audit(
        {
            "seed": draw.seed,
            "victim": {"released": False},
            "machine": {"threads": 1},
            "checkpoint": {
                "file": str(draw.folder / "net.pt"),
                "mean": str(draw.folder / "mean.npz"),
                "trained_on": draw.file("digits", named),
                "rows": f"0:{count}",
                "restarts": 2,
                "steps": 120,
                **settings,
            },
        },
        draw.out,
    )


def never_trained_on(draw: Draw) -> Audit:
    return _checkpoint(draw, draw.digits[:20], draw.digits[20:], 1e-4)


def from_a_large_start(draw: Draw) -> Audit:
    """torch's own start and no decay: not at the point that the attack needs."""
    return _checkpoint(draw, draw.digits[:300], draw.digits, None)


def five_steps(draw: Draw) -> Audit:
    return _checkpoint(draw, draw.digits[:300], draw.digits, None, restarts=1, steps=5)


# Split networks


def _split_network(
    draw: Draw, net: nn.Module, name: str, first: str, *, epochs: int = 30, **settings: Any
) -> Audit:
    _train_split(net, draw.digits[:600], epochs)
    torch.save(net.state_dict(), draw.folder / "net.pt")
    return exhume.audit(
        {
            "seed": draw.seed,
            "victim": {"released": False},
            "machine": {"threads": 1},
            "split": {
                "model": f"{NETS}:{name}",
                "weights": str(draw.folder / "net.pt"),
                "data": draw.file("data", draw.digits),
                "first": first,
                "second": "body",
                "channels": 8,
                "attack_epochs": 6,
                "targets": 40,
                "lpips": False,
                **settings,
            },
        },
        draw.out,
    )


def _train_split(net: nn.Module, records: Records, epochs: int) -> None:
    parameters = [p for p in net.parameters() if p.requires_grad]
    descent = torch.optim.Adam(parameters, 1e-2)
    for _ in range(epochs):
        for start in range(0, len(records), 100):
            batch = records[start : start + 100]
            loss = nn.functional.cross_entropy(net(batch.inputs), batch.labels)
            descent.zero_grad()
            torch.autograd.backward(loss)
            descent.step()


def identity_head(draw: Draw) -> Audit:
    return _split_network(draw, nets.identity_head(), "identity_head", "head")


def affine_head(draw: Draw) -> Audit:
    return _split_network(draw, nets.affine_head(), "affine_head", "head")


def class_head(draw: Draw) -> Audit:
    net = nets.class_head()
    means = [of_class(draw.digits[:600], label).inputs.flatten(1).mean(0) for label in range(10)]
    net.get_buffer("head.prototypes").copy_(torch.stack(means))
    return _split_network(draw, net, "class_head", "head")


def untrained_network(draw: Draw) -> Audit:
    """Only the class of an untrained network's own making leaves the client."""
    net = nets.class_head()
    drawn = torch.rand(10, 64, generator=draw.key.fold("prototypes").generator())
    net.get_buffer("head.prototypes").copy_(drawn)
    return _split_network(draw, net, "class_head", "head", epochs=0)


# Updates of clients, whose right verdict is known.


def _update(draw: Draw, given: Records | str, **update: Any) -> Audit:
    source = given if isinstance(given, str) else draw.file("data", given)
    return exhume.audit(
        {
            "seed": draw.seed,
            "data": {"source": source},
            "victim": {"released": False},
            "machine": {"threads": 1},
            "update": {"restarts": 1, "search_steps": 300, **update},
        },
        draw.out,
    )


def _sent(draw: Draw, net: nn.Module, batch: Records) -> Tensor:
    """(p,) the gradient of the mean loss; the state that it was computed at is written beside it."""
    loss = nn.functional.cross_entropy(net(batch.inputs), batch.labels)
    save_file(
        {n: t.detach().clone() for n, t in net.state_dict().items()},
        draw.folder / "before.safetensors",
    )
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])


def _written(draw: Draw, net: nn.Module, values: Tensor) -> dict[str, str]:
    parts = torch.split(values, [p.numel() for p in net.parameters()])
    named = zip(net.named_parameters(), parts, strict=True)
    tensors = {n: part.reshape(p.shape).contiguous() for (n, p), part in named}
    save_file(tensors, draw.folder / "update.safetensors")
    return {
        "model": f"{NETS}:mlp",
        "update": str(draw.folder / "update.safetensors"),
        "before": str(draw.folder / "before.safetensors"),
    }


def _mlp_of(draw: Draw) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(draw.seed)
        return nets.mlp()


def _noise_like(draw: Draw, values: Tensor, times: float) -> Tensor:
    noise = torch.randn(values.shape, generator=draw.key.fold("noise").generator())
    scaled: Tensor = times * noise * values.norm() / noise.norm()
    return scaled


def others_of_the_class(draw: Draw) -> Audit:
    """A batch of one class; named are other records of that class."""
    own = of_class(draw.digits, draw.number(10))
    net = _mlp_of(draw)
    files = _written(draw, net, _sent(draw, net, own[:4]))
    return _update(draw, own[4:], records="0-3", batch_size=4, **files)


def other_batch(draw: Draw) -> Audit:
    """Named is another client's batch."""
    net = _mlp_of(draw)
    files = _written(draw, net, _sent(draw, net, draw.digits[:8]))
    return _update(draw, draw.digits[8:], records="0-7", batch_size=8, **files)


def noise_alone(draw: Draw) -> Audit:
    net = _mlp_of(draw)
    values = _sent(draw, net, draw.digits[:8])
    return _update(
        draw,
        draw.digits,
        records="0-7",
        batch_size=8,
        **_written(draw, net, _noise_like(draw, values, 1)),
    )


def noisy(draw: Draw) -> Audit:
    """Twenty clients with one record each, and noise three hundred times as large as their updates."""
    net, named = _mlp_of(draw), {}
    before, place = net.state_dict(), draw.folder / "sent"
    recording = Recording(place)
    for number in range(20):
        values = _sent(draw, net, draw.digits[number : number + 1])
        values = values + _noise_like(replace(draw, key=draw.key.fold(number)), values, 300.0)
        parts = torch.split(values, [p.numel() for p in net.parameters()])
        changed = zip(net.named_parameters(), parts, strict=True)
        after = {n: p.detach() - part.reshape(p.shape) for (n, p), part in changed}
        client = f"client{number}"
        recording.write(before, after, round=0, client=client, rate=1.0, batch_size=1)
        named[client] = [number]
    path = draw.folder / "records.json"
    path.write_text(json.dumps(named), encoding="utf-8")
    files = {"model": f"{NETS}:mlp", "update": str(place), "records": str(path)}
    return _update(draw, draw.digits, search_steps=100, **files)


def one_record(draw: Draw) -> Audit:
    return _update(draw, "mnist", made=6, batch_size=1, model=f"{NETS}:wide")


def one_record_of_a_cnn(draw: Draw) -> Audit:
    return _update(draw, "mnist", made=6, batch_size=1, model=f"{NETS}:conv", search_steps=600)


def one_text(draw: Draw) -> Audit:
    """A transformer's gradient of one text."""
    generator = draw.key.fold("texts").generator()
    tokens = torch.randint(1, nets.WORDS, (400, nets.LENGTH), generator=generator)
    path = draw.folder / "texts.npz"
    np.savez(path, tokens=tokens.numpy(), y=(tokens[:, 0] % 2).numpy())
    return _update(draw, str(path), made=6, batch_size=1, model=f"{NETS}:transformer")


def unfinished(draw: Draw) -> Audit:
    """A CNN's batch of sixteen, and five steps: with twenty and eight, some records came back."""
    model = f"{NETS}:conv"
    return _update(draw, "mnist", made=2, batch_size=16, model=model, search_steps=5)


def averaged(draw: Draw) -> Audit:
    """Batches of one class and no hidden layer: every number of the gradient is about a mean."""
    own = of_class(draw.digits, draw.number(10))
    return _update(draw, own, made=4, batch_size=4, model=f"{NETS}:softmax", search_steps=100)
