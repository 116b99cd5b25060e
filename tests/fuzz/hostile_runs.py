"""Run folders of somebody else's: a sound one in which a file was changed, and the command that meets it.

A kind is a function from a source of chance, an empty folder and a finished run to arguments of `exhume`.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from fuzzing import scrambled
from hostile_files import deep, mutated_json

SMALL = "--data digits --fixed 20 --targets 5 --shadows 30 --steps 5 --hidden 4 --threads 1".split()


def result(chance: random.Random, folder: Path, sound: Path) -> list[str]:
    """A page is drawn of what `result.json` says."""
    run = folder / "run"
    shutil.copytree(sound, run)
    path = run / "result.json"
    path.write_text(mutated_json(json.loads(path.read_text()), chance), errors="replace")
    return ["report", str(run), *(["--redact"] if chance.random() < 0.3 else [])]


def evidence(chance: random.Random, folder: Path, sound: Path) -> list[str]:
    """A page is drawn of tensors that are not what they were."""
    run = folder / "run"
    shutil.copytree(sound, run)
    files = [*sorted(run.glob("*.safetensors")), run / "environment.json", run / "config.toml"]
    path = chance.choice(files)
    path.write_bytes(scrambled(path.read_bytes(), chance))
    return ["report", str(run)]


def runs(chance: random.Random, folder: Path, sound: Path) -> list[str]:
    """The same command goes on in a folder whose marker, settings or shards were changed."""
    run = folder / "run"
    shutil.copytree(sound, run)
    files = [run / ".exhume-run", run / "config.toml", *sorted(run.rglob("*.safetensors"))]
    path = chance.choice((*files[:2], chance.choice(files)))
    odd = chance.randrange(5)
    if odd == 0:
        path.write_text(deep(chance))
    elif odd == 1:
        path.unlink()
        path.mkdir()
    elif odd == 2:
        path.write_bytes(b"")
    else:
        path.write_bytes(scrambled(path.read_bytes(), chance))
    return ["audit", *SMALL, "--out", str(run)]


RUNS = {made.__name__: made for made in (result, evidence, runs)}
