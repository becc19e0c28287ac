"""`headrace route`: watch the engines, open the port, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from headrace import event_loop
from headrace.config import ServerConfig
from headrace.errors import ConfigError
from headrace.keys.key_ring import KeyRing
from headrace.route.engine_group import EngineGroup
from headrace.route.fleet import Fleet
from headrace.route.policy import Splitting
from headrace.route.replica_watch import WatchTimes
from headrace.route.roster import Roster
from headrace.route.router_app import RouterApp, RouterState
from headrace.server.descriptor_watch import DescriptorWatch
from headrace.server.draining import drain, shut_down
from headrace.server.http_server import (
    HttpServer,
    StopSignals,
    ignoring_signals_after,
    make_server,
    print_line,
    signals,
    until_started,
    wait_for_either,
)
from headrace.server.listening import base_url, bind
from headrace.wording import counted

__all__ = ["RouterOptions", "run_router"]


@dataclass(frozen=True, slots=True)
class RouterOptions:
    urls: Sequence[str]
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    """That clients must send."""
    api_keys_file: str | None = None
    """More of them, with names and limits."""
    engine_api_key: str | None = None
    """That the engines want; None: what the client sends is passed on."""
    drain_timeout: float = 30.0
    times: WatchTimes = field(default_factory=WatchTimes)
    tokenizers: dict[str, str] = field(default_factory=dict)
    """Folders by model."""
    splitting: Splitting = "auto"
    """Whether one engine computes a prompt and another answers it."""


def run_router(options: RouterOptions, group: EngineGroup | None = None) -> int:
    """Serve until a signal comes; returns the exit code. `group`: engines that are started and ended with the router.
    Raises ConfigError, and what starting the group raises if none of its engines can be started."""
    urls = [_checked(url) for url in options.urls]
    if len({url.rstrip("/") for url in urls}) < len(urls):
        raise ConfigError("two of the engines' addresses are the same: give each once")
    with contextlib.closing(bind(options.host, options.port)) as listener:
        return event_loop.run(ignoring_signals_after(_serve(options, urls, listener, group)))


def _checked(url: str) -> str:
    """The address with its scheme, which HOST:PORT may lack. Raises ConfigError."""
    text = url if "://" in url else f"http://{url}"
    wrong = ConfigError(f"{url!r} is no engine's address: write it as http://HOST:PORT, without a path")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme != "http" or not host or any(letter.isspace() for letter in text) or "@" in parts.netloc:
        raise wrong
    if parts.path.strip("/") or parts.query or parts.fragment or port == 0 or (port is None and text != url):
        raise wrong
    return text


async def _serve(
    options: RouterOptions, urls: Sequence[str], listener: socket.socket, group: EngineGroup | None = None
) -> int:
    stop, fleet = StopSignals(), Fleet([], options.splitting)
    descriptors = DescriptorWatch()
    asyncio.get_running_loop().set_exception_handler(descriptors.handle)
    file = None if options.api_keys_file is None else Path(options.api_keys_file)
    state = RouterState(fleet, KeyRing(options.api_key, file), group=group)
    server = make_server(RouterApp(state), descriptors)
    roster = Roster(fleet, options.times, options.tokenizers, options.engine_api_key or options.api_key)
    for number, url in enumerate(urls):
        roster.add(number, url)
    gc.collect()
    gc.freeze()
    with signals(stop):
        try:
            if group is not None:
                await group.start(roster)
                await _until_one_is_ready(fleet, stop, group)
            await roster.all_checked()
            await _serve_until(stop, server, state, options, listener)
            if group is not None and group.failed.is_set():
                group.raise_failure()
        finally:
            if group is not None:
                await group.close()
            roster.close()
    return 0


async def _until_one_is_ready(fleet: Fleet, stop: StopSignals, group: EngineGroup) -> None:
    """So that a client that connects gets an answer. Raises the group's failure."""
    while not any(one.usable for one in fleet.replicas) and not stop.drain.is_set():
        if group.failed.is_set():
            group.raise_failure()
        await asyncio.sleep(0.05)


async def _serve_until(
    stop: StopSignals, server: HttpServer, state: RouterState, options: RouterOptions, listener: socket.socket
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await until_started(server, serving)
    url = base_url(ServerConfig(host=options.host), listener)
    ready = sum(one.usable for one in state.fleet.replicas)
    size = len(state.fleet.replicas if state.group is None else state.group.members())
    print_line(f"Headrace routes to {counted(size, 'engine')}, {ready} of them ready, at {url}/v1")
    failing = None if state.group is None else asyncio.create_task(_stop_at_failure(state.group, stop))
    try:
        await wait_for_either(stop.drain, serving)
        await drain(stop, server, state, options.drain_timeout)
    finally:
        if failing is not None:
            failing.cancel()
        await shut_down(stop, server, serving)


async def _stop_at_failure(group: EngineGroup, stop: StopSignals) -> None:
    """A router whose engines cannot be started any more ends, so that whoever started it can do something about it."""
    await group.failed.wait()
    stop.drain.set()
