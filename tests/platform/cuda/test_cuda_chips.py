"""The capabilities of each NVIDIA chip, from its compute capability."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compile_report.chips import CHIPS as CHIPS_COMPILED
from headrace.errors import PlatformError
from headrace.platforms.cuda.cuda_chips import CudaProperties, capabilities, triton_chip
from headrace.platforms.cuda.device import TRAITS, read_properties, runtime

CHIPS = [
    # name, capability, bfloat16, FP8, shared KiB
    ("V100", (7, 0), False, "", 96),
    ("T4", (7, 5), False, "", 64),
    ("A100", (8, 0), True, "", 163),
    ("RTX 3090", (8, 6), True, "", 99),
    ("L4", (8, 9), True, "ocp", 99),
    ("H200", (9, 0), True, "ocp", 227),
    ("B200", (10, 0), True, "ocp", 227),
    ("B300", (10, 3), True, "ocp", 227),
    ("RTX 5090", (12, 0), True, "ocp", 99),
]


@pytest.mark.parametrize(("name", "capability", "bfloat16", "fp8", "shared"), CHIPS, ids=[c[0] for c in CHIPS])
def test_chips(name: str, capability: tuple[int, int], bfloat16: bool, fp8: str, shared: int) -> None:
    chip = CudaProperties(name, *capability, multiprocessors=80)
    found, triton = capabilities(chip), triton_chip(chip)
    number = capability[0] * 10 + capability[1]
    assert ("bfloat16" in found.dtypes, "bfloat16" in found.kv_dtypes) == (bfloat16, bfloat16)
    assert {"float32", "float16", "quantized"} <= found.dtypes
    assert {"int8", "float8_e4m3"} <= found.kv_dtypes
    assert (triton.fp8, triton.shared_memory) == (fp8, shared * 1024)
    assert (triton.target, triton.lanes) == (("cuda", number, 32), 32)
    assert found.async_exec
    assert not found.host_memory


def test_the_drivers_value_has_priority_over_the_table() -> None:
    assert triton_chip(CudaProperties("future", 13, 0, 100, shared_memory=300 << 10)).shared_memory == 300 << 10


def test_too_old_a_chip_is_refused() -> None:
    with pytest.raises(PlatformError, match=r"GTX 1080 has compute capability 6.1: 7.0 is the least"):
        capabilities(CudaProperties("GTX 1080", 6, 1, 20))


def test_properties_are_read_if_torch_reports_them() -> None:
    old = SimpleNamespace(name="T4", major=7, minor=5, multi_processor_count=40)
    module: Any = SimpleNamespace(module=SimpleNamespace(get_device_properties=lambda index: old))
    assert read_properties(module, 0) == CudaProperties("T4", 7, 5, 40, 0)


def test_the_runtime_is_torchs_own() -> None:
    import torch

    found = runtime()
    assert found.module is torch.cuda
    assert found.device(1) == torch.device("cuda", 1)
    assert found.captures
    assert dict(found.graph_options) == {"capture_error_mode": "thread_local"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: device-side assert triggered", "lost"),
        ("CUDA error: an illegal memory access was encountered", "lost"),
        ("CUDA error: unspecified launch failure", "lost"),
        ("CUDA error: uncorrectable ECC error encountered", "lost"),
        ("CUDA error: misaligned address", "lost"),
        ("CUDA error: an illegal instruction was encountered", "lost"),
        ("CUDA error: the launch timed out and was terminated", "lost"),
        ("CUDA error: out of memory", "memory"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory"),
        ("CUDA error: no kernel image is available for execution on the device", "other"),
        ("CUDA error: operation not permitted when stream is capturing", "other"),
    ],
)
def test_errors_of_the_runtime(text: str, kind: str) -> None:
    assert TRAITS.error_patterns.kind(RuntimeError(text)) == kind


@pytest.mark.parametrize(
    "chip", [chip for chip in CHIPS_COMPILED.values() if chip.backend == "cuda"], ids=lambda c: c.name
)
def test_kernels_are_asked_for_as_they_are_compiled_and_checked(chip: Any) -> None:
    assert triton_chip(CudaProperties("a chip", chip.arch // 10, chip.arch % 10, 80)) == chip.triton
