"""6,000 configurations that nobody would write: each is accepted or refused in one sentence."""

from __future__ import annotations

import random
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fuzzing import blocks, clean, scrambled

from exhume import readers
from exhume.choices import resolve
from exhume.settings import Brief, CheckpointSettings, Settings, SplitSettings, UpdateSettings
from exhume.settings.schema import toml_of

VALUES: tuple[Any, ...] = (
    *(0, 1, 2, 3, -1, 10, 999_999_999, 2**63, -(2**70), 10**40),
    *(0.0, 0.5, 1.0, -0.0, 1e-300, 1e308, float("inf"), float("-inf"), float("nan")),
    *(
        "",
        "mnist",
        "digits",
        "gd",
        "sgd",
        "adam",
        "relu",
        "elu",
        "cnn",
        "mlp",
        "cpu",
        "cuda:9",
        "meta",
    ),
    *(
        "x" * 300,
        "a\nb",
        "\x00",
        "ünïcode ☠",
        "../../etc/passwd",
        "nobody.py:nothing",
        "1,2",
        "10m",
        "-3s",
    ),
    *(
        True,
        False,
        [],
        [0],
        [1],
        [-1],
        [10**12],
        [2.5],
        ["a"],
        [[1]],
        {},
        {"a": 1},
        [1, "a"],
        [8, 4],
    ),
)


def sections() -> dict[str, Any]:
    made = asdict(Settings())
    made["checkpoint"] = {**asdict(CheckpointSettings("net.pt")), "file": "net.pt"}
    made["update"] = asdict(UpdateSettings(made=4, data="digits", batch_size=8))
    made["split"] = asdict(SplitSettings("net.py:net", "digits"))
    made["budget"] = {"time": "10m", "fixes": False}
    return made


KNOWN = sections()


def odd(usual: Any, chance: random.Random) -> Any:
    """Mostly of the right type, so that what comes after the types is reached, too."""
    kind = list if isinstance(usual, tuple) else type(usual)
    fitting = [value for value in VALUES if type(value) is kind]
    return chance.choice(fitting if chance.random() < 0.85 and fitting else VALUES)


def mapping(chance: random.Random) -> dict[str, Any]:
    """Some sections with some keys, names now and then misspelt, values of any kind."""
    content: dict[str, Any] = {}
    for name in chance.sample(list(KNOWN), chance.randrange(1, 5)):
        spelt = name if chance.random() < 0.97 else name[:-1]
        if not isinstance(KNOWN[name], dict) or chance.random() < 0.03:
            content[spelt] = odd(KNOWN[name], chance)
            continue
        keys = chance.sample(list(KNOWN[name]), min(len(KNOWN[name]), chance.randrange(0, 4)))
        section = {"file": "net.pt"} if name == "checkpoint" else {}
        if name == "split":
            section["model"] = "net.py:net"
        for key in keys:
            value = odd(KNOWN[name][key], chance) if chance.random() < 0.7 else KNOWN[name][key]
            section[key if chance.random() < 0.97 else f"{key}s"] = value
        content[spelt] = section
    return content


@pytest.fixture(scope="module")
def records():
    return readers.load("digits")[:200]


@blocks(150, 4000)
def test_mappings(cases, records):
    accepted = 0
    for case in cases:
        content = mapping(random.Random(f"mapping {case}"))

        def run(content: dict[str, Any] = content) -> None:
            brief = Brief.from_mapping(content)
            brief = brief.resolved()
            resolve(brief.settings, records)
            again = Brief.from_mapping(tomllib.loads(brief.toml()))
            assert again.toml() == brief.toml()

        accepted += clean(run, case) is None
    assert accepted > len(cases) // 50  # not everything is refused


@blocks(100, 2000)
def test_files(cases, room):
    path = room / "audit.toml"
    whole = [Brief().toml(), toml_of({k: v for k, v in KNOWN.items() if k != "checkpoint"})]
    refused = 0
    for case in cases:
        chance = random.Random(f"file {case}")
        path.write_bytes(scrambled(chance.choice(whole).encode(), chance))
        refused += clean(lambda: Brief.from_toml(path), case) is not None
    assert 0.2 * len(cases) < refused < len(cases)


def test_what_is_no_file(room):
    for path in (room, room / "none.toml", Path("/dev/null/x")):
        assert clean(lambda path=path: Brief.from_toml(path), 0) is not None
