"""What an engine works on, as the router knows it: counted when a request is sent, not when an engine reports it.

Otherwise all requests between two reports would go to the same engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace

from headrace.route.policy import Rates

__all__ = ["LoadBook", "Ticket"]

_SHARE = 0.1
"""Weight of a new measurement."""
_LEAST_TOKENS = 64
"""Prompt tokens from which a request tells something about the engine's rate."""
_KEPT = 256
"""First tokens that are remembered."""
_RANGE = (0.001, 50.0)
"""Milliseconds per prompt token that are believed."""


class LoadBook:
    """The load of one engine. Thread: the event loop's."""

    def __init__(self, rates: Rates | None = None) -> None:
        self.rates = rates or Rates()
        self.queued = 0
        """Prompt tokens to compute before the next request's."""
        self.own_running = 0
        """Sequences from this router that produce tokens."""
        self.tickets = 0
        """Requests from this router that have not ended."""
        self.elsewhere = 0
        """Sequences of others, from the engine's reports."""
        self.reported_waiting = 0
        """Sequences without a slot, from the engine's reports."""
        self.last_used = 0
        self.first_tokens: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """Of streams: when the first token came, in monotonic seconds, and the seconds that it took."""
        self._waiting: dict[Ticket, float] = {}

    @property
    def running(self) -> int:
        return self.own_running + self.elsewhere

    @property
    def waiting(self) -> int:
        """Requests from this router that have no token yet."""
        return len(self._waiting)

    @property
    def waiting_since(self) -> Collection[float]:
        """When each of these was sent, in monotonic seconds."""
        return self._waiting.values()

    def reported(self, sequences: int, waiting: int = 0) -> None:
        """The engine says how many sequences it has, running and waiting, and how many of them wait."""
        self.reported_waiting = waiting
        self.elsewhere = max(0, sequences - self.tickets)

    def open(self, new: int, now: float, number: int) -> Ticket:
        """A request with so many tokens to compute has been sent, in monotonic seconds."""
        self.last_used = number
        ticket = Ticket(self, new, now)
        self._waiting[ticket] = now
        return ticket

    def stopped_waiting(self, ticket: Ticket) -> None:
        self._waiting.pop(ticket, None)

    def measure(self, tokens: int, seconds: float) -> None:
        """So many prompt tokens, its own and those before it, took so long to the first token."""
        if tokens < _LEAST_TOKENS:
            return
        rate = min(max(1000 * seconds / tokens, _RANGE[0]), _RANGE[1])
        self.rates = replace(self.rates, prefill=(1 - _SHARE) * self.rates.prefill + _SHARE * rate)


class Ticket:
    """One request on an engine, from its sending to its end."""

    __slots__ = ("_ahead", "_book", "_new", "_sent", "_state")

    def __init__(self, book: LoadBook, new: int, now: float) -> None:
        self._book, self._new, self._sent = book, new, now
        self._ahead = book.queued
        self._state = "queued"
        book.queued += new
        book.tickets += 1

    @property
    def expected(self) -> float:
        """Seconds to the first token, as estimated when it was sent."""
        return (self._ahead + self._new) * self._book.rates.prefill / 1000

    def first_token(self, now: float | None = None) -> None:
        """The first token has come, or (None) should have come by now. Further calls have no effect."""
        if self._state != "queued":
            return
        self._state = "running"
        self._book.queued -= self._new
        self._book.own_running += 1
        self._book.stopped_waiting(self)
        if now is not None:
            self._book.first_tokens.append((now, now - self._sent))
            self._book.measure(self._ahead + self._new, now - self._sent)

    def told(self, seconds: float) -> None:
        """The engine says after how many seconds its first token came, of an answer that is not streamed."""
        self._book.measure(self._ahead + self._new, seconds)
        self.first_token()

    def close(self) -> None:
        """The request has ended. Further calls have no effect."""
        self._book.stopped_waiting(self)
        if self._state == "queued":
            self._book.queued -= self._new
        elif self._state == "running":
            self._book.own_running -= 1
        if self._state != "closed":
            self._book.tickets -= 1
        self._state = "closed"
