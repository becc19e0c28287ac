"""Wastes of a run, from its server's metrics before and after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import pytest
from aiohttp import web

from headrace.bench import metrics_sampler
from headrace.bench.metrics_sampler import MetricsSampler, ServerUsage
from headrace.bench.wastes import EngineSums, between, gauges, parse, sums_of_page, sums_of_stats
from headrace.engine.stats import EngineStats, EngineTotals
from headrace.server.metrics import ServerMetrics
from headrace.types import SchedulerStats

SCHEDULER = SchedulerStats(1, 2, 3, 4, 5, 6, 7, 8, 9)
BEFORE = EngineStats(SCHEDULER, 16, 100, 0.1, 0.2, 0.3, totals=EngineTotals(50.0, 25.0, 30.0, 60, 5.0))
AFTER = EngineStats(SCHEDULER, 16, 140, 0.4, 0.5, 0.6, totals=EngineTotals(53.0, 45.0, 36.0, 72, 5.5, 9 * 10**9))


def page(stats: EngineStats) -> str:
    """A metrics page in the form of our server."""
    metrics = ServerMetrics()
    metrics.stats = stats
    return metrics.render().decode()


def test_values_before_the_run_do_not_count() -> None:
    wastes, host = between(sums_of_stats(BEFORE), sums_of_stats(AFTER), wall=4.0)
    assert wastes == {"device_busy": 0.75, "slot_occupancy": 0.5, "kv_utilization": 0.5}
    assert host == {"engine_host_s": 0.5, "server_host_s": 0.0}


def test_wastes_without_steps_are_left_out() -> None:
    still = sums_of_stats(BEFORE)
    assert between(still, still, 1.0)[0] == {"device_busy": 0.0}
    assert between(still, EngineSums(0, 0, 0, 0, 0, 0), 1.0) == ({}, {}), "a new engine"


def test_our_own_metrics_page_is_parsed() -> None:
    found = sums_of_page(parse(page(BEFORE)))
    assert found is not None
    assert found.server_seconds > 0
    direct = sums_of_stats(BEFORE)
    assert (found.busy_seconds, found.slot_shares, found.steps) == (
        direct.busy_seconds,
        direct.slot_shares,
        direct.steps,
    )
    assert (found.kv_shares, found.kv_samples, found.engine_seconds) == (direct.kv_shares, direct.kv_samples, 5.0)
    assert gauges(parse(page(BEFORE))) == {"device_busy": 0.1, "slot_occupancy": 0.2, "kv_utilization": 0.3}


def test_other_metrics_pages_are_parsed() -> None:
    text = '# HELP a b\na 1\nb{x="y z",q="}"} 2.5e3 1700000000\nprocess_resident_memory_bytes 1.5e+09\nc NaN\n'
    found = parse(text)
    assert found.pop("c") != 0
    assert found == {"a": 1.0, 'b{x="y z",q="}"}': 2500.0, "process_resident_memory_bytes": 1.5e9}
    assert sums_of_page(found) is None
    assert gauges(found) == {}
    with pytest.raises(ValueError, match="broken"):
        parse("a 1\nb broken\n")


async def watched(pages: Sequence[str | None], *, memory: bool = True, samples: int = 0) -> ServerUsage:
    """A run at a server that gives one page after the other, the last again and again; None is a 404."""
    left, asked = list(pages), asyncio.Semaphore(0)

    async def answer(_: web.Request) -> web.Response:
        asked.release()
        text = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(status=404) if text is None else web.Response(text=text)

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as session:
            one = MetricsSampler(session, f"http://127.0.0.1:{runner.addresses[0][1]}", memory)
            await one.start()
            for _ in range(1 + samples):
                await asked.acquire()
            return await one.end(4.0)
    finally:
        await runner.cleanup()


def test_counters_are_read_before_and_after_the_run() -> None:
    found = asyncio.run(watched([page(BEFORE), page(AFTER)]))
    assert found.source == "counters"
    assert found.wastes == {"device_busy": 0.75, "slot_occupancy": 0.5, "kv_utilization": 0.5}
    assert found.usage["engine_host_s"] == 0.5
    assert found.usage["peak_rss_bytes"] > 9e9, "the engine's, and that of who wrote the page"
    (note,) = found.notes
    assert "memory" in note
    alone = asyncio.run(watched([page(BEFORE), page(AFTER)], memory=False))
    assert alone.usage.keys() == {"engine_host_s", "server_host_s"}
    assert alone.notes == []


def test_an_engine_restart_during_the_run_is_reported() -> None:
    found = asyncio.run(watched([page(AFTER), page(BEFORE)]))
    assert (found.wastes, found.source) == ({}, None)
    assert "restarted" in found.notes[0]


def test_gauges_and_memory_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_sampler, "_INTERVAL", 0.01)
    pages = [
        f"headrace_device_busy {busy}\nprocess_resident_memory_bytes {size}\n"
        for busy, size in ((0.9, 1), (0.2, 7), (0.4, 3), (0.6, 2))
    ]
    found = asyncio.run(watched(pages, samples=2))
    assert found.source == "gauges"
    assert 0.4 <= found.wastes["device_busy"] <= 0.6, "the first page is from before the run"
    assert found.usage == {"peak_rss_bytes": 7.0}
    wastes, memory = found.notes
    assert "sliding window" in wastes
    assert "the process that answers" in memory


@pytest.mark.parametrize("text", [None, "vllm:other 1\n", "<html>"])
def test_servers_without_metrics_are_not_sampled(text: str | None) -> None:
    assert asyncio.run(watched([text])) == ServerUsage()


def test_memory_is_not_sampled_if_it_is_known() -> None:
    assert asyncio.run(watched(["process_resident_memory_bytes 5\n"], memory=False)) == ServerUsage()
