"""Triton form of `shift`."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.ops import Batch, Shifted
from headrace.kernels.tritonlib.cache_slots import slot_of
from headrace.kernels.tritonlib.device import jit, jit_varying
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["shift", "shift_kernel"]

_BLOCK = 128


@jit
def _back_of(
    sizes: tensor, positions: tensor, query_start: tensor, slots: tensor, bounds: tensor, history: tensor,
    width: tensor, seq: tensor, there: tensor,
) -> tensor:  # fmt: skip
    """(the positions of these sequences are bounds, how many tokens before them the true ones are). They are right if
    the length is above the bound or leaves a position below 0, as behind a step that failed."""
    bound = tl.load(bounds + seq)
    own = there & (bound >= 0) & (seq < tl.load(sizes + 1))
    length = tl.load(history + tl.load(slots + seq).to(tl.int64) * width + width - 1, own, 0)
    back = bound - length.to(tl.int64)
    begin = tl.load(query_start + seq)
    fresh = own & (begin < tl.load(query_start + seq + 1))
    own = own & (back >= 0) & ((tl.load(positions + begin, fresh, 0) >= back) | ~fresh)
    return own, tl.where(own, back, 0).to(tl.int32)


@jit_varying("tokens", "seqs", "rows", "blocks", "width")
def shift_kernel(
    sizes: tensor, positions: tensor, slot_mapping: tensor, token_seq: tensor, query_start: tensor,
    context_lens: tensor, block_tables: tensor, slots: tensor, row_tokens: tensor, bounds: tensor, position: tensor,
    history: tensor, new_positions: tensor, next_positions: tensor, new_mapping: tensor, new_context: tensor,
    new_position: tensor, tokens: int, seqs: int, rows: int, blocks: int, width: int, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """BLOCK tokens, sequences and rows of each program, with padding, which keeps what it is given."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)

    token = tl.minimum(at, tokens - 1)
    seq = tl.load(token_seq + token)
    ours, back = _back_of(sizes, positions, query_start, slots, bounds, history, width, seq, token < tl.load(sizes))
    place = tl.load(positions + token) - back
    mapping = tl.where(ours, slot_of(block_tables, blocks, seq, place, ours, SIZE), tl.load(slot_mapping + token))
    tl.store(new_positions + at, place, at < tokens)
    tl.store(next_positions + at, place + 1, at < tokens)
    tl.store(new_mapping + at, mapping, at < tokens)

    seq = tl.minimum(at, seqs - 1)
    _, back = _back_of(sizes, positions, query_start, slots, bounds, history, width, seq, at < seqs)
    tl.store(new_context + at, tl.load(context_lens + seq) - back, at < seqs)

    live = at < tl.minimum(tl.load(sizes + 2), rows)
    token = tl.load(row_tokens + at, live, 0)
    seq = tl.load(token_seq + token)
    live = live & (token < tl.load(sizes))
    _, back = _back_of(sizes, positions, query_start, slots, bounds, history, width, seq, live)
    tl.store(new_position + at, tl.load(position + at, at < rows, 0) - back, at < rows)


def shift(
    batch: Batch, bounds: torch.Tensor, position: torch.Tensor, history: torch.Tensor, size: int, *,
    config: LaunchConfig,
) -> Shifted:  # fmt: skip
    """See `ops.OptionalOps.shift`; `batch.sizes` must be in memory that the kernels can read."""
    tokens, seqs, rows = len(batch.positions), len(bounds), len(batch.rows)
    if not seqs or not tokens:
        return Shifted(batch.positions, batch.positions + 1, batch.slot_mapping, batch.context_lens, position)
    like = (batch.positions, batch.positions, batch.slot_mapping, batch.context_lens, position)
    found = Shifted(*map(torch.empty_like, like))
    args = {
        "sizes": batch.sizes,
        "positions": batch.positions,
        "slot_mapping": batch.slot_mapping,
        "token_seq": batch.token_seq,
        "query_start": batch.query_start,
        "context_lens": batch.context_lens,
        "block_tables": batch.block_tables,
        "slots": batch.slots,
        "row_tokens": batch.rows,
        "bounds": bounds,
        "position": position,
        "history": history,
        "new_positions": found.positions,
        "next_positions": found.next_positions,
        "new_mapping": found.slot_mapping,
        "new_context": found.context_lens,
        "new_position": found.position,
        "tokens": tokens,
        "seqs": seqs,
        "rows": rows,
        "blocks": batch.block_tables.shape[1],
        "width": history.shape[1],
        "SIZE": size,
        "BLOCK": _BLOCK,
    }
    config.launch(shift_kernel, (-(-max(tokens, seqs, rows) // _BLOCK),), args, 1, 1)
    return found
