"""What the Triton operators need to know of a device, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from headrace.errors import PlatformError

__all__ = ["Config", "Launch", "config_of", "run"]

Launch = Callable[[Any, tuple[int, ...], dict[str, Any], int, int], None]
"""launch(kernel, grid, arguments by name, warps, stages)"""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FP8 = ("", "ocp", "fnuz")


def run(kernel: Any, grid: tuple[int, ...], args: dict[str, Any], warps: int, stages: int) -> None:
    """Launch on the tensors' device; nothing for an empty grid. Products and sums stay apart where they are written apart, since
    a compiler may contract one expression differently in two kernels that must agree to the bit."""
    if all(grid):
        kernel[grid](**args, num_warps=warps, num_stages=stages, enable_fp_fusion=False)


@dataclass(frozen=True, slots=True)
class Config:
    """One device's answers."""

    dtype: torch.dtype = torch.float32
    """Type of activations: what `embedding` gives; the other operators follow their inputs."""
    fp8: str = ""
    """E4M3 of the matrix unit: `ocp`, `fnuz` (same bits but for zero, half the value), or none: E4M3 is widened to 16 bits."""
    batch_invariant: bool = True
    """One tile size for every batch, so that a row's bits do not depend on its company; else tiles follow the batch."""
    launch: Launch = run


def config_of(extra: Mapping[str, Any] | Iterable[tuple[str, Any]], launch: Launch = run) -> Config:
    """From the pairs of `Capabilities.extra` named `triton_dtype`, `triton_fp8` and `triton_batch_invariant`; others are left alone.

    Raises PlatformError for a value that is not one of those known.
    """
    given = dict(extra)
    name, fp8 = given.get("triton_dtype", "float32"), given.get("triton_fp8", "")
    if name not in _DTYPES:
        raise PlatformError(f"triton_dtype {name!r}: choose one of {', '.join(_DTYPES)}")
    if fp8 not in _FP8:
        raise PlatformError(f"triton_fp8 {fp8!r}: choose one of {', '.join(map(repr, _FP8))}")
    return Config(_DTYPES[name], fp8, bool(given.get("triton_batch_invariant", True)), launch)
