"""A simulated device that computes nothing: a cost model estimates the time of each step, tokens come from a hash.

It is the second implementation of the contract and serves capacity planning: the same scheduler and the same model,
without arithmetic. Because of its low score it is used only if the user names it. Importing and probing don't load
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pluggy

from headrace.errors import PlatformError
from headrace.platforms.interface import Device, Platform
from headrace.platforms.option_errors import unknown_option
from headrace.platforms.sim.cost import SimMachine
from headrace.types import API_VERSION, DeviceInfo

__all__ = ["SimMachine", "SimPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class SimPlatform:
    """One device. Options: the fields of `SimMachine`, `realtime` (see `device.SimDevice`), and `dtype`, which has no
    effect: bytes are counted as the weights are stored."""

    name = "sim"
    api_version = API_VERSION

    def probe(self) -> tuple[int, str]:
        return 1, "a simulator: only used by name"

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(0, "simulated device", SimMachine().memory_bytes)]

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        from headrace.platforms.sim.device import SimDevice

        if index != 0:
            raise PlatformError(f"sim: there is one device, index 0, but {index} was requested")
        known = [field.name for field in fields(SimMachine)]
        allowed = [*known, "realtime", "dtype"]
        unknown = sorted(set(options) - set(allowed))
        if unknown:
            raise unknown_option("sim", unknown[0], allowed)
        machine = {name: value for name, value in options.items() if name in known}
        for name, value in machine.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise PlatformError(f"sim: option {name} is {value!r}: give a positive number")
        return SimDevice(SimMachine(**machine), realtime=bool(options.get("realtime", False)))


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [SimPlatform()]
