"""The device: a `torch.device`, its capabilities, its operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from headrace.kernels.spec import OpSpec
from headrace.platforms.interface import Communicator
from headrace.platforms.torch_communicator import World
from headrace.platforms.torch_device import TorchDevice
from headrace.types import COLLECTIVES, QUANT_FORMATS, Capabilities
from headrace_example import runtime
from headrace_example.communicator import HostCommunicator
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
    """`torch.device("example", index)`, one of the ranks of `world`."""

    def __init__(self, index: int, threads: int | None = None, world: World | None = None) -> None:
        assert index < runtime.device_count()
        self._world = world or World(0, 1, "")
        collectives = COLLECTIVES if self._world.size > 1 else frozenset[str]()
        super().__init__(torch.device("example", index), replace(CAPABILITIES, collectives=collectives), threads)

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return OPERATORS.get(spec.name)

    def communicator(self, group: Sequence[int]) -> Communicator:
        """The base serves the group of one, and refuses larger ones where there are no other ranks."""
        if len(group) == 1 or self._world.size == 1:
            return super().communicator(group)
        return HostCommunicator(self._world.communicator(group, "gloo"))

    def close(self) -> None:
        super().close()
        self._world.close()
