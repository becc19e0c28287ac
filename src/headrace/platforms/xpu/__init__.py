"""Intel GPUs: torch's XPU build, Triton operators, oneCCL. Steps are launched operator by operator unless asked otherwise.

Importing and probing load neither torch nor a driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

from headrace.platforms.accel_options import Options
from headrace.platforms.accel_platform import AcceleratorPlatform
from headrace.platforms.interface import Device, Platform
from headrace.platforms.xpu import discovery
from headrace.types import DeviceInfo

if TYPE_CHECKING:
    from headrace.platforms.accel_runtime import Runtime

__all__ = ["XpuPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class XpuPlatform(AcceleratorPlatform):
    """Devices in the order of their render nodes, those hidden by ZE_AFFINITY_MASK left out. Steps are captured only where option
    graph_tokens asks for it: XPU graphs are new in torch."""

    name = "xpu"
    defaults = Options(graph_tokens=0)

    def probe(self) -> tuple[int, str]:
        return discovery.probe(self.machine)

    def devices(self) -> list[DeviceInfo]:
        return discovery.devices(self.machine)

    def runtime(self) -> Runtime:
        from headrace.platforms.xpu.device import runtime

        return runtime()

    def make(self, runtime: Runtime, index: int, options: Options, **more: Any) -> Device:
        from headrace.platforms.xpu.device import XpuDevice

        return XpuDevice(runtime, index, options, **more)


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [XpuPlatform()]
