"""The base of platforms whose devices are `accelerator.AcceleratorDevice`s. Loads no torch until a device is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import PlatformError
from headrace.platforms.accel_options import Options, read_options
from headrace.platforms.accel_probe import Machine
from headrace.platforms.interface import Device
from headrace.types import API_VERSION, DeviceInfo

if TYPE_CHECKING:
    from headrace.platforms.accel_operators import Source
    from headrace.platforms.accel_runtime import Runtime

__all__ = ["SCORE", "AcceleratorPlatform"]

SCORE = 50
"""Above the host's."""


class AcceleratorPlatform:
    """Subclasses say what is there (`probe`, `devices`) and make a device of a runtime (`runtime`, `make`)."""

    name: str
    api_version = API_VERSION
    defaults = Options()

    def __init__(
        self, machine: Machine | None = None, runtime: Callable[[], Runtime] | None = None, source: Source | None = None
    ) -> None:
        """`machine`, `runtime`, `source`: stand-ins for tests. Default: this machine, torch's own, the Triton operators."""
        self.machine = machine or Machine()
        self._given = runtime
        self._source = source

    def probe(self) -> tuple[int, str]:
        raise NotImplementedError

    def devices(self) -> list[DeviceInfo]:
        raise NotImplementedError

    def runtime(self) -> Runtime:
        """Torch's module for this kind of device. The first thing that loads torch."""
        raise NotImplementedError

    def make(self, runtime: Runtime, index: int, options: Options, **more: Any) -> Device:
        """Read the chip's properties and open it."""
        raise NotImplementedError

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        """Options: the fields of `accel_options.Options`."""
        wishes = read_options(self.name, options, self.defaults)
        score, reason = self.probe()
        if not score:
            raise PlatformError(f"{self.name}: device {index} cannot be opened: {reason}")
        runtime = (self._given or self.runtime)()
        try:
            count = int(runtime.module.device_count())
            if not 0 <= index < count:
                raise PlatformError(f"{self.name}: there are {count} devices, but index {index} was asked for")
            return self.make(runtime, index, wishes, **({"source": self._source} if self._source else {}))
        except (RuntimeError, OSError) as error:
            raise PlatformError(f"{self.name}: device {index} cannot be opened: {error}") from error
