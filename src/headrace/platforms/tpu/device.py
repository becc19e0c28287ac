"""One opened TPU core, or XLA on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from headrace.errors import DeviceLost, HeadraceError, OutOfMemory, PlatformError
from headrace.kernels.pallaslib import LANES
from headrace.kernels.registry import OPS, OPTIONAL
from headrace.kernels.spec import OpSpec
from headrace.platforms.accelerator.error_patterns import ErrorPatterns, first_line
from headrace.platforms.host import host_memory
from headrace.platforms.interface import KV, Communicator, Executable, Pending, StepFn, Tensor
from headrace.platforms.torch_device import TorchDevice
from headrace.platforms.tpu.tpu_chips import TpuChip, capabilities
from headrace.platforms.tpu.tpu_options import TpuOptions
from headrace.platforms.tpu.xla_communicator import XlaCommunicator
from headrace.platforms.tpu.xla_operators import operators
from headrace.platforms.tpu.xla_runtime import XlaRuntime
from headrace.platforms.tpu.xla_step import XlaStep, tensors_of
from headrace.platforms.work_queue import FuturePending, InlineQueue, ThreadQueue
from headrace.types import COLLECTIVES, Bucket, Capabilities, KVLayout

__all__ = ["ERROR_PATTERNS", "TpuDevice"]

T = TypeVar("T")
ERROR_PATTERNS = ErrorPatterns(
    lost=("data_loss", "unavailable", "device halted", "core halted", "tpu is in a bad state"),
    memory=("resource_exhausted", "out of memory", "ran out of memory"),
)


class TpuDevice(TorchDevice):
    """Launches return at once. A separate thread waits for host copies, so that the next step can be launched."""

    def __init__(self, runtime: XlaRuntime, index: int, chip: TpuChip, options: TpuOptions) -> None:
        self.runtime, self.options = runtime, options
        if options.dtype == "float32":
            runtime.exact_products()
        usual = "pallas" if chip.kernels else "xla"
        self._kernels = usual if options.kernels == "auto" else options.kernels
        self._operators = operators(options.dtype, self._kernels, runtime.call_kernel)
        self._copying = ThreadQueue(f"headrace-tpu-{index}-copies", lambda: None)
        self._copies: dict[KVLayout, XlaStep] = {}
        able = capabilities(chip, runtime.rank()[1])
        # The Pallas kernels only copy full lanes.
        able = able if self._kernels == "xla" else replace(able, kv_lanes=LANES)
        # References of these choose by value, which a step that is compiled once cannot.
        missing = frozenset({spec.name for spec in OPTIONAL if spec.compose is None} - self._operators.keys())
        super().__init__(runtime.device(index), replace(able, missing_operators=missing), queue=InlineQueue())

    def as_one_of_several(self) -> Capabilities:
        """See `interface.WorksInGroups`."""
        return replace(self.capabilities(), collectives=COLLECTIVES)

    @property
    def block_padding(self) -> tuple[int, int]:
        """See `interface.OrdersBlocks`."""
        return self.capabilities().kv_lanes, 1

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the chip, or of the host if the host is the device."""
        return self.runtime.memory(self.torch_device) or host_memory()

    def get(self, tensor: Tensor) -> Pending:
        """Copy to the host after all launched work. bfloat16 becomes float32."""
        ready = self.submit(lambda: self._settled(tensor)).result()
        return FuturePending(self._copying.submit(lambda: self._translating(lambda: _to_host(ready))))

    def alloc_kv(self, layout: KVLayout, num_blocks: int) -> KV:
        """A zeroed `kernels.kv.TorchKV`. For the Pallas kernels its rows are padded to full lanes."""
        kv = super().alloc_kv(layout.padded(self.capabilities().kv_lanes), num_blocks)
        kv.layout = layout
        self.submit(lambda: self.runtime.settle(tensors_of(kv))).result()
        return kv

    def copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> KV:
        """Copy blocks with one compiled step per power of two. Block 0, which is never read, is copied to itself as
        padding."""
        self._check_open()
        if len(src) != len(dst):
            raise PlatformError(f"{self.torch_device}: copy_blocks got {len(src)} sources and {len(dst)} destinations")
        if not len(src):
            return kv
        count = len(kv.keys[0]) if kv.keys else 0
        wrong = [block for block in (*src, *dst) if not 0 <= block < count]
        if wrong:
            raise PlatformError(f"{self.torch_device}: copy_blocks: block {wrong[0]} of a cache of {count}")
        pairs = np.zeros((2, max(8, 1 << (len(src) - 1).bit_length())), np.int32)
        pairs[:, : len(src)] = src, dst
        step = self._copies.setdefault(kv.layout, XlaStep(self, _copy_step))
        return step(kv, {"source": self.put(pairs[0]), "target": self.put(pairs[1])})[0]

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        """A step that is compiled at its first call: once per bucket, because the engine pads to it."""
        self._check_open()
        return XlaStep(self, step_fn)

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return self._operators.get(spec.name)

    def communicator(self, group: Sequence[int]) -> Communicator:
        """XLA's collectives over a group of the processes that share the chips."""
        if len(group) == 1 or self.runtime.rank()[1] == 1:
            return super().communicator(group)
        return XlaCommunicator(self.runtime, group)

    def op_reasons(self) -> Mapping[str, str]:
        specs = (*OPS, *OPTIONAL)
        return {spec.name: "it is not implemented for XLA" for spec in specs if spec.name not in self._operators}

    def close(self) -> None:
        if not self._closed:
            super().close()
            self._copying.close()

    def _settled(self, tensor: torch.Tensor) -> torch.Tensor:
        found = tensor.detach()
        self.runtime.settle([found])
        return found

    def _translating(self, call: Callable[[], T]) -> T:
        """Run a call that waits outside the work queue, and convert its errors to those of the device."""
        try:
            return call()
        except Exception as error:
            failure = self._translate(error)
            if isinstance(failure, DeviceLost):
                self._failure = failure
            raise failure from error

    def _translate(self, error: Exception) -> HeadraceError:
        kind = "other" if isinstance(error, HeadraceError) else ERROR_PATTERNS.kind(error)
        if kind == "memory":
            free, total = self.memory()
            return OutOfMemory(f"{self.torch_device}: {first_line(error)} ({free} of {total} bytes are free)")
        if kind == "lost":
            return DeviceLost(f"{self.torch_device}: the device is lost, restart the process: {first_line(error)}")
        return super()._translate(error)


def _copy_step(kv: KV, inputs: Any) -> tuple[KV, dict[str, Tensor]]:
    source, target = inputs["source"].long(), inputs["target"].long()
    for stores in (kv.keys, kv.values, kv.key_scales, kv.value_scales):
        stores[:] = [store.index_put((target,), store[source]) for store in stores]
    return kv, {}


def _to_host(tensor: torch.Tensor) -> Any:
    held = tensor.cpu()
    return (held.float() if held.dtype == torch.bfloat16 else held).numpy().copy()
