"""A Ray cluster of two nodes that asks for a token, until its standard input ends; and one who joins it."""

from __future__ import annotations

import sys
import time


def serve() -> None:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
    cluster.add_node(num_cpus=1)
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


def join(address: str) -> None:
    from operator import mul

    from exhume.core.contract import ExhumeError
    from exhume.store.scale import Cluster, place, run_jobs, spread_over

    began = time.monotonic()
    try:
        with spread_over(Cluster(address)):
            print(sorted(run_jobs(mul, [1, 5, 3], shared=4, threads=1)), place()["nodes"])
    except ExhumeError as error:
        print(f"{time.monotonic() - began:.1f} s: {error}")


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else join(sys.argv[2])
