"""Reads the scores of a prompt that stand beside the blocks of the tree, and puts new ones there.

A sequence that asks for the logprobs of its prompt needs the row before each token. If the tree has the tokens and
their scores, the rows need not be computed: the prefix that may come from the cache ends before the row of the first
token without a score. All other rows are computed, and bring the same bits as those that were stored.

Requests that score one long text at the same time, each with another ending, would all compute it. So a sequence that
waits does not begin while launched steps bring many of the scores that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.core.radix import RadixTree
from headrace.core.sequence import Sequence

__all__ = ["NO_SCORES", "StoredScores", "expect_scores", "find_scores", "keep_scores", "scores_due", "take_scores"]

_WORTH = 64
"""Tokens whose rows take longer to compute than launched steps to end."""


class StoredScores(NamedTuple):
    """The scores that the tree has of a prompt."""

    end: int
    """Index of the first token whose score is needed and not stored."""
    blocks: list[int]
    """Blocks of the tokens before it, in order."""


NO_SCORES = StoredScores(0, [])


def find_scores(seq: Sequence, tree: RadixTree) -> StoredScores:
    """The scores that a sequence needs next, as far as they are stored one behind the other."""
    root = tree.find(seq.namespace)
    if root is None or not seq.wants_scores or not tree.scores:
        return NO_SCORES
    size, count = tree.block_size, seq.params.prompt_logprobs or 0
    keys = seq.block_keys(size)
    match = tree.match_prefix(root, keys, 0, len(keys))
    blocks = tree.path(match)
    whole = match.depth * size
    at = seq.scored + 1
    while at < min(whole, seq.prompt_len):
        first = at - at % size
        stop = min(first + size, seq.prompt_len)
        at = first + tree.scores.reach(blocks[at // size], at - first, stop - first, count)
        if at < stop:
            return StoredScores(at, blocks)
    tail = tuple(seq.tokens[whole : min(whole + size, seq.prompt_len)])
    if at < whole or not tail:
        return StoredScores(at, blocks)
    near = [
        (tree.scores.reach(block, at - whole, common, count), block)
        for common, block in tree.partial_matches(match, tail)
        if common > at - whole
    ]
    reach, block = max(near, default=(at - whole, 0))
    return StoredScores(whole + reach, [*blocks, block])


def take_scores(seq: Sequence, found: StoredScores, tree: RadixTree, cached: int) -> None:
    """Give a sequence the scores of the tokens up to index `cached`, whose rows are not computed."""
    if not seq.wants_scores or cached <= seq.scored:
        return
    assert seq.prompt_logprobs is not None
    assert cached < found.end
    size, count = tree.block_size, seq.params.prompt_logprobs or 0
    for at in range(seq.scored + 1, cached + 1):
        seq.prompt_logprobs[at] = tree.scores.take(found.blocks[at // size], at % size, seq.tokens[at], count)
    seq.scored = cached


def keep_scores(seq: Sequence, tree: RadixTree, blocks: Mapping[int, int], end: int) -> None:
    """Store the scores that a sequence has of its prompt's tokens `seq.stored`:`end` beside the blocks that hold them:
    index in the block table → block of the tree."""
    if seq.prompt_logprobs is None:
        return
    size, end = tree.block_size, min(end, seq.prompt_len)
    for at in range(seq.stored, end):
        score = seq.prompt_logprobs[at]
        if score is not None:
            tree.scores.keep(blocks[at // size], at % size, score)
    seq.stored = max(seq.stored, end)


def expect_scores(seq: Sequence, tree: RadixTree, step: int) -> None:
    """Note that `step`, which is being planned, brings the scores of a sequence that it lacks up to `seq.scored`."""
    root = tree.find(seq.namespace)
    if root is None or seq.prompt_logprobs is None:
        return
    size, start = tree.block_size, seq.params.prompt_logprobs_start
    first = max(seq.expected, -(-start // size) if start > 1 else 0)
    keys, end = seq.block_keys(size), min(seq.scored + 1, seq.prompt_len) // size
    match = tree.match_prefix(root, keys, 0, min(end, len(keys)))
    for block in tree.path(match)[first:]:
        tree.scores.expect(block, step, seq.params.prompt_logprobs or 0)
    seq.expected = max(seq.expected, match.depth)


def scores_due(seq: Sequence, tree: RadixTree) -> int:
    """The step whose commit brings scores that a waiting sequence needs next, if they are many; 0: it need not wait."""
    found, size = find_scores(seq, tree), tree.block_size
    at, last = found.end, 0
    while (index := at // size) < len(found.blocks):
        step = tree.scores.due(found.blocks[index], seq.params.prompt_logprobs or 0)
        if not step:
            break
        last, at = max(last, step), (index + 1) * size
    return last if at - found.end >= _WORTH else 0
