"""Every operator on numpy arrays. Keyword names are the contract: `headrace/kernels/ops.py`, which also says what each
computes.

Arrays are padded to the step's bucket, and `batch.sizes` holds the true numbers of tokens, sequences and rows. What
lies beyond
them may be computed too: slots of padding are block 0 and the spare row of the history.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.kernels.linear.activation import quantize_activation
from headrace.kernels.moe.routing import Routing
from headrace.kernels.ops import Batch
from headrace.kernels.weight import Weight
from headrace_numpy.attention import attention, rotary_cache
from headrace_numpy.sampling import sample

__all__ = ["OPERATORS"]

Array = npt.NDArray[Any]
_KEY = "numpy"
_erf = np.frompyfunc(math.erf, 1, 1)


def resolve_tokens(batch: Batch, history: Array) -> Array:
    tokens = int(batch.sizes[0])
    slots, positions = batch.slots[batch.token_seq[:tokens]], batch.positions[:tokens]
    ids = np.zeros_like(batch.token_ids)
    given = batch.token_ids[:tokens]
    ids[:tokens] = np.where(given < 0, history[slots, positions], given)
    history[slots, positions] = ids[:tokens]
    return ids


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    return x * (1 / np.sqrt(mean + np.float32(eps))) * weight


def add_rms_norm(x: Array, residual: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def gated_activation(x: Array, kind: str) -> Array:
    gate, up = np.split(x, 2, axis=-1)
    if kind == "silu":
        # 1 / (1 + e^-x) without an overflow
        return gate * (0.5 * (1 + np.tanh(gate / 2))).astype(np.float32) * up
    if kind == "gelu":
        return (gate * 0.5 * (1 + _erf(gate / math.sqrt(2)).astype(np.float32)) * up).astype(np.float32)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return (0.5 * gate * (1 + np.tanh(inner)) * up).astype(np.float32)


class _Packed:
    """An operator with weights. The engine leaves those of a device without torch's tensors on the host: `pack` takes
    them."""

    tag = "numpy"

    def __init__(self, function: Callable[..., Array]) -> None:
        self._function = function

    def pack(self, weight: Weight) -> None:
        for part in weight.parts or (weight,):
            part.prepared[_KEY] = part.dequantize().numpy()
        if weight.bias is not None:
            weight.prepared[_KEY + " bias"] = weight.bias.float().numpy()

    def __call__(self, *args: Any, **kwargs: Any) -> Array:
        return self._function(*args, **kwargs)


def _product(x: Array, part: Weight) -> Array:
    """x [T, K] times a matrix that is no stack, whose scheme may round its inputs first."""
    if part.activation is not None:
        # A chip does this in its own kernel; here the arrays lie in the host's memory, and torch can look at them.
        x = quantize_activation(torch.from_numpy(np.ascontiguousarray(x)), part).numpy()
    found: Array = x @ part.prepared[_KEY].T
    return found


def _linear(x: Array, weight: Weight) -> Array:
    out = np.concatenate([_product(x, part) for part in weight.parts or (weight,)], axis=1)
    bias = weight.prepared.get(_KEY + " bias")
    return out if bias is None else out + bias


def _embedding(ids: Array, table: Weight, scale: float, first_row: int | None = None) -> Array:
    rows: Array = table.prepared[_KEY]
    if first_row is None:
        return rows[ids] * np.float32(scale)
    inside = (ids >= first_row) & (ids < first_row + len(rows))
    return np.where(inside[:, None], rows[np.where(inside, ids - first_row, 0)], 0) * np.float32(scale)


def _logits(x: Array, batch: Batch, head: Weight, soft_cap: float | None) -> Array:
    out = _linear(x[batch.rows], head)
    return out if soft_cap is None else (soft_cap * np.tanh(out / np.float32(soft_cap))).astype(np.float32)


def _route(router: Array, bias: Array | None, routing: Routing) -> tuple[Array, Array]:
    """(experts, shares), [T, k] each."""
    if routing.score == "softmax":
        powers = np.exp(router - router.max(-1, keepdims=True))
        scores = powers / powers.sum(-1, keepdims=True)
    else:
        scores = 1 / (1 + np.exp(-router))
    choice = scores if bias is None else scores + bias
    if routing.groups > 1:
        runs = choice.reshape(len(router), routing.groups, router.shape[1] // routing.groups)
        worth = -np.sort(-runs, axis=-1)[..., : routing.group_best].sum(-1)
        best = np.argsort(-worth, axis=1, kind="stable")[:, : routing.top_groups]
        closed = np.ones(worth.shape, bool)
        np.put_along_axis(closed, best, False, axis=1)
        choice = np.where(closed[..., None], -np.inf, runs).reshape(choice.shape)
    chosen = np.argsort(-choice, axis=1, kind="stable")[:, : routing.top_k]
    shares = np.take_along_axis(scores, chosen, axis=1)
    if routing.renormalize:
        shares = shares / np.maximum(shares.sum(-1, keepdims=True), 1e-20)
    return chosen, (shares * routing.scale).astype(np.float32)


def _moe(
    x: Array, router: Array, gate_up: Weight, down: Weight, bias: Array | None, routing: Routing, kind: str
) -> Array:
    chosen, shares = _route(router, bias, routing)
    wide, hidden = down.shape[1], x.shape[1]
    first, second = (weight.prepared.get(_KEY + " bias") for weight in (gate_up, down))
    out = np.zeros_like(x)
    for expert in np.unique(chosen).tolist():
        token, rank = np.nonzero(chosen == expert)
        both = np.concatenate([_product(x[token], part) for part in gate_up.parts[2 * expert : 2 * expert + 2]], 1)
        if first is not None:
            both = both + first[2 * expert * wide : (2 * expert + 2) * wide]
        found = _product(gated_activation(both, kind), down.parts[expert])
        if second is not None:
            found = found + second[expert * hidden : (expert + 1) * hidden]
        out[token] += found * shares[token, rank, None]
    return out


OPERATORS: dict[str, Callable[..., Any]] = {
    "resolve_tokens": resolve_tokens,
    "embedding": _Packed(_embedding),
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "linear": _Packed(_linear),
    "rotary_cache": rotary_cache,
    "attention": attention,
    "gated_activation": gated_activation,
    "logits": _Packed(_logits),
    "sample": sample,
    "moe": _Packed(_moe),
}
"""All of `registry.OPS`, and `moe` of the optional ones: `gated_linear` is put together out of these."""
