"""A route that is cancelled in the moment in which its engine answers ends as cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.server import engine_state, pool_routes, routes
from headrace.server.pool_client import PoolClient


class Gated:
    """Stands for a client, and for what it answers."""

    def __init__(self, gate: asyncio.Future[None]) -> None:
        self.gate = gate

    async def check_health(self) -> None:
        await self.gate

    async def stats(self) -> None:
        await self.gate

    async def view(self) -> None:
        await self.gate


def pool_health(context: Any) -> Awaitable[Any]:
    client = PoolClient.__new__(PoolClient)
    client.health_of = lambda name: context.client.stats()  # type: ignore[method-assign]
    client.check_health = context.client.check_health  # type: ignore[method-assign]
    pool: Any = SimpleNamespace(models=["a", "b"])
    request: Any = SimpleNamespace(query_params={})
    return pool_routes.health(pool, SimpleNamespace(client=client), request)  # type: ignore[arg-type]


ROUTES: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "health": lambda context: routes.health(context, None),  # type: ignore[arg-type]
    "metrics": lambda context: routes.metrics(context, None),  # type: ignore[arg-type]
    "state": lambda context: engine_state.engine_state(context, None),  # type: ignore[arg-type]
    "pool health": pool_health,
    "pool metrics": lambda context: pool_routes._refresh(SimpleNamespace(context=context, metrics=context.metrics)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("after", range(2))
@pytest.mark.parametrize("name", ROUTES)
def test_a_cancelled_route_ends(name: str, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_state, "_reply", lambda *args: {})

    async def check() -> None:
        gate = asyncio.get_running_loop().create_future()
        context = SimpleNamespace(client=Gated(gate), metrics=SimpleNamespace(stats=None, render=lambda: b""))
        context.client.info = None  # type: ignore[attr-defined]
        task = asyncio.ensure_future(ROUTES[name](context))
        for _ in range(5):
            await asyncio.sleep(0)
        gate.set_result(None)
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=60)
        assert task.cancelled()

    asyncio.run(check())
