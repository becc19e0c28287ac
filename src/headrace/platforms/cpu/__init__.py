"""The CPU platform: native kernels if the library is built, otherwise the reference operators in exact float32.

Importing and probing load no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pluggy

from headrace.environment import read_environment
from headrace.errors import PlatformError
from headrace.platforms.host import host_memory, host_name, physical_cores
from headrace.platforms.interface import Device, Platform
from headrace.platforms.option_errors import unknown_option
from headrace.types import API_VERSION, DeviceInfo

__all__ = ["CpuPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class CpuPlatform:
    """One device: the machine. Options: `threads`, `dtype`, `float32_copies`, `rank`, `world_size`, `rendezvous` (see
    `native_device.NativeDevice` and `device.CpuDevice`)."""

    name = "cpu"
    api_version = API_VERSION

    def probe(self) -> tuple[int, str]:
        return 10, f"{physical_cores()} cores"

    def devices(self) -> list[DeviceInfo]:
        from headrace.platforms.cpu.native import describe

        details = (("cores", str(physical_cores())), *describe())
        return [DeviceInfo(0, host_name(), host_memory()[1], details)]

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        """A device on native kernels if they are built. A reference device otherwise, and also with HEADRACE_NATIVE=0
        or option `float32_copies`."""
        from headrace.platforms.cpu.device import OPTIONS, CpuDevice

        if index != 0:
            raise PlatformError(f"cpu: there is one device, index 0, but {index} was requested")
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise unknown_option("cpu", unknown[0], OPTIONS)
        reason = _why_by_reference(options)
        if reason is not None:
            return CpuDevice(**options, reason=reason)
        from headrace.platforms.cpu.native_device import NativeDevice

        return NativeDevice(**options)


def _why_by_reference(options: Mapping[str, Any]) -> str | None:
    from headrace.platforms.cpu.native import missing

    if not read_environment().native:
        return "HEADRACE_NATIVE=0"
    if "float32_copies" in options:
        return "the option float32_copies belongs to the reference operators"
    return missing()


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [CpuPlatform()]
