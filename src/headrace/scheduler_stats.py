"""The scheduler's counts, as `/metrics` shows them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerStats"]


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot for /metrics. free + cached + held = total, always."""

    running: int
    waiting: int
    blocks_free: int
    blocks_cached: int
    """Blocks that only the radix tree uses; they can be evicted."""
    blocks_held: int
    """Blocks that a sequence uses."""
    kv_tokens: int
    """Tokens stored in held blocks. Divided by held * block_size it is the KV utilization."""
    preemptions: int
    cached_tokens: int
    """Prompt tokens served from the cache, since start."""
    prompt_tokens: int
    """Prompt tokens admitted, since start."""
    fetching: int = 0
    """Sequences among the waiting ones whose blocks are on their way."""
