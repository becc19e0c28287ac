"""NVIDIA devices: torch's CUDA build, Triton operators, steps as CUDA graphs, NCCL.

Importing and probing load neither torch nor a driver.
"""

from __future__ import annotations

import pluggy

from headrace.platforms.accelerator.platform import AcceleratorPlatform
from headrace.platforms.cuda import cuda_discovery
from headrace.platforms.interface import Platform

__all__ = ["CudaPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class CudaPlatform(AcceleratorPlatform):
    """Devices in the order of the driver, without those that CUDA_VISIBLE_DEVICES hides."""

    name = "cuda"
    providers = ("flashinfer",)
    discovery = cuda_discovery
    home = "headrace.platforms.cuda.device"


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [CudaPlatform()]
