"""Sends the results of a pipeline's last stage to rank 0, on a thread of its own: the next plans don't wait for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from headrace.engine.core_loop import PendingStep
from headrace.engine.ranks.rank_messages import RankMessage, StepDone

__all__ = ["ResultSender"]


class ResultSender:
    """Waits for steps in the order in which they were launched."""

    def __init__(self, send: Callable[[RankMessage], None], failed: Callable[[Exception], None]) -> None:
        """`failed` gets the error of a step; nothing is sent after that."""
        self._send, self._failed = send, failed
        self._steps: queue.SimpleQueue[tuple[int, PendingStep] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)
        self._thread.start()

    def put(self, step: int, launched: PendingStep) -> None:
        """Send the result of a launched step when it is there."""
        self._steps.put((step, launched))

    def close(self) -> None:
        """Send what is left and end the thread."""
        self._steps.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (one := self._steps.get()) is not None:
                step, launched = one
                self._send(StepDone.of(step, launched.result()))
        except Exception as error:
            self._failed(error)
