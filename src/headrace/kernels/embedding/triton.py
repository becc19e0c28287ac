"""Triton form of `embedding`."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.embedding.reference import of_part
from headrace.kernels.tritonlib.device import jit
from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.kernels.weight import Weight

__all__ = ["embedding", "embedding_kernel"]

_DENSE = frozenset({"float32", "bfloat16", "float16"})
_BLOCK = 1024


@jit
def embedding_kernel(ids: tensor, table: tensor, out: tensor, width: int, scale: float, BLOCK: tl.constexpr) -> None:
    """out [T, width] = table[ids] * scale; one program per token and BLOCK columns."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    source = table + tl.load(ids + token).to(tl.int64) * width + column
    value = tl.load(source, inside, 0.0).to(tl.float32) * scale
    tl.store(out + token * width + column, value.to(out.dtype.element_ty), inside)


def embedding(
    ids: torch.Tensor, table: Weight, scale: float, first_row: int | None = None, *, config: LaunchConfig
) -> torch.Tensor:
    """See `ops.Ops.embedding`; the result has the configuration's type.

    The requested rows of a quantized table are dequantized on the device by its scheme, without waiting for the device.
    """
    if first_row is not None:
        return of_part(lambda own: embedding(own, table, scale, config=config), ids, first_row, table.shape[0])
    if table.parts or table.scheme not in _DENSE:
        rows = table.dequantize()[ids.long()] if table.parts else table.take(ids.long()).dequantize()
        return (rows * scale).to(config.dtype)
    stored = table.tensors["weight"].contiguous()
    width = table.shape[1]
    out = stored.new_empty(len(ids), width, dtype=config.dtype)
    args = {"ids": ids, "table": stored, "out": out, "width": width, "scale": scale, "BLOCK": _BLOCK}
    config.launch(embedding_kernel, (len(ids), -(-width // _BLOCK)), args, 4, 1)
    return out
