"""What a step brought for a sequence, and the scheduler's stats."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headrace.core.kv_cache import KVCache
from headrace.core.matcher import advance, forced
from headrace.core.sequence import Ending, Sequence
from headrace.core.slots import Slots
from headrace.types import Delta, SchedulerStats, StepResult, TokenLogprobs

__all__ = [
    "about_prompt",
    "append",
    "append_forced",
    "emit",
    "merged",
    "of_chunk",
    "scheduler_stats",
    "score_prompt",
    "token_logprobs",
]


def scheduler_stats(
    cache: KVCache,
    slots: Slots,
    running: Collection[Sequence],
    held: Collection[Sequence],
    waiting: int,
    preemptions: int,
    cached_tokens: int,
    prompt_tokens: int,
    fetching: int = 0,
) -> SchedulerStats:
    """A snapshot of the scheduler's stats. `held`: the open sequences, which have blocks, too."""
    tree = cache.tree
    private = sum(int(slots.computed[seq.slot]) - seq.shared * cache.block_size for seq in (*running, *held))
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
        fetching=fetching,
    )


def token_logprobs(result: StepResult, row: int, token: int, count: int, names: tuple[int, ...] = ()) -> TokenLogprobs:
    """The logprobs of one row, with `count` alternatives, or those of `names`, which the plan has for this row. The
    device must have reported logprobs for this step."""
    assert result.logprobs is not None
    assert result.ranks is not None
    top: tuple[tuple[int, float], ...] = ()
    if names:
        assert result.named is not None
        top = tuple(zip(names, result.named[row, : len(names)].tolist(), strict=True))
    elif count:
        assert result.top_ids is not None
        assert result.top_logprobs is not None
        ids, values = result.top_ids[row, :count].tolist(), result.top_logprobs[row, :count].tolist()
        top = tuple(zip(ids, values, strict=True))
    return TokenLogprobs(token, float(result.logprobs[row]), int(result.ranks[row]), top)


def score_prompt(seq: Sequence, position: int, rivals: Collection[int], row: int, result: StepResult) -> int:
    """Keep the logprob of the prompt's token behind a position, and those of its rivals, whose rows are the next.
    Returns the row behind them."""
    assert seq.prompt_logprobs is not None
    assert result.logprobs is not None
    count = seq.params.prompt_logprobs or 0
    seq.prompt_logprobs[position + 1] = token_logprobs(result, row, seq.tokens[position + 1], count)
    end = row + 1 + len(rivals)
    if rivals:
        seq.rivals = [float(value) for value in result.logprobs[row + 1 : end]]
    return end


def append(seq: Sequence, token: int) -> None:
    """Append a token of the output and advance the grammar. Sets `ending` if it is the last."""
    seq.tokens.append(token)
    length, matcher = len(seq.tokens), seq.matcher
    if token in seq.stops and length - seq.prompt_len > seq.params.min_tokens:
        seq.ending = Ending("stop", stop_token=token)
    elif matcher is None:
        if length == seq.end:
            seq.ending = Ending("length")
    else:
        why = advance(matcher, token)
        if why is None and matcher.stopped:
            seq.ending = Ending("stop")
        elif length == seq.end:
            seq.ending = Ending("length")
        elif why is not None:
            seq.ending = Ending("error", error=f"the constraint cannot be followed any further: {why}")


def append_forced(seq: Sequence) -> list[int]:
    """Append the tokens that the grammar forces, and return them.

    It depends on the text alone, so the tokens are the same whenever it is called. A stop token is left to the mask.
    """
    before = len(seq.tokens)
    while seq.forces and seq.matcher is not None and seq.ending is None:
        start = len(seq.tokens)
        for token in forced(seq.matcher):
            if token in seq.stops or seq.ending is not None:
                break
            append(seq, token)
        if len(seq.tokens) == start:
            break
    return seq.tokens[before:]


def emit(seq: Sequence, index: int, row: int, result: StepResult) -> Delta:
    """The delta for token `index`, which is known now. Without logprobs it holds all known tokens: the forced ones need
    not wait until their rows are computed. Sets the finish reason if nothing follows."""
    tokens, alternatives = seq.tokens, seq.params.logprobs
    if alternatives is None:
        delta = Delta(seq.id, tokens[seq.emitted :], cached_tokens=seq.cached)
        seq.emitted = len(tokens)
    else:
        token, seq.emitted = tokens[index], index + 1
        scored = token_logprobs(result, row, token, alternatives, seq.params.logprob_token_ids)
        delta = Delta(seq.id, [token], [scored], cached_tokens=seq.cached)
    if seq.ending is not None and seq.emitted == len(tokens):
        delta.finish_reason, delta.stop_token, delta.error = seq.ending
        delta.request_fault = delta.error is not None
    return delta


def about_prompt(delta: Delta, seq: Sequence) -> None:
    """Add to the first delta of a sequence what it tells of its prompt."""
    delta.first_scheduled = seq.first_scheduled
    delta.prompt_logprobs, delta.rivals = seq.prompt_logprobs, seq.rivals
    if seq.pool is not None and delta.error is None:
        delta.embedding = seq.pool.embedding


def of_chunk(found: Iterable[Delta | None], end: int, seq: Sequence) -> list[Delta]:
    """What a chunk of known tokens, up to `end`, brought for its sequence: one delta, or none."""
    deltas = [delta for delta in found if delta is not None]
    if not deltas:
        return []
    delta = merged(deltas)
    if end == seq.prompt_len:
        about_prompt(delta, seq)
    return [delta]


def merged(deltas: list[Delta]) -> Delta:
    """One delta of a sequence's deltas, in order."""
    first, *others = deltas
    for delta in others:
        first.token_ids += delta.token_ids
        first.logprobs = None if first.logprobs is None else first.logprobs + (delta.logprobs or [])
        first.accepted_drafts += delta.accepted_drafts
        first.rejected_drafts += delta.rejected_drafts
        first.finish_reason, first.stop_token, first.error = delta.finish_reason, delta.stop_token, delta.error
        first.request_fault, first.went_on = delta.request_fault, delta.went_on
    return first
