"""The end of sequences, and their way back in the queue: what becomes of their slots and blocks, and the delta of one
that ends by a fault."""

from __future__ import annotations

import logging

from headrace.core.fetches import Fetches
from headrace.core.kv_cache import KVCache
from headrace.core.open_sequences import OpenSequences
from headrace.core.running import RunningSequences
from headrace.core.sequence import Sequence
from headrace.core.slots import Slots
from headrace.core.step_clock import StepClock
from headrace.core.successors import Successors
from headrace.core.verification import Verification
from headrace.core.waiting_queue import WaitingQueue
from headrace.types import NOT_FINITE, Delta

__all__ = ["SequenceEnds"]

_log = logging.getLogger(__name__)


class SequenceEnds:
    """Takes sequences out of the parts of a scheduler that have them."""

    def __init__(
        self,
        clock: StepClock,
        requests: dict[str, Sequence],
        waiting: WaitingQueue,
        running: tuple[RunningSequences, Slots, KVCache],
        kept: tuple[OpenSequences, Fetches],
        ahead: tuple[Successors, Verification | None],
    ) -> None:
        """`requests`: all sequences that have not ended. `running`: those that run, and what they have; `kept`: what
        else has slots or blocks; `ahead`: what goes beyond their tokens."""
        self._clock, self._requests, self._waiting = clock, requests, waiting
        self._running, self._slots, self._cache = running
        self._open, self._fetches = kept
        self._successors, self._verification = ahead
        self.broken: dict[str, list[int]] = {}
        """Known tokens of ended sequences whose logits were not finite, until the engine removes them."""

    def end(self, seq: Sequence, keep: bool = True, opens: bool = False) -> None:
        """Remove a sequence; its results in flight become invalid. `opens`: it stays open if its request wants that."""
        self._successors.leave(seq)
        if seq.slot >= 0 and opens and seq.request.keep:
            seq.closed_at = self._clock.launched
            self._running.leave(seq)
            self._open.add(seq, self._clock.now)
        elif seq.slot >= 0:
            self.release(seq, keep)
        elif not seq.succeeded:
            self._waiting.remove(seq)
        self._fetches.remove(seq)
        del self._requests[seq.id]
        seq.epoch += 1
        if self._verification is not None:
            self._verification.end(seq, keep)

    def set_back(self, seq: Sequence, keep: bool = True) -> None:
        """Release what a running sequence has: it waits in the queue then, and goes on where it was. `keep`: what was
        computed of it stays cached."""
        self.release(seq, keep)
        if self._verification is not None:
            self._verification.pause(seq, keep)

    def release(self, seq: Sequence, keep: bool = True) -> None:
        """Release the slot and the blocks of a sequence."""
        slot = seq.slot
        self._cache.release(seq, self._clock.committed, self._clock.launched, keep)
        self._slots.release(slot)
        self._running.leave(seq)

    def fail(self, seq: Sequence, message: str, own: bool = False) -> Delta:
        """End a sequence with reason `error`. `own`: its request is the cause."""
        cached = max(seq.cached, 0)
        self.end(seq, keep=False)
        return Delta(seq.id, finish_reason="error", error=message, request_fault=own, cached_tokens=cached)

    def fault(self, seq: Sequence, error: Exception) -> Delta:
        """End a sequence whose result could not be processed: an internal error must not affect other sequences."""
        _log.error("request %s failed in the engine", seq.id, exc_info=error)
        return self.fail(seq, f"the engine failed on this request: {type(error).__name__}: {error}")

    def without_token(self, seq: Sequence, why: int) -> Delta:
        """End a sequence for which the device found no token."""
        if why != NOT_FINITE:
            return self.fail(seq, "no token is left to sample: bans, masks and the constraint exclude every one", True)
        self.broken[seq.id] = list(seq.tokens)
        delta = self.fail(seq, "the model's logits are not finite")
        # Cached prefixes of this sequence may hold the same invalid numbers.
        self._fetches.forget(seq)
        self.reset_cache()
        return delta

    def reset_cache(self) -> None:
        """Remove all cached prefixes and close what is open; blocks of running sequences are released when they end."""
        self._open.clear()
        self._fetches.reset()
        self._cache.tree.reset()
