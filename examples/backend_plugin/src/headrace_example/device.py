"""The device: a `torch.device`, its capabilities, and an operator of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from headrace.kernels.spec import OpSpec
from headrace.platforms.torch_device import TorchDevice
from headrace.types import Capabilities

__all__ = ["CAPABILITIES", "OPERATORS", "ExampleDevice", "RMSNorm"]

CAPABILITIES = Capabilities(
    dtypes=frozenset({"float32"}),
    kv_dtypes=frozenset({"float32", "bfloat16"}),
    block_sizes=(32, 16),
    host_memory=True,
    attention_features=frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"}),
)
"""What is not declared here is not asked of the device: no asynchronous execution, no promise of equal bits."""


class RMSNorm:
    """A vendor's kernel in place of the reference; keyword names are the contract."""

    tag = "example"

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)


OPERATORS: dict[str, Callable[..., Any]] = {"rms_norm": RMSNorm()}
"""What is missing is served by reference."""


class ExampleDevice(TorchDevice):
    """A vendor puts its own `torch.device` here."""

    def __init__(self, threads: int | None = None) -> None:
        super().__init__(torch.device("cpu"), CAPABILITIES, threads)

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return OPERATORS.get(spec.name)
