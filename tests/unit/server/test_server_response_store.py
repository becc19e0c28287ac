"""The store of the Responses API: how many it keeps, how much, for how long, and where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.server.response_store import KeptResponse, ResponseStore


def test_the_limits_of_the_store(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path, most=2, most_bytes=100, lifetime=1000)
    for name in "abc":
        store.put(name, KeptResponse(b"{}", b"[]"))
    assert [store.get(name) is not None for name in "abc"] == [False, True, True]
    store.put("d", KeptResponse(b"x" * 98, b""))
    assert [store.get(name) is not None for name in "bcd"] == [False, False, True]
    store.put("e", KeptResponse(b"x" * 101, b""))
    assert store.get("d") is None
    assert store.get("e") is None
    store.close()
    past = ResponseStore(tmp_path, lifetime=-1)
    past.put("f", KeptResponse(b"{}", b"[]"))
    assert past.get("f") is None
    past.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--state-dir"):
        ResponseStore(tmp_path / "file")
