"""Reads a server's own metrics over a run, from its page for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from headrace.bench.draft_counts import DraftCounts, drafts_of_page
from headrace.bench.wastes import EngineSums, between, gauges, parse, sums_of_page

__all__ = ["MetricsSampler", "ServerUsage"]

_INTERVAL = 0.5
_MEMORY = "process_resident_memory_bytes"
_PEAKS = ('headrace_peak_memory_bytes{part="engine"}', 'headrace_peak_memory_bytes{part="server"}')


@dataclass(slots=True)
class ServerUsage:
    """Metrics that a server reports of a run, in the form of `LoadRun`."""

    wastes: dict[str, float] = field(default_factory=dict)
    source: str | None = None
    usage: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    drafts: tuple[DraftCounts | None, DraftCounts | None] = (None, None)
    """Before and after the run, if known."""


class MetricsSampler:
    """Reads the page before and after a run.

    If the page has no sums, its gauges are sampled twice per second, and so is the memory if `memory` is set. A server
    without such a page is not sampled.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, memory: bool) -> None:
        self._session, self._url, self._memory = session, url, memory
        self._before: EngineSums | None = None
        self._drafts: DraftCounts | None = None
        self._samples: list[dict[str, float]] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        page = await self._read()
        self._before, self._drafts = sums_of_page(page), drafts_of_page(page)
        if (self._before is None and gauges(page)) or (self._memory and _MEMORY in page):
            self._task = asyncio.create_task(self._sample())

    async def end(self, wall: float) -> ServerUsage:
        """The metrics of the `wall` seconds since `start`."""
        if self._task is not None:
            self._task.cancel()
        page = await self._read()
        self._samples.append(page)
        usage = ServerUsage(drafts=(self._drafts, drafts_of_page(page)))
        after = sums_of_page(page)
        if self._before is not None and after is not None:
            usage.wastes, usage.usage = between(self._before, after, wall)
            if usage.wastes:
                usage.source = "counters"
            else:
                usage.notes.append("wastes: unknown, since the engine was restarted during the run")
        elif gauges(page):
            self._means(usage)
        if self._memory:
            self._peak(page, usage)
        return usage

    def _peak(self, page: Mapping[str, float], usage: ServerUsage) -> None:
        if all(page.get(name) for name in _PEAKS):
            usage.usage["peak_rss_bytes"] = sum(page[name] for name in _PEAKS)
            usage.notes.append("memory: of the server's process and its engine's process, as reported by themselves")
        elif _MEMORY in page:
            usage.usage["peak_rss_bytes"] = max(sample.get(_MEMORY, 0.0) for sample in self._samples)
            usage.notes.append("memory: of the process that answers, as reported by itself")

    def _means(self, usage: ServerUsage) -> None:
        readings = [gauges(sample) for sample in self._samples]
        for name in readings[-1]:
            values = [sample[name] for sample in readings if name in sample]
            usage.wastes[name] = sum(values) / len(values)
        usage.source = "gauges"
        usage.notes.append("wastes: means of the server's sliding window, which includes time before the run")

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            self._samples.append(await self._read())

    async def _read(self) -> dict[str, float]:
        try:
            async with self._session.get(f"{self._url}/metrics") as response:
                return parse(await response.text()) if response.status == 200 else {}
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError):
            return {}
