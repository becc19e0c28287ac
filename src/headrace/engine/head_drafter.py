"""Drafts of a head that reads the target's hidden states: the sequences that it knows, its cache, its rounds.

A head computes nothing ahead: the features of all tokens are kept in the target's blocks. So a round first computes the
entries that the head's own cache lacks, and then drafts, whatever cached prefixes, chunks and preemptions there were.
Each sequence has blocks of its own in that cache, and what earlier rounds have computed of its known tokens stays
right, because no known token changes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from headrace.core.drafts import DraftRow
from headrace.engine.guarded_rounds import GuardedRounds
from headrace.engine.head_passes import HeadPasses
from headrace.engine.head_plans import Drafted, HeadPass, catch_up_pass, features_of, following_pass
from headrace.platforms.interface import Pending
from headrace.speculation.model_speculator import NEAR, ModelDrafts
from headrace.speculation.step_cost import StepCost
from headrace.types import Request, SamplingParams

__all__ = ["HeadDrafter"]

_KEPT = 9
"""Times of which the median counts."""
_WARM_UP, _DRAFTS = (3, 3, 3, 3, 64, 64), 8
"""Tokens of the sequences that are drafted at the start, and drafts of each."""


class HeadDrafter(GuardedRounds):
    """A `speculation.model_speculator.DraftingModel`. `draft` waits for the device, while nothing of its sequences is
    in flight in the target. If a round fails, the error is logged once and no more drafts are made; a lost device is
    raised."""

    def __init__(
        self,
        method: str,
        name: str,
        passes: HeadPasses,
        num_blocks: int,
        block_size: int,
        most_tokens: int,
        max_model_len: int,
        vocab: int,
        zero_first: bool,
        busy_seconds: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`most_tokens`: of one pass. `busy_seconds`: the device's counter of its working time."""
        super().__init__(f"the drafter {name}", busy_seconds, clock)
        self.cost = StepCost()
        self.block = 0
        self.method, self.name = method, name
        self._passes, self._size, self._most_tokens = passes, block_size, most_tokens
        self._longest, self._vocab, self._zero_first = max_model_len, vocab, zero_first
        self._free = list(range(num_blocks - 1, 0, -1))
        self._sequences: dict[str, Drafted] = {}
        self._overheads: deque[float] = deque(maxlen=_KEPT)

    @property
    def overhead(self) -> float:
        return median(self._overheads) if self._overheads else 0.0

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def warm_up(self) -> None:
        """Make what is made on first use, and measure. Raises what the device raises."""
        count = min(_DRAFTS, self._longest - 2)
        if count < 1 or self._longest < 4:
            return
        for number, length in enumerate(_WARM_UP):
            # Block 0 of the target, which is never allocated, holds any features.
            most = min(self._longest - count, self._most_tokens, len(self._free) * self._size - count)
            name, prompt = f"warm-up {number}", (0,) * max(min(length, most), 2)
            request = Request(name, prompt, SamplingParams(temperature=0.0))
            known = self._sequences[name] = Drafted(request, [], self._vocab)
            known.tokens, known.slot = list(known.request.prompt), 0
            known.target_blocks = np.zeros(-(-len(known.tokens) // self._size), np.int32)
            if self.room(name) >= count:
                self._round([(name, count)])
            self.end(name)

    def begin(self, request: Request) -> None:
        """Take up a sequence."""
        self._sequences[request.id] = Drafted(request, list(request.prompt), self._vocab)

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        self._sequences[sequence].tokens += tokens

    def end(self, sequence: str) -> None:
        self._free += self._sequences.pop(sequence).blocks

    def place(self, row: DraftRow) -> None:
        """Where a sequence of the next round is on the device."""
        known = self._sequences[row.sequence]
        known.slot, known.target_blocks = row.slot, row.blocks

    def room(self, sequence: str) -> int:
        known = self._sequences[sequence]
        if self.failures or known.entries < 1:
            return 0
        places = (len(known.blocks) + len(self._free)) * self._size
        return max(0, min(self._longest - len(known.tokens), places - known.entries + 1))

    def behind(self, sequence: str) -> int:
        known = self._sequences[sequence]
        return known.entries - known.computed

    def draft(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        """Raises DeviceLost."""
        return self._guarded(len(wanted), lambda: self._round(wanted))

    def _round(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        rows = [(self._sequences[name], count) for name, count in wanted]
        grown = [self._grow(seq, seq.entries + count - 1) for seq, count in rows]
        caught_up = self._catch_up([seq for (seq, _), room in zip(rows, grown, strict=True) if room])
        start = self._clock()
        tokens: list[list[int]] = [[] for _ in wanted]
        ready = [
            at for at, (seq, _) in enumerate(rows) if grown[at] and seq.entries - seq.computed <= NEAR and seq.entries
        ]
        # The sequences with most drafts come first, so that those of each pass are the first ones of the pass before.
        ready.sort(key=lambda at: -rows[at][1])
        while ready and sum(rows[at][0].entries - rows[at][0].computed for at in ready) > self._most_tokens:
            ready.pop()
        if ready:
            found = self._drafts([rows[at] for at in ready], start)
            for at, drafted in zip(ready, found, strict=True):
                tokens[at] = drafted
        return ModelDrafts(tokens, self._clock() - start, [caught_up.get(seq.request.id, 0.0) for seq, _ in rows])

    def _grow(self, seq: Drafted, places: int) -> bool:
        """Give a sequence blocks for so many entries. False: there are not enough."""
        needed = -(-places // self._size) - len(seq.blocks)
        if needed > len(self._free):
            return False
        for _ in range(needed):
            seq.blocks.append(self._free.pop())
        return True

    def _catch_up(self, seqs: Sequence[Drafted]) -> dict[str, float]:
        """Compute entries of sequences that have many, no more than one pass holds in all. Returns the seconds of
        each."""
        budget, spans = self._most_tokens, list[tuple[Drafted, int, int]]()
        for seq in seqs:
            behind = seq.entries - seq.computed
            if behind > NEAR and budget > 0:
                count = min(budget, behind - 1)
                budget -= count
                spans.append((seq, seq.computed, seq.computed + count))
        if not spans:
            return {}
        start = self._clock()
        step = catch_up_pass(spans, self._size, self._zero_first, samples=False)
        self._passes.first(step, features_of(spans, self._size)).result()
        seconds = self._clock() - start
        self._observe(step, seconds)
        for seq, _, stop in spans:
            seq.computed = stop
        each = seconds / step.plan.num_tokens
        return {seq.request.id: each * (stop - first) for seq, first, stop in spans}

    def _drafts(self, rows: Sequence[tuple[Drafted, int]], start: float) -> list[list[int]]:
        """The drafts of sequences, those with most first. All passes are launched before the first result is read."""
        spans = [(seq, seq.computed, seq.entries) for seq, _ in rows]
        steps = [catch_up_pass(spans, self._size, self._zero_first, samples=True)]
        pending: list[Pending] = [self._passes.first(steps[0], features_of(spans, self._size))]
        for depth in range(1, rows[0][1]):
            seqs = [seq for seq, count in rows if count > depth]
            steps.append(following_pass(seqs, depth, self._size))
            pending.append(self._passes.following(steps[-1], depth))
            if depth == 1:
                self._overheads.append(self._clock() - start)
        last, found = self._clock(), list[list[int]]([[] for _ in rows])
        for step, result in zip(steps, pending, strict=True):
            for own, token in zip(found, result.result().tolist(), strict=False):
                own.append(token)
            now = self._clock()
            self._observe(step, now - last)
            last = now
        for seq, _ in rows:
            seq.computed = seq.entries
        return [_until_none(own[:count]) for own, (_, count) in zip(found, rows, strict=True)]

    def _observe(self, step: HeadPass, seconds: float) -> None:
        plan = step.plan
        self.cost.observe(plan.num_tokens, int(plan.positions.sum()) + plan.num_tokens, seconds)


def _until_none(tokens: list[int]) -> list[int]:
    """The tokens before the first row that had none to choose."""
    return next((tokens[:at] for at, token in enumerate(tokens) if token < 0), tokens)
