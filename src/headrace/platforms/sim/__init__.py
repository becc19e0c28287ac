"""A device that computes nothing: a cost model says how long each step would take, tokens come from a hash.

The second implementation of the contract, and what capacity is planned with: the same scheduler and the same model, no
arithmetic. Its score keeps it from being chosen unless it is named. Importing and probing load no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pluggy

from headrace.errors import PlatformError
from headrace.platforms.interface import Device, Platform
from headrace.platforms.sim.cost import SimMachine
from headrace.types import API_VERSION, DeviceInfo

__all__ = ["SimMachine", "SimPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class SimPlatform:
    """One device. Options: the fields of `SimMachine`, `realtime` (see `device.SimDevice`), and
    `dtype`, which is the same to it: bytes are counted as weights are stored."""

    name = "sim"
    api_version = API_VERSION

    def probe(self) -> tuple[int, str]:
        return 1, "a simulator: only where it is named"

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(0, "simulated device", SimMachine().memory_bytes)]

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        from headrace.platforms.sim.device import SimDevice

        if index != 0:
            raise PlatformError(f"sim: there is one device, index 0, but {index} was asked for")
        known = [field.name for field in fields(SimMachine)]
        unknown = sorted(set(options) - {*known, "realtime", "dtype"})
        if unknown:
            raise PlatformError(f"sim: unknown option {unknown[0]!r}; there are {', '.join(known)}, realtime, dtype")
        machine = {name: value for name, value in options.items() if name in known}
        for name, value in machine.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise PlatformError(f"sim: option {name} is {value!r}: give a positive number")
        return SimDevice(SimMachine(**machine), realtime=bool(options.get("realtime", False)))


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [SimPlatform()]
