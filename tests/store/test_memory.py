"""What this process may use: a container's limit counts, not the machine's memory."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest
from typer.testing import CliRunner

from exhume.cli import app
from exhume.core.contract import ExhumeError
from exhume.store import memory
from exhume.store.memory import check_memory, memory_here


def grouped(tmp_path, monkeypatch, own: str, limits: dict[str, str]) -> None:
    for name, text in limits.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")


SYSTEMS = {
    "v2": ("0::/jobs/mine\n", {"jobs/mine/memory.max": "5000000"}),
    "v2, the group above": (
        "0::/jobs/mine\n",
        {"jobs/mine/memory.max": "max", "jobs/memory.max": "5000000"},
    ),
    "v2, seen from a container": ("0::/../elsewhere\n", {"memory.max": "5000000"}),
    "v1": (
        "3:cpu:/\n4:memory:/box\n0::/\n",
        {"memory/box/memory.limit_in_bytes": "5000000", "memory.max": "max"},
    ),
    "v1, seen from a container": (
        "4:cpu,memory:/docker/abc\n",
        {"memory/memory.limit_in_bytes": "5000000"},
    ),
    "both": ("4:memory:/\n0::/a\n", {"unified/a/memory.max": "5000000"}),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_limit_of_a_container_counts(system, tmp_path, monkeypatch):
    grouped(tmp_path, monkeypatch, *SYSTEMS[system])
    assert memory_here() == 5_000_000
    check_memory(4_900_000, "a: 1 record")
    with pytest.raises(
        ExhumeError, match=r"^a: 1 record need 6\.0 MB of memory, 5\.0 MB are free; pass fewer"
    ):
        check_memory(6_000_000, "a: 1 record")


@pytest.mark.parametrize(
    "limits", [{}, {"memory.max": "max"}, {"memory.max": ""}, {"memory.max": "9223372036854771712"}]
)
def test_without_a_limit_it_is_the_machine(limits, tmp_path, monkeypatch):
    grouped(tmp_path, monkeypatch, "0::/\n", limits)
    assert 1e8 < memory_here() < 1e16


def test_no_such_system(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "none")
    assert 1e8 < memory_here() < 1e16


def test_a_limit_of_the_address_space_counts():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    least = int(memory_here()) - 4096
    resource.setrlimit(resource.RLIMIT_AS, (least, hard))
    try:
        assert memory_here() == least
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_a_ceiling_of_the_user_counts(monkeypatch):
    monkeypatch.setenv("EXHUME_MEMORY", "5MB")
    with pytest.raises(ExhumeError, match=r"need 6\.0 MB of memory, 5\.0 MB are free"):
        check_memory(6_000_000, "a: 1 record")
    for wrong in ("4", "4G", "much", "-1GB"):
        monkeypatch.setenv("EXHUME_MEMORY", wrong)
        with pytest.raises(ExhumeError, match="is no size such as 500MB or 4GB"):
            check_memory(1, "a: 1 record")


def test_a_small_file_of_many_numbers_is_refused_unread(tmp_path):
    """One megabyte that becomes gigabytes: uint8 as it is stored and, beside it, as float32."""
    np.savez_compressed(
        tmp_path / "z.npz", x=np.zeros((300, 1, 512, 512), np.uint8), y=np.arange(300) % 2
    )
    assert (tmp_path / "z.npz").stat().st_size < 1_000_000
    given = ["--ceiling", "200MB", "audit", "--data", str(tmp_path / "z.npz"), "--dry-run"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 2
    assert "its arrays need 393.2 MB of memory, 200.0 MB are free" in done.stderr
    assert "EXHUME_MEMORY" not in os.environ
