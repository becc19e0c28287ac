"""Several engines on one machine, each a server process of its own, watched and started again when they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.config import Config
from headrace.server.listening import bind

__all__ = ["ProcessGroup"]

_log = logging.getLogger(__name__)
_COMMAND = (sys.executable, "-m", "headrace.route.replica_process")
_MOST_DELAY = 30.0
"""Seconds between two starts, at most."""
_STEADY = 60.0
"""Seconds after which an end is the first one again."""
_KILL_AFTER = 5.0
"""Seconds, in addition to the time for draining, after which a process that does not end is killed."""


@dataclass(slots=True)
class _Member:
    config: Config
    reserved: socket.socket
    """Bound, and never listening: so the port stays this replica's while its process is started again."""
    process: asyncio.subprocess.Process | None = None
    ends: int = 0
    """In a row."""
    task: asyncio.Task[None] | None = field(default=None)


class ProcessGroup:
    """Thread: the event loop's, from `start` on."""

    def __init__(self, configs: Sequence[Config], model_path: str, command: Sequence[str] = _COMMAND) -> None:
        """One configuration for each replica; its address and port are chosen here. Raises ConfigError."""
        self._path, self._command = model_path, command
        self._members = [self._member(config) for config in configs]
        self._closing = False

    def _member(self, config: Config) -> _Member:
        reserved = bind("127.0.0.1", 0)
        server = config.server.model_copy(update={"host": "127.0.0.1", "port": reserved.getsockname()[1]})
        return _Member(config.model_copy(update={"server": server}), reserved)

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{one.config.server.port}" for one in self._members]

    @property
    def pids(self) -> list[int | None]:
        return [None if one.process is None else one.process.pid for one in self._members]

    def start(self) -> None:
        for number, one in enumerate(self._members):
            one.task = asyncio.create_task(self._keep(number, one))

    async def close(self) -> None:
        """Let all drain and end; kill those that don't."""
        self._closing = True
        for one in self._members:
            if one.process is not None and one.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    one.process.send_signal(signal.SIGTERM)
            elif one.task is not None:
                one.task.cancel()
        tasks = [one.task for one in self._members if one.task is not None]
        timeout = max((one.config.server.drain_timeout for one in self._members), default=0) + _KILL_AFTER
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        for one in self._members:
            if one.process is not None and one.process.returncode is None:
                one.process.kill()
                await one.process.wait()
            one.reserved.close()

    async def _keep(self, number: int, one: _Member) -> None:
        """Start a replica, and again whenever it ends."""
        while not self._closing:
            began = time.monotonic()
            code = await self._run(one)
            if self._closing:
                return
            one.ends = 1 if time.monotonic() - began > _STEADY else one.ends + 1
            delay = min(_MOST_DELAY, 2.0 ** (one.ends - 1) - 1)
            _log.error("replica %d ended with code %s: it is started again in %g s", number, code, delay)
            await asyncio.sleep(delay)

    async def _run(self, one: _Member) -> int:
        # Its line about the address is the router's business alone; its log is the user's.
        process = one.process = await asyncio.create_subprocess_exec(
            *self._command,
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            # A signal for the whole group of processes (of `timeout`, say) is for the parent: it drains first.
            start_new_session=True,
        )
        assert process.stdin is not None
        setup = {"path": self._path, "config": one.config.model_dump(mode="json")}
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(setup).encode())
            await process.stdin.drain()
        process.stdin.close()
        return await process.wait()
