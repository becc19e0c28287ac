"""What `headrace train-drafter` shows, and the signals that end it with a state to go on from."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

from headrace.progress import training_bar
from headrace.training.acceptance_report import HeldOutAcceptance

__all__ = ["TerminalView", "terminal_view"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TerminalView:
    """A `training.drafter_training.TrainingView`: lines on stdout, a bar on a terminal's stderr."""

    def __init__(self, bar: Callable[[str, float, float], None]) -> None:
        self._bar, self._stopped = bar, False
        self._before: dict[int, Any] = {}

    def say(self, line: str) -> None:
        print(line, flush=True)

    def loading(self, stage: str, done: float) -> None:
        self._bar(f"loading: {stage}", done, 1.0)

    def answers(self, done: int, total: int) -> None:
        self._bar("answers", done, total)

    def step(self, done: int, total: int, loss: float) -> None:
        self._catch()
        self._bar(f"step {done} of {total}, loss {loss:.3f}", done, total)

    def acceptance(self, done: int, total: int, found: HeldOutAcceptance) -> None:
        self.say(f"step {done} of {total}: accepted on held-out text up to position 1, 2…: {found.line()}")

    def stopped(self) -> bool:
        return self._stopped

    def release(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _catch(self) -> None:
        """From the first step on, a signal ends the training after the step that runs. A second one ends it at once.

        Before that there is no state to save: answers are kept as they come.
        """
        for number in _SIGNALS:
            if number not in self._before and signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._stop)

    def _stop(self, number: int, frame: object) -> None:
        self._stopped = True
        signal.signal(number, self._before[number])


@contextlib.contextmanager
def terminal_view() -> Iterator[TerminalView]:
    with training_bar() as bar:
        view = TerminalView(bar)
        try:
            yield view
        finally:
            view.release()
