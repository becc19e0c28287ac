"""Machines with an accelerator in them, as files under a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import fake_accelerator as fake

from headrace.platforms.accelerator.platform import AcceleratorPlatform
from headrace.platforms.accelerator.probe import MachineProbe
from headrace.platforms.cuda import CudaPlatform
from headrace.platforms.rocm import RocmPlatform
from headrace.platforms.xpu import XpuPlatform

VERSION = """\
from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'xpu']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda}
git_version = 'cf30'
hip: Optional[str] = {hip}
xpu: Optional[str] = {xpu}
"""


def torch_folder(root: Path, version: str, **builds: str) -> Path:
    folder = root / "site" / "torch"
    folder.mkdir(parents=True, exist_ok=True)
    given = {name: repr(builds.get(name)) for name in ("cuda", "hip", "xpu")}
    (folder / "version.py").write_text(VERSION.format(version=version, **given))
    return folder


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def machine(root: Path, files: Mapping[str, str], torch: Path | None = None, **environ: str) -> MachineProbe:
    write(root, files)
    return MachineProbe(root, environ, find_library=lambda name: None, torch_folder=lambda: torch)


def probed(
    discovery: Any, root: Path, files: Mapping[str, str], build: Any, environ: Mapping[str, str]
) -> tuple[int, str]:
    """The result of a platform's discovery on a machine; `build` is torch's (version, builds), or None if it is
    absent."""
    folder = torch_folder(root, build[0], **build[1]) if build else None
    found: tuple[int, str] = discovery.probe(machine(root, files, folder, **environ))
    return found


NVIDIA = {
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "usr/lib64/libcuda.so.1": "",
    "proc/driver/nvidia/gpus/0000:1b:00.0/information": (
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 55\nGPU UUID: \t GPU-aa11"
    ),
    "proc/driver/nvidia/gpus/0000:3d:00.0/information": "Model: \t\t NVIDIA L4\nGPU UUID: \t GPU-bb22",
}
_NODE = "sys/class/kfd/kfd/topology/nodes"
AMD = {
    "dev/kfd": "",
    f"{_NODE}/0/properties": "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0",
    f"{_NODE}/1/properties": (
        "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nunique_id 1311768467463790320"
    ),
    f"{_NODE}/1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 206141652992\nflags 0",
    f"{_NODE}/10/properties": "simd_count 416\ngfx_target_version 90010\nunique_id 7",
    f"{_NODE}/10/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 68702699520",
}
INTEL = {
    "sys/class/drm/renderD128/device/vendor": "0x1a03",
    "sys/class/drm/renderD129/device/vendor": "0x8086",
    "sys/class/drm/renderD129/device/device": "0x0bd5",
    "sys/class/drm/renderD129/device/drm/card1/device/tile0/physical_vram_size_bytes": "0x1000000000",
    "sys/class/drm/renderD130/device/vendor": "0x8086",
    "sys/class/drm/renderD130/device/device": "0x7d55",
    "dev/dri/renderD129": "",
    "dev/dri/renderD130": "",
    "usr/lib/x86_64-linux-gnu/libze_loader.so.1": "",
    "usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1": "",
}


class Vendor(NamedTuple):
    """One platform with its machine and its chip."""

    name: str
    platform: type[AcceleratorPlatform]
    files: Mapping[str, str]
    torch: tuple[str, dict[str, str]]
    chip: SimpleNamespace
    graph: str

    def open(self, root: Path, **made: Any) -> tuple[AcceleratorPlatform, fake.FakeModule]:
        """A platform on a fake machine. `source`: default every operator, recorded."""
        version, builds = self.torch
        module = made.pop("module", None) or fake.FakeModule(self.chip, self.chip, graph=self.graph)
        source: Callable[..., Any] = made.pop("source", None) or fake.operators_of(module)
        found = machine(root, self.files, torch_folder(root, version, **builds))
        return self.platform(found, lambda: fake.runtime_of(module, self.graph), source), module


VENDORS = (
    Vendor("cuda", CudaPlatform, NVIDIA, ("2.9.0", {"cuda": "12.8"}), fake.H200, "CUDAGraph"),
    Vendor("rocm", RocmPlatform, AMD, ("2.9.0+rocm6.4", {"hip": "6.4.43"}), fake.MI300X, "CUDAGraph"),
    Vendor("xpu", XpuPlatform, INTEL, ("2.11.0+xpu", {"xpu": "20250302"}), fake.MAX1550, "XPUGraph"),
)
