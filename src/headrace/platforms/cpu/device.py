"""The CPU device on plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from headrace.errors import PlatformError
from headrace.kernels.registry import OPS, OPTIONAL
from headrace.kernels.spec import OpSpec
from headrace.platforms.cpu.float32_copies import Float32Copies
from headrace.platforms.cpu.shm_communicator import connect
from headrace.platforms.interface import ALL_TO_ALL, Communicator
from headrace.platforms.torch_communicator import World
from headrace.platforms.torch_device import TorchDevice
from headrace.types import COLLECTIVES, QUANT_FORMATS, Capabilities

__all__ = ["CAPABILITIES", "OPTIONS", "CpuDevice"]

OPTIONS = ("threads", "dtype", "float32_copies", "rank", "world_size", "rendezvous")
CAPABILITIES = Capabilities(
    dtypes=frozenset({"float32"}),
    kv_dtypes=frozenset({"float32", "bfloat16", "float16", "int8", "float8_e4m3"}),
    quant_formats=QUANT_FORMATS,
    block_sizes=(16, 32, 64, 128, 256),
    async_exec=True,
    deterministic=True,
    host_memory=True,
    attention_features=frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"}),
)

_SEVERAL = replace(CAPABILITIES, collectives=COLLECTIVES | {ALL_TO_ALL}, passes_rows=True)
"""Of one of several ranks."""


class CpuDevice(TorchDevice):
    """Runs steps on a separate thread, in launch order, with torch's thread pool.

    `threads`: size of that pool; None leaves torch's choice. `dtype`: the requested arithmetic; this device always
    declares float32 and computes in it. `float32_copies`: bytes of dequantized weights to store; of a larger model the
    first weights are stored and the rest is dequantized at every call. `rank`, `world_size`, `rendezvous`: see
    `torch_communicator.World`. `reason`: why the native kernels are not used.
    """

    def __init__(
        self,
        threads: int | None = None,
        dtype: str | None = None,
        float32_copies: int = 1 << 30,
        rank: int = 0,
        world_size: int = 1,
        rendezvous: str = "",
        reason: str = "the reference device was requested",
    ) -> None:
        for name, value in (("threads", threads), ("float32_copies", float32_copies)):
            if value is not None and (not isinstance(value, int) or value < (name == "threads")):
                raise PlatformError(f"cpu: option {name} is {value!r}: give a count")
        self._world = World(rank, world_size, rendezvous)
        super().__init__(torch.device("cpu"), CAPABILITIES if world_size == 1 else _SEVERAL, threads)
        self._copies = Float32Copies(float32_copies)
        self._reasons = {spec.name: reason for spec in (*OPS, *OPTIONAL)}

    @property
    def block_padding(self) -> tuple[int, int]:
        """See `interface.OrdersBlocks` and `kernels.kv.TorchKV`."""
        return 1, 1

    def as_one_of_several(self) -> Capabilities:
        """See `interface.WorksInGroups`."""
        return _SEVERAL

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        """Operators that take a weight read the float32 copies; the reference serves the others."""
        return self._copies.operator(spec)

    def communicator(self, group: Sequence[int]) -> Communicator:
        """Collectives through shared memory on one machine, otherwise over gloo."""
        if len(group) == 1 or self._world.size == 1:
            return super().communicator(group)
        return connect(self._world, group)

    def close(self) -> None:
        super().close()
        self._world.close()

    def op_reasons(self) -> Mapping[str, str]:
        return self._reasons
