"""Finds TPUs by their PCI functions, and torch-xla by its own version file. Nothing is loaded."""

from __future__ import annotations

import re

from headrace.platforms.accelerator.platform import SCORE
from headrace.platforms.accelerator.probe import MachineProbe
from headrace.platforms.host import host_memory
from headrace.platforms.tpu.tpu_chips import CHIPS, HOST, TpuChip
from headrace.types import DeviceInfo

__all__ = ["NAMED_ONLY", "chip", "devices", "probe"]

_KIND = "PJRT_DEVICE"
_VENDOR = "0x1ae0"
NAMED_ONLY = 1
"""The score of XLA on the host: it is used only if the user names the platform."""


def probe(machine: MachineProbe) -> tuple[int, str]:
    """(score, reason). It checks chips, device nodes, torch, torch-xla and their versions; the first problem is the
    reason."""
    on_host = _on_host(machine)
    chips = _chips(machine)
    if not on_host and not chips:
        return 0, "no Google PCI device here: run on a TPU VM, or set PJRT_DEVICE=CPU to test with the host's compiler"
    if not on_host and not any(machine.may_open(node) for node in _nodes(machine)):
        return 0, "no permission on /dev/vfio or /dev/accel*: give them to the container, or run as their group"
    why, xla = _software(machine)
    if why:
        return 0, why
    if on_host:
        return NAMED_ONLY, f"XLA on the host ({_KIND}=CPU), for tests; torch-xla {xla}"
    return SCORE, f"{', '.join(device.name for device in devices(machine))}; torch-xla {xla}"


def devices(machine: MachineProbe) -> list[DeviceInfo]:
    if _on_host(machine):
        return [DeviceInfo(0, HOST.name, host_memory()[1])]
    return [DeviceInfo(at, found.name, found.memory) for at, found in enumerate(_chips(machine))]


def chip(machine: MachineProbe) -> TpuChip:
    """The generation of this host's chips, which are all the same."""
    return HOST if _on_host(machine) else _chips(machine)[0]


def _software(machine: MachineProbe) -> tuple[str, str]:
    """(the problem with torch and torch-xla, or empty; the version of torch-xla)."""
    torch, xla = machine.torch(), _xla_version(machine)
    if torch is None or xla is None:
        return f"{'torch' if torch is None else 'torch-xla'} is not installed: install headrace[tpu]", ""
    if torch.version.split(".")[:2] != xla.split(".")[:2]:
        return f"torch-xla {xla} does not fit torch {torch.version}: install the torch of its own minor version", ""
    return "", xla


def _on_host(machine: MachineProbe) -> bool:
    return machine.environ.get(_KIND, "").upper() == "CPU"


def _chips(machine: MachineProbe) -> list[TpuChip]:
    found = []
    for folder in machine.glob("sys/bus/pci/devices/*"):
        if machine.read(folder / "vendor") == _VENDOR:
            known = CHIPS.get(machine.read(folder / "device"))
            found += [known] if known else []
    return found


def _nodes(machine: MachineProbe) -> list[str]:
    nodes = [*machine.glob("dev/accel*"), *machine.glob("dev/vfio/[0-9]*")]
    return [str(node.relative_to(machine.root)) for node in nodes]


def _xla_version(machine: MachineProbe) -> str | None:
    folder = machine.torch_folder()
    text = "" if folder is None else machine.read(folder.parent / "torch_xla" / "version.py")
    found = re.search(r"__version__ = ['\"](.+?)['\"]", text)
    return found[1] if found else None
