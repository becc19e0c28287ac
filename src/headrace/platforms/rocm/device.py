"""One opened AMD device. Torch's ROCm build provides HIP under CUDA's names: module `torch.cuda`, backend nccl."""

from __future__ import annotations

from typing import Any

import torch

from headrace.platforms.accelerator.accelerator_options import AcceleratorOptions
from headrace.platforms.accelerator.device import AcceleratorDevice, Traits
from headrace.platforms.accelerator.error_patterns import ErrorPatterns
from headrace.platforms.accelerator.torch_runtime import TorchRuntime
from headrace.platforms.rocm.rocm_chips import RocmProperties, capabilities, triton_chip

__all__ = ["TRAITS", "RocmDevice", "open_device", "runtime"]

TRAITS = Traits(
    error_patterns=ErrorPatterns(
        lost=(
            "illegal memory access", "hiperrorillegaladdress", "unspecified launch failure", "hiperrorlaunchfailure",
            "device-side assert", "hiperrorassert", "uncorrectable ecc", "hiperroreccnotcorrectable",
            "hsa_status_error", "memory access fault", "hiperrorcontextisdestroyed", "illegal instruction",
        ),
        memory=("out of memory", "hiperroroutofmemory", "hipblas_status_alloc_failed"),
    ),
    backend="nccl",
    providers={},
)  # fmt: skip


def runtime() -> TorchRuntime:
    return TorchRuntime(torch.cuda, "cuda", graph="CUDAGraph", graph_options=(("capture_error_mode", "thread_local"),))


class RocmDevice(AcceleratorDevice):
    """Steps are HIP graphs, one per bucket; RCCL provides the collectives."""

    def __init__(self, runtime: TorchRuntime, index: int, options: AcceleratorOptions, **more: Any) -> None:
        chip = read_properties(runtime, index)
        super().__init__(runtime, index, TRAITS, capabilities(chip), triton_chip(chip), options, **more)


open_device = RocmDevice


def read_properties(runtime: TorchRuntime, index: int) -> RocmProperties:
    found = runtime.module.get_device_properties(index)
    shared = int(getattr(found, "shared_memory_per_block", 0))
    return RocmProperties(found.name, found.gcnArchName, found.multi_processor_count, shared)
