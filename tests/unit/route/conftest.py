"""A machine that holds everything up for seconds makes no connection fail."""

from __future__ import annotations

import pytest
from route_harness import PATIENCE


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.route.upstream._CONNECT_TIMEOUT", PATIENCE)
