"""What a step brought for a sequence, and the scheduler's stats."""

from __future__ import annotations

from collections.abc import Collection

from headrace.core.kv_cache import KVCache
from headrace.core.matcher import advance
from headrace.core.sequence import Sequence
from headrace.core.slots import Slots
from headrace.types import Delta, SchedulerStats, StepResult, TokenLogprobs

__all__ = ["scheduler_stats", "take_token", "token_logprobs"]


def scheduler_stats(
    cache: KVCache,
    slots: Slots,
    running: Collection[Sequence],
    waiting: int,
    preemptions: int,
    cached_tokens: int,
    prompt_tokens: int,
) -> SchedulerStats:
    """A snapshot of the scheduler's stats."""
    tree = cache.tree
    private = sum(int(slots.computed[seq.slot]) - seq.shared * cache.block_size for seq in running)
    return SchedulerStats(
        running=len(running),
        waiting=waiting,
        blocks_free=len(cache.pool),
        blocks_cached=tree.evictable,
        blocks_held=cache.pool.total - cache.available,
        kv_tokens=(tree.size - tree.evictable) * cache.block_size + private,
        preemptions=preemptions,
        cached_tokens=cached_tokens,
        prompt_tokens=prompt_tokens,
    )


def token_logprobs(result: StepResult, row: int, token: int, count: int) -> TokenLogprobs:
    """The logprobs of one row, with `count` alternatives. The device must have reported logprobs for this step."""
    assert result.logprobs is not None
    assert result.ranks is not None
    top: tuple[tuple[int, float], ...] = ()
    if count:
        assert result.top_ids is not None
        assert result.top_logprobs is not None
        ids, values = result.top_ids[row, :count].tolist(), result.top_logprobs[row, :count].tolist()
        top = tuple(zip(ids, values, strict=True))
    return TokenLogprobs(token, float(result.logprobs[row]), int(result.ranks[row]), top)


def take_token(seq: Sequence, row: int, token: int, result: StepResult) -> Delta:
    """Append a sampled token to a sequence and advance its grammar. The delta has a finish reason if the sequence
    ends."""
    params = seq.params
    seq.filled = len(seq.tokens)
    seq.tokens.append(token)
    delta = Delta(seq.id, [token], cached_tokens=seq.cached)
    if params.logprobs is not None:
        delta.logprobs = [token_logprobs(result, row, token, params.logprobs)]
    if token in seq.stops and len(seq.tokens) - seq.prompt_len > params.min_tokens:
        delta.finish_reason, delta.stop_token = "stop", token
    elif len(seq.tokens) == seq.end:
        delta.finish_reason = "length"
    elif seq.matcher is not None:
        why = advance(seq.matcher, token)
        if why is not None:
            delta.finish_reason, delta.error = "error", f"the constraint cannot be followed any further: {why}"
        elif seq.matcher.stopped:
            delta.finish_reason = "stop"
    return delta
