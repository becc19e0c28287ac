"""The device: a `torch.device`, its capabilities, its operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headrace.kernels.spec import OpSpec
from headrace.platforms.torch_device import TorchDevice
from headrace.types import QUANT_FORMATS, Capabilities
from headrace_example import runtime
from headrace_example.operators import OPERATORS

__all__ = ["CAPABILITIES", "ExampleDevice"]

CAPABILITIES = Capabilities(
    dtypes=frozenset({"float32"}),
    kv_dtypes=frozenset({"float32", "bfloat16", "float16", "int8", "float8_e4m3"}),
    quant_formats=QUANT_FORMATS,
    block_sizes=(32, 16),
    attention_features=frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"}),
)
"""What is not declared here is not asked of the device: no asynchronous execution, no promise of equal bits."""


class ExampleDevice(TorchDevice):
    """`torch.device("example", index)`."""

    def __init__(self, index: int, threads: int | None = None) -> None:
        assert index < runtime.device_count()
        super().__init__(torch.device("example", index), CAPABILITIES, threads)

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return OPERATORS.get(spec.name)
