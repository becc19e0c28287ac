"""Whether to fetch blocks or to compute them, from the measured rate of steps."""

from __future__ import annotations

__all__ = ["ComputeRate"]

_LEAST_TOKENS = 32
"""A step of fewer tokens says little about prefill."""
_WEIGHT = 0.2


class ComputeRate:
    """Seconds that a token of prefill takes, from the times at which steps are committed."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """Per token; None before the first measurement."""
        self._begun: dict[int, tuple[int, float]] = {}
        self._now = 0.0
        self._committed = 0.0

    def clock(self, now: float) -> None:
        """The time of the step that is planned."""
        self._now = now

    def launched(self, step: int, tokens: int) -> None:
        """A step has been planned."""
        self._begun[step] = tokens, self._now

    def committed(self, step: int, now: float) -> None:
        """A step has ended. Steps run one after the other: it began when the one before had ended, at the earliest."""
        tokens, begun = self._begun.pop(step, (0, now))
        elapsed = now - max(begun, self._committed)
        self._committed = now
        if tokens >= _LEAST_TOKENS and elapsed > 0:
            rate = elapsed / tokens
            self.seconds = rate if self.seconds is None else (1 - _WEIGHT) * self.seconds + _WEIGHT * rate

    def failed(self, step: int) -> None:
        """A step has no result."""
        self._begun.pop(step, None)

    def slower_than(self, seconds: float, tokens: int) -> bool:
        """True if computing so many tokens takes longer; also if it has never been measured."""
        return self.seconds is None or self.seconds * tokens > seconds
