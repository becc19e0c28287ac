"""One opened Intel GPU."""

from __future__ import annotations

from typing import Any

import torch

from headrace.platforms.accelerator.accelerator_options import AcceleratorOptions
from headrace.platforms.accelerator.device import AcceleratorDevice, Traits
from headrace.platforms.accelerator.error_patterns import ErrorPatterns
from headrace.platforms.accelerator.providers import Provider
from headrace.platforms.accelerator.torch_runtime import TorchRuntime
from headrace.platforms.xpu.xpu_chips import XpuProperties, capabilities, triton_chip

__all__ = ["TRAITS", "XpuDevice", "open_device", "runtime"]

TRAITS = Traits(
    error_patterns=ErrorPatterns(
        lost=("device_lost", "device lost", "error_device_lost", "dead_on_init", "uncorrectable ecc"),
        memory=(
            "out of memory", "out_of_device_memory", "out_of_host_memory", "out_of_resources",
            "error_outofmemory",
        ),
    ),
    backend="xccl",
    providers={
        "ipex": Provider(
            title="IPEX",
            distribution="intel-extension-for-pytorch",
            module="intel_extension_for_pytorch.llm.functional",
            home="headrace.platforms.xpu.ipex_operators",
            remedy="pip install intel-extension-for-pytorch from Intel's index for XPU, in its own torch's version",
            lacks={
                "attention": "IPEX's paged attention on XPU needs pages of [token, head], but ours are [head, token]",
                "rotary_cache": "IPEX rotates, but doesn't normalize heads or write our cache in one pass",
            },
        )
    },
)  # fmt: skip


def runtime() -> TorchRuntime:
    """Torch's XPU module. Graphs need torch 2.11; earlier builds launch operator by operator."""
    return TorchRuntime(torch.xpu, "xpu", graph="XPUGraph")


class XpuDevice(AcceleratorDevice):
    """Steps are captured if torch supports it and `graph_tokens` is set; oneCCL provides the collectives."""

    def __init__(self, runtime: TorchRuntime, index: int, options: AcceleratorOptions, **more: Any) -> None:
        chip = read_properties(runtime, index)
        super().__init__(runtime, index, TRAITS, capabilities(chip), triton_chip(chip), options, **more)


open_device = XpuDevice


def read_properties(runtime: TorchRuntime, index: int) -> XpuProperties:
    found = runtime.module.get_device_properties(index)
    return XpuProperties(
        name=found.name,
        subgroups=tuple(int(size) for size in getattr(found, "sub_group_sizes", ())),
        multiprocessors=int(getattr(found, "gpu_subslice_count", 0)),
        half=bool(getattr(found, "has_fp16", True)),
        bfloat16=bool(getattr(found, "has_bfloat16_conversions", True)),
        matrix=bool(getattr(found, "has_subgroup_matrix_multiply_accumulate", True)),
        shared_memory=int(getattr(found, "local_mem_size", 0)),
    )
