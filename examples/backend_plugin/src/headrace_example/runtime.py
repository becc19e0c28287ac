"""Makes the device known to torch, once a process: `torch.device("example", 1)`, and `torch.example` for what torch
asks."""

from __future__ import annotations

import sys

import torch
from torch.utils import backend_registration

from headrace.errors import PlatformError
from headrace_example import BYTES, DEVICES, LIBRARY

__all__ = ["current_device", "device_count", "is_available", "mem_get_info", "set_device", "synchronize"]

try:
    torch.ops.load_library(str(LIBRARY))  # type: ignore[no-untyped-call]
    backend_registration.rename_privateuse1_backend("example")
    torch._register_device_module("example", sys.modules[__name__])  # type: ignore[no-untyped-call]
except (OSError, RuntimeError) as error:
    # Built against another torch, or another vendor's device has taken torch's one free place.
    raise PlatformError(
        f"example: {LIBRARY} cannot be used with torch {torch.__version__} ({error}): "
        "pip install --force-reinstall --no-deps --no-build-isolation ./examples/backend_plugin"
    ) from error


def is_available() -> bool:
    return True


def device_count() -> int:
    return DEVICES


def current_device() -> int:
    index: int = torch.ops.headrace_example.current_device()
    return index


def set_device(device: torch.device | int) -> None:
    torch.ops.headrace_example.exchange_device(device if isinstance(device, int) else device.index)


def synchronize(device: torch.device | int | None = None) -> None:
    """Nothing is under way: operators end before they return."""


def mem_get_info(device: torch.device) -> tuple[int, int]:
    """(free, total) bytes. `TorchDevice.memory` asks this."""
    used: int = torch.ops.headrace_example.memory_used(device.index)
    return BYTES - used, BYTES
