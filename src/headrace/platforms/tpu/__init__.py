"""TPUs through torch-xla.

A step is compiled once per bucket, the cache is donated, attention and quantized products are Pallas kernels.

Importing and probing load neither torch nor libtpu.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

from headrace.errors import PlatformError
from headrace.platforms.accelerator.probe import MachineProbe
from headrace.platforms.interface import Device, Platform
from headrace.platforms.tpu import tpu_discovery
from headrace.platforms.tpu.tpu_options import read_tpu_options
from headrace.types import API_VERSION, DeviceInfo

if TYPE_CHECKING:
    from headrace.platforms.tpu.xla_runtime import XlaRuntime

__all__ = ["TpuPlatform", "headrace_platforms"]

_hookimpl = pluggy.HookimplMarker("headrace")


class TpuPlatform:
    """The chips of this host, by their PCI functions. With PJRT_DEVICE=CPU: the host itself through the same compiler,
    for tests. Options: the fields of `tpu_options.TpuOptions`."""

    name = "tpu"
    api_version = API_VERSION

    def __init__(self, machine: MachineProbe | None = None, runtime: Callable[[], XlaRuntime] | None = None) -> None:
        """`machine`, `runtime`: replacements for tests. Default: this machine, torch-xla."""
        self.machine = machine or MachineProbe()
        self._given = runtime

    def probe(self) -> tuple[int, str]:
        return tpu_discovery.probe(self.machine)

    def devices(self) -> list[DeviceInfo]:
        return tpu_discovery.devices(self.machine)

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        parsed = read_tpu_options(options)
        score, reason = self.probe()
        if not score:
            raise PlatformError(f"tpu: device {index} cannot be opened: {reason}")
        from headrace.platforms.tpu.device import TpuDevice

        try:
            runtime = self._runtime()
            count = runtime.device_count()
            if not 0 <= index < count:
                raise PlatformError(f"tpu: device {index} was requested; devices here: {count}")
            return TpuDevice(runtime, index, tpu_discovery.chip(self.machine), parsed)
        except (RuntimeError, OSError, ImportError) as error:
            raise PlatformError(f"tpu: device {index} cannot be opened: {error}") from error

    def _runtime(self) -> XlaRuntime:
        from headrace.platforms.tpu.xla_runtime import XlaRuntime

        return (self._given or XlaRuntime)()


@_hookimpl
def headrace_platforms() -> list[Platform]:
    return [TpuPlatform()]
