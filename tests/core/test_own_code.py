from __future__ import annotations

import sys

import pytest

from exhume.core.contract import ExhumeError
from exhume.core.notation import is_spec
from exhume.core.own_code import called, digest_of_code, named

MODEL = """
from dataclasses import dataclass
import json, layers
import functools, types
import numpy as np, torch
WIDTH = 3
LOOP = [1]
LOOP.append(LOOP)
RATES = {"slow": [0.1, 0.2], "kinds": {"x", "y"}}
TABLE, BIAS = np.arange(3), torch.ones(2)
PLACE = types.SimpleNamespace(depth=4)
scaled = functools.partial(layers.twice, 5)
@dataclass
class Net:
    depth: "int" = 2
    def forward(self, x):
        return json.dumps(layers.twice(x) * WIDTH) if x in {"a", "b", "c"} else sorted(x)
CONFIG = Net(7)
def build(extra=1):
    return Net(), RATES, TABLE, BIAS, PLACE, scaled, CONFIG, LOOP
"""
LAYERS = "def twice(x):\n    return 2 * x\ndef unused(x):\n    return x\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "layers", raising=False)
    (tmp_path / "layers.py").write_text(LAYERS)
    (tmp_path / "model.py").write_text(MODEL)
    yield tmp_path
    sys.modules.pop("layers", None)


def digest(folder, **edited):
    for name, text in edited.items():
        (folder / f"{name}.py").write_text(text)
    sys.modules.pop("layers", None)
    return digest_of_code(named("model.py:build", "model", folder))


def test_code_is_known_by_what_it_does(project):
    first = digest(project)
    assert digest(project, model="# a remark\n" + MODEL) == first
    changes = {
        "a method": {"model": MODEL.replace("else sorted(x)", "else x")},
        "a constant it mentions": {"model": MODEL.replace("WIDTH = 3", "WIDTH = 4")},
        "a class member": {"model": MODEL.replace("= 2", "= 5")},
        "a default": {"model": MODEL.replace("extra=1", "extra=2")},
        "a set it compares with": {"model": MODEL.replace('"c"}', '"d"}')},
        "a value in a dictionary": {"model": MODEL.replace("0.2]", "0.3]")},
        "a member of a set": {"model": MODEL.replace('"y"}', '"z"}')},
        "an array": {"model": MODEL.replace("arange(3)", "arange(4)")},
        "a tensor": {"model": MODEL.replace("ones(2)", "zeros(2)")},
        "an attribute": {"model": MODEL.replace("depth=4", "depth=6")},
        "an object of its own": {"model": MODEL.replace("Net(7)", "Net(8)")},
        "an argument that is kept": {"model": MODEL.replace("twice, 5", "twice, 6")},
        "another file": {"model": MODEL, "layers": LAYERS.replace("2 * x", "3 * x")},
    }
    found = {name: digest(project, **edited) for name, edited in changes.items()}
    assert len({first, *found.values()}) == len(changes) + 1, found
    assert digest(project, model=MODEL, layers=LAYERS.replace("return x\n", "return 0\n")) == first


def test_what_cannot_be_imported_is_one_sentence(project):
    (project / "odd.py").write_text("def f(:\n")
    (project / "late.py").write_text("x = 1 / 0\n")
    (project / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    (project / "fine.py").write_text(
        "value = None\nnumber = 3\ndef bad():\n    raise KeyError('k')\n"
    )
    for spec, message in (
        ("build", "data: 'build' is not of the form package.module:factory"),
        ("odd.py:f", "data: odd.py:f: SyntaxError: "),
        ("late.py:x", "data: late.py:x: ZeroDivisionError: division by zero"),
        ("leaves.py:x", "data: leaves.py:x: SystemExit: 0"),  # it must not end the audit with 0
        ("gone.py:f", "data: gone.py:f: there is no file gone.py"),
        ("gone.away:f", "data: gone.away:f: No module named 'gone'"),
        ("fine.py:other", "data: fine.py has no other"),
    ):
        with pytest.raises(ExhumeError, match=message):
            named(spec, "data", project)
    assert named("fine.py:value", "data", project) is None
    with pytest.raises(ExhumeError, match="data: s raised KeyError: 'k'"):
        called(named("fine.py:bad", "data", project), "s", "data")
    with pytest.raises(ExhumeError, match="data: s is a int, which cannot be called"):
        called(3, "s", "data")


def test_what_a_name_looks_like():
    assert all(is_spec(text) for text in ("a.b:make", "net.py:make", "/x/net.py:make"))
    assert not any(is_spec(text) for text in ("mnist", "C:\\data", "C:x", "mnist:/x/y", "a:", ":b"))
