"""What the Triton operators need to know of a device, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from headrace.errors import PlatformError
from headrace.kernels.tritonlib.chip import TritonChip

__all__ = ["Launch", "LaunchConfig", "config_for", "run"]

Launch = Callable[[Any, tuple[int, ...], dict[str, Any], int, int], None]
"""launch(kernel, grid, arguments by name, warps, stages)"""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_UNKNOWN = TritonChip()


def run(kernel: Any, grid: tuple[int, ...], args: dict[str, Any], warps: int, stages: int) -> None:
    """Launch on the tensors' device; nothing for an empty grid. Products and sums stay apart where they are written apart, since
    a compiler may contract one expression differently in two kernels that must agree to the bit."""
    if all(grid):
        kernel[grid](**args, num_warps=warps, num_stages=stages, enable_fp_fusion=False)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """One device's answers."""

    dtype: torch.dtype = torch.float32
    """Type of activations: what `embedding` gives; the other operators follow their inputs."""
    fp8: str = ""
    batch_invariant: bool = True
    """One tile size for every batch, so that a row's bits do not depend on its company; else tiles follow the batch."""
    lanes: int = 32
    tile: int = 64
    stages: int = 3
    """These, and `fp8`, as in `TritonChip`."""
    launch: Launch = run


def config_for(
    chip: TritonChip = _UNKNOWN, dtype: str = "float32", batch_invariant: bool = True, launch: Launch = run
) -> LaunchConfig:
    """`dtype`: of activations. Raises PlatformError for one that no kernel computes in."""
    if dtype not in _DTYPES:
        raise PlatformError(f"dtype {dtype!r} of the Triton operators: choose one of {', '.join(_DTYPES)}")
    return LaunchConfig(_DTYPES[dtype], chip.fp8, batch_invariant, chip.lanes, chip.tile, chip.stages, launch)
