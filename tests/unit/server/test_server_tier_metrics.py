"""The figures of tiers in /metrics."""

from __future__ import annotations

import msgspec
from prometheus_client.exposition import generate_latest

from headrace.engine.stats import EngineStats, TierStats
from headrace.server.tier_metrics import tier_metrics
from headrace.types import SchedulerStats

TIERS = (
    TierStats("host", 2, 20, 1),
    TierStats("disk", 5, 100, hits=3, misses=4, stored=6, failures=7, read_seconds=0.5, write_seconds=0.25),
)


class Registry:
    def collect(self) -> object:
        return tier_metrics(TIERS)


def test_one_line_per_tier_and_figure() -> None:
    text = generate_latest(Registry()).decode()  # type: ignore[arg-type]
    for line in (
        'headrace_tier_blocks{tier="host"} 2.0',
        'headrace_tier_blocks{tier="disk"} 5.0',
        'headrace_tier_bytes{tier="disk"} 100.0',
        'headrace_tier_hits_total{tier="disk"} 3.0',
        'headrace_tier_misses_total{tier="disk"} 4.0',
        'headrace_tier_stored_total{tier="disk"} 6.0',
        'headrace_tier_failures_total{tier="disk"} 7.0',
        'headrace_tier_read_seconds_total{tier="disk"} 0.5',
        'headrace_tier_write_seconds_total{tier="disk"} 0.25',
    ):
        assert line in text.splitlines()


def test_nothing_without_tiers() -> None:
    assert list(tier_metrics(())) == []


def test_the_figures_cross_the_process_boundary() -> None:
    scheduler = SchedulerStats(0, 0, 1, 1, 0, 0, 0, 0, 0)
    stats = EngineStats(scheduler, 16, 1, 0.0, 0.0, 0.0, tiers=TIERS)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=EngineStats) == stats
