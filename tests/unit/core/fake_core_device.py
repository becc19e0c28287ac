"""A small device: its KV cache holds token ids, and what it samples is a hash of all that a row attends to.

It reads every context through the block table, so a block that is stale, lost or somebody else's changes the tokens,
and it executes a plan when it is launched, as a stream would.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from headrace.core import CoreConfig
from headrace.types import NO_TOKEN, Request, StepPlan, StepResult

POISON = -7


def mark(context: tuple[int, ...], seed: int) -> int:
    return zlib.crc32(repr((context, seed)).encode())


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

    def launch(self, plan: StepPlan) -> StepResult:
        self.forward(plan)
        return self.sample(plan)

    def forward(self, plan: StepPlan) -> None:
        """Copies, then every write."""
        self.kv[plan.copies[:, 1]] = self.kv[plan.copies[:, 0]]
        self.history[plan.history_slots, plan.history_positions] = plan.history_tokens
        seq_of = np.repeat(np.arange(plan.num_seqs), np.diff(plan.query_start))
        places = plan.slots[seq_of], plan.positions
        tokens = np.where(plan.token_ids == NO_TOKEN, self.history[places], plan.token_ids)
        self.history[places] = tokens
        assert len(set(plan.slot_mapping.tolist())) == plan.num_tokens <= self.config.max_num_batched_tokens
        assert len(set(plan.slots.tolist())) == plan.num_seqs
        assert plan.slot_mapping.min() >= self.config.block_size, "block 0 is padding"
        whose = [self.requests[id] for id in plan.request_ids]
        owners = np.array([zlib.crc32(f"{r.adapter}|{r.salt}".encode()) << 20 for r in whose])
        self.kv.reshape(-1)[plan.slot_mapping] = tokens + owners[seq_of]
        self.computed += plan.num_tokens

    def sample(self, plan: StepPlan) -> StepResult:
        """Every read."""
        whose = [self.requests[id] for id in plan.request_ids]
        owners = np.array([zlib.crc32(f"{r.adapter}|{r.salt}".encode()) << 20 for r in whose])
        rows = [self.row(plan, r, owners) for r in range(plan.num_rows)]
        for r, (token, _) in enumerate(rows):
            if token != NO_TOKEN:
                self.history[plan.slots[plan.row_seq[r]], plan.positions[plan.rows[r]] + 1] = token
        marks = np.array([m for _, m in rows], np.int64)
        top = (marks[:, None] + np.arange(max(plan.sampling.num_logprobs, 0))) % self.config.vocab_size
        return StepResult(np.array([t for t, _ in rows], np.int32), -(marks % 997 / 8), marks % 31 + 1, top, -top / 64)

    def row(self, plan: StepPlan, r: int, owners: np.ndarray) -> tuple[int, int]:
        s, t = int(plan.row_seq[r]), int(plan.rows[r])
        assert plan.query_start[s] <= t < plan.query_start[s + 1]
        length, request = int(plan.positions[t]) + 1, self.requests[plan.request_ids[s]]
        stored = self.kv[plan.block_tables[s]].reshape(-1)[:length] - owners[s]
        assert ((stored >= 0) & (stored < 2**20)).all(), f"{request.id} reads what is not its own"
        context = tuple(stored.tolist())
        if request.params.repetition_penalty != 1:
            assert tuple(self.history[plan.slots[s], :length].tolist()) == context, "history misses tokens"
        found = mark(context, int(plan.sampling.seed[r]))
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
