"""Loads any OpenAI endpoint, of our server or of another: `headrace bench serve`."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from headrace.bench.draft_counts import drafts_of_run
from headrace.bench.load_runs import LoadRun
from headrace.bench.metrics_sampler import MetricsSampler
from headrace.bench.process_cost import cost, machine_seconds
from headrace.bench.request_timing import RequestTiming, summarize
from headrace.bench.timed_completion import send
from headrace.bench.workloads import Prompt, Workload, build
from headrace.errors import ConfigError
from headrace.server_address import no_answer

__all__ = ["Endpoint", "run_load"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint to load. `extra` is merged into every body."""

    url: str
    model: str
    api_key: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


async def run_load(
    target: Endpoint,
    workload: Workload,
    encode: Callable[[str], Sequence[int]],
    *,
    seed: int = 0,
    requests: int | None = None,
    warmup: int = 2,
    targets: tuple[float | None, float | None] = (None, None),
    pid: int | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> LoadRun:
    """Send a workload with its concurrency, after `warmup` short requests. `pid`: the server's process, if known.
    `progress(what, done, total)` counts requests.

    Raises ConfigError if the endpoint doesn't answer, or there is no such process.
    """
    prompts = build(workload, encode, seed, requests)
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    timeout = aiohttp.ClientTimeout(total=1800)
    # One connection per request: some servers close a connection after an answer without announcing it.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, read_bufsize=1 << 20, connector=connector
    ) as session:
        await _warm(session, target, prompts, warmup)
        sampler = MetricsSampler(session, target.url, memory=pid is None)
        await sampler.start()
        before = None if pid is None else cost(pid)
        client, machine, start = time.process_time(), machine_seconds(), time.perf_counter()
        rows = await _all(
            session, target, prompts, workload.concurrency, lambda done: progress(workload.name, done, len(prompts))
        )
        wall, client = time.perf_counter() - start, time.process_time() - client
        machine = machine_seconds() - machine
        after = None if pid is None else cost(pid)
        reported = await sampler.end(wall)
    usage = reported.usage | {"client_cpu_s": client}
    if before is not None and after is not None:
        spent = after.cpu_seconds - before.cpu_seconds
        others = max(0.0, machine - spent - client)
        usage |= {"peak_rss_bytes": after.peak_bytes, "cpu_s": spent, "others_cpu_s": others}
    summary = summarize(rows, wall, *targets)
    drafts = drafts_of_run(*reported.drafts, summary)
    return LoadRun(workload, seed, rows, summary, reported.wastes, reported.source, usage, reported.notes, drafts)


async def _warm(session: aiohttp.ClientSession, target: Endpoint, prompts: Sequence[Prompt], count: int) -> None:
    for i in range(count):
        ids = prompts[0].token_ids[i + 1 : i + 33]
        row = await send(session, target.url, target.model, Prompt(ids, 8), target.extra)
        if row.error is None:
            continue
        if row.error.startswith("HTTP "):
            raise ConfigError(f"{target.url} does not serve {target.model!r}: {row.error}")
        raise ConfigError(no_answer(target.url, row.error))


async def _all(
    session: aiohttp.ClientSession,
    target: Endpoint,
    prompts: Sequence[Prompt],
    concurrency: int,
    answered: Callable[[int], None],
) -> list[RequestTiming]:
    gate, counter = asyncio.Semaphore(concurrency), itertools.count(1)

    async def one(prompt: Prompt) -> RequestTiming:
        async with gate:
            row = await send(session, target.url, target.model, prompt, target.extra)
            answered(next(counter))
            return row

    return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))
