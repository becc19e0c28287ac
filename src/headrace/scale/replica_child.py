"""A server process that this process has started: its address, its end, and why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.scale.launching import Ending
from headrace.server.listening import bind

__all__ = ["COMMAND", "ReplicaChild", "Reserved", "start_child"]

COMMAND = (sys.executable, "-m", "headrace.scale.replica_process")


class Reserved:
    """A port of this machine. Its socket is bound and never listens: so the port stays this replica's while its process
    is started again."""

    def __init__(self, config: Config, host: str = "127.0.0.1") -> None:
        """Raises ConfigError if the host's address cannot be bound."""
        self._socket = bind(host, 0)
        server = config.server.model_copy(update={"host": host, "port": self._socket.getsockname()[1], "uds": None})
        self.config = config.model_copy(update={"server": server})

    @property
    def url(self) -> str:
        host = self.config.server.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.config.server.port}"

    def close(self) -> None:
        self._socket.close()


class ReplicaChild:
    """Thread: the event loop's."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, report: Path) -> None:
        self._process, self._url, self._report = process, url, report
        self._end: asyncio.Task[Ending] | None = None

    @property
    def url(self) -> str:
        return self._url

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def where(self) -> str:
        return f"process {self.pid}"

    async def wait(self) -> Ending:
        if self._end is None:
            self._end = asyncio.create_task(self._ended())
        return await asyncio.shield(self._end)

    async def stop(self) -> None:
        self._signal(signal.SIGTERM)

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self.wait()

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _ended(self) -> Ending:
        code = await self._process.wait()
        try:
            report: dict[str, Any] = json.loads(self._report.read_text(encoding="utf-8") or "{}")
        except (OSError, ValueError):
            report = {}
        self._report.unlink(missing_ok=True)
        if report:
            return Ending(str(report["error"]), bool(report["final"]))
        return Ending(f"its process ended with {'signal' if code < 0 else 'code'} {abs(code)}")


async def start_child(reserved: Reserved, path: Path, name: str, command: Sequence[str] = COMMAND) -> ReplicaChild:
    """Start a server process at a reserved port. `name`: of the model, for a machine that lacks the path."""
    handle, report = tempfile.mkstemp(prefix="headrace-replica-", suffix=".json")
    os.close(handle)
    # Its line about the address is the router's business alone; its log is the user's.
    process = await asyncio.create_subprocess_exec(
        *command,
        str(os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        # A signal for the whole group of processes (of `timeout`, say) is for the parent: it drains first.
        start_new_session=True,
    )
    child = ReplicaChild(process, reserved.url, Path(report))
    assert process.stdin is not None
    setup = {"path": str(path), "name": name, "report": report, "config": reserved.config.model_dump(mode="json")}
    try:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(setup).encode())
            await process.stdin.drain()
    except asyncio.CancelledError:
        process.kill()
        raise
    finally:
        process.stdin.close()
    return child
