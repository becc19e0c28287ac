"""The actor that holds one engine on a node of a Ray cluster: it starts the same server process as a replica of one
machine, and passes on its address and its end. It needs nothing of Ray itself.

The process ends with the actor, and the actor with the router. Tokens never go through Ray.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.config import Config
from headrace.errors import ConfigError, lasts
from headrace.scale.ray_cluster import import_ray
from headrace.scale.replica_child import COMMAND, ReplicaChild, Reserved, start_child

__all__ = ["RayHost"]


class RayHost:
    """Thread: an event loop's. Arguments and results are plain data, which any Python can read."""

    def __init__(self) -> None:
        self._child: ReplicaChild | None = None
        self._reserved: Reserved | None = None
        """Open until the process has ended: nobody else gets its port."""

    async def start(
        self,
        version: str,
        path: str,
        name: str,
        config: dict[str, Any],
        key: Sequence[Awaitable[str | None]],
        address: str | None = None,
        command: Sequence[str] = COMMAND,
    ) -> dict[str, Any]:
        """Start the engine's process, which listens at `address` (default: the node's own in its cluster). `key`: one
        reference to the key that it wants, which the configuration lacks.

        Returns its `url`, `pid`, `node` and `host`, the process of the actor; or, if it cannot be started, `error`, and
        in `final` whether it never can.
        """
        try:
            if version != __version__:
                raise ConfigError(
                    f"node {socket.gethostname()} has Headrace {__version__} and the router {version}: install the same"
                )
            given = Config.model_validate(config)
            server = given.server.model_copy(update={"api_key": await key[0]})
            reserved = Reserved(given.model_copy(update={"server": server}), address or _node_address())
        except ConfigError as error:
            return {"error": str(error), "final": lasts(error)}
        self._reserved = reserved
        self._child = await start_child(reserved, Path(path), name, command)
        return {"url": reserved.url, "pid": self._child.pid, "node": socket.gethostname(), "host": os.getpid()}

    async def wait(self) -> tuple[str, bool]:
        """The process has ended: why, and whether that is final."""
        assert self._child is not None, "it was started"
        ending = await self._child.wait()
        if self._reserved is not None:
            self._reserved.close()
        return ending.why, ending.final

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop()

    async def kill(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                await self._child.kill()


def _node_address() -> str:
    return str(import_ray().util.get_node_ip_address())
