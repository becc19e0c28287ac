"""Finds AMD devices by the topology files of the kernel driver (KFD). Nothing is loaded."""

from __future__ import annotations

from headrace.platforms.accelerator.platform import SCORE
from headrace.platforms.accelerator.probe import MachineProbe, masked
from headrace.types import DeviceInfo

__all__ = ["arch_name", "devices", "probe"]

_KFD = "dev/kfd"
_VENDOR = "0x1002"
_VRAM = ("1", "2")
"""Heap types of the topology: local memory, public and private."""


def probe(machine: MachineProbe) -> tuple[int, str]:
    """(score, reason). It checks driver, permission, devices and torch; the first that is missing is the reason."""
    if not machine.exists(_KFD):
        if any(machine.read(path) == _VENDOR for path in machine.glob("sys/class/drm/renderD*/device/vendor")):
            return (
                0,
                "there is an AMD device, but no /dev/kfd: load amdgpu, or start the container with --device /dev/kfd",
            )
        return 0, "no AMD compute driver here (/dev/kfd): install amdgpu, or start the container with --device /dev/kfd"
    if not machine.may_open(_KFD):
        return 0, "no permission on /dev/kfd: join its group (render or video)"
    found, shown = _all(machine), devices(machine)
    if not shown:
        return 0, "the driver shows no device" if not found else "ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES hides all"
    torch = machine.torch()
    if torch is None or "hip" not in torch.runtimes:
        what = "torch is not installed" if torch is None else f"torch {torch.version} is built without ROCm"
        return 0, f"{what}: install torch's ROCm build"
    return (
        SCORE,
        f"{', '.join(device.name for device in shown)}; torch {torch.version} for ROCm {torch.runtimes['hip']}",
    )


def devices(machine: MachineProbe) -> list[DeviceInfo]:
    """The devices in HIP's numbering. HIP's mask (or CUDA's, which HIP also reads) applies to what ROCR's mask
    leaves."""
    below = masked(_all(machine), machine.environ.get("ROCR_VISIBLE_DEVICES"))
    mask = machine.environ.get("HIP_VISIBLE_DEVICES", machine.environ.get("CUDA_VISIBLE_DEVICES"))
    return masked(below, mask)


def arch_name(version: int) -> str:
    """`gfx942` for 90402: minor and stepping have two decimal digits each; the name has them in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _all(machine: MachineProbe) -> list[DeviceInfo]:
    found: list[DeviceInfo] = []
    for node in machine.glob("sys/class/kfd/kfd/topology/nodes/*"):
        properties = _properties(machine.read(node / "properties"))
        if properties.get("simd_count", "0") == "0":  # a processor
            continue
        banks = [_properties(machine.read(bank / "properties")) for bank in machine.glob(f"{_under(machine, node)}/*")]
        memory = sum(int(bank.get("size_in_bytes", 0)) for bank in banks if bank.get("heap_type") in _VRAM)
        arch = arch_name(int(properties.get("gfx_target_version", 0)))
        details = (("arch", arch), ("uuid", f"GPU-{int(properties.get('unique_id', 0)):016x}"))
        found.append(DeviceInfo(len(found), f"AMD {arch}", memory, details))
    return found


def _under(machine: MachineProbe, node: object) -> str:
    return f"{str(node).removeprefix(str(machine.root)).lstrip('/')}/mem_banks"


def _properties(text: str) -> dict[str, str]:
    """Parse lines with a name and a value each."""
    pairs = (line.split(maxsplit=1) for line in text.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
