"""A third-party platform named `example`. Importing it and probing load no torch and no driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pluggy

from headrace.errors import PlatformError
from headrace.platforms.interface import Device, Platform
from headrace.types import DeviceInfo

__all__ = ["BYTES", "DEVICES", "LIBRARY", "ExamplePlatform", "headrace_platforms"]

hookimpl = pluggy.HookimplMarker("headrace")
LIBRARY = Path(__file__).with_name("_device.so")
"""Stands for a vendor's driver."""
OPTIONS = ("threads", "dtype", "rank", "world_size", "rendezvous")
DEVICES, BYTES = 2, 2 << 30
"""How many there are, and the memory of each, as `csrc/device.cpp` makes them."""


class ExamplePlatform:
    """Two devices in the host's memory. Options: `threads`, of the host's own part; `dtype`, float32 alone; `rank`,
    `world_size`
    and `rendezvous` where a model is split over several, each in a process of its own."""

    name = "example"
    api_version = (1, 0)

    def probe(self) -> tuple[int, str]:
        """Scores from 10 on are chosen unasked: not this one."""
        if not LIBRARY.exists():
            return 0, f"{LIBRARY.name} was not built: pip install --no-build-isolation ./examples/backend_plugin"
        return 5, "an example: works anywhere, chosen only by name"

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(index, "example device", BYTES) for index in range(DEVICES)]

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        if not 0 <= index < DEVICES:
            raise PlatformError(f"example: there are devices 0 to {DEVICES - 1}, but {index} was asked for")
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise PlatformError(f"example: unknown option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
        dtype = options.get("dtype", "float32")
        if dtype != "float32":
            raise PlatformError(f"example: dtype {dtype!r}: there is float32 alone")
        from headrace.platforms.torch_communicator import World
        from headrace_example.device import ExampleDevice

        world = World(options.get("rank", 0), options.get("world_size", 1), options.get("rendezvous", ""))
        return ExampleDevice(index, options.get("threads"), world)


@hookimpl
def headrace_platforms() -> list[Platform]:
    return [ExamplePlatform()]
