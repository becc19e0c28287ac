"""Sends what rank 0 waits for from another rank, on a thread of its own: the next plans don't wait for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from headrace.engine.ranks.rank_messages import RankMessage

__all__ = ["ResultSender"]


class ResultSender:
    """Waits for what steps give, in the order in which they were launched."""

    def __init__(self, send: Callable[[RankMessage], None], failed: Callable[[Exception], None]) -> None:
        """`failed` gets the error of a step; nothing is sent after that."""
        self._send, self._failed = send, failed
        self._made: queue.SimpleQueue[Callable[[], RankMessage] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)
        self._thread.start()

    def put(self, make: Callable[[], RankMessage]) -> None:
        """Send a message that `make` waits for."""
        self._made.put(make)

    def close(self) -> None:
        """Send what is left and end the thread."""
        self._made.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (make := self._made.get()) is not None:
                self._send(make())
        except Exception as error:
            self._failed(error)
