"""Less effort or knowledge never turns "not audited" into "no leak found", in any kind of release."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import exhume
from exhume.core.contract import Records
from exhume.studies.verdict import nets

pytestmark = pytest.mark.slow
NETS = nets.__name__
_SETS = {"trained_on": "own", "decoys": "others"}


def words_of(brief, section, key, values, out):
    """Of audits with less and less effort."""
    words = []
    for value in values:
        changed = {**brief, section: {**brief[section], key: value}}
        words.append(exhume.audit(changed, out / f"{key}-{value}").verdict.word)
    return words


def never_reassured_by_less(words):
    unknown = words.index("not audited") if "not audited" in words else len(words)
    return "no leak found" not in words[unknown:]


@pytest.mark.parametrize("private", [{}, {"dp_clip": 1.0, "dp_noise": 50.0}])
@pytest.mark.parametrize(("key", "values"), [("shadows", (200, 60, 20)), ("public", (80, 20, 1))])
def test_weights(private, key, values, tmp_path):
    sizes = {"fixed": 60, "targets": 40, "shadows": 200, "public": 10, "test": 600}
    victim = {"hidden": [16], "steps": 15, "rate": 0.1, "momentum": 0.9, **private}
    brief = {"data": {"source": "digits", **sizes}, "victim": victim, "machine": {"threads": 1}}
    assert never_reassured_by_less(words_of(brief, "data", key, values, tmp_path))


@pytest.mark.parametrize("steps", [(300, 60, 5)])
def test_updates(steps, tmp_path):
    brief = {
        "data": {"source": "digits"},
        "victim": {"released": False},
        "machine": {"threads": 1},
        "update": {"made": 4, "batch_size": 16, "model": f"{NETS}:mlp", "restarts": 1},
    }
    assert never_reassured_by_less(words_of(brief, "update", "search_steps", steps, tmp_path))


@pytest.mark.parametrize("key", ["held", "attack_epochs"])
def test_features(key, tmp_path):
    brief = {
        "data": {"source": "digits"},
        "victim": {"released": False},
        "machine": {"threads": 1},
        "split": {
            **{"model": f"{NETS}:class_head", "first": "head", "second": "body", "channels": 4},
            **{"targets": 40, "attack_epochs": 4, "lpips": False},
        },
    }
    values = {"held": (400, 100, 40), "attack_epochs": (8, 2, 1)}[key]
    assert never_reassured_by_less(words_of(brief, "split", key, values, tmp_path))


@pytest.mark.parametrize(("key", "values"), [("steps", (120, 30, 5)), ("restarts", (3, 1))])
def test_checkpoints(key, values, tmp_path):
    digits = load_digits()
    x, y = digits.images[:, None].astype("float32") / 16, digits.target
    for name, rows in (("own", slice(0, 40)), ("others", slice(40, 700))):
        np.savez(tmp_path / f"{name}.npz", x=x[rows], y=y[rows])
    net = nets.small()
    own = Records(torch.from_numpy(x[:40]), torch.from_numpy(y[:40]).long(), ())
    nets.rescaled(net, own, torch.Generator().manual_seed(0))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    brief = {
        "victim": {"released": False},
        "machine": {"threads": 1},
        "checkpoint": {
            **{"file": str(tmp_path / "net.pt"), "mean": "0", "restarts": 2, "steps": 60},
            **{name: str(tmp_path / f"{file}.npz") for name, file in _SETS.items()},
        },
    }
    assert never_reassured_by_less(words_of(brief, "checkpoint", key, values, tmp_path))


def test_fitted(tmp_path):
    """Silence of a linear model is never evidence, however many are tried."""
    x = np.random.default_rng(0).normal(size=(120, 30))
    y = (x[:, 0] > 0).astype(int)
    model = LogisticRegression(C=1e-3).fit(x, y)
    words = [
        exhume.audit_fitted(model, -x, y, tmp_path / f"{n}", targets=n).verdict.word
        for n in (100, 20, 5)
    ]
    assert never_reassured_by_less(words)
    assert "no leak found" not in words
