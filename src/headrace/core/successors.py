"""Sequences that begin before it is known how the ones that they go on with have ended.

A sequence that has computed all but its last token, and whose request says what follows (`then`), ends with the step
that is under way: by its length, or by a stop token in its last place. Its successor takes over slot and blocks at
once. The last token is on the device, where the next step reads it, and stands before the constant text of that step:
so the text is computed in the very step that a decode would have been next in, and no step passes without it.

If the last token is a stop token after all, it is no part of the text: then the successor is dropped, what its step has
computed is overwritten, and the sequence stays open as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace.core.admission import CoreConfig, admit
from headrace.core.block_pool import blocks_for
from headrace.core.kv_cache import KVCache
from headrace.core.running import RunningSequences
from headrace.core.sequence import Sequence
from headrace.core.slots import Slots
from headrace.errors import NeverFits
from headrace.types import NO_TOKEN

__all__ = ["Successors"]


class Successors:
    """Watches the sequences that something follows. Each succession is settled by the next commit."""

    def __init__(
        self,
        config: CoreConfig,
        requests: dict[str, Sequence],
        orders: Iterator[int],
        running: RunningSequences,
        slots: Slots,
        cache: KVCache,
    ) -> None:
        """`requests`: all sequences that have not ended; `orders`: arrival numbers."""
        self._config, self._requests, self._orders = config, requests, orders
        self._running, self._slots, self._cache = running, slots, cache
        self._watched: dict[str, Sequence] = {}
        self._pending: dict[str, tuple[Sequence, Sequence]] = {}
        """By the id of each: a sequence whose last token is on the device, and its successor."""
        self.cached_tokens = self.prompt_tokens = 0
        """Of the successors that went on: one that is undone counts when its request is added again."""

    def __len__(self) -> int:
        """The number of sequences that have a successor and have not ended."""
        return len(self._pending) // 2

    def watch(self, seq: Sequence) -> None:
        """Take up a new sequence. Grammars need the last token before what follows it, and drafts may hold it; in a
        pipeline steps have known tokens alone."""
        then = seq.request.then
        plain = seq.matcher is None and not seq.drafted and self._config.stages == 1
        if then is not None and plain and then.constraint is None and not then.bad_words:
            self._watched[seq.id] = seq

    def start(self) -> list[Sequence]:
        """Let the successors of all begin whose last token is in flight."""
        found = []
        for seq in list(self._watched.values()) if self._watched else ():
            known = len(seq.tokens)
            if seq.slot >= 0 and known == seq.end - 1 == self._slots.computed[seq.slot] and seq.ending is None:
                del self._watched[seq.id]
                found += [] if self._is_cached(seq) else self._begun(seq)
        return found

    def settle(self, seq: Sequence) -> bool:
        """A sequence has ended by itself. True: its successor has begun, and has the last token now."""
        if seq.id not in self._pending:
            return False
        if seq.ending is None or seq.ending.reason != "length":
            self.undo(seq.id)
            return False
        _, then = self._pending.pop(seq.id)
        del self._pending[then.id]
        then.tokens[then.unknown] = seq.tokens[-1]
        then.unknown, then.filled = -1, max(then.filled, seq.filled)
        then.request = replace(then.request, prompt=tuple(then.tokens[: then.prompt_len]))
        seq.succeeded = True
        self.cached_tokens += then.cached
        self.prompt_tokens += then.prompt_len
        self.watch(then)
        return True

    def leave(self, seq: Sequence) -> None:
        """A sequence ends in any way."""
        self._watched.pop(seq.id, None)
        self.undo(seq.id)

    def undo(self, name: str) -> None:
        """Drop a successor, by its own or the other one's id, as if it had not begun. Its results are void."""
        if name not in self._pending:
            return
        seq, then = self._pending.pop(name)
        self._pending.pop(then.id if name == seq.id else seq.id)
        self._running.leave(then)
        del self._requests[then.id]
        then.epoch += 1
        seq.filled = max(seq.filled, then.filled)
        seq.slot, seq.node, seq.shared, seq.blocks, seq.keys = then.slot, then.node, then.shared, then.blocks, then.keys
        then.slot, then.node, then.shared, then.blocks, then.filled = -1, None, 0, 0, 0
        self._slots.store(seq.slot, seq, len(seq.tokens))
        self._running.rejoin(seq)

    def undo_all(self) -> None:
        for name in list(self._pending):
            self.undo(name)

    def _is_cached(self, seq: Sequence) -> bool:
        """The text that follows may be in the cache. It is found there only behind known tokens, and is worth a step if
        it is long."""
        text = () if seq.request.then is None else seq.request.then.prompt
        return len(text) >= self._config.block_size and self._cache.may_continue(seq, text)

    def _begun(self, seq: Sequence) -> list[Sequence]:
        """The successor; none if it has no room."""
        then, known, filled = seq.request.then, len(seq.tokens), seq.filled
        assert then is not None
        prompt = (*seq.tokens, 0, *then.prompt)
        request = replace(then, prompt=prompt, params=then.params.behind(known + 1), extends=seq.id)
        need = blocks_for(len(prompt), self._config.block_size) - seq.blocks
        if request.id in self._requests or need + len(self._running) > self._cache.available:
            return []
        try:
            admit(request, self._config)
        except NeverFits:
            return []  # It is added once more when the sequence has ended, and refused then.
        made = Sequence.of(request, next(self._orders), self._config.vocab_size)
        slot = seq.slot
        if made.reusable < known or self._cache.take_over(seq, made, known) is None:
            return []  # It pools states of tokens that are computed already, or has no blocks.
        made.tokens[known], made.unknown, made.filled, made.resumed = NO_TOKEN, known, filled, True
        self._running.leave(seq)
        self._slots.store(slot, made, known)
        self._running.enter(made)
        self._requests[made.id] = made
        self._pending[seq.id] = self._pending[made.id] = seq, made
        return [made]
