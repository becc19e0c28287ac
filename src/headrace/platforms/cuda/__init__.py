"""NVIDIA devices: torch's CUDA build, Triton operators, steps as CUDA graphs, NCCL.

Importing and probing load neither torch nor a driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

from headrace.platforms.accel_options import Options
from headrace.platforms.accel_platform import AcceleratorPlatform
from headrace.platforms.cuda import discovery
from headrace.platforms.interface import Device, Platform
from headrace.types import DeviceInfo

if TYPE_CHECKING:
    from headrace.platforms.accel_runtime import Runtime

__all__ = ["CudaPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class CudaPlatform(AcceleratorPlatform):
    """Devices in the order in which the driver numbers them, those hidden by CUDA_VISIBLE_DEVICES left out."""

    name = "cuda"

    def probe(self) -> tuple[int, str]:
        return discovery.probe(self.machine)

    def devices(self) -> list[DeviceInfo]:
        return discovery.devices(self.machine)

    def runtime(self) -> Runtime:
        from headrace.platforms.cuda.device import runtime

        return runtime()

    def make(self, runtime: Runtime, index: int, options: Options, **more: Any) -> Device:
        from headrace.platforms.cuda.device import CudaDevice

        return CudaDevice(runtime, index, options, **more)


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [CudaPlatform()]
