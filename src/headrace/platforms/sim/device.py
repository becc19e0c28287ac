"""The simulated device. Tensors are numpy arrays; activations are zeros that take no memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError, OutOfMemory, PlatformError
from headrace.kernels.spec import OpSpec
from headrace.platforms.interface import KV, Communicator, Executable, Pending, StepFn, Tensor, own_extension
from headrace.platforms.one_rank import OneRank
from headrace.platforms.sim.cost import SimClock, SimMachine
from headrace.platforms.sim.sim_operators import SimOperators
from headrace.types import QUANT_FORMATS, Bucket, Capabilities, KVLayout

__all__ = ["SimDevice", "SimKV"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SimKV:
    """A cache that only has a shape."""

    layout: KVLayout
    num_blocks: int


class SimDevice:
    """One simulated device. `realtime`: results are ready when a real device of this kind would have them; otherwise
    they are ready at once, and only the virtual clock moves."""

    def __init__(self, machine: SimMachine, realtime: bool = False) -> None:
        self._machine = machine
        self.clock = SimClock(realtime)
        self._operators = SimOperators(machine)
        self._used = 0
        self._closed = False
        self._capabilities = Capabilities(
            dtypes=frozenset({"float32", "bfloat16", "float16", "quantized"}),
            kv_dtypes=frozenset({"float32", "bfloat16", "float16", "int8", "float8_e4m3"}),
            quant_formats=QUANT_FORMATS,
            block_sizes=(16, 32, 64, 128, 256),
            async_exec=realtime,
            deterministic=True,
            host_memory=True,  # weights are never moved: only their sizes are read
            attention_features=frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"}),
            computes=False,
            max_tokens_per_step=1 << 16,
        )

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def as_one_of_several(self) -> Capabilities:
        """See `interface.WorksInGroups`: it has no collectives."""
        return self._capabilities

    def memory(self) -> tuple[int, int]:
        return self._machine.memory_bytes - self._used, self._machine.memory_bytes

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        self._check_open()
        return np.array(array, copy=True)

    def get(self, tensor: Tensor) -> Pending:
        self._check_open()
        return SimPending(np.array(tensor, copy=True), self.clock)

    def alloc_kv(self, layout: KVLayout, num_blocks: int) -> KV:
        self._check_open()
        needed, (free, total) = num_blocks * layout.bytes_per_block, self.memory()
        if needed > free:
            raise OutOfMemory(
                f"sim: a KV cache of {num_blocks} blocks needs {needed} bytes, but {free} of {total} are free: "
                "lower num_blocks or raise option memory_bytes"
            )
        self._used += needed
        return SimKV(layout, num_blocks)

    def copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> KV:
        self._check_open()
        self.clock.spend(self._machine.seconds(2.0 * len(src) * kv.layout.bytes_per_block, 0.0))
        return kv

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        self._check_open()
        return SimExecutable(self, step_fn)

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        """The operator that charges for the work; None for an unknown one."""
        return getattr(self._operators, spec.name, None)

    def communicator(self, group: Sequence[int]) -> Communicator:
        if len(group) != 1:
            raise PlatformError(f"sim: no collectives yet, but a group of {len(group)} ranks was requested")
        return OneRank()

    def extension(self, kind: Callable[..., T]) -> T | None:
        return own_extension(self, kind)

    def close(self) -> None:
        self._closed = True

    def run(self, step_fn: StepFn, kv: KV, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Run one step and add the cost of its operators to the clock."""
        self._check_open()
        try:
            _, outputs = step_fn(kv, inputs)
        except HeadraceError:
            raise
        except Exception as error:
            raise PlatformError(f"sim: {type(error).__name__}: {error}") from error
        self.clock.spend(self._machine.step_seconds + self._operators.meter.take())
        self.clock.steps += 1
        return outputs

    def _check_open(self) -> None:
        if self._closed:
            raise PlatformError("sim: the device has been closed")


@dataclass(frozen=True, slots=True)
class SimExecutable:
    device: SimDevice
    step_fn: StepFn

    def __call__(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        return kv, self.device.run(self.step_fn, kv, inputs)


class SimPending:
    """A host copy that is ready when, by the clock, all work launched before it has ended."""

    def __init__(self, array: npt.NDArray[Any], clock: SimClock) -> None:
        self._array = array
        self._clock = clock
        self._ready = clock.free_at

    def done(self) -> bool:
        return self._clock.passed(self._ready)

    def result(self) -> npt.NDArray[Any]:
        self._clock.wait(self._ready)
        return self._array
