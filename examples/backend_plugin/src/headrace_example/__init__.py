"""A third-party platform named `example`. Importing it loads no torch and no driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pluggy

from headrace.errors import PlatformError
from headrace.platforms.interface import Device, Platform
from headrace.types import DeviceInfo

__all__ = ["ExamplePlatform", "headrace_platforms"]

hookimpl = pluggy.HookimplMarker("headrace")


class ExamplePlatform:
    """Finds one device."""

    name = "example"
    api_version = (1, 0)

    def probe(self) -> tuple[int, str]:
        """A real vendor looks for its driver here, without loading it. Scores from 10 on are chosen unasked: not this one."""
        return 5, "an example: works anywhere, chosen only by name"

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(0, "example device", 1 << 30)]

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        from headrace_example.device import ExampleDevice

        if index != 0:
            raise PlatformError(f"example: there is one device, index 0, but {index} was asked for")
        unknown = sorted(set(options) - {"threads", "dtype"})
        if unknown:
            raise PlatformError(f"example: unknown option {unknown[0]!r}; there are threads and dtype")
        return ExampleDevice(options.get("threads"))


@hookimpl
def headrace_platforms() -> list[Platform]:
    return [ExamplePlatform()]
