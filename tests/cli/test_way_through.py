"""How many modules a newcomer passes who follows `exhume audit-update` from the command to the verdict."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from exhume import cli, readers
from exhume.auditing import run

ROOMS = ("auditing", "cli", "report")
MOST = 15
NET = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 10))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a network and the gradient of one digit."""
    folder = tmp_path_factory.mktemp("way")
    (folder / "net.py").write_text(NET)
    space = {}
    exec(NET, space)
    network, digits = space["make"](), readers.load("digits")[3:4]
    nn.functional.cross_entropy(network(digits.inputs), digits.labels).backward()
    gradient = {name: parameter.grad for name, parameter in network.named_parameters()}
    torch.save(gradient, folder / "u.pt")
    return folder


def being_imported(frame):
    """Whether a module's own lines called it, and no function that was called from elsewhere."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def modules_passed(command):
    """The modules whose functions `command` calls, in the order of their first call, and its exit code."""
    source = Path(run.__file__).parents[1].as_posix()
    rooms = tuple(f"{source}/{room}/" for room in ROOMS)
    modules, deciding = {}, run.judge.__code__

    def note(frame, event, _):
        code = frame.f_code
        if not code.co_filename.startswith(rooms):
            return
        if event == "return" and code is deciding:
            sys.setprofile(None)
        module = code.co_filename.removeprefix(f"{source}/")
        in_function = event == "call" and code.co_flags & inspect.CO_NEWLOCALS
        if in_function and module not in modules and not being_imported(frame):
            modules[module] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        with pytest.raises(SystemExit) as ended:
            command()
        assert sys.getprofile() is None, "no verdict was decided"
    finally:
        sys.setprofile(before)
    return list(modules), ended.value.code


@pytest.mark.parametrize("given", ["--shape 1,8,8", "--data digits --records 3"])
def test_from_the_command_to_the_verdict_in_few_modules(given, place, monkeypatch, capsys):
    """A module counts if it is in `auditing`, `cli` or `report` and one of its functions is called between
    the command and the return of the engine's `judge`, where the verdict is decided. What runs while a
    module is imported, class bodies included, does not count. Readers, settings, models, attacks, scores,
    training, victims, the contract and the store are leaves of the way and do not count either.
    """
    quick = f"--batch-size 1 --threads 1 --search-steps 2 --restarts 1 --out run{len(given)}"
    words = f"exhume audit-update u.pt --model net.py:make {given} {quick}"
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", words.split())
    modules, code = modules_passed(cli.main)
    with capsys.disabled():  # to be read
        sys.stdout.write(f"\n{words}\n{len(modules)} modules: {', '.join(modules)}\n")
    assert code == 0
    assert {"cli/audits.py", "auditing/run.py", "auditing/judge.py"} <= set(modules)
    assert len(modules) <= MOST
