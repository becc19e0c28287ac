"""Converts a plan to the arrays of a step, and these to `Batch` and `SampleInputs`.

`step_inputs.STEP_INPUTS` is the table of a step's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.kernels.ops import Batch, SampleInputs
from headrace.kernels.step_inputs import STEP_INPUTS, Dimension, StepInput, padded_sizes
from headrace.types import Bucket, SamplingBatch, StepPlan

__all__ = [
    "batch_arrays",
    "batch_of",
    "pad_arrays",
    "parameter_arrays",
    "plan_arrays",
    "sample_inputs_of",
    "sampling_arrays",
]

Array = npt.NDArray[Any]

_BATCH = tuple(f.name for f in fields(Batch))
_SAMPLE = tuple(f.name for f in fields(SampleInputs))


def batch_of(inputs: Mapping[str, Any]) -> Batch:
    return Batch(*[inputs[name] for name in _BATCH])


def sample_inputs_of(inputs: Mapping[str, Any]) -> SampleInputs:
    return SampleInputs(*[inputs[name] for name in _SAMPLE])


def plan_arrays(plan: StepPlan, vocab_size: int) -> dict[str, Array]:
    """All inputs of a step except the history, unpadded: int32 or float32; `seed` is int64."""
    return {**batch_arrays(plan), **sampling_arrays(plan, vocab_size)}


def batch_arrays(plan: StepPlan) -> dict[str, Array]:
    """The inputs of the forward pass: the fields of `Batch`. With placed sequences also `lengths`, and the upper bounds
    `position`."""
    seqs = plan.num_seqs
    placed = {} if plan.lengths is None else {"lengths": plan.lengths, "position": plan.sampling.position}
    return {
        "sizes": _sizes(plan.num_tokens, seqs, plan.num_rows),
        "token_ids": plan.token_ids,
        "positions": plan.positions,
        "slot_mapping": plan.slot_mapping,
        "token_seq": _count(seqs) if _single(plan) else _count(seqs).repeat(np.diff(plan.query_start)),
        "query_start": plan.query_start,
        "context_lens": plan.context_lens,
        "block_tables": plan.block_tables,
        "slots": plan.slots,
        "rows": plan.rows,
        **placed,
    }


def sampling_arrays(plan: StepPlan, vocab_size: int) -> dict[str, Array]:
    """The inputs of sampling: the fields of `SampleInputs` except the history, and `named` if rows name tokens."""
    single = _single(plan)
    return {
        "target": plan.row_target,
        "slot": plan.slots if single else plan.slots[plan.row_seq],
        "prompt_len": plan.prompt_lens if single else plan.prompt_lens[plan.row_seq],
        **parameter_arrays(plan.sampling, plan.num_rows, vocab_size),
        **({} if plan.sampling.named is None else {"named": plan.sampling.named}),
    }


def _single(plan: StepPlan) -> bool:
    """In a step of decodes only, every sequence has one token and one row."""
    return plan.row_seq is plan.rows and plan.num_tokens == plan.num_rows == plan.num_seqs


# Steps of the same sizes share these arrays, so that a cache on the device can recognize them by identity.


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


def parameter_arrays(sampling: SamplingBatch, rows: int, vocab_size: int) -> dict[str, Array]:
    """The inputs of sampling that are the requests' parameters and constraints."""
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


def pad_arrays(arrays: Mapping[str, Array], bucket: Bucket, spare_slot: int) -> dict[str, Array]:
    """The arrays padded to a bucket, for devices with static shapes.

    A device may compute padding without harm: it writes to block 0, which is never allocated, and to `spare_slot` of
    the history; sequences past the last are empty.
    """
    sizes = padded_sizes(bucket)
    return {name: _pad(STEP_INPUTS[name], array, sizes, spare_slot) for name, array in arrays.items()}


def _pad(given: StepInput, array: Array, sizes: Mapping[Dimension, int], spare_slot: int) -> Array:
    shape = tuple([sizes.get(dimension, held) for dimension, held in zip(given.dims, array.shape, strict=True)])
    if shape == array.shape:
        return array
    fill = {"last": array[-1:], "spare slot": spare_slot}.get(given.fill) if isinstance(given.fill, str) else given.fill
    out = np.full(shape, fill, array.dtype)
    out[tuple(slice(held) for held in array.shape)] = array
    return out
