"""Finds NVIDIA devices by the driver's files. Nothing is loaded, except NVML to list devices."""

from __future__ import annotations

from headrace.platforms.accelerator.platform import SCORE
from headrace.platforms.accelerator.probe import MachineProbe, masked
from headrace.platforms.cuda.nvml import query
from headrace.types import DeviceInfo

__all__ = ["devices", "probe"]

_MASK = "CUDA_VISIBLE_DEVICES"
_FOLDERS = ("usr/lib/wsl/lib", "usr/local/nvidia/lib64")
_SLICES = "MIG-"
_VENDOR = "0x10de"


def probe(machine: MachineProbe) -> tuple[int, str]:
    """(score, reason). It checks driver, devices, library and torch; the first that is missing is the reason."""
    version, windows = machine.read("proc/driver/nvidia/version"), machine.exists("dev/dxg")
    if not version and not windows:
        if any(machine.read(path) == _VENDOR for path in machine.glob("sys/bus/pci/devices/*/vendor")):
            return (
                0,
                "there is an NVIDIA device, but its driver is not loaded: install the driver, or load module nvidia",
            )
        return 0, "no NVIDIA driver here: install it, or start the container with its devices (--gpus all)"
    if not machine.has_library("libcuda.so.1", *_FOLDERS):
        return (
            0,
            "the NVIDIA driver has no libcuda.so.1 here: install its library, or start the container with --gpus all",
        )
    found = [] if windows else _from_files(machine)
    mask = machine.environ.get(_MASK)
    shown = masked(found, mask, _SLICES)
    if not shown and not (windows and mask != ""):
        return 0, "the driver shows no device" if mask is None else f"{_MASK}={mask} hides every device"
    torch = machine.torch()
    if torch is None or "cuda" not in torch.runtimes:
        what = "torch is not installed" if torch is None else f"torch {torch.version} is built without CUDA"
        return 0, f"{what}: install torch's CUDA build"
    names = ", ".join(device.name for device in shown) or "a device behind Windows"
    return SCORE, f"{names}; torch {torch.version} for CUDA {torch.runtimes['cuda']}"


def devices(machine: MachineProbe) -> list[DeviceInfo]:
    """The devices by NVML, which opens no context. Without NVML: by the driver's files, with memory 0 for unknown."""
    if not machine.exists("proc/driver/nvidia/version") and not machine.exists("dev/dxg"):
        return []
    return masked(query() or _from_files(machine), machine.environ.get(_MASK), _SLICES)


def _from_files(machine: MachineProbe) -> list[DeviceInfo]:
    found = []
    for index, path in enumerate(sorted(machine.root.glob("proc/driver/nvidia/gpus/*/information"))):
        lines = (line.partition(":") for line in machine.read(path).splitlines())
        fields = {name.strip(): value.strip() for name, _, value in lines}
        details = (("pci", path.parent.name), ("uuid", fields.get("GPU UUID", "")))
        found.append(DeviceInfo(index, fields.get("Model", "NVIDIA device"), 0, details))
    return found
