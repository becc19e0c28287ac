"""Intel GPUs: found by their render nodes; what each can do; what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_machines import INTEL, machine, probed, torch_folder

from headrace.errors import PlatformError
from headrace.platforms.xpu import XpuPlatform, xpu_discovery
from headrace.platforms.xpu.device import TRAITS, read_properties, runtime
from headrace.platforms.xpu.xpu_chips import XpuProperties, capabilities, triton_chip


def without(*names: str) -> dict[str, str]:
    return {name: text for name, text in INTEL.items() if not any(part in name for part in names)}


@pytest.mark.parametrize(
    ("files", "build", "environ", "said"),
    [
        ({}, None, {}, "no Intel GPU here"),
        ({"sys/class/drm/renderD128/device/vendor": "0x10de"}, None, {}, "no Intel GPU here"),
        (without("dev/dri"), None, {}, "no permission on /dev/dri/renderD129"),
        (without("libze_loader"), None, {}, "libze_loader.so.1 is missing: install system package level-zero"),
        (without("libze_intel"), None, {}, "libze_intel_gpu.so.1 is missing"),
        (INTEL, None, {"ZE_AFFINITY_MASK": "5"}, "ZE_AFFINITY_MASK=5 hides every device"),
        (INTEL, None, {}, "torch is not installed: install torch's XPU build"),
        (INTEL, ("2.9.0+cpu", {}), {}, "is built without XPU"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, files: Mapping[str, str], build: Any, environ: dict[str, str], said: str
) -> None:
    score, reason = probed(xpu_discovery, tmp_path, files, build, environ)
    assert score == 0
    assert re.search(said, reason), reason


def test_a_usable_machine_reports_its_devices(tmp_path: Path) -> None:
    found = machine(tmp_path, INTEL, torch_folder(tmp_path, "2.11.0+xpu", xpu="20250302"))
    assert XpuPlatform(found).probe() == (50, "Intel GPU 0bd5, Intel GPU 7d55; torch 2.11.0+xpu for XPU 20250302")
    one, two = XpuPlatform(found).devices()
    assert (one.index, one.memory_bytes, one.details) == (0, 1 << 36, (("node", "renderD129"),))
    assert (two.index, two.memory_bytes) == (1, 0), "it uses the host's"


@pytest.mark.parametrize(("mask", "names"), [("1", ["Intel GPU 7d55"]), ("0.1", ["Intel GPU 0bd5"])])
def test_a_mask_hides_and_renumbers(tmp_path: Path, mask: str, names: list[str]) -> None:
    assert [d.name for d in xpu_discovery.devices(machine(tmp_path, INTEL, ZE_AFFINITY_MASK=mask))] == names


CHIPS = [
    (XpuProperties("Data Center GPU Max 1550", (16, 32), 64, shared_memory=131072), True, 16, 131072),
    (XpuProperties("Arc B580", (16, 32), 20), True, 16, 65536),
    (XpuProperties("Arc A770", (8, 16, 32), 32), True, 16, 65536),
    (XpuProperties("Iris Xe", (8,), 6, bfloat16=False, matrix=False), False, 8, 65536),
]


@pytest.mark.parametrize(("chip", "bfloat16", "width", "local"), CHIPS, ids=lambda c: getattr(c, "name", None))
def test_chips(chip: XpuProperties, bfloat16: bool, width: int, local: int) -> None:
    found, triton = capabilities(chip), triton_chip(chip)
    assert ("bfloat16" in found.dtypes, "bfloat16" in found.kv_dtypes) == (bfloat16, bfloat16)
    assert (triton.target, triton.shared_memory, triton.fp8) == (("xpu", chip.name, width), local, "")


def test_a_chip_without_half_is_refused() -> None:
    with pytest.raises(PlatformError, match="Gen9 has no 16-bit floats"):
        capabilities(XpuProperties("Gen9", (8,), 3, half=False))


def test_properties_and_runtime_are_torchs_own() -> None:
    import torch

    told = SimpleNamespace(name="Arc", sub_group_sizes=[8, 16], gpu_subslice_count=8, has_fp16=False)
    module: Any = SimpleNamespace(module=SimpleNamespace(get_device_properties=lambda index: told))
    assert read_properties(module, 0) == XpuProperties("Arc", (8, 16), 8, half=False)
    assert runtime().module is torch.xpu


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "lost"),
        ("Native API failed. Native API returns: -1 (PI_ERROR_DEVICE_LOST)", "lost"),
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "memory"),
        ("XPU out of memory. Tried to allocate 2.00 GiB", "memory"),
        ("UR_RESULT_ERROR_INVALID_KERNEL", "other"),
    ],
)
def test_errors_of_the_runtime(text: str, kind: str) -> None:
    assert TRAITS.error_patterns.kind(RuntimeError(text)) == kind
