"""Builds a `StepPlan` from the scheduler's decisions: decodes as one vector, prefill chunks one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.core.constraints import Constraints, gather
from headrace.core.named_rows import name_rows
from headrace.core.sequence import Sequence
from headrace.core.slots import LAST, LOGPROBS, PROMPT_LEN, Slots
from headrace.sampling import FLOAT_ROWS, INT_ROWS
from headrace.types import GIVEN, NO_TOKEN, SamplingBatch, StepPlan, StepResult

__all__ = ["ConstrainedRow", "Decodes", "PrefillChunk", "StepExtras", "StepRecord", "build", "complete"]

Ints = npt.NDArray[np.int32]
NO_INTS: Ints = np.zeros(0, np.int32)
NO_COPIES: Ints = np.zeros((0, 2), np.int32)
_NEVER = np.iinfo(np.int32).max


class Decodes:
    """The sequences that compute one token each, as arrays. Built again when their set changes; a step only advances
    them."""

    def __init__(self, seqs: list[Sequence], slots: Slots, block_size: int, known: bool = False) -> None:
        """`known`: the last token of each has been committed, and the plan has it."""
        self.seqs = seqs
        self.epochs = [seq.epoch for seq in seqs]
        self.slots: Ints = np.array([seq.slot for seq in seqs], np.int32)
        self.index = self.slots.astype(np.intp)
        self.positions: Ints = slots.computed[self.index]
        """The position that the next step computes, per sequence."""
        count = len(seqs)
        ints = slots.ints.take(self.index, axis=1)
        self.last: Ints = ints[LAST]
        self.prompt_lens: Ints = ints[PROMPT_LEN]
        self.ids = tuple(seq.id for seq in seqs)
        self.no_tokens: Ints = np.full(count, NO_TOKEN, np.int32)
        self.token_ids: Ints = np.array([seq.tokens[-1] for seq in seqs], np.int32) if known else self.no_tokens
        self.starts: Ints = np.arange(count + 1, dtype=np.int32)
        self.rows: Ints = self.starts[:count]
        self.special = [(i, own) for i, seq in enumerate(seqs) if (own := slots.constraints[seq.slot]) is not None]
        self.sampling = parameters(slots, self.index)
        self.sampling.num_logprobs = int(ints[LOGPROBS].max(initial=-1))
        name_rows(self.sampling, [seq.params.logprob_token_ids for seq in seqs])
        self._block_size = block_size
        self.longest = int(self.positions.max(initial=-1))
        """The last position that the next step computes."""
        self.until_end = int((self.last - self.positions).min(initial=_NEVER))
        """Steps until one of them computes its last position; below 0: one has computed it."""
        self.until_start = self._until_start()
        """Steps until one of them begins a block."""

    def __len__(self) -> int:
        return len(self.seqs)

    def advance(self, positions: Ints) -> None:
        """Advance to the step after the next one; it computes `positions`."""
        if not self.seqs:
            return
        self.positions = positions
        self.longest += 1
        self.until_end -= 1
        self.until_start = self.until_start - 1 if self.until_start else self._until_start()

    def _until_start(self) -> int:
        return int((-self.positions % self._block_size).min(initial=_NEVER))


@dataclass(slots=True)
class PrefillChunk:
    """Known tokens start:end of one sequence."""

    seq: Sequence
    epoch: int
    start: int
    end: int
    score_from: int
    score_to: int
    """Positions whose next token's logprob was requested."""
    samples: bool
    """The chunk reaches the last known token, and another token must be sampled."""
    row: int = 0
    """Its first row. Rows that score come first, then those that sample."""
    verifies: bool = False
    """The sequence was held so that its drafts can be verified; there may be none."""
    drafts: list[int] = field(default_factory=list)
    """Tokens that may follow the known ones. They are computed with them, and a token is sampled after each."""
    draft_states: list[tuple[Constraints, int]] = field(default_factory=list)
    """For each row that samples in a sequence with a grammar: its constraints, and the token that must come."""
    accepted: int | None = None
    """The number of drafts that were right; None before the commit."""
    length: int | None = None
    """None: all is given. Otherwise the device places the chunk's tokens: its positions here are upper bounds, its
    drafts stand for those of the device, and this is the number of known tokens, or ON_DEVICE."""
    planned: int = 0
    """The number of drafts for which the device had room."""
    token: int = 0
    """Its first token in the plan."""
    rivals: tuple[int, ...] = ()
    """Tokens that are scored in the place of the first one that this chunk scores, in rows behind that one's."""

    @property
    def stop(self) -> int:
        """The end of the positions that it computes."""
        return self.end + len(self.drafts)

    @property
    def pooled(self) -> bool:
        """Whether the hidden states of its tokens are needed."""
        return self.seq.pool is not None and self.seq.pool.needs(self.end)

    def pool(self, result: StepResult) -> bool:
        """Pool the hidden states of a result, if they are needed. False: they are not finite."""
        if not self.pooled:
            return True
        assert self.seq.pool is not None
        assert result.hidden is not None
        return self.seq.pool.add(self.start, result.hidden[self.token : self.token + self.end - self.start])

    @property
    def names(self) -> list[tuple[int, ...]]:
        """For each row the tokens whose logprobs it asks for: none in the place of a prompt's token."""
        own = self.seq.params.logprob_token_ids
        output = max(0, self.score_to - max(self.score_from, self.seq.prompt_len - 1))
        output += self.samples * (1 + len(self.drafts))
        return [()] * (self.num_rows - output) + [own] * output

    @property
    def num_rows(self) -> int:
        return self.score_to - self.score_from + len(self.rivals) + self.samples * (1 + len(self.drafts))

    def scored(self) -> tuple[Ints, Ints]:
        """Of each row that scores a known token: the position, and the token after it."""
        places = np.arange(self.score_from, self.score_to, dtype=np.int32)
        targets = self.seq.array(self.score_from + 1, self.score_to + 1)
        if self.rivals:
            places = np.insert(places, 1, [self.score_from] * len(self.rivals))
            targets = np.insert(targets, 1, self.rivals)
        return places, targets


class ConstrainedRow(NamedTuple):
    """A row with bias, bans or masks."""

    row: int
    position: int
    """Index in the sequence of the token to be sampled."""
    own: Constraints
    seq: Sequence
    epoch: int
    target: int = NO_TOKEN
    """The token that must come if the drafts before it are right."""


@dataclass(slots=True)
class StepExtras:
    """The work of a step besides computing tokens."""

    copies: list[tuple[int, int]] = field(default_factory=list)
    history: list[tuple[int, int, Ints]] = field(default_factory=list)
    """(slot, first position, tokens)"""


@dataclass(slots=True)
class StepRecord:
    """The data of a launched plan that commit needs. Rows of the decodes come first."""

    decodes: Decodes
    count: int
    offsets: Ints
    """[count]; the offset of each decode's token in its block."""
    fills: bool
    """One of the tokens fills its block."""
    chunks: list[PrefillChunk]
    waiting: list[ConstrainedRow] = field(default_factory=list)
    """Constrained rows of a split step."""

    def sequences(self) -> list[tuple[Sequence, int]]:
        """All that take part, each with its epoch."""
        chunks = [(chunk.seq, chunk.epoch) for chunk in self.chunks]
        return [*zip(self.decodes.seqs, self.decodes.epochs, strict=True), *chunks]

    def settled(self, result: StepResult) -> list[PrefillChunk]:
        """The chunks. Those that the device has placed get their true end, and the drafts as far as they were right;
        the other ones that it had stand as NO_TOKEN."""
        for at, chunk in enumerate(self.chunks, self.count):
            if chunk.length is not None:
                assert result.counts is not None
                count, made = result.counts[at].tolist()
                right: list[int] = result.tokens[chunk.row : chunk.row + count - 1].tolist()
                chunk.end, chunk.planned = len(chunk.seq.tokens), len(chunk.drafts)
                chunk.drafts = right + [NO_TOKEN] * (made + 1 - count)
        return self.chunks


def parameters(slots: Slots, index: npt.NDArray[np.intp]) -> SamplingBatch:
    """The parameters of the given slots, without positions or constraints."""
    floats, ints = slots.floats.take(index, axis=1), slots.ints.take(index, axis=1)
    return SamplingBatch(
        params={**dict(zip(FLOAT_ROWS, floats, strict=True)), **dict(zip(INT_ROWS, ints, strict=False))},
        seed=slots.seeds[index],
        position=NO_INTS,
        bias_row=NO_INTS,
        bias_token=NO_INTS,
        bias_value=np.zeros(0, np.float32),
    )


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
