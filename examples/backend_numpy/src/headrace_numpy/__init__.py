"""A third-party platform named `numpy`: one device in the host's memory whose tensors are numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pluggy

from headrace.errors import PlatformError
from headrace.platforms.host import host_memory
from headrace.platforms.interface import Device, Platform
from headrace.types import DeviceInfo

__all__ = ["NumpyPlatform", "headrace_platforms"]

hookimpl = pluggy.HookimplMarker("headrace")
OPTIONS = ("dtype", "threads")


class NumpyPlatform:
    """One device. Options: `dtype`, float32 alone; `threads`, which numpy itself decides."""

    name = "numpy"
    api_version = (1, 0)

    def probe(self) -> tuple[int, str]:
        """Scores from 10 on are chosen unasked: not this one."""
        return 5, "an example: works anywhere, chosen only by name"

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(0, "numpy", host_memory()[1])]

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        if index != 0:
            raise PlatformError(f"numpy: there is one device, index 0, but {index} was asked for")
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise PlatformError(f"numpy: unknown option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
        if options.get("dtype", "float32") != "float32":
            raise PlatformError(f"numpy: dtype {options['dtype']!r}: there is float32 alone")
        from headrace_numpy.device import NumpyDevice

        return NumpyDevice()


@hookimpl
def headrace_platforms() -> list[Platform]:
    return [NumpyPlatform()]
