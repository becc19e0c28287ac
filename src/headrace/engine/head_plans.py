"""Plans of the passes of a draft head or model: which entries of which sequences, and how their last rows are sampled.

An entry of a head needs the token after its own, so it *lags* one token behind, and guesses the second token after its
own. An entry of a model needs its own token alone, and guesses the next one.

A sequence that the device places has a round before it is known how many drafts in flight are right. Its plan has upper
bounds of all positions, for the most tokens that it may have, and the device lowers them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.core.constraints import Constraints, gather
from headrace.core.drafts import DraftRow
from headrace.core.radix import BlockKey, RadixNode
from headrace.core.sequence import stop_ids
from headrace.core.slots import SEED_BITS
from headrace.sampling import FLOAT_ROWS, INT_ROWS, SamplingParams
from headrace.types import GIVEN, NO_TOKEN, Request, SamplingBatch, StepPlan

__all__ = ["Drafted", "HeadPass", "Span", "catch_up_pass", "deeper_pass", "draws", "following_pass", "known_pass"]

Ints = npt.NDArray[np.int32]
_NO_INTS: Ints = np.zeros(0, np.int32)
_NO_COPIES: Ints = np.zeros((0, 2), np.int32)
_floats: Callable[[SamplingParams], tuple[float, ...]] = attrgetter(*FLOAT_ROWS)
_ints: Callable[[SamplingParams], int | tuple[int, ...]] = attrgetter(*INT_ROWS)


@dataclass(slots=True)
class Drafted:
    """A sequence of the target, as a drafter knows it."""

    request: Request
    tokens: list[int]
    vocab: int
    lag: int = 1
    """0: entries of a model; those of drafts that are right need not be computed again."""
    computed: int = 0
    """Entries in the drafter's cache."""
    blocks: list[int] = field(default_factory=list)
    """Of the drafter's cache."""
    shared: int = 0
    """So many of them belong to a tree of prefixes, on the path to `node`."""
    node: RadixNode | None = None
    slot: int = -1
    """Its row of the token history."""
    target_blocks: Ints = field(default_factory=lambda: _NO_INTS)
    """Its block table in the target's cache, which holds its features."""
    known: int = 0
    """The number of its tokens at the next round; if it is placed, at most."""
    placed: bool = False
    """The device knows how many tokens it has, and which."""
    uncertain: int = 0
    """It may have so many tokens fewer than `known`."""
    wrong: int = 0
    """Drafts that the device has placed and that were wrong."""
    reach: int = 1
    """`known + wrong` at the last round, with the entries of its drafts that are kept, or what it would have been with
    `computed` entries: what it has grown since then is how many entries are missing at most."""
    paused: bool = False
    """It has given its blocks back, and goes on with its next token."""
    guessed: list[int] = field(default_factory=list)
    """Tokens behind the computed ones whose entries are there, if they turn out to be these."""
    constraints: Constraints | None = None
    floats: npt.NDArray[np.float32] = field(init=False)
    """Its parameters of sampling: those of `FLOAT_ROWS`."""
    ints: Ints = field(init=False)
    """Those of `INT_ROWS`."""
    seed: int = field(init=False)
    _keys: list[BlockKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        request = self.request
        stops, length = stop_ids(request), len(request.prompt)
        self.constraints = Constraints.of(request.params, stops, length, self.vocab, None, request.eos_token_ids)
        self.reach = self.lag
        self.floats = np.array(_floats(request.params), np.float32)
        self.ints = np.array(_ints(request.params), np.int32).reshape(-1)
        self.seed = (request.params.seed or 0) & SEED_BITS

    @property
    def entries(self) -> int:
        """The entries whose tokens are known."""
        return len(self.tokens) - self.lag

    @property
    def bound(self) -> int:
        """As `HeadPass.bounds`, if the positions of a pass are upper bounds."""
        return self.known if self.uncertain else GIVEN

    def keys(self, size: int) -> list[BlockKey]:
        """The tokens of each full block."""
        for at in range(len(self._keys) * size, len(self.tokens) - size + 1, size):
            self._keys.append(tuple(self.tokens[at : at + size]))
        return self._keys

    def extend(self, tokens: Sequence[int]) -> None:
        """Add committed tokens."""
        self.tokens += tokens
        for token in tokens if self.guessed else ():
            if not self.guessed or token != self.guessed.pop(0):
                self.guessed = []
                break
            self.computed += 1

    def place(self, row: DraftRow) -> None:
        """Where it is on the device at the next round."""
        self.slot, self.target_blocks, self.known = row.slot, row.blocks, row.context - 1
        self.placed, self.uncertain, self.wrong = row.ahead is not None, row.uncertain, row.wrong

    def caught_up(self, stop: int) -> None:
        """The entries before `stop` are right."""
        self.computed, self.reach = stop, stop + self.lag + self.wrong

    def forget(self) -> None:
        """None of its entries is there, and it has no blocks."""
        self.blocks, self.node, self.shared, self.guessed = [], None, 0, []
        self.caught_up(0)

    def begin_round(self, count: int) -> Span:
        """The entries that are missing, at most; at least one. They are counted as computed from now on, as far as
        their tokens are committed. `count`: drafts that the round makes; it computes the entries of all but the last
        one."""
        span = self.missing()
        self.computed, self.reach, self.guessed = self.entries, self.known + self.wrong, []
        if not self.lag:
            # The first wrong draft is replaced by another token, so one entry is missing, or two if all are right.
            self.reach += count - 1
        return span

    def missing(self) -> Span:
        start, stop = self.computed, self.known - self.lag
        if self.placed:
            # Where places are exact, it is known too what is computed.
            start = max(self.reach - self.lag - self.wrong, 0 if self.uncertain else start)
        return Span(self, min(start, stop - 1), stop)


class Span(NamedTuple):
    """Entries start:stop of a sequence."""

    seq: Drafted
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class HeadPass:
    """One pass: its plan, and where the tokens of its embeddings stand."""

    plan: StepPlan
    token_positions: Ints
    bounds: Ints
    """[S]: the number of known tokens for which positions are planned, where the device may know fewer; or GIVEN."""
    places: Ints = field(default_factory=lambda: _NO_INTS)
    """[T]: those of the features in the target's cache; none if the pass reads none."""
    tables: Ints = field(default_factory=lambda: _NO_INTS)
    """[S, B]: the block tables there."""

    @property
    def context(self) -> int:
        """The tokens that its tokens attend to, in total."""
        return int(self.plan.positions.sum()) + self.plan.num_tokens


def catch_up_pass(spans: Sequence[Span], block_size: int, zero_first: bool) -> HeadPass:
    """The entries of each sequence; drafts a token after the last one."""
    # The device has the tokens of a placed sequence in its history.
    tokens = [
        np.full(span.stop - span.start, NO_TOKEN, np.int32) if span.seq.placed else _committed(span, zero_first)
        for span in spans
    ]
    return _reading(_pass(spans, tokens, [NO_TOKEN] * len(spans), block_size), spans, block_size)


def known_pass(spans: Sequence[Span], block_size: int, zero_first: bool) -> HeadPass:
    """Entries whose tokens are committed, and the token after them. That one is scored, so that the pass has a
    result."""
    targets = [span.seq.tokens[span.stop + span.seq.lag] for span in spans]
    step = _pass(spans, [_committed(span, zero_first) for span in spans], targets, block_size, exact=True)
    return _reading(step, spans, block_size)


def following_pass(seqs: Sequence[Drafted], depth: int, block_size: int) -> HeadPass:
    """The entry of each sequence after `depth` drafts, whose token the device has."""
    firsts = [seq.known + depth - 1 - seq.lag for seq in seqs]
    spans = [Span(seq, first, first + 1) for seq, first in zip(seqs, firsts, strict=True)]
    return _pass(spans, [np.full(1, NO_TOKEN, np.int32)] * len(seqs), [NO_TOKEN] * len(seqs), block_size)


def deeper_pass(before: HeadPass, seqs: Sequence[Drafted], depth: int, block_size: int) -> HeadPass:
    """`following_pass`, for a `depth` of at least 2: `before` is the one of a draft less. If it has the same sequences,
    only their places differ."""
    plan = before.plan
    if len(seqs) != plan.num_seqs or any(seq.constraints is not None for seq in seqs):
        return following_pass(seqs, depth, block_size)
    positions = plan.positions + 1
    blocks, offsets = np.divmod(positions, block_size)
    moved = replace(
        plan,
        positions=positions,
        slot_mapping=plan.block_tables[plan.rows, blocks] * block_size + offsets,
        context_lens=positions + 1,
        sampling=replace(plan.sampling, position=plan.sampling.position + 1),
    )
    return HeadPass(moved, before.token_positions + 1, before.bounds)


def _committed(span: Span, zero_first: bool) -> Ints:
    """The tokens of the embeddings."""
    lag = span.seq.lag
    tokens = np.array(span.seq.tokens[span.start + lag : span.stop + lag], np.int32)
    if zero_first and span.start == 0:
        tokens[0] = -1
    return tokens


def _pass(
    spans: Sequence[Span], tokens: Sequence[Ints], targets: Sequence[int], block_size: int, exact: bool = False
) -> HeadPass:
    """`exact`: the positions are no bounds."""
    seqs = [span.seq for span in spans]
    lag = seqs[0].lag
    positions = _joined([np.arange(start, stop, dtype=np.int32) for _, start, stop in spans])
    ends = np.cumsum([span.stop - span.start for span in spans], dtype=np.int32)
    stops = np.array([span.stop for span in spans], np.int32)
    tables, rows = _tables([seq.blocks for seq in seqs]), ends - 1
    plan = StepPlan(
        step=-1,
        token_ids=_joined(tokens),
        positions=positions,
        slot_mapping=_joined([_places(table, span, block_size) for table, span in zip(tables, spans, strict=True)]),
        query_start=np.concatenate([np.zeros(1, np.int32), ends]),
        context_lens=stops,
        block_tables=tables,
        slots=np.array([seq.slot for seq in seqs], np.int32),
        rows=rows,
        # The same array shows that every sequence has one token (`kernels.inputs`).
        row_seq=rows if len(positions) == len(seqs) else np.arange(len(seqs), dtype=np.int32),
        row_target=np.array(targets, np.int32),
        prompt_lens=np.array([len(seq.request.prompt) for seq in seqs], np.int32),
        sampling=draws(seqs, stops + lag),
        copies=_NO_COPIES,
        history_slots=_NO_INTS,
        history_positions=_NO_INTS,
        history_tokens=_NO_INTS,
    )
    bounds = np.array([GIVEN if exact else seq.bound for seq in seqs], np.int32)
    return HeadPass(plan, positions + lag, bounds)


def _reading(step: HeadPass, spans: Sequence[Span], block_size: int) -> HeadPass:
    """The pass with the places of its features."""
    tables = _tables([span.seq.target_blocks for span in spans])
    places = [_places(table, span, block_size) for table, span in zip(tables, spans, strict=True)]
    return replace(step, places=_joined(places), tables=tables)


def _tables(blocks: Sequence[Sequence[int] | Ints]) -> Ints:
    """[S, B]; unused entries are 0."""
    tables = np.zeros((len(blocks), max(map(len, blocks), default=1)), np.int32)
    for row, own in enumerate(blocks):
        tables[row, : len(own)] = own
    return tables


def _places(table: Ints, span: Span, block_size: int) -> Ints:
    where = np.arange(span.start, span.stop, dtype=np.int32)
    found: Ints = table[where // block_size] * block_size + where % block_size
    return found.astype(np.int32)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([_NO_INTS, *parts])


def draws(seqs: Sequence[Drafted], positions: Ints, each: int = 1) -> SamplingBatch:
    """The draws of the target at these positions [R], so many for `each` of the sequences, with the parameters of their
    requests."""
    special = [
        (row, int(positions[row]), seq.constraints)
        for at, seq in enumerate(seqs)
        if seq.constraints is not None
        for row in range(at * each, (at + 1) * each)
    ]
    found = gather(special, len(positions))
    floats = np.array([seq.floats for seq in seqs], np.float32).T.repeat(each, axis=1)
    ints = np.array([seq.ints for seq in seqs], np.int32).T.repeat(each, axis=1)
    return SamplingBatch(
        params={**dict(zip(FLOAT_ROWS, floats, strict=True)), **dict(zip(INT_ROWS, ints, strict=True))},
        seed=np.array([seq.seed for seq in seqs], np.uint64).repeat(each),
        position=positions,
        bias_row=found.row,
        bias_token=found.token,
        bias_value=found.value,
        allowed=found.allowed,
        allowed_row=found.allowed_row,
        num_logprobs=-1,
    )
