"""How many engines the load needs: a pure function of what the router sees.

More engines come if requests wait in a queue that is longer than its target, or if nine of ten first tokens come later
than theirs, for a few seconds: as many as bring the queue to its target, at most twice as many as there are; for first
tokens one more, as long as more requests wait than there are engines. Engines that still load count, so that a burst is
not answered twice. Fewer come one at a time, after minutes in which nothing
waited, first tokens came within half of the target, and the sequences that decode had room on one engine less.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from headrace.wording import counted

__all__ = ["Decision", "Memory", "Seen", "Targets", "decide"]


class Targets(NamedTuple):
    least: int
    most: int
    queue: float = 4.0
    """Requests per engine that may wait for a first token."""
    ttft: float = 2.0
    """Seconds to the first token, for nine of ten requests."""
    up_after: float = 3.0
    """Seconds for which there must be too few engines."""
    down_after: float = 120.0
    """Seconds for which there must be too many, since the last change too."""
    fill: float = 0.6
    """Share of the slots that may be in use after an engine has gone."""


class Seen(NamedTuple):
    """The load at one time."""

    now: float
    """Monotonic seconds."""
    ready: int
    """Engines that take requests."""
    coming: int = 0
    """Engines that are being started."""
    waiting: int = 0
    """Requests without a first token, on all engines."""
    running: int = 0
    """Sequences that produce tokens."""
    slots: int = 0
    """Sequences that can run at once on one engine; 0: not known."""
    ttft: float = 0.0
    """Seconds to the first token that nine of ten had lately, or the time that the oldest has waited for it."""
    away: int = 0
    """Engines that were ready and take no requests now: full, held back, or without an answer."""


class Memory(NamedTuple):
    """What the next decision must know of those before."""

    short_since: float | None = None
    """Since when there are too few engines."""
    idle_since: float | None = None
    """Since when there are too many."""


class Decision(NamedTuple):
    engines: int
    why: str
    """Empty if nothing changes."""
    memory: Memory


def decide(targets: Targets, seen: Seen, memory: Memory) -> Decision:
    """The number of engines that there should be from now on."""
    have = seen.ready + seen.coming + seen.away
    if not targets.least <= have <= targets.most:
        return Decision(
            min(max(have, targets.least), targets.most), f"the bounds are {targets.least} to {targets.most}", Memory()
        )
    wanted, why = _needed(targets, seen, have)
    if wanted > have:
        since = seen.now if memory.short_since is None else memory.short_since
        if seen.now - since < targets.up_after:
            return Decision(have, "", Memory(short_since=since))
        return Decision(wanted, why, Memory())
    if not _idle(targets, seen) or have == targets.least:
        return Decision(have, "", Memory())
    since = seen.now if memory.idle_since is None else memory.idle_since
    if seen.now - since < targets.down_after:
        return Decision(have, "", Memory(idle_since=since))
    return Decision(have - 1, "one engine less has room for all", Memory())


def _needed(targets: Targets, seen: Seen, have: int) -> tuple[int, str]:
    """Engines for the load, never fewer than there are, with the reason for more."""
    for_queue = math.ceil(seen.waiting / targets.queue) + seen.away
    wanted, why = have, ""
    if seen.waiting > targets.queue * max(1, seen.ready) and for_queue > have:
        wanted = for_queue
        why = f"{counted(seen.waiting, 'request')} without a first token, the target is {targets.queue:g} per engine"
    elif seen.ttft > targets.ttft and seen.waiting > seen.ready and not seen.coming:
        wanted = have + 1
        why = f"first tokens take {seen.ttft:.1f} s, the target is {targets.ttft:g} s"
    return min(wanted, 2 * have - seen.away, targets.most), why


def _idle(targets: Targets, seen: Seen) -> bool:
    """All that runs would have room on one engine less, and nobody waits."""
    if not seen.ready or seen.coming or seen.waiting or seen.ttft > targets.ttft / 2:
        return False
    return seen.running <= targets.fill * seen.slots * (seen.ready - 1)
