"""AMD devices: torch's ROCm build, Triton operators, steps as HIP graphs, RCCL.

Importing and probing load neither torch nor a driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

from headrace.platforms.accel_options import Options
from headrace.platforms.accel_platform import AcceleratorPlatform
from headrace.platforms.interface import Device, Platform
from headrace.platforms.rocm import discovery
from headrace.types import DeviceInfo

if TYPE_CHECKING:
    from headrace.platforms.accel_runtime import Runtime

__all__ = ["RocmPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class RocmPlatform(AcceleratorPlatform):
    """Devices in the order in which the kernel driver numbers them, those hidden by ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES left out."""

    name = "rocm"

    def probe(self) -> tuple[int, str]:
        return discovery.probe(self.machine)

    def devices(self) -> list[DeviceInfo]:
        return discovery.devices(self.machine)

    def runtime(self) -> Runtime:
        from headrace.platforms.rocm.device import runtime

        return runtime()

    def make(self, runtime: Runtime, index: int, options: Options, **more: Any) -> Device:
        from headrace.platforms.rocm.device import RocmDevice

        return RocmDevice(runtime, index, options, **more)


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [RocmPlatform()]
