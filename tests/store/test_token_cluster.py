"""A Ray cluster that asks for a token: whoever has it works there, anybody else is told why not, at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'exhume[ray]'")

PROGRAM = Path(__file__).parent / "token_cluster.py"

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.xdist_group("ray")]


def environment(token: Path, mode: str = "token") -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return clean | {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN_PATH": str(token)}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokens")
    made = {"right": folder / "right", "wrong": folder / "wrong"}
    for place, path in enumerate(made.values()):
        path.write_text(f"{place}a" * 32)
        path.chmod(0o600)
    return made


@pytest.fixture(scope="module")
def address(tokens) -> Iterator[str]:
    command = [sys.executable, str(PROGRAM), "serve"]
    running = subprocess.Popen(
        command,
        env=environment(tokens["right"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield next(line for line in running.stdout if ":" in line).strip()
    running.stdin.close()
    running.wait(timeout=60)


def joined(address: str, env: dict[str, str]) -> str:
    command = [sys.executable, str(PROGRAM), "join", address]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.strip().splitlines()[-1]


def test_with_the_token_jobs_run_on_both_nodes(address, tokens):
    assert joined(address, environment(tokens["right"])) == "[(0, 4), (1, 20), (2, 12)] 2"


@pytest.mark.parametrize(("token", "mode"), [("wrong", "token"), ("right", "disabled")])
def test_without_it_the_cause_is_named_before_ray_gives_up(address, tokens, token, mode):
    said = joined(address, environment(tokens[token], mode))
    seconds, _, sentence = said.partition(" s: ")
    assert sentence.startswith(f"the Ray cluster at {address} refuses this process: it asks for a")
    assert float(seconds) < 15  # Ray alone: 21; 2 where the machine has nothing else to do
