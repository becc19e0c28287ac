"""Drafts of a head that reads the target's hidden states, or of a smaller model: its sequences, its cache, its rounds.

Nothing is computed ahead: a model needs the tokens alone, and for a head the features of all tokens are kept in the
target's blocks. So a round first computes the entries that the drafter's own cache lacks, and then drafts, whatever
cached prefixes, chunks and preemptions there were. Each running sequence has its own blocks in that cache, and gives
them back if it is preempted; full ones of a model also serve others that begin with the same tokens, and the same
sequence when it goes on (`draft_blocks`). What earlier rounds have computed of known tokens stays right, because no
known token changes. The entries of a model's drafts stay, too, as far as these are right; those of a head were made of
its own output, and are computed again.

If the device places a sequence, its rounds are launched while steps before them are in flight, and nothing waits for
them: the device moves the passes to where the last right token is, and the next step finds the drafts in its history of
tokens. How many entries a round lacks is known but for the drafts in flight that are wrong. It computes as many as may
be missing, and others that are there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from headrace.core.drafts import DraftRow
from headrace.engine.draft_blocks import DraftBlocks
from headrace.engine.head_passes import HeadPasses
from headrace.engine.head_plans import Drafted, HeadPass, Span, catch_up_pass, deeper_pass, following_pass, known_pass
from headrace.engine.unwaited_rounds import UnwaitedRounds, until_none
from headrace.platforms.interface import Pending
from headrace.speculation.model_speculator import NEAR, ModelDrafts
from headrace.types import NO_TOKEN, Request, SamplingParams

__all__ = ["HeadDrafter"]

_KEPT = 9
"""Times of which the median counts."""
_WARM_UP, _DRAFTS = (64, 64, 3, 3, 3, 3), 8
"""Tokens of the sequences that are drafted at the start, and drafts of each."""
_LONG = 64
"""Entries that take longer to compute than a round takes to launch."""


class HeadDrafter(UnwaitedRounds):
    """A `speculation.model_speculator.DraftingModel`. `draft` waits for the device, unless the device places all
    sequences of the round; while it waits for others, nothing of these is in flight in the target. If a round fails,
    the error is logged and no more drafts are made, unless `renew` is called; a lost device is raised."""

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
        sharing: bool = False,
    ) -> None:
        """`most_tokens`: of one pass; `max_model_len`: the most tokens of a sequence, drafts included. `busy_seconds`:
        the device's counter of its working time. `sharing`: sequences share what is computed of their prefixes, which
        takes entries without lag."""
        super().__init__(f"the drafter {name}", passes.places, busy_seconds, clock, passes.times)
        self.block = 0
        self.method, self.name = method, name
        self._passes, self._size, self._most_tokens = passes, block_size, most_tokens
        self._longest, self._vocab, self._zero_first = max_model_len, vocab, zero_first
        self._own = num_blocks, block_size, sharing
        self._blocks = DraftBlocks(*self._own)
        self._sequences: dict[str, Drafted] = {}
        self._overheads: deque[float] = deque(maxlen=_KEPT)
        self._first = int(zero_first and passes.places)
        """The first entry of a round that is not like the others."""

    @property
    def overhead(self) -> float:
        return median(self._overheads) if self._overheads else 0.0

    @property
    def free_blocks(self) -> int:
        return self._blocks.available

    def warm_up(self) -> None:
        """Make what is made on first use, and measure. Raises what the device raises."""
        count = min(_DRAFTS, self._longest - 2)
        if count < 1 or self._longest < 4:
            return
        for number, length in enumerate(_WARM_UP):
            # Block 0 of the target, which is never allocated, holds any features.
            most = min(self._longest - count, self._most_tokens, self.free_blocks * self._size - count)
            name, prompt = f"warm-up {number}", (0,) * max(min(length, most), 2)
            request = Request(name, prompt, SamplingParams(temperature=0.0))
            known = self._sequences[name] = self._drafted(request)
            known.slot, known.known = 0, len(known.tokens)
            known.target_blocks = np.zeros(-(-len(known.tokens) // self._size), np.int32)
            if self.room(name) >= count:
                self._keep_busy(known)
                self._round([(name, count)])
            self._blocks.release(self._sequences.pop(name), keep=False)
        self.cost.replace_soon()

    def _keep_busy(self, seq: Drafted) -> None:
        """If rounds are not waited for, their passes run one right behind the other. Launch a pass that takes longer
        than the launches of a round, so that the round is measured like that."""
        count = min(_LONG, self._longest - 2, self._most_tokens, self.free_blocks * self._size)
        if not self._passes.places or count < 1:
            return
        blocks = self._blocks.pool.free[: -(-count // self._size)]
        table = np.zeros(len(blocks), np.int32)
        long = replace(seq, tokens=[0] * (count + 2), blocks=blocks, target_blocks=table)
        self._passes.known(known_pass([Span(long, 0, count)], self._size, self._zero_first), timed=False)

    def begin(self, request: Request) -> None:
        """Take up a sequence."""
        known = self._sequences[request.id] = self._drafted(request)
        self._blocks.share(known)

    def _drafted(self, request: Request) -> Drafted:
        return Drafted(request, list(request.prompt), self._vocab, self._passes.lag)

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        known = self._sequences[sequence]
        known.extend(tokens)
        if known.paused:
            known.paused = False
            self._blocks.share(known)

    def pause(self, sequence: str, keep: bool) -> None:
        known = self._sequences[sequence]
        self._release(known, keep)
        known.forget()
        known.paused = True

    def end(self, sequence: str, keep: bool) -> None:
        self._release(self._sequences.pop(sequence), keep)

    def _release(self, known: Drafted, keep: bool) -> None:
        # Behind a step of the target that has failed, the passes in flight may not have computed what is counted.
        self._blocks.release(known, keep=keep and not self.ended)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._passes.renew()
        self._blocks = DraftBlocks(*self._own)
        for known in self._sequences.values():
            known.forget()

    def place(self, row: DraftRow) -> None:
        """Where a sequence of the next round is on the device."""
        self._sequences[row.sequence].place(row)

    def room(self, sequence: str) -> int:
        known = self._sequences[sequence]
        if self.ended or known.entries < 1 + self._first:
            return 0
        places = (len(known.blocks) + self.free_blocks) * self._size
        return max(0, min(self._longest - len(known.tokens), places - known.entries + 1))

    def behind(self, sequence: str) -> int:
        known = self._sequences[sequence]
        return known.entries - known.computed

    def draft(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        """Raises DeviceLost."""
        return self._launched(len(wanted), lambda: self._round(wanted))

    def _round(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        rows = [(seq, self._allowed(seq, count)) for seq, count in ((self._sequences[name], n) for name, n in wanted)]
        for seq, _ in rows:
            self._blocks.share(seq)
        grown = [count > 0 and self._blocks.grow(seq, seq.known - seq.lag + count - 1) for seq, count in rows]
        caught_up = self._catch_up([seq for (seq, _), room in zip(rows, grown, strict=True) if room])
        start = self._clock()
        tokens: list[list[int]] = [[] for _ in wanted]
        ready = [at for at, (seq, _) in enumerate(rows) if grown[at] and self._may_begin(seq)]
        # The sequences with most drafts come first, so that those of each pass are the first ones of the pass before.
        ready.sort(key=lambda at: -rows[at][1])
        spans = {at: rows[at][0].missing() for at in ready}
        while ready and sum(spans[at].stop - spans[at].start for at in ready) > self._most_tokens:
            ready.pop()
        seconds = 0.0
        if ready:
            found, seconds = self._drafts([rows[at] for at in ready], start)
            for at, drafted in zip(ready, found, strict=True):
                tokens[at] = drafted
        return ModelDrafts(tokens, seconds, [caught_up.get(seq.request.id, 0.0) for seq, _ in rows])

    def _allowed(self, seq: Drafted, count: int) -> int:
        """So many drafts that they fit, and that the next round has a place for its entries even if none of those in
        flight is right."""
        most = self._longest - seq.known
        return min(count, most, seq.known - seq.uncertain - self._first - 1) if seq.placed else min(count, most)

    def _may_begin(self, seq: Drafted) -> bool:
        """No more entries are missing than a round computes, and their tokens can be found."""
        span = seq.missing()
        return seq.entries - seq.computed <= NEAR and span.start >= self._first + seq.uncertain

    def _catch_up(self, seqs: Sequence[Drafted]) -> dict[str, float]:
        """Compute entries of sequences that have many, no more than one pass holds in all. Returns the seconds of
        each."""
        budget, spans = self._most_tokens, list[Span]()
        for seq in seqs:
            behind = seq.entries - seq.computed
            if (behind > NEAR or (behind > 1 and seq.computed < self._first)) and budget > 0:
                count = min(budget, behind - 1)
                budget -= count
                spans.append(Span(seq, seq.computed, seq.computed + count))
        if not spans:
            return {}
        start = self._clock()
        step = known_pass(spans, self._size, self._zero_first)
        *begun, done = self._passes.known(step, self._passes.places)
        for result in begun:
            result.result()
            start = self._clock()
        done.result()
        seconds = self._clock() - start
        self._observe(step, seconds)
        for seq, _, stop in spans:
            seq.caught_up(stop)
            self._blocks.publish(seq)
        self._count(seconds, waited=True)
        each = seconds / step.plan.num_tokens
        return {seq.request.id: each * (stop - first) for seq, first, stop in spans}

    def _drafts(self, rows: Sequence[tuple[Drafted, int]], start: float) -> tuple[list[list[int]], float]:
        """The drafts of sequences, those with most first, and their seconds. All passes are launched before the first
        result is read; that of a placed sequence is not needed."""
        spans = [seq.begin_round(count) for seq, count in rows]
        sizes = [sum(span.stop - span.start for span in spans)]
        sizes += [sum(count > depth for _, count in rows) for depth in range(1, rows[0][1])]
        timed = not all(seq.placed for seq, _ in rows) or self._measures(sizes)
        steps, marks = [catch_up_pass(spans, self._size, self._zero_first)], [self._times.mark()]
        *begun, first = self._passes.first(steps[0], timed and self._passes.places)
        pending = [first]
        marks.append(self._times.mark())
        for depth, size in enumerate(sizes[1:], 1):
            left = [seq for seq, _ in rows[:size]]
            if depth == 1:
                steps.append(following_pass(left, depth, self._size))
            else:
                steps.append(deeper_pass(steps[-1], left, depth, self._size))
            pending.append(self._passes.following(steps[-1], depth))
            marks.append(self._times.mark())
            if depth == 1 and not self._passes.places:
                self._overheads.append(self._clock() - start)
        if timed:
            for result in begun:
                result.result()
                start = self._clock()
            found = self._read(rows, steps, pending)
            seconds = self._clock() - start
            for own, (seq, _) in zip(found, rows, strict=True):
                seq.guessed = [] if seq.placed or seq.lag else own[:-1]
        else:
            found = [[] for _ in rows]
            seconds = self._leave(pending, [(step.plan.num_tokens, step.context) for step in steps], marks)
        self._count(seconds, timed)
        drafts = [[NO_TOKEN] * count if seq.placed else own for own, (seq, count) in zip(found, rows, strict=True)]
        return drafts, seconds

    def _read(
        self, rows: Sequence[tuple[Drafted, int]], steps: Sequence[HeadPass], pending: Sequence[Pending]
    ) -> list[list[int]]:
        """Wait for the drafts of a round, and learn the times of its passes."""
        last, found = self._clock(), list[list[int]]([[] for _ in rows])
        for step, result in zip(steps, pending, strict=True):
            for own, token in zip(found, result.result().tolist(), strict=False):
                own.append(token)
            now = self._clock()
            self._observe(step, now - last)
            last = now
        return [until_none(own[:count]) for own, (_, count) in zip(found, rows, strict=True)]

    def _observe(self, step: HeadPass, seconds: float) -> None:
        self.cost.observe(step.plan.num_tokens, step.context, seconds)
