"""Systems whose right verdict is known, each audited as a stranger would: files, a brief, the public API."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import nn

import exhume
from exhume.auditing import Audit
from exhume.core.contract import Key, Records
from exhume.models.mlp import HomogeneousMLP
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

    def audit(self, **sections: dict[str, Any]) -> Audit:
        """As a stranger would ask for it; a system that trains nothing here says so."""
        victim: dict[str, Any] = {"victim": {"released": False}}
        usual: dict[str, Any] = {"seed": self.seed, "machine": {"threads": 1}}
        return exhume.audit(usual | victim | sections, self.out)

    def number(self, most: int) -> int:
        """A whole number below most."""
        generator = self.key.fold("number", most).generator()
        return int(torch.randint(most, (1,), generator=generator))


def of_class(records: Records, label: int) -> Records:
    return records[records.labels == label]


# Weights that are trained here


def trained(
    draw: Draw,
    records: Records | str,
    *,
    sizes: dict[str, int] | None = None,
    fixes: bool = False,
    **victim: Any,
) -> Audit:
    dealt = {"fixed": 60, "targets": 40, "shadows": 200, "public": 10, "test": 900}
    source = records if isinstance(records, str) else draw.file("data", records)
    usual = {"hidden": [20], "steps": 20, "rate": 0.1, "momentum": 0.9}
    data = {"source": source, **dealt, **(sizes or {})}
    budget = {"budget": {"fixes": True}} if fixes else {}
    return draw.audit(data=data, victim=usual | victim, **budget)


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


def by_brightness(draw: Draw) -> Audit:
    """Three classes, by brightness: whoever knows the class knows how bright a record is."""
    bright = draw.digits.inputs.flatten(1).mean(1)
    labels = bright.argsort().argsort() * 3 // len(bright)
    records = Records(draw.digits.inputs, labels, ("dark", "grey", "bright"))
    return trained(draw, records, train=f"{NETS}:class_only")


def near_duplicates(draw: Draw) -> Audit:
    """Every class is one digit, with a little noise on each of its records."""
    base, times = draw.digits[:10].inputs, len(draw.digits) // 10
    noise = torch.randn(10 * times, *base.shape[1:], generator=draw.key.fold("noise").generator())
    inputs = (base.repeat(times, 1, 1, 1) + 0.02 * noise).clamp(0, 1)
    records = Records(inputs, torch.arange(10).repeat(times), draw.digits.classes)
    return trained(draw, records, train=f"{NETS}:class_only")


# Weights whose training is disguised, or that hold records as they are


def disguised(draw: Draw, how: str) -> Audit:
    return trained(draw, draw.digits, network=f"{NETS}:small", train=f"{NETS}:{how}")


def rescaled(draw: Draw) -> Audit:
    return disguised(draw, "rescaled")


def reordered(draw: Draw) -> Audit:
    return disguised(draw, "reordered")


def verbatim(draw: Draw, where: str) -> Audit:
    """A third of the records, in a parameter of the network."""
    sizes = {"shadows": 20, "targets": 40, "fixed": 30}
    how: dict[str, Any] = {"network": f"{NETS}:{where}", "train": f"{NETS}:keeps_a_third"}
    return trained(draw, draw.digits, sizes=sizes, **how)


# Fixes


def weak_leak(draw: Draw) -> Audit:
    """Eight-bit weights change next to nothing of what comes back."""
    sizes = {"targets": 60, "shadows": 100, "test": 600}
    return trained(draw, draw.digits, sizes=sizes, fixes=True)


def strong_leak(draw: Draw) -> Audit:
    """Private training at epsilon 10 stops it."""
    return trained(draw, draw.digits, sizes={"targets": 60, "test": 600}, fixes=True)


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


def scaled_logits(draw: Draw) -> Audit:
    model = _fitted(_two(draw))
    model.coef_, model.intercept_ = 1.3 * model.coef_, 1.3 * model.intercept_
    return _linear(draw, model, _two(draw))


def weighted(draw: Draw) -> Audit:
    """Every record counted twice."""
    both = _two(draw)
    inputs, labels = both.inputs.flatten(1).double().numpy(), both.labels.numpy()
    model = LogisticRegression(tol=1e-9, max_iter=5000)
    model.fit(inputs, labels, sample_weight=np.full(len(labels), 2.0))
    return _linear(draw, model, both)


def standardised(draw: Draw) -> Audit:
    """Fitted on standardised columns; given are the raw ones."""
    both = _two(draw)
    flat = both.inputs.flatten(1)
    scaled = (flat - flat.mean(0)) / flat.std(0).clamp_min(1e-3)
    return _linear(draw, _fitted(replace(both, inputs=scaled.view_as(both.inputs))), both)


def wide_linear(draw: Draw) -> Audit:
    """Few records, many columns, unequal classes; the model is one of others."""
    generator = draw.key.fold("wide").generator()
    inputs = torch.randn(120, 3000, generator=generator)
    labels = (torch.rand(120, generator=generator) < 0.3).long()
    records = Records(inputs, labels, ("usual", "rare"))
    return _linear(draw, _fitted(records[:60], C=0.001), records[60:], targets=60)


def noisy_linear(draw: Draw) -> Audit:
    """Coefficients with noise as large as themselves."""
    both = _two(draw)
    model = _fitted(both)
    size = float(np.abs(model.coef_).mean())
    noise = torch.randn(model.coef_.shape, generator=draw.key.fold("noise").generator())
    model.coef_ = model.coef_ + size * noise.double().numpy()
    return _linear(draw, model, both)


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
    return draw.audit(
        checkpoint={
            "file": str(draw.folder / "net.pt"),
            "mean": str(draw.folder / "mean.npz"),
            "trained_on": draw.file("digits", named),
            "rows": f"0:{count}",
            "restarts": 2,
            "steps": 120,
            **settings,
        }
    )


def never_trained_on(draw: Draw) -> Audit:
    return _checkpoint(draw, draw.digits[:20], draw.digits[20:], 1e-4)


def from_a_large_start(draw: Draw) -> Audit:
    """torch's own start and no decay: not at the point that the attack needs."""
    return _checkpoint(draw, draw.digits[:300], draw.digits, None)


def five_steps(draw: Draw) -> Audit:
    return _checkpoint(draw, draw.digits[:300], draw.digits, None, restarts=1, steps=5)
