"""`headrace serve --replicas N`: N engines on this machine or on a Ray cluster, and the router before them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.config import Config
from headrace.errors import ConfigError
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace.scale.launching import Launcher

__all__ = ["check_replicas", "replica_configs", "serve_replicas"]


def replica_configs(config: Config, count: int) -> list[Config]:
    """The configuration of each place for a replica. They have devices of their own, one after another, with one more
    for updates if there is a device for it; a single device that counts its cores (the host) is shared, with an equal
    part of them for each. Raises ConfigError if devices are missing."""
    return _places(config, count)[0]


def _places(config: Config, count: int) -> tuple[list[Config], bool]:
    """`replica_configs`, and whether a place may have several engines."""
    from headrace.plugins import discover

    platform, _ = discover().select_platform(config.device.platform)
    devices = platform.devices()
    first, size = config.device.index, config.parallel.world_size
    shared = dict(devices[0].details).get("cores") if len(devices) == 1 else None
    if shared is not None:
        threads = config.device.threads or max(1, int(shared) // (count * size))
        device = config.device.model_copy(update={"threads": threads})
        return [config.model_copy(update={"device": device})] * count, True
    most = (len(devices) - first) // size
    if count > most:
        flag = "--replicas" if config.scale.max_replicas is None else "--max-replicas"
        raise ConfigError(
            f"{flag} {count}: platform {platform.name} has {counted(len(devices), 'device')}, which from device "
            f"{first} on is enough for {counted(most, 'replica')} of {size}: choose fewer"
        )
    # Places beyond the count are for updates, which start a new engine before an old one ends.
    parts = [config.device.model_copy(update={"index": first + number * size}) for number in range(most)]
    return [config.model_copy(update={"device": device}) for device in parts[: count + 1]], False


def check_replicas(config: Config) -> None:
    """Raises ConfigError for options that belong to one engine."""
    if config.server.state_dir is not None:
        raise ConfigError(
            "--state-dir cannot be combined with --replicas: files, batches and kept responses would belong to one of "
            "them; serve one engine, or leave it out"
        )
    if config.server.kv_events_endpoint is not None:
        raise ConfigError("--kv-events-endpoint cannot be combined with --replicas: they cannot share one address")
    for flag, value in (
        ("--uds", config.server.uds),
        ("--ssl-certfile", config.server.ssl_certfile),
        ("--root-path", config.server.root_path),
    ):
        if value:
            raise ConfigError(
                f"{flag} cannot be combined with --replicas: the router before them has no such option; leave it out, "
                "and put a proxy before the router if it is needed"
            )
    if config.scale.ray_address is not None:
        from headrace.scale.ray_cluster import import_ray

        import_ray()
        if config.device.index:
            raise ConfigError("--device-index cannot be combined with --ray-address: Ray chooses the devices")


def serve_replicas(config: Config, path: Path) -> int:
    """Serve until a signal comes; returns the exit code. Raises what `check_replicas` raises, and EngineDead if no
    engine can be started."""
    check_replicas(config)
    from headrace.environment import read_environment
    from headrace.hub.model_reference import display_name
    from headrace.route.router_run import RouterOptions, run_router
    from headrace.scale.replica_set import ReplicaSet

    name = config.server.served_model_name or display_name(config.model.model)
    key = config.server.api_key or read_environment().api_key
    # Clients meet the router alone; the engines answer nobody else.
    inner = secrets.token_urlsafe(32)
    server = config.server.model_copy(update={"served_model_name": name, "api_key": inner, "api_keys_file": None})
    launcher = _launcher(config.model_copy(update={"server": server}), path)
    group = ReplicaSet(launcher, path, config.scale, config.server.drain_timeout)
    options = RouterOptions(
        (),
        config.server.host,
        config.server.port,
        key,
        config.server.api_keys_file,
        inner,
        drain_timeout=config.server.drain_timeout,
    )
    return run_router(options, group)


def _launcher(config: Config, path: Path) -> Launcher:
    if config.scale.ray_address is not None:
        from headrace.scale.ray_cluster import open_cluster
        from headrace.scale.ray_launcher import RayLauncher

        return RayLauncher(open_cluster(config), config, path)
    from headrace.scale.local_launcher import LocalLauncher

    return LocalLauncher(*_places(config, config.scale.most))
