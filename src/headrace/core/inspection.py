"""A look into the scheduler for people: its sequences, the state of each KV block, and the largest cached prefixes.

It is made only when asked for, from a few array operations, and its size is bounded. It holds counts, no tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest, nsmallest

import numpy as np

from headrace.core.kv_cache import KVCache
from headrace.core.open_sequences import OpenSequences
from headrace.core.radix import RadixNode, RadixTree
from headrace.core.sequence import Rank, Sequence
from headrace.core.slots import Slots

__all__ = ["CACHED", "FIRST", "FREE", "OTHER", "SHARED", "PrefixView", "SchedulerView", "SequenceView", "look"]

FREE, CACHED, SHARED, OTHER, FIRST = range(5)
"""States of a block: free, cached only, held by several sequences, held by a sequence or a pin that is not listed, and
from `FIRST` on held by the sequence of that place in `running` alone."""
MOST_SEQUENCES = 256
"""Sequences that are listed, of the running and of the waiting ones."""
MOST_CELLS = 4096
MOST_PREFIXES = 24
MOST_NODES = 10_000
"""Nodes of the radix tree that are visited, those near the roots first."""


@dataclass(frozen=True, slots=True)
class SequenceView:
    id: str
    state: str
    """`waiting`, `prefill`, `decode`, or `open`: ended, and kept for the request that goes on with it."""
    arrival: float
    """Monotonic seconds."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the cache when the sequence was first scheduled."""
    computed_tokens: int
    """Tokens whose keys and values launched steps compute."""
    output_tokens: int
    max_output_tokens: int
    blocks: int
    tree_blocks: int
    """Those of its blocks that the radix tree has, so that others can share them."""


@dataclass(frozen=True, slots=True)
class PrefixView:
    """A run of cached tokens without a branch in it: a node of the radix tree."""

    parent: int
    """The place of the nearest listed run that this one continues; -1: none."""
    tokens: int
    """From the start of the prompts to the end of this run."""
    own_tokens: int
    """Of this run alone."""
    users: int
    """Running sequences that use it."""
    branches: int
    """Runs that continue this one."""
    adapter: str
    salted: bool
    """Shared only between requests of one salt."""


@dataclass(frozen=True, slots=True)
class SchedulerView:
    slots: int
    """Sequences that can run at once."""
    running: list[SequenceView]
    """The most urgent first, and after them the open ones."""
    waiting: list[SequenceView]
    blocks_per_cell: int
    """A cell shows the first of so many blocks."""
    cells: list[int]
    """States of blocks, in the order of their ids."""
    prefixes: list[PrefixView]
    """The largest, those near the root first."""
    nodes: int
    """Nodes of the tree that were visited."""
    nodes_left: bool
    """There were more nodes than are visited."""


def look(
    cache: KVCache, slots: Slots, running: list[Sequence], waiting: Iterable[Sequence], kept: OpenSequences
) -> SchedulerView:
    held = [*sorted(running, key=_rank), *kept.all()]
    states = [_state(seq, slots) for seq in held[: len(running)]] + ["open"] * len(kept)
    step, cells = _cells(cache, held, kept.pinned())
    prefixes, nodes, left = _prefixes(cache.tree, cache.block_size)
    return SchedulerView(
        slots=len(slots.constraints),
        running=[
            _view(seq, state, int(slots.computed[seq.slot]))
            for seq, state in zip(held[:MOST_SEQUENCES], states, strict=False)
        ],
        waiting=[_view(seq, "waiting", 0) for seq in nsmallest(MOST_SEQUENCES, waiting, key=_rank)],
        blocks_per_cell=step,
        cells=cells,
        prefixes=prefixes,
        nodes=nodes,
        nodes_left=left,
    )


def _rank(seq: Sequence) -> Rank:
    return seq.rank


def _state(seq: Sequence, slots: Slots) -> str:
    return "prefill" if slots.computed[seq.slot] < seq.prompt_len else "decode"


def _view(seq: Sequence, state: str, computed: int) -> SequenceView:
    return SequenceView(
        id=seq.id,
        state=state,
        arrival=seq.request.arrival,
        prompt_tokens=seq.prompt_len,
        cached_tokens=max(seq.cached, 0),
        computed_tokens=computed,
        output_tokens=seq.emitted - seq.prompt_len,
        max_output_tokens=seq.end - seq.prompt_len,
        blocks=seq.blocks,
        tree_blocks=seq.shared,
    )


def _cells(cache: KVCache, held: list[Sequence], pinned: list[RadixNode]) -> tuple[int, list[int]]:
    """Blocks per cell, and the state of the first block of each cell. Block 0 is padding and left out."""
    total = cache.pool.total
    states = np.full(total + 1, CACHED, np.int32)
    states[cache.pool.free] = FREE
    holders = np.zeros(total + 1, np.int32)
    for node in pinned:
        above: RadixNode | None = node
        while above is not None:
            states[above.blocks] = OTHER
            above = above.parent
    for place, seq in enumerate(held):
        mine = cache.table[seq.slot, : seq.blocks]
        holders[mine] += 1
        states[mine] = FIRST + place if place < MOST_SEQUENCES else OTHER
    states[holders > 1] = SHARED
    step = -(-total // MOST_CELLS)
    return step, states[1::step].tolist()


def _prefixes(tree: RadixTree, block_size: int) -> tuple[list[PrefixView], int, bool]:
    """The largest runs, the number of visited nodes, and whether there are more nodes."""
    to_visit: deque[tuple[RadixNode, RadixNode, int]] = deque((root, root, 0) for root in tree.roots.values())
    found: list[tuple[int, int, int, RadixNode, RadixNode]] = []
    visited = 0
    while to_visit and visited < MOST_NODES:
        node, root, depth = to_visit.popleft()
        visited += 1
        own = (len(node.blocks) - 1) * block_size + len(node.keys[-1]) if node.keys else 0
        if own:
            # The number decides between equals, and gives the order of the visits.
            found.append((own, -visited, depth + own, node, root))
        to_visit.extend((child, root, depth + own) for child in node.children.values())
    largest = sorted(nlargest(MOST_PREFIXES, found, key=_size), key=_visit)
    places = {id(node): place for place, (_, _, _, node, _) in enumerate(largest)}
    views = [_prefix(node, root, own, tokens, places) for own, _, tokens, node, root in largest]
    return views, visited, bool(to_visit)


def _size(found: tuple[int, int, int, RadixNode, RadixNode]) -> tuple[int, int]:
    return found[:2]


def _visit(found: tuple[int, int, int, RadixNode, RadixNode]) -> int:
    return -found[1]


def _prefix(node: RadixNode, root: RadixNode, own: int, tokens: int, places: dict[int, int]) -> PrefixView:
    above = node.parent
    while above is not None and id(above) not in places:
        above = above.parent
    assert root.namespace is not None
    return PrefixView(
        parent=-1 if above is None else places[id(above)],
        tokens=tokens,
        own_tokens=own,
        users=node.lock,
        branches=len(node.children),
        adapter=root.namespace.adapter,
        salted=bool(root.namespace.salt),
    )
