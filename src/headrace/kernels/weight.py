"""A matrix in the form a checkpoint stores, quantized or not: the weight of `linear`, `embedding` and `logits`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

__all__ = ["SHARED_TENSORS", "Weight"]

SHARED_TENSORS = frozenset({"group_index", "input_scale", "global_scale", "input_global_scale"})
"""Names of scheme tensors that all rows share; every other tensor of a scheme has one row per output row."""


@dataclass(eq=False, slots=True)
class Weight:
    """An [N, K] matrix (N output rows, K inputs) in the form its scheme stores.

    `tensors` belong to the scheme (packed codes, scales, zero points). `unpack(weight)` gives the exact float32 [N, K]
    matrix that they stand for, the reference for every kernel. `parts` stacks matrices of the same K along N (fused
    QKV, gate and up), each in its own scheme; then `tensors` is empty.
    """

    scheme: str
    """`float32`, `bfloat16`, `float16`, `gguf:q4_1`, `int4`, `fp8_e4m3`, … or `stack`."""
    shape: tuple[int, int]
    tensors: dict[str, torch.Tensor]
    unpack: Callable[[Weight], torch.Tensor]
    bias: torch.Tensor | None = None
    """float32 [N]."""
    activation: str | None = None
    """The scheme's rounding of inputs before the product: `int8_token`, `fp8_token`, `fp8_tensor`, `mxfp4`… None:
    none."""
    wide_inputs: bool = False
    """The scheme quantizes only weights: without an `activation`, arithmetic uses inputs of 16 bits instead of 8."""
    parts: tuple[Weight, ...] = ()
    name: str = ""
    """The name in the checkpoint, for errors."""
    prepared: dict[str, Any] = field(default_factory=dict)
    """A platform's repacked forms, by its own key. Only the platform's operator reads them; it writes them once, at
    load."""

    def dequantize(self) -> torch.Tensor:
        """The matrix as float32 [N, K]."""
        if self.parts:
            return torch.cat([part.dequantize() for part in self.parts])
        return self.unpack(self)

    def take(self, rows: slice | torch.Tensor) -> Weight:
        """Some rows in their stored form, without bias: a slice or an int64 index. Not for stacks."""
        assert not self.parts
        tensors = {key: value if key in SHARED_TENSORS else _rows(value, rows) for key, value in self.tensors.items()}
        count = len(range(*rows.indices(self.shape[0]))) if isinstance(rows, slice) else len(rows)
        return replace(self, shape=(count, self.shape[1]), tensors=tensors, bias=None, prepared={})

    @property
    def nbytes(self) -> int:
        """The stored bytes of all parts."""
        own = sum(t.numel() * t.element_size() for t in self.tensors.values())
        return own + sum(part.nbytes for part in self.parts)


def _rows(x: torch.Tensor, rows: slice | torch.Tensor) -> torch.Tensor:
    """x[rows]; 8-bit floats are indexed as bytes, because older releases of torch cannot index them."""
    if isinstance(rows, torch.Tensor) and x.is_floating_point() and x.element_size() == 1:
        return x.view(torch.uint8)[rows].view(x.dtype)
    return x[rows]
