"""The sliding window."""

from __future__ import annotations

import pytest

from headrace.engine.figures import Figures


def test_shares_of_a_young_window() -> None:
    figures = Figures(slots=4, started=0.0, window=5.0)
    figures.record(1.0, busy=0.5, running=2)
    figures.record(2.0, busy=0.5, running=4)
    assert figures.device_busy(2.0) == 0.5
    assert figures.slot_occupancy(2.0) == 0.75


def test_old_steps_are_forgotten() -> None:
    figures = Figures(slots=2, started=0.0, window=5.0)
    figures.record(1.0, busy=1.0, running=2)
    figures.record(9.0, busy=2.5, running=1)
    assert figures.device_busy(10.0) == 0.5
    assert figures.slot_occupancy(10.0) == 0.5
    assert figures.device_busy(20.0) == figures.slot_occupancy(20.0) == 0
    assert figures.steps == 2


def test_busy_is_never_more_than_all_of_it() -> None:
    figures = Figures(slots=1, started=0.0)
    figures.record(1.0, busy=3.0, running=1)
    assert figures.device_busy(1.0) == 1.0


def test_memory_is_looked_at_now_and_then() -> None:
    figures = Figures(slots=1, started=0.0)
    assert figures.wants_memory(0.0)
    figures.record_memory(0.0, 0.5)
    assert not figures.wants_memory(0.01)
    assert figures.wants_memory(0.06)
    figures.record_memory(0.06, 1.0)
    assert figures.kv_utilization(0.1) == pytest.approx(0.75)
    assert figures.kv_utilization(100.0) == 0
