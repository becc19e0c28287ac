"""AMD devices: found by the kernel driver's topology; what each chip can do; what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_machines import AMD, machine, probed, torch_folder

from compile_report.chips import CHIPS as CHIPS_COMPILED
from headrace.errors import PlatformError
from headrace.platforms.rocm import RocmPlatform, rocm_discovery
from headrace.platforms.rocm.device import TRAITS, read_properties, runtime
from headrace.platforms.rocm.rocm_chips import RocmProperties, capabilities, fp8_codes, triton_chip

NODES = "sys/class/kfd/kfd/topology/nodes"


@pytest.mark.parametrize(
    ("files", "build", "environ", "said"),
    [
        ({}, None, {}, "no AMD compute driver here"),
        ({"sys/class/drm/renderD128/device/vendor": "0x1002"}, None, {}, "there is an AMD device, but no /dev/kfd"),
        ({"dev/kfd": "", f"{NODES}/0/properties": "simd_count 0"}, None, {}, "the driver shows no device"),
        (AMD, None, {"HIP_VISIBLE_DEVICES": ""}, "hides all"),
        (AMD, None, {"ROCR_VISIBLE_DEVICES": "9"}, "hides all"),
        (AMD, None, {}, "torch is not installed: install torch's ROCm build"),
        (AMD, ("2.9.0", {"cuda": "12.8"}), {}, "torch 2.9.0 is built without ROCm"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, files: Mapping[str, str], build: Any, environ: dict[str, str], said: str
) -> None:
    score, reason = probed(rocm_discovery, tmp_path, files, build, environ)
    assert score == 0
    assert re.search(said, reason), reason


def test_a_device_that_may_not_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert rocm_discovery.probe(machine(tmp_path, AMD)) == (
        0,
        "no permission on /dev/kfd: join its group (render or video)",
    )


def test_a_usable_machine_reports_its_devices(tmp_path: Path) -> None:
    found = machine(tmp_path, AMD, torch_folder(tmp_path, "2.9.0+rocm6.4", hip="6.4.43"))
    assert RocmPlatform(found).probe() == (50, "AMD gfx942, AMD gfx90a; torch 2.9.0+rocm6.4 for ROCm 6.4.43")
    one, two = RocmPlatform(found).devices()
    assert (one.index, one.memory_bytes, dict(one.details)["arch"]) == (0, 206141652992, "gfx942")
    assert dict(one.details)["uuid"] == "GPU-123456789abcdef0"
    assert (two.index, two.memory_bytes, dict(two.details)["arch"]) == (1, 68702699520, "gfx90a")


@pytest.mark.parametrize(
    ("environ", "archs"),
    [
        ({"HIP_VISIBLE_DEVICES": "1"}, ["gfx90a"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["gfx90a"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["gfx942"]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ["gfx90a"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-1234"}, ["gfx942"]),
    ],
)
def test_masks_hide_and_renumber(tmp_path: Path, environ: dict[str, str], archs: list[str]) -> None:
    found = rocm_discovery.devices(machine(tmp_path, AMD, **environ))
    assert [dict(device.details)["arch"] for device in found] == archs
    assert [device.index for device in found] == list(range(len(archs)))


@pytest.mark.parametrize(
    ("number", "name"),
    [(90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201")],
)
def test_architectures_are_named(number: int, name: str) -> None:
    assert rocm_discovery.arch_name(number) == name


CHIPS = [
    # architecture, bfloat16, codes, those of the matrix unit, wave, shared KiB
    ("gfx908", True, "", "", 64, 64),
    ("gfx90a", True, "fnuz", "", 64, 64),
    ("gfx942", True, "fnuz", "fnuz", 64, 64),
    ("gfx950", True, "ocp", "ocp", 64, 160),
    ("gfx1030", False, "", "", 32, 64),
    ("gfx1100", True, "", "", 32, 64),
    ("gfx1151", True, "", "", 32, 64),
    ("gfx1200", True, "ocp", "ocp", 32, 64),
    ("gfx1201", True, "ocp", "ocp", 32, 64),
]


@pytest.mark.parametrize(("arch", "bfloat16", "codes", "unit", "wave", "shared"), CHIPS, ids=[c[0] for c in CHIPS])
def test_chips(arch: str, bfloat16: bool, codes: str, unit: str, wave: int, shared: int) -> None:
    chip = RocmProperties("AMD", f"{arch}:sramecc+:xnack-", 100)
    found, triton = capabilities(chip), triton_chip(chip)
    assert ("bfloat16" in found.dtypes, "bfloat16" in found.kv_dtypes) == (bfloat16, bfloat16)
    assert (fp8_codes(arch), triton.shared_memory) == (codes, shared * 1024)
    assert (triton.target, triton.lanes, triton.fp8) == (("hip", arch, wave), wave, unit)


@pytest.mark.parametrize(
    ("arch", "said"), [("gfx906", "is gfx906: gfx908 is the least"), ("gfx803", "gfx803"), ("x", "not a known name")]
)
def test_what_is_too_old_or_strange_is_refused(arch: str, said: str) -> None:
    with pytest.raises(PlatformError, match=said):
        capabilities(RocmProperties("AMD", arch, 60))


def test_properties_and_runtime_are_torchs_own() -> None:
    import torch

    told = SimpleNamespace(name="MI300X", gcnArchName="gfx942", multi_processor_count=304)
    module: Any = SimpleNamespace(module=SimpleNamespace(get_device_properties=lambda index: told))
    assert read_properties(module, 0) == RocmProperties("MI300X", "gfx942", 304, 0)
    assert runtime().module is torch.cuda


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("HIP error: hipErrorIllegalAddress", "lost"),
        ("HIP error: unspecified launch failure", "lost"),
        ("HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception", "lost"),
        ("HIP error: uncorrectable ECC error encountered", "lost"),
        ("HIP out of memory. Tried to allocate 2.00 GiB", "memory"),
        ("HIP error: invalid device function", "other"),
    ],
)
def test_errors_of_the_runtime(text: str, kind: str) -> None:
    assert TRAITS.error_patterns.kind(RuntimeError(text)) == kind


@pytest.mark.parametrize(
    "chip", [chip for chip in CHIPS_COMPILED.values() if chip.backend == "hip"], ids=lambda c: c.name
)
def test_kernels_are_asked_for_as_they_are_compiled_and_checked(chip: Any) -> None:
    assert triton_chip(RocmProperties("a chip", chip.arch, 100)) == chip.triton
