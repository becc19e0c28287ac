"""AMD devices: torch's ROCm build, Triton operators, steps as HIP graphs, RCCL.

Importing and probing load neither torch nor a driver.
"""

from __future__ import annotations

import pluggy

from headrace.platforms.accelerator.platform import AcceleratorPlatform
from headrace.platforms.interface import Platform
from headrace.platforms.rocm import rocm_discovery

__all__ = ["RocmPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class RocmPlatform(AcceleratorPlatform):
    """Devices in the order of the kernel driver, without those that ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES
    hides."""

    name = "rocm"
    discovery = rocm_discovery
    home = "headrace.platforms.rocm.device"


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [RocmPlatform()]
