"""What a router hears of an engine's prefix cache and load."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.engine.stats import EngineStats
from headrace.engine.wire import CacheBatch, CacheChanged, CacheContents, CacheSnapshot
from headrace.server import cache_stream
from headrace.types import SchedulerStats

BATCH: Any = CacheChanged(CacheBatch(5, 1, ()))
CONTENTS: Any = CacheContents(CacheSnapshot(5, 1, []))


class Client:
    """Its cache changes as fast as the changes are read. Others read it already."""

    info = SimpleNamespace(path="/m", layout_id=b"", block_size=4, max_model_len=8, max_num_seqs=1, transfer=None)

    def __init__(self, changes: bool) -> None:
        self.cache_feed = self
        self.changes, self.closed = changes, False

    def open(self, take: Any) -> None:
        self.take = take
        take(BATCH)
        take(CONTENTS)
        self.change()

    def close(self, take: Any) -> None:
        self.closed = True

    def change(self) -> None:
        if self.changes:
            self.take(BATCH)

    async def stats(self) -> EngineStats:
        return EngineStats(SchedulerStats(3, 2, 1, 1, 0, 0, 0, 0, 0), 16, 1, 0.0, 0.0, 0.0)


class Engine:
    draining, model, prompt_files = False, "m", "f1"

    def __init__(self, changes: bool) -> None:
        self.client = Client(changes)


@pytest.mark.parametrize("changes", [True, False])
def test_the_load_is_reported_whatever_the_cache_does(changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_stream, "_TICK", 0.01)
    engine: Any = Engine(changes)

    async def check() -> None:
        events = cache_stream._events(engine)
        contents = await anext(events)
        assert contents.startswith(b"event: contents"), "what came before is part of it"
        assert b'"files":"f1"' in contents
        for _ in range(20_000):
            event = await anext(events)
            if event.startswith(b"event: load"):
                assert msgspec.json.decode(event.partition(b"data: ")[2])["running"] == 3
                break
            assert event.startswith(b"event: changes")
            engine.client.change()
        else:
            pytest.fail("no load was reported")
        engine.client.changes = True
        engine.client.change()
        while (event := await anext(events)).startswith(b"event: load"):
            pass
        assert event.startswith(b"event: changes")
        await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(check())
    assert engine.client.closed
