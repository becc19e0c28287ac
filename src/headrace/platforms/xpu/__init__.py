"""Intel GPUs: torch's XPU build, Triton operators, oneCCL. Steps are launched operator by operator unless asked otherwise.

Importing and probing load neither torch nor a driver.
"""

from __future__ import annotations

import pluggy

from headrace.platforms.accelerator.accelerator_options import AcceleratorOptions
from headrace.platforms.accelerator.platform import AcceleratorPlatform
from headrace.platforms.interface import Platform
from headrace.platforms.xpu import discovery

__all__ = ["XpuPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class XpuPlatform(AcceleratorPlatform):
    """Devices in the order of their render nodes, those hidden by ZE_AFFINITY_MASK left out. Steps are captured only where option
    graph_tokens asks for it: XPU graphs are new in torch."""

    name = "xpu"
    providers = ("ipex",)
    defaults = AcceleratorOptions(graph_tokens=0)
    discovery = discovery
    home = "headrace.platforms.xpu.device"


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [XpuPlatform()]
