"""A router on a real socket before stub engines, all in the test's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from stub_engine import Stub

from headrace.keys.key_ring import KeyRing
from headrace.route.fleet import Fleet
from headrace.route.replica import Replica
from headrace.route.replica_watch import ReplicaWatch, WatchTimes
from headrace.route.router_app import RouterApp, RouterState
from headrace.server.descriptor_watch import DescriptorWatch
from headrace.server.http_server import make_server

PATIENCE = 300.0
TIMES = WatchTimes(0.01, PATIENCE)
HASTY = WatchTimes(0.01, 0.05)
"""Of checks that are not answered, in a test of those."""


@dataclass
class Routed:
    fleet: Fleet
    state: RouterState
    stubs: list[Stub]
    watches: list[ReplicaWatch]
    http: httpx.AsyncClient

    async def ask(self, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def stream(self, **fields: Any) -> str:
        """All that a stream sends."""
        return (await self.ask(stream=True, **fields)).text

    def figures(self) -> dict[str, float]:
        lines = self.state.metrics.render(self.fleet).decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


async def until(condition: Callable[[], object]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), PATIENCE)


@asynccontextmanager
async def routed(
    stubs: Sequence[Stub], api_key: str | None = None, watch: bool = True, keys_file: Path | None = None
) -> AsyncIterator[Routed]:
    """All engines are ready; `watch`: they are followed from then on."""
    for stub in stubs:
        await stub.start()
    fleet = Fleet([Replica(number, stub.url, api_key) for number, stub in enumerate(stubs)])
    state = RouterState(fleet, KeyRing(api_key, keys_file))
    server = make_server(RouterApp(state), DescriptorWatch())
    loop = asyncio.get_running_loop()
    kind: Any = server.config.http_protocol_class
    listening = await loop.create_server(lambda: kind(server.config, server.server_state, {}), "127.0.0.1", 0)
    watches = [ReplicaWatch(fleet, one, TIMES, {}) for one in fleet.replicas]
    tasks = [asyncio.create_task(work) for one in watches for work in (one.check_health(), one.follow_events())]
    try:
        await until(lambda: all(one.usable for one in fleet.replicas))
        if not watch:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
            yield Routed(fleet, state, list(stubs), watches, http)
    finally:
        for task in tasks:
            task.cancel()
        for replica in fleet.replicas:
            replica.origin.close()
        listening.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        for stub in stubs:
            stub.stop()
        await asyncio.sleep(0)
