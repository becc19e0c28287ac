"""The properties of a device that the Triton operators use, as data, and the launch of a kernel."""

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
    """Launch a kernel on the tensors' device; an empty grid launches nothing.

    Fused multiply-add is off: a compiler may contract one expression differently in two kernels, whose bits must agree.
    """
    if all(grid):
        kernel[grid](**args, num_warps=warps, num_stages=stages, enable_fp_fusion=False)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The configuration of one device."""

    dtype: torch.dtype = torch.float32
    """The type of activations, which `embedding` returns; the other operators follow their inputs."""
    fp8: str = ""
    batch_invariant: bool = True
    """Use one tile size for all batches, so that a row's bits do not depend on the batch; if not, tiles depend on
    it."""
    lanes: int = 32
    tile: int = 64
    stages: int = 3
    """These three, and `fp8`, as in `TritonChip`."""
    launch: Launch = run


def config_for(
    chip: TritonChip = _UNKNOWN, dtype: str = "float32", batch_invariant: bool = True, launch: Launch = run
) -> LaunchConfig:
    """The configuration for a chip; `dtype` is that of activations. Raises PlatformError for an unsupported `dtype`."""
    if dtype not in _DTYPES:
        raise PlatformError(f"dtype {dtype!r} of the Triton operators: choose one of {', '.join(_DTYPES)}")
    return LaunchConfig(_DTYPES[dtype], chip.fp8, batch_invariant, chip.lanes, chip.tile, chip.stages, launch)
