"""Admission by tokens: how many prompt tokens may wait for their first answer."""

from __future__ import annotations

from headrace.errors import Overloaded

__all__ = ["WaitingPlace", "WaitingTokens"]


class WaitingTokens:
    """Thread: the event loop's."""

    def __init__(self, most: int | None = None) -> None:
        """None: no limit."""
        self._most = most
        self.total = 0
        """Prompt tokens of requests without a first token."""

    def enter(self, tokens: int) -> WaitingPlace:
        """A request with a prompt of so many tokens begins. One that is larger than the limit is let in when nothing
        else waits. Raises Overloaded."""
        if self._most is not None and self.total and self.total + tokens > self._most:
            raise Overloaded(
                f"{self.total} prompt tokens wait for their first answer, and with {tokens} more it would be more than "
                f"the {self._most} of --max-waiting-tokens"
            )
        self.total += tokens
        return WaitingPlace(self, tokens)


class WaitingPlace:
    """Of one request. `leave` when its first token has come, and when it ends."""

    def __init__(self, waiting: WaitingTokens, tokens: int) -> None:
        self._waiting, self._tokens = waiting, tokens

    def leave(self) -> None:
        """A second call has no effect."""
        self._waiting.total -= self._tokens
        self._tokens = 0
