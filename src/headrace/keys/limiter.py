"""Limits of one key: requests and tokens a minute, and requests at once. Pure: the caller passes the time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.errors import RateLimited

__all__ = ["Bucket", "Limiter", "Limits"]

_CONCURRENCY_WAIT = 1.0
"""Seconds after which a client may try again that has too many requests under way: nobody knows when one ends."""


@dataclass(frozen=True, slots=True)
class Limits:
    """None: unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None


class Bucket:
    """An amount that refills evenly, by `per_minute` a minute, and never holds more than that. It may go below zero:
    what a request generates is known when it has been generated."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._left, self._at = float(per_minute), now

    def left(self, now: float) -> float:
        self._left = min(self.per_minute, self._left + max(0.0, now - self._at) * self.per_minute / 60)
        self._at = max(now, self._at)
        return self._left

    def take(self, amount: float, now: float) -> None:
        self._left = self.left(now) - amount

    def wait(self, amount: float, now: float) -> float:
        """Seconds until it holds `amount`; infinite if it never does."""
        if amount > self.per_minute:
            return math.inf
        return max(0.0, amount - self.left(now)) * 60 / self.per_minute


class Limiter:
    """What one key has used. `enter` before a request, `leave` after it, `charge` for its tokens. Not for several
    threads at once."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.active = 0
        """Requests under way."""
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self._limits = Limits()
        self.set_limits(limits, now)

    def set_limits(self, limits: Limits, now: float) -> None:
        """What has been used under a limit that stays the same stays used."""
        if limits.requests_per_minute != self._limits.requests_per_minute:
            self._requests = _bucket(limits.requests_per_minute, now)
        if limits.tokens_per_minute != self._limits.tokens_per_minute:
            self._tokens = _bucket(limits.tokens_per_minute, now)
        self._limits = limits

    def enter(self, now: float) -> None:
        """A request begins. Raises RateLimited, and then nothing is used."""
        most = self._limits.max_concurrency
        if most is not None and self.active >= most:
            message = f"{self.active} requests of this key are under way, and {most} may be: wait until one has ended"
            raise RateLimited(message, "concurrency", _CONCURRENCY_WAIT)
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None and (seconds := bucket.wait(1, now)) > 0:
                raise RateLimited(_reached(kind, bucket, 1, seconds), kind, seconds)
        if self._requests is not None:
            self._requests.take(1, now)
        self.active += 1

    def leave(self) -> None:
        """A request that entered has ended."""
        assert self.active > 0
        self.active -= 1

    def admit_prompt(self, tokens: int, now: float) -> None:
        """Charge a prompt before it is computed. Raises RateLimited if so many tokens are not left, and then nothing is
        charged."""
        if self._tokens is None:
            return
        seconds = self._tokens.wait(tokens, now)
        if seconds > 0:
            raise RateLimited(_reached("tokens", self._tokens, tokens, seconds), "tokens", seconds)
        self._tokens.take(tokens, now)

    def charge(self, tokens: int, now: float) -> None:
        """Charge tokens that have been computed."""
        if self._tokens is not None:
            self._tokens.take(tokens, now)

    def headers(self, now: float) -> Iterator[tuple[str, str]]:
        """What is left, as headers in OpenAI's form."""
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                left = max(0, math.floor(bucket.left(now)))
                yield f"x-ratelimit-limit-{kind}", str(bucket.per_minute)
                yield f"x-ratelimit-remaining-{kind}", str(left)
                yield f"x-ratelimit-reset-{kind}", _duration(bucket.wait(bucket.per_minute, now))


def _bucket(per_minute: int | None, now: float) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute, now)


def _reached(kind: str, bucket: Bucket, amount: int, seconds: float) -> str:
    limit = f"the limit of {bucket.per_minute} {kind} a minute"
    if math.isinf(seconds):
        return f"this request needs {amount} {kind}, which is more than {limit} of this key ever allows"
    return f"{limit} of this key is reached: try again in {_duration(seconds)}"


def _duration(seconds: float) -> str:
    """As OpenAI writes it: `120ms`, `6s`, `1m30s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60}s"
