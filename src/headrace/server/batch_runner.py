"""Works on batches, the oldest first, a window of lines at a time, through the server's own routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from starlette.types import ASGIApp

from headrace.keys.key_ring import Caller, KeyRing
from headrace.server.batch_lines import check_lines, request_of
from headrace.server.batch_output import answer_of, write_results
from headrace.server.batch_schemas import BatchErrors, BatchObject
from headrace.server.batch_store import BatchStore, Line
from headrace.server.internal_call import call_route, passes

__all__ = ["BatchRunner"]

_log = logging.getLogger(__name__)
_PAUSE = 5.0
"""Seconds after a failure of the disk."""
_RETRY = 1.0
"""Seconds before a line is tried again that the server had no room for."""


class BatchRunner:
    """Thread: the event loop's. A line that is under way when the process ends, however it ends, is computed again."""

    def __init__(self, store: BatchStore, app: ASGIApp, keys: KeyRing, window: int) -> None:
        """`window`: lines under way at a time."""
        self._store, self._app, self._keys, self._window = store, app, keys, window
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Begin, if there is something to do, or when `wake` is called. A second call has no effect."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def wake(self) -> None:
        """A batch is new, or is to be cancelled."""
        self.start()
        self._wake.set()

    async def stop(self) -> None:
        """Stop at once; the lines under way are left for the next start."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            try:
                batch = await asyncio.to_thread(self._store.next_open)
                if batch is None:
                    await self._wake.wait()
                else:
                    await self._advance(batch)
            except Exception:
                _log.exception("work on batches failed, and is tried again")
                await asyncio.sleep(_PAUSE)

    async def _advance(self, batch: BatchObject) -> None:
        store, now = self._store, int(time.time())
        if batch.status == "validating":
            await self._validate(batch)
        elif batch.status == "in_progress":
            await self._run(batch)
        else:
            if batch.status == "cancelling":
                await asyncio.to_thread(store.close_lines, batch.id, "batch_cancelled")
            await asyncio.to_thread(write_results, store, batch, now)

    async def _validate(self, batch: BatchObject) -> None:
        store, path = self._store, self._store.path(batch.input_file_id)
        lines, errors = await asyncio.to_thread(check_lines, path, batch.endpoint)
        if errors:
            failed = {"errors": BatchErrors(errors), "failed_at": int(time.time())}
            await asyncio.to_thread(store.move, batch.id, ("validating",), "failed", **failed)
        else:
            await asyncio.to_thread(store.begin, batch.id, lines)

    async def _run(self, batch: BatchObject) -> None:
        running: set[asyncio.Task[None]] = set()
        try:
            await self._run_lines(batch, running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _run_lines(self, batch: BatchObject, running: set[asyncio.Task[None]]) -> None:
        store, after = self._store, -1
        path = store.path(batch.input_file_id)
        while True:
            if await asyncio.to_thread(store.status, batch.id) != "in_progress":
                return
            if time.time() >= batch.expires_at:
                await self._expire(batch)
                return
            free = self._window - len(running)
            lines = await asyncio.to_thread(store.open_lines, batch.id, after, free) if free else []
            for line in lines:
                running.add(asyncio.create_task(self._answer(batch, path, line)))
                after = line.n
            if not running:
                moved = {"finalizing_at": int(time.time())}
                await asyncio.to_thread(store.move, batch.id, ("in_progress",), "finalizing", **moved)
                return
            await self._wait(running, batch.expires_at - time.time())

    async def _wait(self, running: set[asyncio.Task[None]], most: float) -> None:
        """Wait for a line, or for a call of `wake`. Raises what the line raised."""
        waker = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait({*running, waker}, timeout=most, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waker.cancel()
        self._wake.clear()
        for task in [task for task in running if task.done()]:
            running.remove(task)
            task.result()

    async def _expire(self, batch: BatchObject) -> None:
        store, now = self._store, int(time.time())
        await asyncio.to_thread(store.close_lines, batch.id, "batch_expired")
        moved = {"finalizing_at": now, "expired_at": now}
        await asyncio.to_thread(store.move, batch.id, ("in_progress",), "finalizing", **moved)

    async def _answer(self, batch: BatchObject, path: Path, line: Line) -> None:
        url, body = request_of(await asyncio.to_thread(_read, path, line))
        while passes(reply := await call_route(self._app, url, body, self._caller(batch.id))):
            await asyncio.sleep(_RETRY)
        encoded = answer_of(reply)
        await asyncio.to_thread(self._store.answer, batch.id, line.n, reply.status, encoded)

    def _caller(self, batch_id: str) -> Caller | None:
        """The client that began the batch; None if its key is there no longer, and then its lines are refused."""
        owner = self._store.owner(batch_id)
        return None if owner is None else self._keys.named(owner)


def _read(path: Path, line: Line) -> bytes:
    with path.open("rb") as source:
        source.seek(line.start)
        return source.read(line.size)
