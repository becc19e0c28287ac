"""Plans of a draft head's passes: which entries of which sequences, and how their last rows are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.core.constraints import Constraints, gather
from headrace.core.sequence import stop_ids
from headrace.core.slots import SEED_BITS
from headrace.sampling import DEVICE_ROWS
from headrace.types import NO_TOKEN, Request, SamplingBatch, StepPlan

__all__ = ["Drafted", "HeadPass", "catch_up_pass", "features_of", "following_pass"]

Ints = npt.NDArray[np.int32]
_NO_INTS: Ints = np.zeros(0, np.int32)


@dataclass(slots=True)
class Drafted:
    """A sequence of the target, as a head's drafter knows it."""

    request: Request
    tokens: list[int]
    vocab: int
    computed: int = 0
    """Entries in the head's cache."""
    blocks: list[int] = field(default_factory=list)
    """Of the head's cache."""
    slot: int = -1
    """Its row of the token history."""
    target_blocks: Ints = field(default_factory=lambda: _NO_INTS)
    """Its block table in the target's cache, which holds its features."""
    constraints: Constraints | None = None

    def __post_init__(self) -> None:
        request = self.request
        stops, length = stop_ids(request), len(request.prompt)
        self.constraints = Constraints.of(request.params, stops, length, self.vocab, None, request.eos_token_ids)

    @property
    def entries(self) -> int:
        """The entries whose token is known: one fewer than tokens."""
        return len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class HeadPass:
    """One pass: its plan, and where the tokens of its embeddings stand."""

    plan: StepPlan
    token_positions: Ints


def features_of(seqs: Sequence[tuple[Drafted, int, int]], block_size: int) -> Ints:
    """The places in the target's cache of the features of entries start:stop of each sequence."""
    return _joined([_places(seq.target_blocks, start, stop, block_size) for seq, start, stop in seqs])


def catch_up_pass(
    seqs: Sequence[tuple[Drafted, int, int]], block_size: int, zero_first: bool, samples: bool
) -> HeadPass:
    """Entries start:stop of each sequence, whose tokens are known. `samples`: draft a token after the last one of each;
    otherwise the token that follows is scored, so that the pass has a result."""
    tokens = [np.array(seq.tokens[start + 1 : stop + 1], np.int32) for seq, start, stop in seqs]
    for (_, start, _), own in zip(seqs, tokens, strict=True):
        if zero_first and start == 0:
            own[0] = -1
    targets = [NO_TOKEN if samples else seq.tokens[stop + 1] for seq, _, stop in seqs]
    return _pass(seqs, _joined(tokens), np.array(targets, np.int32), block_size)


def following_pass(seqs: Sequence[Drafted], depth: int, block_size: int) -> HeadPass:
    """The entry of each sequence after `depth` drafts, whose token the device has."""
    spans = [(seq, seq.entries + depth - 1, seq.entries + depth) for seq in seqs]
    unknown = np.full(len(seqs), NO_TOKEN, np.int32)
    return _pass(spans, unknown, unknown, block_size)


def _pass(seqs: Sequence[tuple[Drafted, int, int]], tokens: Ints, targets: Ints, block_size: int) -> HeadPass:
    positions = _joined([np.arange(start, stop, dtype=np.int32) for _, start, stop in seqs])
    counts = np.array([stop - start for _, start, stop in seqs], np.int32)
    ends = np.cumsum(counts, dtype=np.int32)
    stops = np.array([stop for *_, stop in seqs], np.int32)
    longest = max((len(seq.blocks) for seq, *_ in seqs), default=1)
    tables = np.zeros((len(seqs), longest), np.int32)
    for row, (seq, *_) in enumerate(seqs):
        tables[row, : len(seq.blocks)] = seq.blocks
    plan = StepPlan(
        step=-1,
        token_ids=tokens,
        positions=positions,
        slot_mapping=_joined(
            [_places(np.array(s.blocks, np.int32), start, stop, block_size) for s, start, stop in seqs]
        ),
        query_start=np.concatenate([np.zeros(1, np.int32), ends]),
        context_lens=stops,
        block_tables=tables,
        slots=np.array([seq.slot for seq, *_ in seqs], np.int32),
        rows=ends - 1,
        row_seq=np.arange(len(seqs), dtype=np.int32),
        row_target=targets,
        prompt_lens=np.array([len(seq.request.prompt) for seq, *_ in seqs], np.int32),
        sampling=_sampling([seq for seq, *_ in seqs], stops + 1),
        copies=np.zeros((0, 2), np.int32),
        history_slots=_NO_INTS,
        history_positions=_NO_INTS,
        history_tokens=_NO_INTS,
    )
    return HeadPass(plan, positions + 1)


def _places(blocks: Ints, start: int, stop: int, block_size: int) -> Ints:
    where = np.arange(start, stop, dtype=np.int32)
    found: Ints = blocks[where // block_size] * block_size + where % block_size
    return found.astype(np.int32)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([_NO_INTS, *parts])


def _sampling(seqs: Sequence[Drafted], positions: Ints) -> SamplingBatch:
    """The draws of the target at these positions, with the requests' own parameters."""
    params = [seq.request.params for seq in seqs]
    special = [
        (row, int(positions[row]), seq.constraints) for row, seq in enumerate(seqs) if seq.constraints is not None
    ]
    found = gather(special, len(seqs))
    return SamplingBatch(
        params={name: np.array([getattr(one, name) for one in params], row.dtype) for name, row in DEVICE_ROWS.items()},
        seed=np.array([(one.seed or 0) & SEED_BITS for one in params], np.uint64),
        position=positions,
        bias_row=found.row,
        bias_token=found.token,
        bias_value=found.value,
        allowed=found.allowed,
        allowed_row=found.allowed_row,
        num_logprobs=-1,
    )
