from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parent)
sys.path.insert(0, FOLDER)  # for planted_jobs, in every import mode of pytest


@pytest.fixture
def cluster(started):
    """A head and a second node on this machine, one core each, and this process connected to them."""
    if not started.worker_nodes:  # a test has killed it
        started.add_node(num_cpus=1)
    return started


@pytest.fixture(scope="session")
def started():
    """The nodes, started once, so that their workers are, too."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'exhume[ray]'")
    from ray.cluster_utils import Cluster as Nodes

    from exhume.store import scale

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (FOLDER, before)))  # of the workers
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - 15 otherwise, behind all other work
    impatient = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
    }  # 25 s otherwise
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": impatient})
    nodes.add_node(num_cpus=1)
    assert scale._connect(scale.Cluster(nodes.address))  # as a command does, but for all tests
    yield nodes
    ray.shutdown()
    nodes.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
