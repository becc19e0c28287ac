"""What the router knows of the load, as the policy of the number of engines reads it."""

from __future__ import annotations

from collections.abc import Collection

from headrace.route.replica import Replica
from headrace.scale.autoscaling import Seen

__all__ = ["observe"]

_WINDOW = 30.0
"""Seconds for which a time to first token counts."""
_LEAST = 5
"""First tokens of which nine of ten can be told."""


def observe(replicas: Collection[Replica], coming: int, now: float, away: int = 0) -> Seen:
    """`coming`: engines that are being started. `now`: monotonic seconds. `away`: engines that take no requests now."""
    ready = [one for one in replicas if one.usable]
    loads = [one.load for one in ready]
    slots = [one.facts.max_num_seqs for one in ready if one.facts is not None]
    recent = sorted(took for load in loads for at, took in load.first_tokens if now - at <= _WINDOW)
    ninth = recent[int(0.9 * (len(recent) - 1))] if len(recent) >= _LEAST else 0.0
    oldest = max((now - since for load in loads for since in load.waiting_since), default=0.0)
    # Requests of others, and those that are not streamed, are known by the engines' own reports.
    waiting = sum(max(load.waiting, load.reported_waiting) for load in loads)
    running = sum(load.running for load in loads)
    return Seen(now, len(ready), coming, waiting, running, min(slots, default=0), max(ninth, oldest), away)
