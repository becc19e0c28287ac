"""One opened NVIDIA device."""

from __future__ import annotations

from typing import Any

import torch

from headrace.platforms.accelerator.accelerator_options import AcceleratorOptions
from headrace.platforms.accelerator.device import AcceleratorDevice, Traits
from headrace.platforms.accelerator.error_patterns import ErrorPatterns
from headrace.platforms.accelerator.providers import Provider
from headrace.platforms.accelerator.torch_runtime import TorchRuntime
from headrace.platforms.cuda.cuda_chips import CudaProperties, capabilities, triton_chip

__all__ = ["TRAITS", "CudaDevice", "open_device", "runtime"]

TRAITS = Traits(
    error_patterns=ErrorPatterns(
        # "sticky" errors of the CUDA runtime: they destroy the context
        lost=(
            "device-side assert", "illegal memory access", "unspecified launch failure", "uncorrectable ecc",
            "misaligned address", "illegal instruction", "invalid program counter", "hardware stack error",
            "operation not supported on global/shared address space", "launch timed out", "gpu is lost",
            "context is destroyed", "uncorrectable nvlink error", "mps client terminated",
        ),
        memory=("out of memory", "cublas_status_alloc_failed"),
    ),
    backend="nccl",
    providers={
        "flashinfer": Provider(
            title="FlashInfer",
            distribution="flashinfer-python",
            module="flashinfer",
            home="headrace.platforms.cuda.flashinfer_attention",
            remedy="pip install flashinfer-python",
            lacks={},
            eager="FlashInfer plans every step on the host",
            without={"place": "FlashInfer reads the lengths of a step on the host, before drafts could change them"},
        )
    },
)  # fmt: skip


def runtime() -> TorchRuntime:
    """Torch's CUDA module. `thread_local`: work of other threads during a capture does not break the capture."""
    return TorchRuntime(torch.cuda, "cuda", graph="CUDAGraph", graph_options=(("capture_error_mode", "thread_local"),))


class CudaDevice(AcceleratorDevice):
    """Steps are CUDA graphs, one per bucket; NCCL provides the collectives."""

    def __init__(self, runtime: TorchRuntime, index: int, options: AcceleratorOptions, **more: Any) -> None:
        chip = read_properties(runtime, index)
        super().__init__(runtime, index, TRAITS, capabilities(chip), triton_chip(chip), options, **more)


open_device = CudaDevice


def read_properties(runtime: TorchRuntime, index: int) -> CudaProperties:
    found = runtime.module.get_device_properties(index)
    shared = int(getattr(found, "shared_memory_per_block_optin", 0))
    return CudaProperties(found.name, found.major, found.minor, found.multi_processor_count, shared)
