"""A machine that holds an engine up for a while makes no test fail: what gives an engine up takes minutes here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of those limits set their own."""
    monkeypatch.setattr("headrace.client.process_client._SILENCE", 600.0)
    monkeypatch.setattr("headrace.client.process_client._KILL_AFTER", 600.0)
    monkeypatch.setattr("headrace.client.base_client._STATS_TIMEOUT", 600.0)
    monkeypatch.setattr("headrace.client.base_client._FRESH_TIMEOUT", 600.0)
