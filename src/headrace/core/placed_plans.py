"""Plans of steps, with those in which the device places every sequence made from kept arrays.

As long as the same sequences verify as many drafts as before, most arrays of such a step are those of an earlier one.
They are kept, so that a step makes a few small arrays, and what is on the device already is recognized by identity.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.core.decodes import Decodes
from headrace.core.plan_builder import NO_COPIES, build
from headrace.core.prefill_chunk import PrefillChunk
from headrace.core.slots import NO_INTS, PROMPT_LEN, Slots, parameters
from headrace.core.step_record import StepExtras, StepRecord
from headrace.types import NO_TOKEN, SamplingBatch, StepPlan

__all__ = ["Plans"]

Ints = npt.NDArray[np.int32]
_KEPT = 32
"""Combinations of sequences and drafts whose arrays are kept."""


@dataclass(frozen=True, slots=True)
class _Lasting:
    """What does not change from step to step."""

    token_ids: Ints
    within: Ints
    """[T]; the place of each token behind its sequence's first one."""
    owner: npt.NDArray[np.intp]
    """[T]; index into S."""
    token_slots: npt.NDArray[np.intp]
    """[T]"""
    query_start: Ints
    counts: Ints
    """[S]; tokens."""
    slots: Ints
    rows: Ints
    row_seq: Ints
    no_targets: Ints
    prompt_lens: Ints
    sampling: SamplingBatch
    """Without positions."""
    ids: tuple[str, ...]


class Plans:
    """Makes the plans of one scheduler."""

    def __init__(self, slots: Slots, table: Ints, block_size: int) -> None:
        """`table`: block ids [slots, blocks], which others change."""
        self._slots, self._table, self._block_size = slots, table, block_size
        self._kept: dict[tuple[tuple[int, int, int, int], ...], _Lasting] = {}

    def build(self, step: int, decodes: Decodes, chunks: list[PrefillChunk], extras: StepExtras) -> StepPlan:
        """The plan that `plan_builder.build` makes."""
        if decodes.seqs or not chunks or extras.copies or extras.history or not all(map(self._plain, chunks)):
            return build(step, decodes, chunks, extras, self._slots, self._table, self._block_size)
        return self._placed(step, decodes, chunks)

    def _placed(self, step: int, decodes: Decodes, chunks: list[PrefillChunk]) -> StepPlan:
        kept = self._lasting(decodes, chunks)
        starts: Ints = np.array([chunk.start for chunk in chunks], np.int32)
        positions: Ints = starts[kept.owner] + kept.within
        blocks, offsets = np.divmod(positions, self._block_size)
        for chunk, at in zip(chunks, kept.query_start.tolist(), strict=False):
            chunk.row = chunk.token = at
        context_lens: Ints = starts + kept.counts
        longest = int(context_lens.max())
        return StepPlan(
            step=step,
            token_ids=kept.token_ids,
            positions=positions,
            slot_mapping=self._table[kept.token_slots, blocks] * self._block_size + offsets,
            query_start=kept.query_start,
            context_lens=context_lens,
            block_tables=self._table[kept.slots, : -(-longest // self._block_size)],
            slots=kept.slots,
            rows=kept.rows,
            row_seq=kept.row_seq,
            row_target=kept.no_targets,
            prompt_lens=kept.prompt_lens,
            sampling=replace(kept.sampling, position=positions + 1),
            copies=NO_COPIES,
            history_slots=NO_INTS,
            history_positions=NO_INTS,
            history_tokens=NO_INTS,
            lengths=np.array([chunk.length for chunk in chunks], np.int32),
            request_ids=kept.ids,
            tag=StepRecord(decodes, 0, NO_INTS, False, chunks),
        )

    def _plain(self, chunk: PrefillChunk) -> bool:
        """The device places its sequence, whose rows are sampled without constraints and names."""
        seq = chunk.seq
        return (
            chunk.length is not None
            and self._slots.constraints[seq.slot] is None
            and seq.pool is None
            and not seq.params.logprob_token_ids
        )

    def _lasting(self, decodes: Decodes, chunks: list[PrefillChunk]) -> _Lasting:
        key = tuple([(c.seq.order, c.seq.slot, c.epoch, len(c.drafts)) for c in chunks])
        kept = self._kept.get(key)
        if kept is None:
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[key] = self._make(decodes, chunks)
        return kept

    def _make(self, decodes: Decodes, chunks: Items[PrefillChunk]) -> _Lasting:
        counts: Ints = np.array([1 + len(chunk.drafts) for chunk in chunks], np.int32)
        query_start: Ints = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
        row_seq: Ints = np.arange(len(chunks), dtype=np.int32).repeat(counts)
        rows: Ints = np.arange(len(row_seq), dtype=np.int32)
        slots: Ints = np.array([chunk.seq.slot for chunk in chunks], np.int32)
        owner = row_seq.astype(np.intp)
        token_slots = slots[owner].astype(np.intp)
        wanted = [params.logprobs for params in (chunk.seq.params for chunk in chunks) if params.logprobs is not None]
        no_tokens: Ints = np.full(len(rows), NO_TOKEN, np.int32)
        sampling = parameters(self._slots, token_slots)
        sampling.num_logprobs = max([decodes.sampling.num_logprobs, *wanted])
        return _Lasting(
            token_ids=no_tokens,
            within=rows - query_start[owner],
            owner=owner,
            token_slots=token_slots,
            query_start=query_start,
            counts=counts,
            slots=slots,
            rows=rows,
            row_seq=row_seq,
            no_targets=no_tokens,
            prompt_lens=self._slots.ints[PROMPT_LEN, slots],
            sampling=sampling,
            ids=tuple([chunk.seq.id for chunk in chunks]),
        )
