"""A server with several models on fake engines: each load, engine and end of one is recorded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from server_fakes import ByteTokenizer, FakeClient

from headrace.client.api import ModelInfo
from headrace.config import Config
from headrace.engine.profiling import ProfileReport
from headrace.errors import InvalidRequest
from headrace.server.app import create_app_for
from headrace.server.context import make_context
from headrace.server.model_loader import OpenedEngine
from headrace.server.model_plan import ModelPlan
from headrace.server.model_pool import ModelPool
from headrace.server.pool_client import NoTokenizer, PoolClient
from headrace.server.several import make_pool

SIZE = 100 << 20
"""Bytes that every fake engine takes."""


class NamedClient(FakeClient):
    """A fake engine with its model's name in its info. It answers with the name."""

    def __init__(self, name: str, **engine: Any) -> None:
        super().__init__(**{"reply": name, **engine})
        self.name = name
        self.flushed = 0
        self.profiles: list[tuple[str, int]] = []

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(self.name, "/nowhere", 100, 300, "fake", "float32", 123)

    async def flush_cache(self) -> int:
        self.flushed += 1
        return 20

    async def start_profile(self, folder: str, steps: int) -> None:
        if self.profiles:
            raise InvalidRequest("a profile runs already", code="profile_running")
        self.profiles.append((folder, steps))

    async def stop_profile(self) -> ProfileReport:
        folder, steps = self.profiles.pop()
        return ProfileReport(f"{folder}/a.json.gz", steps - 1)


@dataclass
class FakeEngines:
    """Opens fake engines. `hold` makes loads wait, `fail` makes them raise, by model."""

    hold: dict[str, asyncio.Event] = field(default_factory=dict)
    fail: dict[str, Exception] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    """Names, in the order of the loads; those that failed too."""
    engines: dict[str, NamedClient] = field(default_factory=dict)
    """The last of each model."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of every engine."""
    gave_up: set[str] = field(default_factory=set)
    most: int = 0
    """Engines that were open at once, at most."""

    @property
    def alive(self) -> list[str]:
        return [name for name, engine in self.engines.items() if not engine.stopped]

    async def __call__(self, config: Config, progress: Any) -> OpenedEngine:
        name = config.server.served_model_name
        assert name is not None
        self.opened.append(name)
        progress("weights", 0.5)
        if name in self.hold:
            await self.hold[name].wait()
        if name in self.fail:
            raise self.fail[name]
        engine = self.engines[name] = NamedClient(name, **self.options)
        self.most = max(self.most, len(self.alive))
        return OpenedEngine(engine, ByteTokenizer(), SIZE, 0, lambda: name in self.gave_up)


def plan(name: str, aliases: tuple[str, ...] = (), preload: bool = False, **loading: Any) -> ModelPlan:
    config = Config.model_validate({"server": {"served_model_name": name}, "loading": loading})
    return ModelPlan(name, config, Path("/nowhere") / name, frozenset(aliases), preload)


@dataclass
class PoolServer:
    engines: FakeEngines
    pool: ModelPool
    app: FastAPI
    http: httpx.AsyncClient

    async def complete(self, model: str | None = None, **body: Any) -> httpx.Response:
        named = {} if model is None else {"model": model}
        return await self.http.post("/v1/completions", json={**named, "prompt": "Hi", **body})

    async def text(self, model: str | None = None, **body: Any) -> str:
        answer = await self.complete(model, **body)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text


def make_app(config: Config, plans: list[ModelPlan], engines: FakeEngines) -> tuple[ModelPool, FastAPI]:
    pool = make_pool(config, plans, engines)
    named = config.server.model_copy(update={"served_model_name": plans[0].name})
    context = make_context(PoolClient(pool), NoTokenizer(), config.model_copy(update={"server": named}))
    pool.front = context
    return pool, create_app_for(context, pool)


@contextlib.asynccontextmanager
async def pool_server(
    *plans: ModelPlan, server: dict[str, Any] | None = None, engines: FakeEngines | None = None, **loading: Any
) -> AsyncIterator[PoolServer]:
    config = Config.model_validate({"server": server or {}, "loading": loading})
    engines = engines or FakeEngines()
    pool, app = make_app(config, list(plans), engines)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        yield PoolServer(engines, pool, app, http)
        await pool.close()
    assert not engines.alive


async def until(condition: Any) -> None:
    """Wait by turns of the event loop."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not happen")
