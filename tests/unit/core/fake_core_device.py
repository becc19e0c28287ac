"""A small device: its KV cache holds token ids, and what it samples is a hash of all that a row attends to.

It reads every context through the block table, so a block that is stale, lost or somebody else's changes the tokens,
and it executes a plan when it is launched, as a stream would.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from headrace.core import CoreConfig
from headrace.types import GIVEN, NO_TOKEN, ON_DEVICE, Request, StepPlan, StepResult

POISON = -7


def mark(context: tuple[int, ...], seed: int) -> int:
    return zlib.crc32(repr((context, seed)).encode())


def names(mark: int, tokens: Iterable[int]) -> tuple[tuple[int, float], ...]:
    """The tokens that a request names, with their logprobs behind a context."""
    return tuple((token, -((mark + token) % 991 / 8)) for token in tokens)


def choose(mark: int, vocab: int, eos_every: int, forbidden: frozenset[int]) -> int:
    """Token 1 ends a sequence in one of `eos_every` draws."""
    token = 1 if eos_every and mark % eos_every == 0 else 2 + mark % (vocab - 2)
    assert len(forbidden) < vocab, "nothing is left to sample"
    while token in forbidden:
        token = (token + 1) % vocab
    return token


class FakeDevice:
    def __init__(self, config: CoreConfig, requests: Mapping[str, Request], eos_every: int = 0) -> None:
        self.config, self.requests, self.eos_every = config, requests, eos_every
        self.kv = np.full((config.num_blocks, config.block_size), POISON, np.int64)
        self.history = np.full((config.max_num_seqs, config.max_model_len + 1), POISON, np.int64)
        self.computed = 0
        self.lengths = np.full(config.max_num_seqs, POISON, np.int64)
        self.guess: Callable[[str, list[int], int], list[int]] = lambda id, known, most: []
        """Drafts of a sequence that the device places: (request, all its known tokens, the most) → tokens."""
        self.made: dict[int, int] = {}
        """The number of drafts in the latest step, by slot."""
        self.stored: dict[int, np.ndarray] = {}
        """What plans have read, by step."""
        self.placed: dict[int, StepPlan] = {}
        """Plans with placed sequences, as the device computes them."""

    def launch(self, plan: StepPlan) -> StepResult:
        self.forward(plan)
        return self.sample(plan)

    def move(self, plan: StepPlan) -> None:
        """Read blocks for what is beside the device, then write others."""
        if plan.stores is not None:
            assert len(set(plan.stores.tolist())) == len(plan.stores)
            self.stored[plan.step] = np.ascontiguousarray(self.kv[plan.stores]).view(np.uint8)
        for block, data in plan.loads:
            assert block > 0, "block 0 is padding"
            self.kv[block] = np.frombuffer(data, np.int64)

    def place(self, plan: StepPlan) -> StepPlan:
        """The plan with the true positions of sequences that the device places, and their drafts."""
        assert plan.lengths is not None
        ids, positions, mapping, context = (
            x.copy() for x in (plan.token_ids, plan.positions, plan.slot_mapping, plan.context_lens)
        )
        size = self.config.block_size
        for s in np.flatnonzero(plan.lengths != GIVEN).tolist():
            slot, (begin, end) = plan.slots[s], plan.query_start[s : s + 2].tolist()
            known = int(self.lengths[slot]) if plan.lengths[s] == ON_DEVICE else int(plan.lengths[s])
            assert 0 < known <= plan.positions[begin] + 1, "the plan has upper bounds"
            assert plan.lengths[s] == ON_DEVICE or known == plan.positions[begin] + 1
            self.lengths[slot] = known
            tokens = self.history[slot, :known].tolist()
            assert min(tokens) >= 0, "history misses tokens"
            drafts = self.guess(plan.request_ids[s], tokens, end - begin - 1)
            self.made[int(slot)] = len(drafts)
            ids[begin + 1 : end] = [*drafts, *[0] * (end - begin - 1)][: end - begin - 1]
            positions[begin:end] = np.arange(known - 1, known - 1 + end - begin)
            mapping[begin:end] = plan.block_tables[s, positions[begin:end] // size] * size + positions[begin:end] % size
            context[s] = known - 1 + end - begin
        return replace(plan, token_ids=ids, positions=positions, slot_mapping=mapping, context_lens=context)

    def count(self, plan: StepPlan, tokens: list[int]) -> np.ndarray:
        """`StepResult.counts`; moves the lengths on."""
        assert plan.lengths is not None
        counts = np.zeros((plan.num_seqs, 2), np.int32)
        for s in np.flatnonzero(plan.lengths != GIVEN).tolist():
            begin, end = plan.query_start[s : s + 2].tolist()
            row = plan.rows.tolist().index(begin)
            drafts = plan.token_ids[begin + 1 : end].tolist()
            right = 0
            made = self.made[int(plan.slots[s])]
            while right < made and drafts[right] == tokens[row + right]:
                right += 1
            counts[s] = right + 1, made
            self.lengths[plan.slots[s]] += right + 1
        return counts

    def forward(self, plan: StepPlan) -> None:
        """Copies, then every write."""
        self.move(plan)
        if plan.lengths is not None:
            self.history[plan.history_slots, plan.history_positions] = plan.history_tokens
            plan = self.placed[plan.step] = self.place(plan)
        self.kv[plan.copies[:, 1]] = self.kv[plan.copies[:, 0]]
        self.history[plan.history_slots, plan.history_positions] = plan.history_tokens
        seq_of = np.repeat(np.arange(plan.num_seqs), np.diff(plan.query_start))
        places = plan.slots[seq_of], plan.positions
        tokens = np.where(plan.token_ids == NO_TOKEN, self.history[places], plan.token_ids)
        self.history[places] = tokens
        assert len(set(plan.slot_mapping.tolist())) == plan.num_tokens <= self.config.max_num_batched_tokens
        assert len(set(plan.slots.tolist())) == plan.num_seqs
        assert (plan.slot_mapping >= self.config.block_size).all(), "block 0 is padding"
        whose = [self.requests[id] for id in plan.request_ids]
        owners = np.array([zlib.crc32(f"{r.adapter}|{r.salt}".encode()) << 20 for r in whose])
        self.kv.reshape(-1)[plan.slot_mapping] = tokens + owners[seq_of]
        self.computed += plan.num_tokens

    def sample(self, plan: StepPlan) -> StepResult:
        """Every read."""
        if plan.lengths is not None:
            found = self.placed.pop(plan.step)
            plan = replace(found, row_target=plan.row_target, sampling=plan.sampling)
        assert plan.num_rows <= self.config.max_num_batched_tokens
        whose = [self.requests[id] for id in plan.request_ids]
        owners = np.array([zlib.crc32(f"{r.adapter}|{r.salt}".encode()) << 20 for r in whose])
        rows = [self.row(plan, r, owners) for r in range(plan.num_rows)]
        for r, (token, _) in enumerate(rows):
            if token != NO_TOKEN:
                self.history[plan.slots[plan.row_seq[r]], plan.positions[plan.rows[r]] + 1] = token
        marks = np.array([m for _, m in rows], np.int64)
        top = (marks[:, None] + np.arange(max(plan.sampling.num_logprobs, 0))) % self.config.vocab_size
        tokens = [token for token, _ in rows]
        named = self.named(plan, rows)
        counts = None if plan.lengths is None else self.count(plan, tokens)
        stored = self.stored.pop(plan.step, None)
        return StepResult(
            np.array(tokens, np.int32), -(marks % 997 / 8), marks % 31 + 1, top, -top / 64, counts, stored, named=named
        )

    def named(self, plan: StepPlan, rows: list[tuple[int, int]]) -> np.ndarray | None:
        """`StepResult.named`."""
        wanted = plan.sampling.named
        if wanted is None:
            return None
        assert len(wanted) == plan.num_rows
        assert plan.sampling.num_logprobs > 0
        contexts = [m - (0 if t == NO_TOKEN else int(t)) for (_, m), t in zip(rows, plan.row_target, strict=True)]
        found = [[value for _, value in names(m, row)] for m, row in zip(contexts, wanted.tolist(), strict=True)]
        return np.array(found).reshape(wanted.shape)

    def row(self, plan: StepPlan, r: int, owners: np.ndarray) -> tuple[int, int]:
        s, t = int(plan.row_seq[r]), int(plan.rows[r])
        assert plan.query_start[s] <= t < plan.query_start[s + 1]
        length, request = int(plan.positions[t]) + 1, self.requests[plan.request_ids[s]]
        stored = self.kv[plan.block_tables[s]].reshape(-1)[:length] - owners[s]
        assert ((stored >= 0) & (stored < 2**20)).all(), f"{request.id} reads what is not its own"
        context = tuple(stored.tolist())
        if request.params.repetition_penalty != 1:
            assert tuple(self.history[plan.slots[s], :length].tolist()) == context, "history misses tokens"
        # The logprob of a prompt's token depends on no parameter.
        seed = 0 if length < plan.prompt_lens[s] else int(plan.sampling.seed[r])
        found = mark(context, seed)
        if plan.row_target[r] != NO_TOKEN:
            return NO_TOKEN, found + int(plan.row_target[r])
        return choose(found, self.config.vocab_size, self.eos_every, self.forbidden(plan, r)), found

    def forbidden(self, plan: StepPlan, r: int) -> frozenset[int]:
        sampling = plan.sampling
        banned = set(sampling.bias_token[(sampling.bias_row == r) & (sampling.bias_value == -np.inf)].tolist())
        if sampling.allowed is not None and sampling.allowed_row is not None and (m := sampling.allowed_row[r]) >= 0:
            bits = np.unpackbits(sampling.allowed[m].view(np.uint8), bitorder="little")[: self.config.vocab_size]
            banned |= set(np.flatnonzero(bits == 0).tolist())
        return frozenset(banned)
