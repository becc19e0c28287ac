"""The arrays of a round of drafted blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.engine.head_plans import Drafted, draws
from headrace.kernels.inputs import batch_of, parameter_arrays
from headrace.models.block_draft_config import BlockDraftConfig
from headrace.models.block_drafter import BlockBatch
from headrace.sampling import DEVICE_ROWS
from headrace.types import GIVEN, NO_TOKEN, SamplingBatch

__all__ = ["BlockPlace", "block_arrays", "block_batch", "block_draws", "chain_arrays", "drawn_arrays", "moved_arrays"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int32]
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


class BlockPlace(NamedTuple):
    """The block of one sequence."""

    anchor: int
    """Its last token; NO_TOKEN if the device has it."""
    position: int
    """That token's."""
    blocks: Ints
    """The block table, up to the last position of the drafted block."""


def block_arrays(config: BlockDraftConfig, places: Sequence[BlockPlace], block_size: int) -> dict[str, Array]:
    """The inputs of a round whose tokens the host chooses, unpadded."""
    rows = _rows(config, places, block_size)
    return {**rows, **_scored(len(rows["rows"]), config.draft_vocab or config.decoder.vocab)}


def block_draws(
    config: BlockDraftConfig, seqs: Sequence[Drafted], before: SamplingBatch | None = None
) -> SamplingBatch:
    """The draws of the target at the places of the drafts of blocks; at the first place of each, if they are made one
    after another: then `min_tokens` bans for a block what it bans there. Penalties have no part in them: they would
    read what the other rows of the block write. `before`: those of an earlier round of the very same sequences. Without
    constraints only places differ from it."""
    each = config.drafts if config.independent else 1
    positions = _drafted(seqs, each)
    if before is not None and all(seq.constraints is None for seq in seqs):
        return replace(before, position=positions)
    drawn = draws(seqs, positions, each)
    neutral = {name: np.full_like(drawn.params[name], DEVICE_ROWS[name].neutral) for name in _PENALTIES}
    return replace(drawn, params={**drawn.params, **neutral})


def _drafted(seqs: Sequence[Drafted], each: int) -> Ints:
    """The places of the first drafts of each sequence, one after another."""
    return (np.array([seq.known for seq in seqs])[:, None] + np.arange(each)).astype(np.int32).reshape(-1)


def moved_arrays(
    config: BlockDraftConfig, places: Sequence[BlockPlace], seqs: Sequence[Drafted], block_size: int
) -> dict[str, Array]:
    """The inputs of a pass whose rows the device moves, without draws, unpadded. `bounds` is as in
    `head_plans.HeadPass`."""
    rows = _rows(config, places, block_size)
    slots = np.array([seq.slot for seq in seqs], np.int32)
    bounds = np.array([seq.bound for seq in seqs], np.int32)
    ids = rows["token_ids"]
    unmasked = {"unmasked": np.where(ids == config.decoder.vocab, 0, ids)} if config.mask_token is None else {}
    return {
        **rows,
        **unmasked,
        "slots": slots.repeat(config.rows),
        "bounds": bounds.repeat(config.rows),
        "position": _drafted(seqs, config.drafts),
    }


def drawn_arrays(config: BlockDraftConfig, seqs: Sequence[Drafted], drawn: SamplingBatch) -> dict[str, Array]:
    """The further inputs if the device draws all tokens in that pass."""
    return _drawing(seqs, config.drafts, drawn, config.decoder.vocab)


def chain_arrays(
    config: BlockDraftConfig, moved: Mapping[str, Array], seqs: Sequence[Drafted], drawn: SamplingBatch
) -> dict[str, Array]:
    """The inputs of the draws behind a pass, if each token depends on the one before it, unpadded: a sequence of one
    token for each block, its anchor. `moved`: the inputs of the pass."""
    names = ("positions", "slot_mapping", "context_lens", "block_tables", "slots", "bounds")
    anchors = {name: np.ascontiguousarray(moved[name][:: config.rows]) for name in names}
    return {**anchors, **_of_chain(len(seqs)), **_drawing(seqs, 1, drawn, config.decoder.vocab)}


def _drawing(seqs: Sequence[Drafted], each: int, drawn: SamplingBatch, vocab: int) -> dict[str, Array]:
    """The inputs of draws, so many for `each` sequence."""
    slots = np.array([seq.slot for seq in seqs], np.int32)
    prompts = np.array([len(seq.request.prompt) for seq in seqs], np.int32)
    return {
        "slot": slots.repeat(each),
        "prompt_len": prompts.repeat(each),
        "target": _no_targets(len(seqs) * each),
        **parameter_arrays(drawn, len(seqs) * each, vocab),
    }


def _rows(config: BlockDraftConfig, places: Sequence[BlockPlace], block_size: int) -> dict[str, Array]:
    """The inputs of the pass itself."""
    count, rows = len(places), config.rows
    total = count * rows
    start = np.array([place.position for place in places], np.int32)
    positions = (start[:, None] + np.arange(rows, dtype=np.int32)).reshape(-1)
    last = (start + rows - 1).repeat(rows)
    table = np.zeros((count, int(last.max()) // block_size + 1), np.int32)
    for at, place in enumerate(places):
        held = place.blocks[: int(last[at * rows]) // block_size + 1]
        table[at, : len(held)] = held
    table = table.repeat(rows, axis=0)
    lasting = _lasting(count, rows, config.anchored)
    owner = lasting["token_seq"]
    tokens = np.full(total, config.decoder.vocab if config.mask_token is None else config.mask_token, np.int32)
    tokens[::rows] = [place.anchor for place in places]
    return {
        **lasting,
        "token_ids": tokens,
        "positions": positions,
        "slot_mapping": table[owner, positions // block_size] * block_size + positions % block_size,
        "context_lens": positions + 1,
        "block_tables": table,
        "last_positions": last,
        "whole_lens": last + 1,
    }


@lru_cache(maxsize=64)
def _lasting(count: int, rows: int, anchored: bool) -> dict[str, Array]:
    """The inputs of a pass of `count` blocks that are the same for all sequences; nobody changes them."""
    total = count * rows
    owner = np.arange(total, dtype=np.int32)
    guessing = owner if anchored else owner[owner % rows > 0]
    return {
        "sizes": np.array([total, total, len(guessing)], np.int32),
        "token_seq": owner,
        "query_start": np.arange(total + 1, dtype=np.int32),
        "slots": np.zeros(total, np.int32),
        "rows": guessing,
    }


@lru_cache(maxsize=64)
def _of_chain(count: int) -> dict[str, Array]:
    """The inputs of draws one after another that are the same for all sequences; nobody changes them."""
    one_each = np.arange(count, dtype=np.int32)
    return {
        "sizes": np.full(3, count, np.int32),
        "token_ids": _no_targets(count),
        "token_seq": one_each,
        "query_start": np.arange(count + 1, dtype=np.int32),
        "rows": one_each,
        "unmoved": np.full(count, GIVEN, np.int32),
    }


@lru_cache(maxsize=64)
def _no_targets(count: int) -> Ints:
    return np.full(count, NO_TOKEN, np.int32)


def _scored(rows: int, vocab: int) -> dict[str, Array]:
    """Inputs of `sample` with which it only scores: it gives the likely tokens, and writes nothing."""
    numbers = {name: np.full(rows, row.neutral, np.dtype(row.dtype)) for name, row in DEVICE_ROWS.items()}
    zeros = {name: np.zeros(rows, np.int32) for name in ("position", "target", "slot", "prompt_len")}
    return {
        **numbers,
        **zeros,
        "seed": np.zeros(rows, np.int64),
        "bias_row": np.zeros(0, np.int32),
        "bias_token": np.zeros(0, np.int32),
        "bias_value": np.zeros(0, np.float32),
        "allowed": np.zeros((1, -(-vocab // 32)), np.int32),
        "allowed_row": np.full(rows, -1, np.int32),
    }


def block_batch(inputs: Mapping[str, Any]) -> BlockBatch:
    return BlockBatch(batch_of(inputs), inputs["last_positions"], inputs["whole_lens"])
