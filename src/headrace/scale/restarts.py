"""Whether and when an engine that ended is started again: a pure function, the same for every launcher."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Ended", "RestartPolicy", "Verdict", "after_end"]


class RestartPolicy(NamedTuple):
    most: int = 5
    """Starts in a row that may fail."""
    first: float = 1.0
    """Seconds before the second start in a row; the first comes at once. Each further one waits for twice as long."""
    longest: float = 30.0
    """Seconds before a start, at most."""
    steady: float = 60.0
    """Seconds after which an end is the first one again."""
    silent: float = 60.0
    """Seconds without an answer after which an engine that was ready is killed, and so has ended."""


class Ended(NamedTuple):
    """One run of an engine."""

    seconds: float
    """Of service: from when it was ready to its end, or to its last answer before it."""
    ready: bool
    """It was ready for requests at some time."""
    final: bool = False
    """It says that every further start would end in the same way: its model cannot be loaded, say."""


class Verdict(NamedTuple):
    ends: int
    """In a row, this one included."""
    delay: float | None
    """Seconds until the next start; None: there is none."""


def after_end(policy: RestartPolicy, ends: int, ended: Ended) -> Verdict:
    """What follows on an end. `ends`: those before, in a row. An engine that was ready for a while starts a new row;
    one that was never ready and says why that is final gets no second try."""
    steady = ended.ready and ended.seconds > policy.steady
    ends = 1 if steady else ends + 1
    if ends > policy.most or (ended.final and not ended.ready):
        return Verdict(ends, None)
    return Verdict(ends, min(policy.longest, policy.first * (2.0 ** (ends - 1) - 1)))
