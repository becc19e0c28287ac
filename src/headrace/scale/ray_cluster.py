"""The connection to a Ray cluster. Ray is imported here, and only if `--ray-address` asks for it."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

from headrace.config import Config
from headrace.errors import ConfigError, PlatformError
from headrace.scale.ray_demand import local_cores

__all__ = ["import_ray", "open_cluster"]

_LEAST_STORE = 80 * 2**20
"""Bytes of Ray's object store on this machine, which nothing uses: its least is 75 MiB."""


def import_ray() -> Any:
    """The library. Raises ConfigError if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"--ray-address needs Ray: pip install 'headrace[ray]' ({error})") from None
    return ray


def open_cluster(config: Config) -> Any:
    """Connect to the cluster that `--ray-address` names, or start one on this machine. Thread: the main one, before
    the event loop runs. Returns the library. Raises ConfigError and PlatformError."""
    ray = import_ray()
    address = config.scale.ray_address
    settings: dict[str, Any] = {"address": address}
    if address == "local":
        from headrace.platforms.host import physical_cores

        # Nothing of this machine is reported to anybody.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings.update(
            num_cpus=local_cores(config, physical_cores()),
            include_dashboard=False,
            object_store_memory=_LEAST_STORE,
            _node_ip_address="127.0.0.1",
        )
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(**settings, namespace="headrace", logging_level=logging.WARNING, configure_logging=False)
    except ConnectionError as error:
        first = str(error).strip().partition("\n")[0]
        remedy = "start one with `ray start --head`, or give --ray-address local"
        raise ConfigError(f"--ray-address {address}: there is no Ray cluster: {remedy} ({first})") from None
    except (ValueError, RuntimeError, TimeoutError) as error:
        with contextlib.suppress(Exception):
            ray.shutdown()
        raise PlatformError(f"--ray-address {address}: Ray cannot be used: {' '.join(str(error).split())}") from error
    return ray
