"""Intel GPUs: torch's XPU build, Triton operators, oneCCL. Steps are launched operator by operator by default.

Importing and probing load neither torch nor a driver.
"""

from __future__ import annotations

import pluggy

from headrace.platforms.accelerator.accelerator_options import AcceleratorOptions
from headrace.platforms.accelerator.platform import AcceleratorPlatform
from headrace.platforms.interface import Platform
from headrace.platforms.xpu import xpu_discovery

__all__ = ["XpuPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class XpuPlatform(AcceleratorPlatform):
    """Devices in the order of their render nodes, without those that ZE_AFFINITY_MASK hides. Steps are captured only if
    the user sets option graph_tokens, because XPU graphs are new in torch."""

    name = "xpu"
    providers = ("ipex",)
    defaults = AcceleratorOptions(graph_tokens=0)
    discovery = xpu_discovery
    home = "headrace.platforms.xpu.device"


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [XpuPlatform()]
