"""A machine that holds an engine up for a while makes no test fail: what gives an engine up takes minutes here. Engines
without a model are forks of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_server import ForkServer


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of those limits set their own."""
    monkeypatch.setattr("headrace.client.process_client._SILENCE", 600.0)
    monkeypatch.setattr("headrace.client.process_client._KILL_AFTER", 600.0)
    monkeypatch.setattr("headrace.client.base_client._STATS_TIMEOUT", 600.0)
    monkeypatch.setattr("headrace.client.base_client._FRESH_TIMEOUT", 600.0)
    monkeypatch.setattr("headrace.client.base_client._VIEW_TIMEOUT", 600.0)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer("engine_fake_process", "ranks_fake_follower", folders=[Path(__file__).parent])
    yield server
    server.close()


@pytest.fixture
def forks(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake engines and ranks start at once. How real ones start is shown in `test_engine_launch` and
    `test_engine_spawn`."""
    monkeypatch.setattr("headrace.engine.spawn.subprocess", fork_server.stand_in())
