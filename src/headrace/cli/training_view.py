"""What `headrace train-drafter` shows, and the signals that end it with a state to go on from."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.progress import training_bar
from headrace.training.acceptance_report import HeldOutAcceptance
from headrace.training.settings import folder_of

__all__ = ["TerminalView", "terminal_view"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ERASE = "\r\x1b[K"


class TerminalView:
    """A `training.drafter_training.TrainingView`: lines on stdout, a bar on a terminal's stderr."""

    def __init__(self, bar: Callable[[str, float, float], None], out: Path) -> None:
        """`out`: where the head is written."""
        self._bar, self._out, self._stepped, self._stopped = bar, out, False, False
        self._before: dict[int, Any] = {}

    def say(self, line: str) -> None:
        print(line, flush=True)

    def loading(self, stage: str, done: float) -> None:
        self._bar(f"loading: {stage}", done, 1.0)

    def answers(self, done: int, total: int) -> None:
        self._bar("answers", done, total)

    def step(self, done: int, total: int, loss: float) -> None:
        self._stepped = True
        self.catch()
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

    def catch(self) -> None:
        """From the first step on, a signal ends the training after the step that runs. A second one ends it at once.

        Before that there is no state to save, since answers are kept as they come: a line, and the signal ends the
        process as it would without this.
        """
        for number in _SIGNALS:
            if number not in self._before and signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._stop)

    def _stop(self, number: int, frame: object) -> None:
        if self._stepped:
            self._stopped = True
            signal.signal(number, self._before[number])
            return
        begun = folder_of(self._out).is_dir()
        kept = f"the same command with --resume goes on in {self._out}" if begun else "there was nothing to keep yet"
        # A handler must not print: what it interrupts may be printing.
        with contextlib.suppress(OSError):
            os.write(2, f"{_ERASE if os.isatty(2) else ''}stopped: {kept}\n".encode(errors="replace"))
        signal.signal(number, self._before.pop(number))
        os.kill(os.getpid(), number)


@contextlib.contextmanager
def terminal_view(out: Path) -> Iterator[TerminalView]:
    with training_bar() as bar:
        view = TerminalView(bar, out)
        view.catch()
        try:
            yield view
        finally:
            view.release()
