"""Finds Intel GPUs by their render nodes. Nothing is loaded."""

from __future__ import annotations

from pathlib import Path

from headrace.platforms.accelerator.platform import SCORE
from headrace.platforms.accelerator.probe import MachineProbe, masked
from headrace.types import DeviceInfo

__all__ = ["devices", "probe"]

_MASK = "ZE_AFFINITY_MASK"
_VENDOR = "0x8086"
_MEMORY = ("lmem_total_bytes", "device/lmem_total_bytes", "device/tile0/physical_vram_size_bytes")
"""Files of a card with its memory size, of drivers i915 and xe. A GPU that uses the host's memory has none of them."""


def probe(machine: MachineProbe) -> tuple[int, str]:
    """(score, reason). It checks devices, permission, Level Zero and torch; the first that is missing is the reason."""
    nodes = _nodes(machine)
    if not nodes:
        return 0, "no Intel GPU here: load i915 or xe, or start the container with --device /dev/dri"
    if not any(machine.may_open(f"dev/dri/{node.name}") for node in nodes):
        return 0, f"no permission on /dev/dri/{nodes[0].name}: join its group (render), or give it to the container"
    for library, package in (("libze_loader.so.1", "level-zero"), ("libze_intel_gpu.so.1", "intel-level-zero-gpu")):
        if not machine.has_library(library):
            return (
                0,
                f"Level Zero's {library} is missing: install system package {package} (or libze1, libze-intel-gpu1)",
            )
    shown = devices(machine)
    if not shown:
        return 0, f"{_MASK}={machine.environ.get(_MASK)} hides every device"
    torch = machine.torch()
    if torch is None or "xpu" not in torch.runtimes:
        what = "torch is not installed" if torch is None else f"torch {torch.version} is built without XPU"
        return 0, f"{what}: install torch's XPU build"
    return SCORE, f"{', '.join(device.name for device in shown)}; torch {torch.version} for XPU {torch.runtimes['xpu']}"


def devices(machine: MachineProbe) -> list[DeviceInfo]:
    """The devices. Memory 0: the GPU uses the host's memory."""
    found = []
    for index, node in enumerate(_nodes(machine)):
        kind = machine.read(node / "device/device").removeprefix("0x")
        found.append(DeviceInfo(index, f"Intel GPU {kind}", _memory(machine, node), (("node", node.name),)))
    return masked(found, machine.environ.get(_MASK))


def _nodes(machine: MachineProbe) -> list[Path]:
    found = machine.glob("sys/class/drm/renderD*")
    return [node for node in found if machine.read(node / "device/vendor") == _VENDOR]


def _memory(machine: MachineProbe, node: Path) -> int:
    """Bytes of memory of the card that belongs to a render node."""
    for card in sorted((node / "device/drm").glob("card*")):
        for file in _MEMORY:
            text = machine.read(card / file)
            if text:
                return int(text, 0)
    return 0
