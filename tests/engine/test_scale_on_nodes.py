"""Engines on a Ray cluster of two nodes, both on this machine: spread, and placed again when a node is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from replicas_harness import actor_processes, replicated
from server_harness import until

pytest.importorskip("ray", reason="Ray is not installed: ci/ray.sh runs these where it is")
NODE = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 * 2**20}


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        found.add_node(**NODE)
        yield found
    finally:
        found.shutdown()


def raylet(row: dict[str, Any]) -> int:
    """The process of a node that holds the engine's actor."""
    return psutil.Process(actor_processes(row)[1]).ppid()


def test_engines_are_spread_and_outlive_a_node(tiny_llama: Path, cluster: Any) -> None:
    with replicated(tiny_llama, f"--replicas 2 --ray-address {cluster.address}") as served:
        until(lambda: len(served.ready()) == 2, served.rows)
        assert len({raylet(row) for row in served.ready()}) == 2
        lost = next(node for node in cluster.worker_nodes)
        with served.load(2):
            cluster.remove_node(lost, allow_graceful=False)
            until(lambda: sum(row["restarts"] for row in served.rows()) > 0, served.rows)
            until(lambda: len(served.ready()) == 2, served.rows)
        assert len({raylet(row) for row in served.ready()}) == 1
