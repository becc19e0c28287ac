"""The sliding window."""

from __future__ import annotations

import sys

import psutil
import pytest

from headrace.engine.usage_stats import UsageStats, peak_memory


def test_shares_of_a_young_window() -> None:
    figures = UsageStats(slots=4, started=0.0, window=5.0)
    figures.record(1.0, busy=0.5, running=2)
    figures.record(2.0, busy=0.5, running=4)
    assert figures.device_busy(2.0) == 0.5
    assert figures.slot_occupancy(2.0) == 0.75


def test_old_steps_are_forgotten() -> None:
    figures = UsageStats(slots=2, started=0.0, window=5.0)
    figures.record(1.0, busy=1.0, running=2)
    figures.record(9.0, busy=2.5, running=1)
    assert figures.device_busy(10.0) == 0.5
    assert figures.slot_occupancy(10.0) == 0.5
    assert figures.device_busy(20.0) == figures.slot_occupancy(20.0) == 0
    assert figures.steps == 2


def test_busy_is_never_more_than_all_of_it() -> None:
    figures = UsageStats(slots=1, started=0.0)
    figures.record(1.0, busy=3.0, running=1)
    assert figures.device_busy(1.0) == 1.0


def test_memory_is_looked_at_now_and_then() -> None:
    figures = UsageStats(slots=1, started=0.0)
    assert figures.memory_sample_due(0.0)
    figures.record_memory(0.0, 0.5)
    assert not figures.memory_sample_due(0.01)
    assert figures.memory_sample_due(0.06)
    figures.record_memory(0.06, 1.0)
    assert figures.kv_utilization(0.1) == pytest.approx(0.75)
    assert figures.kv_utilization(100.0) == 0


def test_sums_know_no_window() -> None:
    """The difference of two readings does not depend on what was before the first."""
    figures = UsageStats(slots=4, started=0.0, window=5.0)
    figures.record(1.0, busy=0.5, running=2)
    figures.record_memory(1.0, 0.25)
    before = figures.totals(1.5)
    assert (before.busy_seconds, before.slot_shares, before.kv_shares, before.kv_samples) == (0.5, 0.5, 0.25, 1)
    figures.record(100.0, busy=2.0, running=4)
    figures.record_memory(100.0, 0.75)
    after = figures.totals(2.0)
    assert after.busy_seconds - before.busy_seconds == 2.0
    assert after.slot_shares - before.slot_shares == 1.0
    assert (after.kv_shares - before.kv_shares, after.kv_samples - before.kv_samples) == (0.75, 1)
    assert after.host_seconds - before.host_seconds == 0.5


@pytest.mark.skipif(sys.platform == "win32", reason="the system does not tell")
def test_memory_is_that_of_this_process() -> None:
    assert psutil.Process().memory_info().rss * 0.5 < peak_memory() < psutil.virtual_memory().total
    assert UsageStats(slots=1, started=0.0).totals(0.0).peak_bytes >= peak_memory() * 0.5
