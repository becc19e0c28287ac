"""A matrix as a checkpoint stores it, quantized or not: what `linear`, `embedding` and `logits` take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

__all__ = ["SHARED_TENSORS", "Weight"]

SHARED_TENSORS = frozenset({"group_index", "input_scale", "global_scale", "input_global_scale"})
"""Names of scheme tensors that all rows share; every other tensor of a scheme has one row an output row."""


@dataclass(eq=False, slots=True)
class Weight:
    """An [N, K] matrix (N output rows, K inputs) in the form its scheme stores it.

    `tensors` are the scheme's own (packed codes, scales, zero points). `unpack(weight)` gives the float32 [N, K] matrix that
    they stand for; it is exact, the reference for every kernel. `parts` stacks matrices of the same K along N (fused QKV,
    gate and up), each in its own scheme; then `tensors` is empty.
    """

    scheme: str
    """`float32`, `bfloat16`, `float16`, `gguf:q4_1`, `int4`, `fp8_e4m3`, … or `stack`."""
    shape: tuple[int, int]
    tensors: dict[str, torch.Tensor]
    unpack: Callable[[Weight], torch.Tensor]
    bias: torch.Tensor | None = None
    """float32 [N]."""
    activation: str | None = None
    """How the scheme says inputs are quantized before the product: `int8_token`, `fp8_token`, `fp8_tensor`, `mxfp4`…; None: not at all."""
    wide_inputs: bool = False
    """The scheme quantizes weights alone: without an `activation`, arithmetic keeps inputs to 16 bits rather than 8."""
    parts: tuple[Weight, ...] = ()
    name: str = ""
    """The checkpoint's name, for errors."""
    prepared: dict[str, Any] = field(default_factory=dict)
    """A platform's repacked forms, by its own key. Written once at load by the platform's operator, read by it alone."""

    def dequantize(self) -> torch.Tensor:
        """float32 [N, K]."""
        if self.parts:
            return torch.cat([part.dequantize() for part in self.parts])
        return self.unpack(self)

    def take(self, rows: slice | torch.Tensor) -> Weight:
        """Some rows, in the scheme's own form and without bias: a step or an index of int64. Not for stacks."""
        assert not self.parts
        tensors = {key: value if key in SHARED_TENSORS else _rows(value, rows) for key, value in self.tensors.items()}
        count = len(range(*rows.indices(self.shape[0]))) if isinstance(rows, slice) else len(rows)
        return replace(self, shape=(count, self.shape[1]), tensors=tensors, bias=None, prepared={})

    @property
    def nbytes(self) -> int:
        """Bytes as stored, over all parts."""
        own = sum(t.numel() * t.element_size() for t in self.tensors.values())
        return own + sum(part.nbytes for part in self.parts)


def _rows(x: torch.Tensor, rows: slice | torch.Tensor) -> torch.Tensor:
    """x[rows]; as bytes where they are 8-bit floats, which older releases of torch cannot index."""
    if isinstance(rows, torch.Tensor) and x.is_floating_point() and x.element_size() == 1:
        return x.view(torch.uint8)[rows].view(x.dtype)
    return x[rows]
