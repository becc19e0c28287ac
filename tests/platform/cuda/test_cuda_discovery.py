"""NVIDIA devices are found by files; what is missing is named with its remedy."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import run as subprocess_run
from typing import Any

import pytest
from fake_machines import NVIDIA, machine, probed, torch_folder

from headrace.platforms.accelerator.probe import MachineProbe, masked
from headrace.platforms.cuda import CudaPlatform, cuda_discovery, nvml
from headrace.types import DeviceInfo


def without(*names: str) -> dict[str, str]:
    return {name: text for name, text in NVIDIA.items() if not any(part in name for part in names)}


@pytest.mark.parametrize(
    ("files", "build", "environ", "said"),
    [
        ({}, None, {}, "no NVIDIA driver here: install it, or start the container with its devices"),
        ({"sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de"}, None, {}, "its driver is not loaded"),
        ({"sys/bus/pci/devices/0000:1b:00.0/vendor": "0x8086"}, None, {}, "no NVIDIA driver here"),
        (without("libcuda"), None, {}, "no libcuda.so.1 here"),
        (without("gpus"), None, {}, "the driver shows no device"),
        (NVIDIA, None, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= hides every device"),
        (NVIDIA, None, {"CUDA_VISIBLE_DEVICES": "7"}, "CUDA_VISIBLE_DEVICES=7 hides every device"),
        (NVIDIA, None, {}, "torch is not installed: install torch's CUDA build"),
        (NVIDIA, ("2.9.0+cpu", {}), {}, "torch 2.9.0\\+cpu is built without CUDA: install torch's CUDA build"),
        (NVIDIA, ("2.9.0", {"hip": "6.4"}), {}, "torch 2.9.0 is built without CUDA"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, files: Mapping[str, str], build: Any, environ: dict[str, str], said: str
) -> None:
    score, reason = probed(cuda_discovery, tmp_path, files, build, environ)
    assert score == 0
    assert re.search(said, reason), reason


def test_a_usable_machine_reports_its_devices(tmp_path: Path) -> None:
    found = machine(tmp_path, NVIDIA, torch_folder(tmp_path, "2.9.0", cuda="12.8"))
    assert CudaPlatform(found).probe() == (50, "NVIDIA H200, NVIDIA L4; torch 2.9.0 for CUDA 12.8")
    one, two = cuda_discovery.devices(found)
    assert (one.index, one.name, one.details) == (0, "NVIDIA H200", (("pci", "0000:1b:00.0"), ("uuid", "GPU-aa11")))
    assert (two.index, two.name, two.memory_bytes) == (1, "NVIDIA L4", 0)


def test_windows_shows_its_device_without_files(tmp_path: Path) -> None:
    files = {"dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": ""}
    folder = torch_folder(tmp_path, "2.9.0", cuda="12.8")
    assert cuda_discovery.probe(machine(tmp_path, files, folder)) == (
        50,
        "a device behind Windows; torch 2.9.0 for CUDA 12.8",
    )
    assert cuda_discovery.probe(machine(tmp_path, files, folder, CUDA_VISIBLE_DEVICES=""))[0] == 0


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (None, ["NVIDIA H200", "NVIDIA L4"]),
        ("1", ["NVIDIA L4"]),
        ("1, 0", ["NVIDIA L4", "NVIDIA H200"]),
        ("GPU-bb", ["NVIDIA L4"]),
        ("0,-1,1", ["NVIDIA H200"]),
        ("MIG-5f3e", ["MIG-5f3e"]),
        ("", []),
    ],
)
def test_a_mask_hides_and_renumbers(tmp_path: Path, mask: str | None, names: list[str]) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    found = CudaPlatform(machine(tmp_path, NVIDIA, **environ)).devices()
    assert [device.name for device in found] == names
    assert [device.index for device in found] == list(range(len(names)))


def test_nothing_is_listed_without_a_driver(tmp_path: Path) -> None:
    assert CudaPlatform(machine(tmp_path, {})).devices() == []


class Nvml:
    """Two devices, of which the second reports no memory; index 2 has fallen off the bus."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.calls = fault, []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.calls.append(name)
            return 999 if name == self.fault else self.answer(name, *args)

        return call

    def answer(self, name: str, *args: Any) -> int:
        if name == "nvmlDeviceGetCount_v2":
            args[0]._obj.value = 3
        elif name == "nvmlDeviceGetHandleByIndex_v2":
            args[1]._obj.value = args[0] + 1
            return 15 if args[0] == 2 else 0
        elif name == "nvmlDeviceGetMemoryInfo":
            args[1]._obj.total = 143771 << 20
            return 3 if args[0].value == 2 else 0
        elif name in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
            args[1].value = f"{name[-4:]} {args[0].value}".encode()
        return 0


def test_nvml_reports_names_and_memory() -> None:
    library = Nvml()
    assert nvml.query(lambda name: library) == [
        DeviceInfo(0, "Name 1", 143771 << 20, (("uuid", "UUID 1"),)),
        DeviceInfo(1, "Name 2", 0, (("uuid", "UUID 2"),)),
    ]
    assert library.calls[-1] == "nvmlShutdown"
    assert nvml.query(lambda name: Nvml("nvmlDeviceGetName"))[0].name == "NVIDIA device"


@pytest.mark.parametrize("fault", ["nvmlInit_v2", "nvmlDeviceGetCount_v2"])
def test_an_nvml_that_fails_reports_nothing(fault: str) -> None:
    assert nvml.query(lambda name: Nvml(fault)) == []


def test_a_missing_nvml_reports_nothing() -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    assert nvml.query(missing) == []


def test_probing_loads_no_torch_and_no_driver() -> None:
    code = (
        "import sys\n"
        "from headrace.platforms.cuda import headrace_platforms as a\n"
        "from headrace.platforms.rocm import headrace_platforms as b\n"
        "from headrace.platforms.xpu import headrace_platforms as c\n"
        "for hook in (a, b, c):\n"
        "    (platform,) = hook()\n"
        "    score, reason = platform.probe()\n"
        "    assert reason and score in (0, 50)\n"
        "    platform.devices()\n"
        "assert not {'torch', 'triton'} & set(sys.modules)\n"
    )
    assert subprocess_run([sys.executable, "-c", code], check=False).returncode == 0


def test_this_machines_own_torch_is_read() -> None:
    import torch

    found = MachineProbe().torch()
    assert found is not None
    assert found.version == torch.__version__
    assert [found.runtimes.get(name) for name in ("cuda", "hip")] == [torch.version.cuda, torch.version.hip]


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    assert MachineProbe(torch_folder=lambda: tmp_path).torch() is None
    assert MachineProbe(tmp_path, find_library=lambda name: f"lib{name}.so").has_library("libfoo.so.1")
    assert masked([], "0") == []
