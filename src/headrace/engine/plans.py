"""Plans that the runner makes itself, without a scheduler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from headrace.sampling import DEVICE_ROWS
from headrace.types import NO_TOKEN, SamplingBatch, StepPlan

__all__ = ["dummy_plan", "history_plan", "placed_plan", "single_sequence_plan"]

_Ints = npt.NDArray[np.int32]


def dummy_plan() -> StepPlan:
    """One token of one sequence, sampled greedily. It only uses block 0, which is never allocated."""
    return _plan(_ints(0), _ints(0), _ints(0), _ints(0), _ints(0))


def placed_plan(sequences: int, drafts: int, block_size: int) -> StepPlan:
    """Sequences of one known token, which the device places, with so many drafts each. It only uses block 0."""
    count = 1 + drafts
    within = np.tile(np.arange(count, dtype=np.int32), sequences)
    slots = np.arange(sequences, dtype=np.int32)
    owner = slots.repeat(count)
    plan = _plan(np.full_like(within, NO_TOKEN), within, owner, slots, np.arange(len(within), dtype=np.int32))
    return replace(
        plan,
        slot_mapping=within % block_size,
        block_tables=np.zeros((sequences, -(-count // block_size)), np.int32),
        row_seq=owner,
        sampling=replace(plan.sampling, position=within + 1),
        lengths=np.ones(sequences, np.int32),
    )


def single_sequence_plan(tokens: int, context: int, block_size: int) -> StepPlan:
    """`tokens` of one sequence after `context` others, with any content of the cache; the last token is sampled
    greedily. It uses blocks from 1 on."""
    plan = _plan(
        np.ones(tokens, np.int32),
        context + np.arange(tokens, dtype=np.int32),
        _zeros(tokens),
        _ints(0),
        _ints(tokens - 1),
    )
    blocks = np.arange(1, 2 + (context + tokens - 1) // block_size, dtype=np.int32)
    return replace(
        plan,
        slot_mapping=plan.positions + block_size,
        context_lens=_ints(context + tokens),
        block_tables=blocks[None],
        prompt_lens=_ints(context + tokens),
    )


def history_plan(tokens: _Ints, positions: _Ints, slots: _Ints) -> StepPlan:
    """Known tokens with their rows of the history, in any order; nothing is sampled."""
    rows, seq = np.unique(slots, return_inverse=True)
    order = np.argsort(seq, kind="stable")
    return _plan(tokens[order], positions[order], seq[order].astype(np.int32), rows.astype(np.int32), _ints())


def _zeros(count: int) -> _Ints:
    return np.zeros(count, np.int32)


def _ints(*values: int) -> _Ints:
    return np.array(values, np.int32)


def _plan(token_ids: _Ints, positions: _Ints, token_seq: _Ints, slots: _Ints, rows: _Ints) -> StepPlan:
    """A plan of tokens that are ordered by sequence."""
    start = np.zeros(len(slots) + 1, np.int32)
    start[1:] = np.bincount(token_seq, minlength=len(slots)).cumsum()
    return StepPlan(
        step=-1,
        token_ids=token_ids,
        positions=positions,
        slot_mapping=np.zeros_like(token_ids),
        query_start=start,
        context_lens=start[1:] - start[:-1],
        block_tables=np.zeros((len(slots), 1), np.int32),
        slots=slots,
        rows=rows,
        row_seq=np.zeros_like(rows),
        row_target=np.full_like(rows, NO_TOKEN),
        prompt_lens=np.ones(len(slots), np.int32),
        sampling=_greedy(len(rows)),
        copies=np.zeros((0, 2), np.int32),
        history_slots=_ints(),
        history_positions=_ints(),
        history_tokens=_ints(),
    )


def _greedy(rows: int) -> SamplingBatch:
    neutral = {name: np.full(rows, row.neutral, row.dtype) for name, row in DEVICE_ROWS.items()}
    return SamplingBatch(
        params={**neutral, "temperature": np.zeros(rows, np.float32)},
        seed=np.zeros(rows, np.uint64),
        position=np.ones(rows, np.int32),
        bias_row=_ints(),
        bias_token=_ints(),
        bias_value=np.zeros(0, np.float32),
        num_logprobs=-1,
    )
