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
from headrace.types import NO_TOKEN, SamplingBatch

__all__ = ["BlockPlace", "block_arrays", "block_batch", "block_draws", "drawn_arrays"]

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
    """The draws of the target at the places of the drafts of blocks. Penalties have no part in them: they would read
    what the other rows of the block write. `before`: those of an earlier round of the very same sequences. Without
    constraints only places differ from it."""
    positions = (np.array([seq.known for seq in seqs])[:, None] + np.arange(config.drafts)).astype(np.int32).reshape(-1)
    if before is not None and all(seq.constraints is None for seq in seqs):
        return replace(before, position=positions)
    drawn = draws(seqs, positions, config.drafts)
    neutral = {name: np.full_like(drawn.params[name], DEVICE_ROWS[name].neutral) for name in _PENALTIES}
    return replace(drawn, params={**drawn.params, **neutral})


def drawn_arrays(
    config: BlockDraftConfig,
    places: Sequence[BlockPlace],
    seqs: Sequence[Drafted],
    block_size: int,
    drawn: SamplingBatch,
) -> dict[str, Array]:
    """The inputs of a round whose tokens the device draws, unpadded; `bounds` as in `head_plans.HeadPass`."""
    rows = _rows(config, places, block_size)
    slots = np.array([seq.slot for seq in seqs], np.int32)
    bounds = np.array([seq.bound for seq in seqs], np.int32)
    prompts = np.array([len(seq.request.prompt) for seq in seqs], np.int32)
    count, ids = len(rows["rows"]), rows["token_ids"]
    unmasked = {"unmasked": np.where(ids == config.decoder.vocab, 0, ids)} if config.mask_token is None else {}
    return {
        **rows,
        **unmasked,
        "slots": slots.repeat(config.rows),
        "bounds": bounds.repeat(config.rows),
        "slot": slots.repeat(config.drafts),
        "prompt_len": prompts.repeat(config.drafts),
        **parameter_arrays(drawn, count, config.decoder.vocab),
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
        "target": np.full(len(guessing), NO_TOKEN, np.int32),
    }


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
