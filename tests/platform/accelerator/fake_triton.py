"""A Triton driver without a device: kernels are compiled for the chip that the platform names, and a launch is written
down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from fake_accelerator import FakeModule
from triton.backends.compiler import GPUTarget


@dataclass
class Launch:
    """The arguments of one launch that reached the driver."""

    kernel: str
    grid: tuple[int, int, int]
    stream: str
    args: tuple[Any, ...]
    source: Any
    """The kernel's signature, constants and attributes, as it was compiled."""
    metadata: Any


@dataclass
class FakeDriver:
    """The members that `triton.runtime.driver.active` must have. `target`: (code generator, architecture, lanes)."""

    module: FakeModule
    target: tuple[str, Any, int]
    shared: int
    launches: list[Launch] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    """Machine code that was loaded: one entry a compiled form."""

    def __post_init__(self) -> None:
        self.utils = SimpleNamespace(
            load_binary=self._load, unload_module=lambda module: None, get_device_properties=self._properties
        )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget(*self.target)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> str:
        return self.module.current_stream().name

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> FakeModule:
        return self.module

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, stream: str, function: Any, *rest: Any) -> None:
            _packed, _launched, _enter, _leave, *args = rest
            self.launches.append(Launch(function, (x, y, z), stream, tuple(args), source, metadata))

        return launch

    def _properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.shared}

    def _load(self, name: str, code: bytes, shared: int, *place: Any) -> tuple[str | int, ...]:
        """`place`: the device; Intel's fork puts flags before it, and takes no number of threads."""
        assert code
        assert shared <= self.shared
        self.loaded.append(name)
        return ("module", name, 0, 0, 1024)[: 6 - len(place)]


def divisible(kernel: Any, attributes: Mapping[tuple[int, ...], Sequence[Any]]) -> list[str]:
    """Parameters that the compiler may assume to be multiples of 16."""
    names = [parameter.name for parameter in kernel.params]
    return [names[place[0]] for place, facts in sorted(attributes.items()) if ["tt.divisibility", 16] in facts]
