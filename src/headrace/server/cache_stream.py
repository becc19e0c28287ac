"""`GET /v1/engine/events`: the contents of the prefix cache and its changes, as server-sent events, for routers.

`contents` comes first, and again whenever the reader was too slow or the engine was restarted: it replaces everything
before. `changes` follows with numbers (`seq`) that grow by one within one `epoch`. `load` comes about every second.
Hashes name blocks of `block_size` tokens by content (docs/routing.md). There are no tokens and no texts in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from headrace.deadlines import in_time
from headrace.engine.wire import CacheBatch, CacheChanged, CacheContents, CacheSnapshot
from headrace.errors import HeadraceError
from headrace.server.cache_forms import Change, Changes, Contents, Load
from headrace.server.context import Context
from headrace.server.stream_form import named_event

__all__ = ["cache_events"]

_MOST_WAITING = 1000
"""Batches that wait for a slow reader; it then gets the contents again."""
_TICK = 1.0
"""Seconds between two reports of the load, at most."""


async def cache_events(context: Context, request: Request) -> Response:
    await context.client.check_health()
    return StreamingResponse(
        _events(context),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


class _Reader:
    """The events that one reader has not got yet."""

    def __init__(self) -> None:
        self.waiting: deque[CacheContents | CacheChanged] = deque()
        self.came = asyncio.Event()
        self._begun = False
        """The contents have come: changes before them, which other readers get, are part of them."""
        self.late = False
        """Events were dropped: nothing is of use before the contents come again."""

    def take(self, event: CacheContents | CacheChanged) -> None:
        if isinstance(event, CacheContents):
            self.waiting.clear()
            self._begun, self.late = True, False
        elif not self._begun:
            return
        elif len(self.waiting) >= _MOST_WAITING:
            self.waiting.clear()
            self.late = True
        if not self.late:
            self.waiting.append(event)
        self.came.set()


async def _events(context: Context) -> AsyncIterator[bytes]:
    reader, feed = _Reader(), context.client.cache_feed
    loop = asyncio.get_running_loop()
    due = loop.time() + _TICK
    feed.open(reader.take)
    try:
        while not context.draining:
            with contextlib.suppress(asyncio.TimeoutError):
                await in_time(max(0.0, due - loop.time()), reader.came.wait())
            if loop.time() >= due:
                due = loop.time() + _TICK
                yield await _load(context)
            while reader.waiting:
                yield _encode(context, reader.waiting.popleft())
                if loop.time() >= due:
                    break
            if not reader.waiting:
                reader.came.clear()
            if reader.late:
                feed.open(reader.take)
    finally:
        feed.close(reader.take)


async def _load(context: Context) -> bytes:
    try:
        core = (await context.client.stats()).scheduler
    except HeadraceError:
        return b": the engine does not answer\n\n"
    total = core.blocks_free + core.blocks_cached + core.blocks_held
    return named_event("load", Load(core.running, core.waiting, core.blocks_free + core.blocks_cached, total))


def _encode(context: Context, event: CacheContents | CacheChanged) -> bytes:
    if isinstance(event, CacheContents):
        return named_event("contents", _contents(context, event.snapshot))
    return named_event("changes", _changes(event.batch))


def _contents(context: Context, snapshot: CacheSnapshot) -> Contents:
    info = context.client.info
    runs = [(run.parent.hex(), run.tier, [name.hex() for name in run.hashes]) for run in snapshot.runs]
    return Contents(
        snapshot.epoch,
        snapshot.seq,
        context.model,
        info.path,
        info.layout_id.hex(),
        info.block_size,
        info.max_model_len,
        info.max_num_seqs,
        runs,
        "" if info.transfer is None else info.transfer.content_id.hex(),
        context.prompt_files,
    )


def _changes(batch: CacheBatch) -> Changes:
    events = [Change(one.kind, [name.hex() for name in one.hashes], one.tier, one.parent.hex()) for one in batch.events]
    return Changes(batch.epoch, batch.seq, events)
