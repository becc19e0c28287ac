"""Lists devices with NVML, NVIDIA's management library: names and memory, without a context on any device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from headrace.types import DeviceInfo

__all__ = ["query"]

_TEXT = 96


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def query(load: Callable[[str], Any] = ctypes.CDLL) -> list[DeviceInfo]:
    """All devices in the order of the bus; empty if the library is missing or fails."""
    try:
        nvml = load("libnvidia-ml.so.1")
    except OSError:
        return []
    if nvml.nvmlInit_v2():
        return []
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        return [info for index in range(count.value) if (info := _device(nvml, index)) is not None]
    finally:
        nvml.nvmlShutdown()


def _device(nvml: Any, index: int) -> DeviceInfo | None:
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return None
    memory = _Memory()
    total = 0 if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) else memory.total
    name = _text(nvml.nvmlDeviceGetName, handle) or "NVIDIA device"
    return DeviceInfo(index, name, int(total), (("uuid", _text(nvml.nvmlDeviceGetUUID, handle)),))


def _text(function: Any, handle: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(_TEXT)
    return "" if function(handle, buffer, _TEXT) else buffer.value.decode(errors="replace")
