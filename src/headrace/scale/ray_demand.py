"""What one engine asks of a Ray cluster: a pure function of the configuration and of the cluster's nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.config import Config
from headrace.errors import ConfigError

__all__ = ["Demand", "local_cores", "ray_demand"]

Resources = Mapping[str, float]


class Demand(NamedTuple):
    bundle: dict[str, float]
    """Of one engine with all its ranks: a bundle is on one node, so they are, too."""
    threads: int | None
    """Of each rank, for engines of the host."""


def ray_demand(config: Config, nodes: Sequence[Resources]) -> Demand:
    """`nodes`: the total resources of each that lives. Raises ConfigError if no node could ever have an engine."""
    ranks = config.parallel.world_size
    on_host = config.device.platform == "cpu"
    if not on_host and any(node.get("GPU") for node in nodes):
        demand = Demand({"CPU": 1.0, "GPU": float(ranks)}, config.device.threads)
    elif config.device.platform not in ("auto", "cpu"):
        raise ConfigError(
            f"--platform {config.device.platform}: no node of the Ray cluster has a device that Ray counts as GPU"
        )
    else:
        threads = config.device.threads or _share(config.scale.most, ranks, nodes)
        demand = Demand({"CPU": float(threads * ranks)}, threads)
    if not any(all(node.get(name, 0.0) >= count for name, count in demand.bundle.items()) for node in nodes):
        largest = "; ".join(_text(node) for node in nodes) or "no node"
        raise ConfigError(
            f"an engine needs {_text(demand.bundle)} on one node of the Ray cluster, which has {largest}: choose a "
            "smaller --tensor-parallel-size or fewer --threads, or add a node"
        )
    return demand


def local_cores(config: Config, cores: int) -> int:
    """CPUs that a Ray cluster of this machine should count: one engine more than there may be has room, so that an
    update can start a new one before an old one ends. They are a count, not cores."""
    scale, ranks = config.scale, config.parallel.world_size
    threads = config.device.threads or max(1, cores // (scale.most * ranks))
    return threads * ranks * (scale.most + 1)


def _share(engines: int, ranks: int, nodes: Sequence[Resources]) -> int:
    """Threads of a rank, if the engines share the nodes' cores."""
    cores = [int(node["CPU"]) for node in nodes if node.get("CPU")]
    if not cores:
        return 1
    # One more than there may be, for updates.
    each = -(-(engines + 1) // len(cores))
    return max(1, min(cores) // (each * ranks))


def _text(resources: Resources) -> str:
    return " and ".join(f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if resources.get(name)) or "nothing"
