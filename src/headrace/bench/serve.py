"""Load on any OpenAI endpoint, ours or a peer's: `headrace bench serve`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from headrace.bench.measure import Row, Summary, send, summarize
from headrace.bench.workloads import Prompt, Workload, build
from headrace.errors import ConfigError

__all__ = ["Run", "Target", "run_load"]

_WASTES = ("kv_utilization", "slot_occupancy", "device_busy")


@dataclass(frozen=True, slots=True)
class Target:
    """The endpoint. `extra` is merged into every body."""

    url: str
    model: str
    api_key: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """One measured workload."""

    workload: Workload
    seed: int
    rows: list[Row]
    summary: Summary
    wastes: dict[str, float] = field(default_factory=dict)
    """Means over the run of the server's own gauges, where it has them."""


async def run_load(
    target: Target,
    workload: Workload,
    encode: Callable[[str], Sequence[int]],
    *,
    seed: int = 0,
    requests: int | None = None,
    warmup: int = 2,
    targets: tuple[float | None, float | None] = (None, None),
) -> Run:
    """Send a workload with its concurrency, after `warmup` short requests. Raises ConfigError when nothing answers there."""
    prompts = build(workload, encode, seed, requests)
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    timeout = aiohttp.ClientTimeout(total=1800)
    # A connection a request: some servers close theirs after an answer without saying so.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, read_bufsize=1 << 20, connector=connector
    ) as session:
        await _warm(session, target, prompts, warmup)
        gauges: dict[str, list[float]] = {name: [] for name in _WASTES}
        watcher = asyncio.create_task(_watch(session, target.url, gauges))
        start = time.perf_counter()
        rows = await _all(session, target, prompts, workload.concurrency)
        wall = time.perf_counter() - start
        watcher.cancel()
    wastes = {name: sum(values) / len(values) for name, values in gauges.items() if values}
    return Run(workload, seed, rows, summarize(rows, wall, *targets), wastes)


async def _warm(session: aiohttp.ClientSession, target: Target, prompts: Sequence[Prompt], count: int) -> None:
    for i in range(count):
        ids = prompts[0].token_ids[i + 1 : i + 33]
        row = await send(session, target.url, target.model, Prompt(ids, 8), target.extra)
        if row.error is not None:
            raise ConfigError(f"{target.url} does not serve {target.model!r}: {row.error}")


async def _all(
    session: aiohttp.ClientSession, target: Target, prompts: Sequence[Prompt], concurrency: int
) -> list[Row]:
    gate = asyncio.Semaphore(concurrency)

    async def one(prompt: Prompt) -> Row:
        async with gate:
            return await send(session, target.url, target.model, prompt, target.extra)

    return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


async def _watch(session: aiohttp.ClientSession, url: str, gauges: dict[str, list[float]]) -> None:
    """Sample the server's gauges twice a second; a server without them is left alone."""
    while True:
        await asyncio.sleep(0.5)
        async with session.get(f"{url}/metrics") as response:
            if response.status != 200:
                return
            page = await response.text()
        for name, values in gauges.items():
            found = re.search(rf"^headrace_{name} (\S+)$", page, re.MULTILINE)
            if found:
                values.append(float(found[1]))
