"""Triton form of `place`."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.ngram.triton import known_length
from headrace.kernels.ops import Batch, Placed
from headrace.kernels.tritonlib.cache_slots import slot_of
from headrace.kernels.tritonlib.device import jit, jit_varying
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["place", "place_kernel"]

_BLOCK = 128


@jit
def _placed(
    sizes: tensor, query_start: tensor, slots: tensor, lengths: tensor, history: tensor, width: tensor, most: tensor,
    seq: tensor,
) -> tensor:  # fmt: skip
    """As `known_length`, and the numbers of the sequences' tokens with those of the step. The device places none that
    have more than `most` or whose length is no length, as behind a step that failed."""
    own, known, text = known_length(sizes, slots, lengths, history, width, seq)
    context = known - 1 + tl.load(query_start + seq + 1) - tl.load(query_start + seq)
    return own & (known >= 1) & (known <= most) & (context <= most), known, text, context


@jit
def _row_of(
    sizes: tensor, token_seq: tensor, query_start: tensor, slots: tensor, lengths: tensor, history: tensor,
    width: tensor, most: tensor, token: tensor,
) -> tensor:  # fmt: skip
    """(the device places these tokens, their sequences, which tokens of these they are, their positions if placed)."""
    seq = tl.load(token_seq + token)
    own, known, _, _ = _placed(sizes, query_start, slots, lengths, history, width, most, seq)
    nth = token - tl.load(query_start + seq)
    return own & (token < tl.load(sizes)), seq, nth, known - 1 + nth


@jit_varying("tokens", "seqs", "rows", "blocks", "width")
def place_kernel(
    sizes: tensor, token_ids: tensor, positions: tensor, slot_mapping: tensor, token_seq: tensor, query_start: tensor,
    context_lens: tensor, block_tables: tensor, slots: tensor, row_tokens: tensor, lengths: tensor, drafts: tensor,
    position: tensor, history: tensor, new_ids: tensor, new_positions: tensor, new_mapping: tensor,
    new_context: tensor, new_position: tensor, tokens: int, seqs: int, rows: int, blocks: int, width: int,
    MOST: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """BLOCK tokens, sequences and rows of each program, with padding, which keeps what it is given."""
    # The program of a sequence writes its length to the history, where those of its tokens and rows read it: only if
    # the length is given (0 or more), when they do not read it. So the order of programs does not matter.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    most = tl.minimum(blocks * SIZE, width - 1)

    token = tl.minimum(at, tokens - 1)
    ours, seq, nth, place = _row_of(sizes, token_seq, query_start, slots, lengths, history, width, most, token)
    draft = tl.load(drafts + seq * MOST + tl.minimum(tl.maximum(nth - 1, 0), MOST - 1))
    ids = tl.where(ours & (nth > 0), tl.maximum(draft, 0), tl.load(token_ids + token))
    tl.store(new_ids + at, ids, at < tokens)
    tl.store(new_positions + at, tl.where(ours, place, tl.load(positions + token)), at < tokens)
    mapping = tl.where(ours, slot_of(block_tables, blocks, seq, place, ours, SIZE), tl.load(slot_mapping + token))
    tl.store(new_mapping + at, mapping, at < tokens)

    seq = tl.minimum(at, seqs - 1)
    own, known, text, context = _placed(sizes, query_start, slots, lengths, history, width, most, seq)
    tl.store(new_context + at, tl.where(own, context, tl.load(context_lens + seq)), at < seqs)
    tl.store(history + text + width - 1, known, own & (tl.load(lengths + seq) >= 0) & (at < seqs))

    row = tl.minimum(at, rows - 1)
    token = tl.load(row_tokens + row, at < rows, 0)
    ours, _, _, place = _row_of(sizes, token_seq, query_start, slots, lengths, history, width, most, token)
    given = tl.load(position + row, at < rows, 0)
    tl.store(new_position + at, tl.where(ours, place + 1, given), at < rows)


def place(
    batch: Batch,
    lengths: torch.Tensor,
    drafts: torch.Tensor,
    position: torch.Tensor,
    history: torch.Tensor,
    size: int,
    *,
    config: LaunchConfig,
) -> Placed:
    """See `ops.OptionalOps.place`; `batch.sizes` must be in memory that the kernels can read."""
    given = Placed(batch.token_ids, batch.positions, batch.slot_mapping, batch.context_lens, position)
    tokens, seqs, rows = len(batch.token_ids), len(lengths), len(batch.rows)
    if not seqs or not tokens:
        return given
    found = Placed(*map(torch.empty_like, given))
    args = {
        "sizes": batch.sizes,
        "token_ids": batch.token_ids,
        "positions": batch.positions,
        "slot_mapping": batch.slot_mapping,
        "token_seq": batch.token_seq,
        "query_start": batch.query_start,
        "context_lens": batch.context_lens,
        "block_tables": batch.block_tables,
        "slots": batch.slots,
        "row_tokens": batch.rows,
        "lengths": lengths,
        "drafts": drafts,
        "position": position,
        "history": history,
        "new_ids": found.token_ids,
        "new_positions": found.positions,
        "new_mapping": found.slot_mapping,
        "new_context": found.context_lens,
        "new_position": found.position,
        "tokens": tokens,
        "seqs": seqs,
        "rows": rows,
        "blocks": batch.block_tables.shape[1],
        "width": history.shape[1],
        "MOST": drafts.shape[1],
        "SIZE": size,
        "BLOCK": _BLOCK,
    }
    config.launch(place_kernel, (-(-max(tokens, seqs, rows) // _BLOCK),), args, 1, 1)
    return found
