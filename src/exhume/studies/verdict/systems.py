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

import exhume
from exhume.auditing import Audit
from exhume.core.contract import Key, Records
from exhume.studies.verdict import nets

__all__ = ["NETS", "Draw", "of_class"]

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
