"""From a plan to the arrays that a step is called with, and from those to `Batch` and `SampleInputs`.

The names of a step's inputs are the field names of `kernels.ops.Batch` and `SampleInputs`; a platform may rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.kernels.ops import Batch, SampleInputs
from headrace.sampling import DEVICE_ROWS
from headrace.types import NO_TOKEN, Bucket, SamplingBatch, StepPlan

__all__ = ["batch_of", "pad_arrays", "plan_arrays", "sample_inputs_of"]

Array = npt.NDArray[Any]

_BATCH = tuple(f.name for f in fields(Batch))
_SAMPLE = tuple(f.name for f in fields(SampleInputs))


def batch_of(inputs: Mapping[str, Any]) -> Batch:
    return Batch(*[inputs[name] for name in _BATCH])


def sample_inputs_of(inputs: Mapping[str, Any]) -> SampleInputs:
    return SampleInputs(*[inputs[name] for name in _SAMPLE])


def plan_arrays(plan: StepPlan, vocab_size: int) -> dict[str, Array]:
    """Every input but the history, unpadded: int32 and float32 but for `seed`, which is int64."""
    sampling = plan.sampling
    seqs = plan.num_seqs
    # A step of decodes alone: one token and one row a sequence.
    single = plan.row_seq is plan.rows and plan.num_tokens == plan.num_rows == seqs
    return {
        "sizes": _sizes(plan.num_tokens, seqs, plan.num_rows),
        "token_ids": plan.token_ids,
        "positions": plan.positions,
        "slot_mapping": plan.slot_mapping,
        "token_seq": _count(seqs) if single else _count(seqs).repeat(np.diff(plan.query_start)),
        "query_start": plan.query_start,
        "context_lens": plan.context_lens,
        "block_tables": plan.block_tables,
        "slots": plan.slots,
        "rows": plan.rows,
        "target": plan.row_target,
        "slot": plan.slots if single else plan.slots[plan.row_seq],
        "prompt_len": plan.prompt_lens if single else plan.prompt_lens[plan.row_seq],
        **_sampling_arrays(sampling, plan.num_rows, vocab_size),
    }


# Steps of a kind share these: who keeps an array on the device knows it by its identity.


@lru_cache(maxsize=64)
def _sizes(*sizes: int) -> Array:
    return _read_only(np.array(sizes, np.int32))


@lru_cache(maxsize=64)
def _count(n: int) -> Array:
    return _read_only(np.arange(n, dtype=np.int32))


@lru_cache(maxsize=64)
def _nothing_forbidden(rows: int, vocab_size: int) -> tuple[Array, Array]:
    return _read_only(np.zeros((1, -(-vocab_size // 32)), np.int32)), _read_only(np.full(rows, -1, np.int32))


def _read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array


def _sampling_arrays(sampling: SamplingBatch, rows: int, vocab_size: int) -> dict[str, Array]:
    if sampling.allowed is None or sampling.allowed_row is None:
        allowed, allowed_row = _nothing_forbidden(rows, vocab_size)
    else:
        allowed, allowed_row = sampling.allowed.view(np.int32), sampling.allowed_row
    return {
        **sampling.params,
        "seed": sampling.seed.view(np.int64),
        "position": sampling.position,
        "bias_row": sampling.bias_row,
        "bias_token": sampling.bias_token,
        "bias_value": sampling.bias_value,
        "allowed": allowed,
        "allowed_row": allowed_row,
    }


_PER_TOKEN = frozenset(("token_ids", "positions", "slot_mapping", "token_seq"))
_PER_SEQ = frozenset(("context_lens", "slots"))
_UNPADDED = frozenset(("sizes", "block_tables", "query_start"))
_GROWING = frozenset(("bias_row", "bias_token", "bias_value", "allowed"))
_FILL = {
    **{name: row.neutral for name, row in DEVICE_ROWS.items()},
    "bias_row": -1,
    "allowed_row": -1,
    "target": NO_TOKEN,
}


def pad_arrays(arrays: dict[str, Array], bucket: Bucket, spare_slot: int) -> dict[str, Array]:
    """The same, padded to a bucket for devices with static shapes.

    Padding is harmless where a device computes it nevertheless: it writes to block 0, which is never handed out, and to
    `spare_slot` of the history; sequences beyond the last are empty. Biases and masks grow to the next power of two.
    """
    fill = {**_FILL, "slots": spare_slot, "slot": spare_slot}
    padded = {name: _pad(a, _length(name, a, bucket), fill.get(name, 0)) for name, a in arrays.items()}
    start = arrays["query_start"]
    padded["query_start"] = _pad(start, bucket.seqs + 1, int(start[-1]))
    tables = np.zeros((bucket.seqs, bucket.blocks), np.int32)
    given = arrays["block_tables"]
    tables[: given.shape[0], : given.shape[1]] = given
    padded["block_tables"] = tables
    return padded


def _length(name: str, array: Array, bucket: Bucket) -> int:
    if name in _PER_TOKEN:
        return bucket.tokens
    if name in _PER_SEQ:
        return bucket.seqs
    if name in _GROWING:
        return max(8 if name != "allowed" else 1, 1 << (len(array) - 1).bit_length()) if len(array) else 8
    return len(array) if name in _UNPADDED else bucket.rows


def _pad(array: Array, length: int, value: float) -> Array:
    if len(array) == length:
        return array
    out = np.full((length, *array.shape[1:]), value, array.dtype)
    out[: len(array)] = array
    return out
