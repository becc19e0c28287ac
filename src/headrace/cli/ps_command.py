"""List the servers and routers of this user that run on this machine: process, model, address, age and memory."""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

__all__ = ["RunningServer", "configure", "find_servers", "kind_of", "run"]

_PATIENCE = 2.0
"""Seconds for the answer of one server."""
_KINDS = {"serve": "server", "route": "router"}
"""By verb."""
_GROUPED = ("--replicas", "--max-replicas", "--ray-address")
"""Options of `serve` that make it a router."""


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
    kind: str = "server"
    """Or `router`."""


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
        model = one.model if one.kind == "server" else f"(router) {one.model}"
        print(f"{one.pid:>8}  {up:>9}  {one.memory / 1e6:>6.0f} MB  {one.url or '(loading)':<28}  {model}")
    return 0


def find_servers() -> list[RunningServer]:
    """The servers of this user, oldest first."""
    import psutil

    own = psutil.Process().username()
    found = []
    for process in psutil.process_iter(["username", "cmdline"]):
        with contextlib.suppress(psutil.Error):
            kind = kind_of(process.info["cmdline"] or []) if process.info["username"] == own else None
            if kind is not None:
                found.append(_describe(process, kind))
    return sorted(found, key=lambda server: -server.seconds)


def kind_of(words: list[str]) -> str | None:
    """What the command line of `headrace serve` or `headrace route` starts, as a script or as `python -m headrace`;
    None for any other, also of a program that has started one."""
    for verb, kind in _KINDS.items():
        if verb in words:
            before = [PurePath(word.replace("\\", "/")).stem for word in words[: words.index(verb)]]
            alone = len(before) == 1 or (bool(before) and before[0].lower().startswith(("python", "pypy")))
            if alone and before[-1] == "headrace":
                return "router" if _is_grouped(words) else kind
    return None


def _is_grouped(words: list[str]) -> bool:
    """As far as the command line tells: a file of options may say so, too."""
    for at, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in _GROUPED and (value or "".join(words[at + 1 : at + 2])) not in ("", "1"):
            return True
    return False


def _describe(process: Any, kind: str) -> RunningServer:
    import psutil

    memory = 0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            memory += one.memory_info().rss
    tried = [("", "")]
    for url in _addresses(process):
        answered, model, is_router = _model(url)
        kind = "router" if is_router else kind
        # Where nothing answers, the first address and what is wrong with it.
        tried = [(url, model)] if answered or not tried[0][0] else tried
        if answered:
            break
    url, model = tried[0]
    return RunningServer(process.pid, model, url, time.time() - process.create_time(), memory, kind)


def _addresses(process: Any) -> Iterator[str]:
    """Where it may listen; with TLS or without shows when it is asked."""
    import psutil

    # Named differently by older releases.
    read = getattr(process, "net_connections", None) or process.connections
    listening = [link.laddr for link in read(kind="tcp") if link.status == psutil.CONN_LISTEN]
    for address in listening[:1]:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.ip, address.ip)
        place = f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
        yield f"http://{place}"
        yield f"https://{place}"
    if not listening and hasattr(socket, "AF_UNIX"):
        files = {link.laddr for link in read(kind="unix") if link.laddr and not link.laddr.startswith(("@", "\0"))}
        for file in sorted(files):
            yield f"unix:{Path(process.cwd()) / file}"


def _model(url: str) -> tuple[bool, str, bool]:
    """(Whether a server answers there, the names of the models that it lists, or why they are not known; whether it
    says that it is a router.)"""
    import httpx

    from headrace.environment import read_environment
    from headrace.server_address import server_address, transport_fault

    key = read_environment().api_key
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    address = server_address(url)
    # It is a process of this user on this machine, whose certificate is for another name.
    options = address.options or {"verify": False}
    try:
        with httpx.Client(headers=headers, timeout=_PATIENCE, **options) as client:
            reply = client.get(f"{address.url}/v1/models")
            if reply.status_code == 401:
                return True, "(its API key is not in HEADRACE_API_KEY)", False
            names = ", ".join(str(entry["id"]) for entry in reply.json()["data"])
            return True, names, _has_replicas(client, address.url)
    except httpx.HTTPError as error:
        return False, f"(no answer: {transport_fault(error)})", False
    except (ValueError, LookupError, TypeError):
        return False, "(no answer in the form of OpenAI's API)", False


def _has_replicas(client: Any, url: str) -> bool:
    """Whether it lists replicas, as routers do. One that gives no answer to that is shown as its command line tells."""
    import httpx

    try:
        reply = client.get(f"{url}/v1/router/replicas")
        found = reply.json() if reply.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return False
    return isinstance(found, dict) and "replicas" in found
