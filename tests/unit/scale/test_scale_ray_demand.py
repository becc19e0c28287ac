"""What an engine asks of a Ray cluster."""

from __future__ import annotations

import pytest

from headrace.config import Config, DeviceConfig, ParallelConfig, ScaleConfig
from headrace.errors import ConfigError
from headrace.scale.ray_demand import Demand, local_cores, ray_demand

HOST, GPUS = {"CPU": 16.0, "memory": 1e9}, {"CPU": 32.0, "GPU": 8.0}


def config(platform: str = "auto", ranks: int = 1, threads: int | None = None, most: int = 1) -> Config:
    return Config(
        device=DeviceConfig(platform=platform, threads=threads),
        parallel=ParallelConfig(tensor_parallel_size=ranks),
        scale=ScaleConfig(replicas=most),
    )


@pytest.mark.parametrize(
    ("asked", "nodes", "demand"),
    [
        (config(), [GPUS], Demand({"CPU": 1.0, "GPU": 1.0}, None)),
        (config(ranks=4), [HOST, GPUS], Demand({"CPU": 1.0, "GPU": 4.0}, None)),
        (config("cuda", ranks=8), [GPUS], Demand({"CPU": 1.0, "GPU": 8.0}, None)),
        # On the host: an equal part of the cores, with room for one more engine.
        (config(), [HOST], Demand({"CPU": 8.0}, 8)),
        (config("cpu"), [GPUS], Demand({"CPU": 16.0}, 16)),
        (config("cpu", most=3), [HOST], Demand({"CPU": 4.0}, 4)),
        (config("cpu", most=3), [HOST, HOST], Demand({"CPU": 8.0}, 8)),
        (config("cpu", most=3), [HOST, {"memory": 1e9}, {"CPU": 4.0}], Demand({"CPU": 2.0}, 2)),
        (config("cpu", ranks=2, most=3), [HOST], Demand({"CPU": 4.0}, 2)),
        (config("cpu", most=99), [HOST], Demand({"CPU": 1.0}, 1)),
        (config("cpu", ranks=2, threads=3), [HOST], Demand({"CPU": 6.0}, 3)),
    ],
)
def test_the_bundle_of_an_engine(asked: Config, nodes: list[dict[str, float]], demand: Demand) -> None:
    assert ray_demand(asked, nodes) == demand


@pytest.mark.parametrize(
    ("asked", "nodes", "why"),
    [
        (config("cuda"), [HOST], "--platform cuda: no node of the Ray cluster has a device that Ray counts as GPU"),
        (
            config(ranks=9),
            [HOST, GPUS],
            "1 CPU and 9 GPU on one node of the Ray cluster, which has 16 CPU; 32 CPU and 8",
        ),
        (config("cpu", threads=17), [HOST], "needs 17 CPU on one node of the Ray cluster, which has 16 CPU: choose"),
        (config("cpu"), [], "which has no node"),
        (config("cpu"), [{"memory": 1.0}], "which has nothing"),
    ],
)
def test_what_no_node_has(asked: Config, nodes: list[dict[str, float]], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ray_demand(asked, nodes)


def test_a_cluster_of_this_machine_has_room_for_an_update() -> None:
    assert local_cores(config("cpu", most=2), 8) == 12
    assert local_cores(config("cpu", ranks=2, most=2), 8) == 12
    assert local_cores(config("cpu", most=2), 1) == 3
    assert local_cores(config("cpu", threads=3), 8) == 6
