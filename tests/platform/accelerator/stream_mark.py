"""The order of what was launched on the streams of the fake of an accelerator."""

from __future__ import annotations


class Mark:
    """A place in a stream: it is passed after all that is before it."""

    def __init__(self, *before: Mark | None, at: float = 0.0) -> None:
        self.passed = False
        self._before = [mark for mark in before if mark is not None]
        self.at = at
        """The device's time in milliseconds."""

    def wait(self) -> None:
        waiting = [self]
        while waiting:
            one = waiting.pop()
            waiting += one._before
            one.passed, one._before = True, []
