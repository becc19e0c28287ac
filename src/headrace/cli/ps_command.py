"""List the servers of this user that run on this machine: process, model, address, age and memory."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["RunningServer", "configure", "find_servers", "run"]

_PATIENCE = 2.0
"""Seconds for the answer of one server."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    pid: int
    model: str
    """What it serves, or why that is not known."""
    url: str
    """Empty while it loads."""
    seconds: float
    """Since its start."""
    memory: int
    """Bytes of the process and its children."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    servers = find_servers()
    if args.json:
        print(json.dumps([asdict(server) for server in servers], indent=2))
        return 0
    if not servers:
        print("no server runs: `headrace serve` starts one", file=sys.stderr)
        return 0
    print(f"{'PID':>8}  {'UP':>9}  {'MEMORY':>9}  {'URL':<28}  MODEL")
    for one in servers:
        minutes, seconds = divmod(int(one.seconds), 60)
        up = f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        print(f"{one.pid:>8}  {up:>9}  {one.memory / 1e6:>6.0f} MB  {one.url or '(loading)':<28}  {one.model}")
    return 0


def find_servers() -> list[RunningServer]:
    """The servers of this user, oldest first."""
    import psutil

    own = psutil.Process().username()
    found = []
    for process in psutil.process_iter(["username", "cmdline"]):
        with contextlib.suppress(psutil.Error):
            if process.info["username"] == own and _serves(process.info["cmdline"] or []):
                found.append(_describe(process))
    return sorted(found, key=lambda server: -server.seconds)


def _serves(words: list[str]) -> bool:
    """True for the command line of `headrace serve`, as a script or as `python -m headrace`."""
    if "serve" not in words:
        return False
    before = words[: words.index("serve")]
    return bool(before) and (before[-1].rsplit("/", 1)[-1] in ("headrace", "headrace.exe"))


def _describe(process: Any) -> RunningServer:
    import psutil

    family = [process, *process.children(recursive=True)]
    memory = 0
    for one in family:
        with contextlib.suppress(psutil.Error):
            memory += one.memory_info().rss
    listening = [link.laddr for link in _connections(process) if link.status == psutil.CONN_LISTEN]
    url = _url(listening[0]) if listening else ""
    return RunningServer(process.pid, _model(url) if url else "", url, time.time() - process.create_time(), memory)


def _connections(process: Any) -> list[Any]:
    # Named differently by older releases.
    read = getattr(process, "net_connections", None) or process.connections
    return list(read(kind="tcp"))


def _url(address: Any) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.ip, address.ip)
    return f"http://[{host}]:{address.port}" if ":" in host else f"http://{host}:{address.port}"


def _model(url: str) -> str:
    """The names of the models that a server lists."""
    import httpx

    from headrace.environment import read_environment

    key = read_environment().api_key
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        reply = httpx.get(f"{url}/v1/models", headers=headers, timeout=_PATIENCE)
        if reply.status_code == 401:
            return "(its API key is not in HEADRACE_API_KEY)"
        return ", ".join(str(entry["id"]) for entry in reply.json()["data"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        return f"(no answer: {type(error).__name__})"
