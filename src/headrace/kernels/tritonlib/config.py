"""What the Triton operators need to know of a device, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from headrace.errors import PlatformError

__all__ = ["Config", "Launch", "config_of", "run"]

Launch = Callable[[Any, tuple[int, ...], dict[str, Any], int, int], None]
"""launch(kernel, grid, arguments by name, warps, stages)"""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CHOICES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "dtype": tuple(_DTYPES),
        "fp8": ("", "ocp", "fnuz"),
        "batch_invariant": (True, False),
        "lanes": (32, 64),
        "tile": (64, 32),
        "stages": (3, 1, 2, 4),
    }
)
"""What each may be; the first is the default."""


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
    lanes: int = 32
    """Threads of a warp, 32 or 64."""
    tile: int = 64
    """Rows and keys of one step of attention, 64 or 32: what the chip's registers hold."""
    stages: int = 3
    """Steps of a product's loop in flight, 1 to 4: what its shared memory (or its registers, where loads go through them) holds."""
    launch: Launch = run


def config_of(extra: Mapping[str, Any] | Iterable[tuple[str, Any]], launch: Launch = run) -> Config:
    """From the pairs of `Capabilities.extra` whose names start with `triton_`: `triton_dtype` (a name), `triton_fp8`,
    `triton_batch_invariant`, `triton_lanes`, `triton_tile` and `triton_stages`. Others are left alone.

    Raises PlatformError for a value that is not one of those known.
    """
    given = dict(extra)

    def pick(name: str) -> Any:
        value = given.get(f"triton_{name}", _CHOICES[name][0])
        if value not in _CHOICES[name]:
            raise PlatformError(f"triton_{name} {value!r}: choose one of {', '.join(map(repr, _CHOICES[name]))}")
        return value

    picked = {name: pick(name) for name in _CHOICES}
    return Config(**{**picked, "dtype": _DTYPES[picked["dtype"]]}, launch=launch)
