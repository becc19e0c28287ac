"""Allocates blocks for running sequences as they grow, and makes room for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.core.block_pool import blocks_for
from headrace.core.decodes import Decodes
from headrace.core.fetches import Fetches
from headrace.core.kv_cache import KVCache
from headrace.core.open_sequences import OpenSequences
from headrace.core.running import RunningSequences
from headrace.core.sequence import Sequence

__all__ = ["Growth"]


class Growth:
    """Blocks for the next step of running sequences. If none is left, what only saves work gives way first."""

    def __init__(
        self,
        running: RunningSequences,
        cache: KVCache,
        open_sequences: OpenSequences,
        fetches: Fetches,
        preempt: Callable[[Sequence], None],
    ) -> None:
        """`preempt` puts a running sequence back in the queue."""
        self._running, self._cache, self._open, self._fetches = running, cache, open_sequences, fetches
        self._preempt = preempt

    def decodes(self) -> Decodes:
        """Allocate a block for every decode that starts one, or preempt; returns the decodes that continue."""
        size = self._cache.block_size
        while True:
            decodes = self._running.decodes()
            if decodes.until_start:
                return decodes
            for at in np.flatnonzero(decodes.positions % size == 0).tolist():
                seq, needed = decodes.seqs[at], int(decodes.positions[at]) // size + 1
                while seq.slot >= 0 and seq.blocks < needed and not self._cache.grow(seq):
                    self._make_room()
            if self._running.decodes() is decodes:
                return decodes  # Others may take the place of what was preempted.

    def known(self) -> None:
        """Allocate blocks for tokens that are known since the last step; preempt if there is none. This runs before the
        decodes of the step are fixed, because one of them may be preempted."""
        for seq in self._running.growing():
            while seq.slot >= 0 and seq.blocks < blocks_for(self._running.most_known(seq), self._cache.block_size):
                if not self._cache.grow(seq):
                    self._make_room()

    def _make_room(self) -> None:
        """Close what is open, then give up fetches; if there is neither, preempt the least urgent sequence."""
        if not (self._open.free_blocks() or self._fetches.give_way()):
            self._preempt(self._running.last())
