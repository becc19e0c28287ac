"""Builds a `StepPlan` from the scheduler's decisions: decodes as one vector, prefill chunks one by one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.core.constraints import gather
from headrace.core.decodes import Decodes
from headrace.core.named_rows import name_rows
from headrace.core.prefill_chunk import PrefillChunk
from headrace.core.slots import NO_INTS, PROMPT_LEN, Slots, parameters
from headrace.core.step_record import ConstrainedRow, StepExtras, StepRecord
from headrace.types import GIVEN, NO_TOKEN, SamplingBatch, StepPlan

__all__ = ["build", "complete"]

Ints = npt.NDArray[np.int32]
NO_COPIES: Ints = np.zeros((0, 2), np.int32)


def build(
    step: int,
    decodes: Decodes,
    chunks: list[PrefillChunk],
    extras: StepExtras,
    slots: Slots,
    table: Ints,
    block_size: int,
) -> StepPlan:
    """The plan, with arrays in the order decodes, chunks. Arrays may be shared with other plans: they are read-only."""
    positions = decodes.positions
    blocks, offsets = np.divmod(positions, block_size)
    after = positions + 1
    longest = max([decodes.longest + 1, *(chunk.stop for chunk in chunks)])
    decodes.advance(after)
    plan = StepPlan(
        step=step,
        token_ids=decodes.token_ids,
        positions=positions,
        slot_mapping=table[decodes.index, blocks] * block_size + offsets,
        query_start=decodes.starts,
        context_lens=after,
        block_tables=NO_COPIES,
        slots=decodes.slots,
        rows=decodes.rows,
        row_seq=decodes.rows,
        row_target=decodes.no_tokens,
        prompt_lens=decodes.prompt_lens,
        sampling=_sampling(decodes, after),
        copies=np.array(extras.copies, np.int32) if extras.copies else NO_COPIES,
        history_slots=NO_INTS,
        history_positions=NO_INTS,
        history_tokens=NO_INTS,
        request_ids=decodes.ids,
        tag=StepRecord(decodes, len(decodes), offsets, decodes.until_start == 0, chunks),
    )
    special = _special_rows(decodes, after)
    if chunks:
        _add_chunks(plan, chunks, decodes, slots, table, block_size)
        plan.hidden = any(chunk.pooled for chunk in chunks)
        special += _special_chunks(chunks, slots)
    if any(row.own.matcher is not None for row in special):
        plan.split, plan.tag.waiting = True, special
    elif special:
        _constrain(plan.sampling, special)
    if extras.history:
        _add_history(plan, extras.history)
    plan.block_tables = table[plan.slots, : -(-longest // block_size)]
    return plan


def _sampling(decodes: Decodes, positions: Ints) -> SamplingBatch:
    shared = decodes.sampling
    return SamplingBatch(
        shared.params,
        shared.seed,
        positions,
        shared.bias_row,
        shared.bias_token,
        shared.bias_value,
        num_logprobs=shared.num_logprobs,
        named=shared.named,
    )


def _special_rows(decodes: Decodes, positions: Ints) -> list[ConstrainedRow]:
    return [
        ConstrainedRow(row, int(positions[row]), own, decodes.seqs[row], decodes.epochs[row])
        for row, own in decodes.special
    ]


def _special_chunks(chunks: list[PrefillChunk], slots: Slots) -> list[ConstrainedRow]:
    found = []
    for chunk in chunks:
        own = slots.constraints[chunk.seq.slot]
        if chunk.samples and own is not None:
            first = chunk.row + chunk.score_to - chunk.score_from + len(chunk.rivals)
            states = chunk.draft_states or [(own, NO_TOKEN)] * (1 + len(chunk.drafts))
            found += [
                ConstrainedRow(first + at, chunk.end + at, state, chunk.seq, chunk.epoch, target)
                for at, (state, target) in enumerate(states)
            ]
    return found


def complete(plan: StepPlan) -> None:
    """Set the constraints of a split plan, after the plans before it have been committed. Rows whose token is known by
    now are scored instead of sampled; the tokens of sequences that have ended will be dropped."""
    record: StepRecord = plan.tag
    rows = [one for one in record.waiting if one.seq.epoch == one.epoch]
    known = {
        one.row: one.seq.tokens[one.position] if one.position < len(one.seq.tokens) else one.target
        for one in rows
        if one.position < len(one.seq.tokens) or one.target != NO_TOKEN
    }
    if known:
        plan.row_target = plan.row_target.copy()
        plan.row_target[[*known]] = [*known.values()]
    _constrain(plan.sampling, [one for one in rows if one.row not in known])


def _constrain(sampling: SamplingBatch, rows: list[ConstrainedRow]) -> None:
    found = gather([(one.row, one.position, one.own) for one in rows], len(sampling.position))
    sampling.bias_row, sampling.bias_token, sampling.bias_value = found.row, found.token, found.value
    sampling.allowed, sampling.allowed_row = found.allowed, found.allowed_row


def _add_chunks(
    plan: StepPlan, chunks: list[PrefillChunk], decodes: Decodes, slots: Slots, table: Ints, block_size: int
) -> None:
    tokens, positions, mapping, rows, targets, sampled = [], [], [], [], [], []
    counts: list[int] = []
    at = row = len(decodes)
    for chunk in chunks:
        seq, start, stop = chunk.seq, chunk.start, chunk.stop
        where = np.arange(start, stop, dtype=np.int32)
        known = seq.tokens[start : chunk.end] if chunk.length is None else [NO_TOKEN]
        tokens.append(np.array(known + chunk.drafts, np.int32))
        positions.append(where)
        mapping.append(table[seq.slot, where // block_size] * block_size + where % block_size)
        chunk.row, chunk.token = row, at
        scored, wanted = chunk.scored()
        rows.append(scored + (at - start))
        targets.append(wanted)
        sampled.append(scored + 1)
        if chunk.samples:
            after = np.arange(chunk.end, stop + 1, dtype=np.int32)
            rows.append(after + (at - start - 1))
            targets.append(np.full(len(after), NO_TOKEN, np.int32))
            sampled.append(after)
        counts.append(chunk.num_rows)
        row += chunk.num_rows
        at += stop - start
    plan.token_ids = np.concatenate([plan.token_ids, *tokens])
    plan.positions = np.concatenate([plan.positions, *positions])
    plan.slot_mapping = np.concatenate([plan.slot_mapping, *mapping])
    plan.rows = np.concatenate([plan.rows, *rows])
    plan.row_target = np.concatenate([plan.row_target, *targets])
    _add_sequences(plan, chunks, decodes, slots)
    plan.row_seq = np.concatenate(
        [plan.row_seq, np.repeat(np.arange(len(chunks), dtype=np.int32), counts) + len(decodes)]
    )
    plan.sampling = _mixed_sampling(
        plan, chunks, decodes, slots, np.concatenate([plan.context_lens[: len(decodes)], *sampled])
    )


def _add_sequences(plan: StepPlan, chunks: list[PrefillChunk], decodes: Decodes, slots: Slots) -> None:
    own = np.array([(c.seq.slot, c.stop, c.stop - c.start) for c in chunks], np.int32).T
    plan.slots = np.concatenate([plan.slots, own[0]])
    plan.context_lens = np.concatenate([plan.context_lens, own[1]])
    plan.query_start = np.concatenate([plan.query_start, len(decodes) + np.cumsum(own[2], dtype=np.int32)])
    plan.prompt_lens = slots.ints[PROMPT_LEN, plan.slots]
    plan.request_ids = (*plan.request_ids, *(chunk.seq.id for chunk in chunks))
    if any(chunk.length is not None for chunk in chunks):
        lengths = [GIVEN if chunk.length is None else chunk.length for chunk in chunks]
        plan.lengths = np.array([GIVEN] * len(decodes) + lengths, np.int32)


def _mixed_sampling(
    plan: StepPlan, chunks: list[PrefillChunk], decodes: Decodes, slots: Slots, positions: Ints
) -> SamplingBatch:
    sampling = parameters(slots, plan.slots[plan.row_seq].astype(np.intp))
    sampling.position = positions
    sampling.num_logprobs = decodes.sampling.num_logprobs
    for chunk in chunks:
        params = chunk.seq.params
        wanted = [params.logprobs] if chunk.samples else []
        if chunk.score_from < chunk.seq.prompt_len - 1 and chunk.score_to > chunk.score_from:
            wanted.append(params.prompt_logprobs)
        if chunk.score_to >= chunk.seq.prompt_len:
            wanted.append(params.logprobs)
        sampling.num_logprobs = max([sampling.num_logprobs, *(k for k in wanted if k is not None)])
    if decodes.sampling.named is not None or any(chunk.seq.params.logprob_token_ids for chunk in chunks):
        names = [seq.params.logprob_token_ids for seq in decodes.seqs]
        name_rows(sampling, names + [own for chunk in chunks for own in chunk.names])
    return sampling


def _add_history(plan: StepPlan, history: list[tuple[int, int, Ints]]) -> None:
    plan.history_slots = np.concatenate([np.full(len(tokens), slot, np.int32) for slot, _, tokens in history])
    plan.history_positions = np.concatenate([np.arange(at, at + len(t), dtype=np.int32) for _, at, t in history])
    plan.history_tokens = np.concatenate([tokens for _, _, tokens in history])
