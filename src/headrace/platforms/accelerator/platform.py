"""The base class of platforms with an `AcceleratorDevice`. It doesn't import torch before a device is opened."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import PlatformError
from headrace.platforms.accelerator.accelerator_options import AcceleratorOptions, read_accelerator_options
from headrace.platforms.accelerator.probe import MachineProbe
from headrace.platforms.interface import Device
from headrace.types import API_VERSION, DeviceInfo

if TYPE_CHECKING:
    from headrace.platforms.accelerator.torch_runtime import TorchRuntime
    from headrace.platforms.accelerator.triton_operators import OperatorSource

__all__ = ["SCORE", "AcceleratorPlatform", "Discovery"]

SCORE = 50
"""Higher than the score of the CPU platform."""


class Discovery(Protocol):
    """Finds a vendor's devices."""

    def probe(self, machine: MachineProbe) -> tuple[int, str]: ...

    def devices(self, machine: MachineProbe) -> list[DeviceInfo]: ...


class AcceleratorPlatform:
    """A subclass only has data: its name, the module that finds devices (`discovery`) and the one that opens them
    (`home`)."""

    name: str
    api_version = API_VERSION
    defaults = AcceleratorOptions()
    providers: tuple[str, ...] = ()
    """Libraries that option `operators` may name: the keys of `Traits.providers`."""
    discovery: Discovery
    """A module that loads neither torch nor a driver."""
    home: str
    """The module with `runtime()` and `open_device(runtime, index, options, **more)`; loads torch."""

    def __init__(
        self,
        machine: MachineProbe | None = None,
        runtime: Callable[[], TorchRuntime] | None = None,
        source: OperatorSource | None = None,
    ) -> None:
        """`machine`, `runtime`, `source`: replacements for tests. Default: this machine, torch, the Triton
        operators."""
        self.machine = machine or MachineProbe()
        self._given = runtime
        self._source = source

    def probe(self) -> tuple[int, str]:
        return self.discovery.probe(self.machine)

    def devices(self) -> list[DeviceInfo]:
        return self.discovery.devices(self.machine)

    def runtime(self) -> TorchRuntime:
        """Torch's module for this kind of device. This call is the first that imports torch."""
        found: TorchRuntime = self._home().runtime()
        return found

    def _home(self) -> Any:
        return importlib.import_module(self.home)

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        """Options: the fields of `accelerator_options.AcceleratorOptions`."""
        parsed = read_accelerator_options(self.name, options, self.defaults, self.providers)
        score, reason = self.probe()
        if not score:
            raise PlatformError(f"{self.name}: device {index} cannot be opened: {reason}")
        runtime = (self._given or self.runtime)()
        try:
            count = int(runtime.module.device_count())
            if not 0 <= index < count:
                raise PlatformError(f"{self.name}: device {index} was requested; devices here: {count}")
            device: Device = self._home().open_device(
                runtime, index, parsed, **({"source": self._source} if self._source else {})
            )
            return device
        except (RuntimeError, OSError) as error:
            raise PlatformError(f"{self.name}: device {index} cannot be opened: {error}") from error
