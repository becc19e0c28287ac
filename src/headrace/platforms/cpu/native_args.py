"""Argument structures of the native kernels, with the same fields as in `kernels/<op>/cpu.cpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from headrace.platforms.cpu.native_kv import KVArgs
from headrace.sampling import FLOAT_ROWS, INT_ROWS

__all__ = [
    "ACTIVATIONS",
    "FIXED",
    "SAMPLE_INPUTS",
    "AcceptArgs",
    "AddRmsNormArgs",
    "AttentionArgs",
    "CopyBlocksArgs",
    "Dim",
    "ExchangeArgs",
    "GatedActivationArgs",
    "GatherArgs",
    "LimitArgs",
    "NgramArgs",
    "PlaceArgs",
    "ReadDraftsArgs",
    "ReduceArgs",
    "ResolveTokensArgs",
    "RmsNormArgs",
    "RotaryCacheArgs",
    "SampleArgs",
    "SegmentArgs",
    "ShiftArgs",
]

FIXED = -1
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
"""Activation functions of a gate → their numbers in the kernels."""
Field = tuple[str, Any]


class Dim(ctypes.Structure):
    """hr_dim: (0, 1, 2 for T, S, R, and a multiplier), or (FIXED, size)."""

    _fields_ = (("dim", ctypes.c_int32), ("fixed", ctypes.c_int32))


def _pointers(*names: str) -> list[Field]:
    return [(name, ctypes.c_void_p) for name in names]


def _longs(*names: str) -> list[Field]:
    return [(name, ctypes.c_int64) for name in names]


def _ints(*names: str) -> list[Field]:
    return [(name, ctypes.c_int32) for name in names]


def _floats(*names: str) -> list[Field]:
    return [(name, ctypes.c_float) for name in names]


def _fields(*groups: Sequence[Field]) -> list[Field]:
    return [field for group in groups for field in group]


class RmsNormArgs(ctypes.Structure):
    _fields_ = _fields(_pointers("x", "weight", "y"), [("rows", Dim)], _ints("width"), _floats("eps"))


class AddRmsNormArgs(ctypes.Structure):
    _fields_ = _fields(
        _pointers("x", "residual", "weight", "y", "total"), [("rows", Dim)], _ints("width"), _floats("eps")
    )


class GatedActivationArgs(ctypes.Structure):
    _fields_ = _fields(_pointers("x", "y"), [("rows", Dim)], _ints("width", "kind"))


class ResolveTokensArgs(ctypes.Structure):
    _fields_ = _fields(
        _pointers("token_ids", "positions", "token_seq", "slots", "history", "ids"),
        _longs("history_rows", "history_width"),
    )


class NgramArgs(ctypes.Structure):
    _fields_ = _fields(
        _pointers("query_start", "slots", "lengths", "history", "drafts"),
        _longs("history_rows", "history_width", "most"),
    )


class PlaceArgs(ctypes.Structure):
    _fields_ = _fields(
        _pointers("token_ids", "positions", "slot_mapping", "token_seq", "query_start", "context_lens"),
        _pointers("block_tables", "slots", "rows", "lengths", "drafts", "position", "history"),
        _pointers("new_ids", "new_positions", "new_mapping", "new_context", "new_position"),
        _longs("history_rows", "history_width", "most", "block_size"),
    )


class AcceptArgs(ctypes.Structure):
    _fields_ = _fields(
        _pointers("query_start", "slots", "rows", "lengths", "drafts", "tokens", "history", "counts"),
        _longs("history_rows", "history_width", "most"),
    )


class ReadDraftsArgs(ctypes.Structure):
    _fields_ = NgramArgs._fields_


class ShiftArgs(ctypes.Structure):
    _fields_ = _fields(
        _pointers("positions", "slot_mapping", "token_seq", "query_start", "context_lens", "block_tables", "slots"),
        _pointers("rows", "bounds", "position", "history"),
        _pointers("new_positions", "next_positions", "new_mapping", "new_context", "new_position"),
        _longs("history_rows", "history_width", "block_size"),
    )


class RotaryCacheArgs(ctypes.Structure):
    _fields_ = _fields(
        _pointers("qkv", "q"),
        [("kv", KVArgs)],
        _pointers("positions", "slot_mapping", "cos_sin", "q_norm", "k_norm"),
        _longs("table_rows"),
        _ints("q_heads", "rotary_dim"),
        _floats("eps"),
    )


class AttentionArgs(ctypes.Structure):
    _fields_ = _fields(
        _pointers("q", "out"),
        [("kv", KVArgs)],
        _pointers("query_start", "context_lens", "block_tables", "sinks", "alibi"),
        _ints("q_heads", "sub_rows", "subs", "window", "state"),
        _floats("scale", "soft_cap"),
    )


SAMPLE_INPUTS = (
    *(*FLOAT_ROWS, *INT_ROWS, "position", "target", "slot", "prompt_len", "seed"),
    *("bias_row", "bias_token", "bias_value", "allowed", "allowed_row", "history"),
)
"""Fields of `SampleInputs` in the order of `sample_args`. The rows of the parameter table come first: floats, then
integers."""


class SampleArgs(ctypes.Structure):
    _fields_ = _fields(
        _pointers("logits", *SAMPLE_INPUTS),
        _pointers("tokens", "ranks", "top_ids", "logprobs", "top_logprobs"),
        _longs("history_rows", "history_width", "masks", "words", "vocab"),
        _ints("num_logprobs", "alternatives"),
    )


class CopyBlocksArgs(ctypes.Structure):
    _fields_ = _fields(_pointers("buffers", "bytes", "strides", "pairs"), _longs("count", "num_pairs"))


class SegmentArgs(ctypes.Structure):
    _fields_ = _fields(_pointers("memory"), _longs("slot_bytes", "timeout_ns", "spin_ns"), _ints("rank", "size"))


class ReduceArgs(ctypes.Structure):
    _fields_ = _fields([("segment", SegmentArgs)], _pointers("x", "y"), _longs("width"), [("rows", Dim)], _ints("type"))


class GatherArgs(ctypes.Structure):
    _fields_ = _fields(
        [("segment", SegmentArgs)], _pointers("x", "y"), _longs("bytes"), [("rows", Dim)], _ints("stacked")
    )


class ExchangeArgs(ctypes.Structure):
    _fields_ = _fields([("segment", SegmentArgs)], _pointers("x", "y"), _longs("bytes"), [("rows", Dim)])


class LimitArgs(ctypes.Structure):
    _fields_ = _fields(_pointers("data"), _longs("bytes", "rounds"), _pointers("sink"))
