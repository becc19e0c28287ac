"""The base class of devices that have streams, events and optionally graphs, for every vendor.

Work is launched from the caller's thread onto one compute stream and runs there in order. The compute stream becomes
the current stream of the thread that opens the device, so launching has no extra cost. The device, never the host,
waits for work of other streams and threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import DeviceLost, HeadraceError, OutOfMemory, PlatformError
from headrace.kernels.spec import OpSpec
from headrace.kernels.tritonlib.chip import TritonChip
from headrace.platforms.accelerator.accelerator_options import TRITON, AcceleratorOptions
from headrace.platforms.accelerator.async_copies import AsyncCopies, EventPending
from headrace.platforms.accelerator.error_patterns import ErrorPatterns, first_line
from headrace.platforms.accelerator.event_timing import EventTiming
from headrace.platforms.accelerator.graphs import GraphStep
from headrace.platforms.accelerator.providers import Provider, provider_versions, with_provider, without_provider
from headrace.platforms.accelerator.torch_runtime import TorchRuntime
from headrace.platforms.accelerator.triton_operators import OperatorSource, missing_operators, triton_operators
from headrace.platforms.interface import (
    ALL_TO_ALL,
    KV,
    BusySeconds,
    Communicator,
    Executable,
    Pending,
    StepFn,
    Tensor,
    TimesLaunches,
)
from headrace.platforms.torch_communicator import World
from headrace.platforms.torch_device import TorchDevice
from headrace.platforms.work_queue import InlineQueue
from headrace.types import COLLECTIVES, Bucket, Capabilities, KVLayout

__all__ = ["AcceleratorDevice", "Traits"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_COLLECTIVES = COLLECTIVES | {ALL_TO_ALL}


@dataclass(frozen=True, slots=True)
class Traits:
    """The facts that all devices of one platform share."""

    error_patterns: ErrorPatterns
    backend: str
    """The name of the vendor's collectives in torch.distributed."""
    providers: Mapping[str, Provider] = field(default_factory=dict)
    """Optional libraries, by their name in option `operators`. They are reported, and used only if the user names
    them."""


class AcceleratorDevice(TorchDevice):
    """One opened device. `capabilities` and `triton` describe the chip; this class adds what depends on operators and
    ranks."""

    def __init__(
        self,
        runtime: TorchRuntime,
        index: int,
        traits: Traits,
        capabilities: Capabilities,
        triton: TritonChip,
        options: AcceleratorOptions,
        source: OperatorSource = triton_operators,
    ) -> None:
        self.runtime, self.traits, self.options = runtime, traits, options
        device = runtime.device(index)
        if options.dtype is not None and options.dtype not in capabilities.dtypes:
            able = ", ".join(sorted(capabilities.dtypes - {"quantized"}))
            raise PlatformError(f"{device}: option dtype is {options.dtype!r}, but this device computes in {able}")
        table, self._why = source(capabilities, triton, options)
        self._chosen = (
            without_provider(table)
            if options.operators == TRITON
            else with_provider(traits.providers[options.operators], table, device)
        )
        self._missing = missing_operators(self._chosen.operators)
        self._world = World(options.rank, options.world_size, options.rendezvous)
        self._uncaptured = self._why_eager()
        super().__init__(device, self._complete(capabilities), queue=InlineQueue())
        name_of = getattr(runtime.module, "get_device_name", None)
        self.chip = f"{'' if name_of is None else name_of(device)} {triton!r}"
        self._before = runtime.module.current_stream(device)
        self.compute = runtime.module.Stream(device=device)
        runtime.module.set_stream(self.compute)
        self.copies = AsyncCopies(runtime, device, self.compute)
        self._timing = self._find_timing()
        self._logged: set[str] = set()
        self.pool = runtime.module.graph_pool_handle() if self._uncaptured is None else None

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes. Memory that torch caches and does not use counts as free."""
        module = self.runtime.module
        free, total = module.mem_get_info(self.torch_device)
        kept = module.memory_reserved(self.torch_device) - module.memory_allocated(self.torch_device)
        return min(int(free) + max(int(kept), 0), int(total)), int(total)

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy through pinned memory. Arrays of up to 1 MiB don't make the host wait; larger arrays do."""
        return self.submit(lambda: self.copies.put(array)).result()

    def get(self, tensor: Tensor) -> Pending:
        """Copy on the copy stream, after all launched work. Up to 1 MiB doesn't wait. bfloat16 becomes float32."""
        event, host = self.submit(lambda: self.copies.get(tensor)).result()
        return EventPending(event, host, self._translating)

    @property
    def block_padding(self) -> tuple[int, int]:
        """See `interface.OrdersBlocks` and `kernels.kv.TorchKV`."""
        return 1, 1

    def alloc_kv(self, layout: KVLayout, num_blocks: int) -> KV:
        """A zeroed `kernels.kv.TorchKV`. Memory that torch has cached during loading is released before."""
        self._check_open()
        self.runtime.module.empty_cache()
        return super().alloc_kv(layout, num_blocks)

    def copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> KV:
        """Copy in place. All sources of a tensor are gathered before any destination is written."""
        if len(src) != len(dst):
            raise PlatformError(f"{self.torch_device}: copy_blocks got {len(src)} sources and {len(dst)} destinations")
        count = len(kv.keys[0]) if kv.keys else 0
        wrong = [block for block in (*src, *dst) if not 0 <= block < count]
        if wrong:
            # On the device an index out of range would destroy the context.
            raise PlatformError(f"{self.torch_device}: copy_blocks: block {wrong[0]} of a cache of {count}")
        if len(src):
            self.submit(lambda: self.timed(lambda: self._copy_blocks(kv, src, dst)), lasting=True).result()
        return kv

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        """A step of up to `graph_tokens` tokens is captured at its first call and then replayed; a larger one is
        eager."""
        self._check_open()
        if self._uncaptured is not None:
            self.run_eagerly(self._uncaptured)
        if self._uncaptured is not None or bucket.tokens > self.options.graph_tokens:
            return StreamExecutable(self, lambda kv, inputs: self.timed(lambda: step_fn(kv, inputs)[1]))
        return StreamExecutable(self, GraphStep(self, step_fn))

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return self._chosen.operators.get(spec.name)

    def communicator(self, group: Sequence[int]) -> Communicator:
        """The vendor's collectives over some ranks of the device's world."""
        if len(group) == 1 or self.options.world_size == 1:
            return super().communicator(group)
        return self._world.communicator(group, self.traits.backend)

    def op_reasons(self) -> Mapping[str, str]:
        """Why the reference serves some operators, and which ones a chosen provider serves."""
        return {**dict.fromkeys(self._missing, self._why), **self._chosen.reasons}

    def provider_versions(self) -> Mapping[str, str]:
        return provider_versions(self.traits.providers)

    def why_uncaptured(self) -> str:
        return self._uncaptured or ""

    def extension(self, kind: Callable[..., T]) -> T | None:
        """The device itself; for its working times what its events tell, and None if they tell nothing."""
        if kind in (BusySeconds, TimesLaunches):
            return cast(T | None, self._timing)
        return super().extension(kind)

    def close(self) -> None:
        """Wait for launched work and release the memory. A lost device is left as it is."""
        if self._closed:
            return
        super().close()
        self._world.close()
        try:
            self.compute.synchronize()
            self.copies.synchronize()
            self.runtime.module.empty_cache()
            self.runtime.module.set_stream(self._before)
        except RuntimeError as error:
            _log.warning("%s: closed after a failure: %s", self.torch_device, first_line(error))

    def submit(self, work: Callable[[], T], lasting: bool = False) -> Future[T]:
        """Run work on the compute stream, in order with the work of the caller's current stream."""
        return super().submit(lambda: self._on_stream(work), lasting)

    def translate(self, error: Exception) -> HeadraceError:
        """Convert an error of the runtime to one of the contract."""
        return self._translate(error)

    def timed(self, launch: Callable[[], T]) -> T:
        """What `launch` gives, which puts work on the compute stream and captures nothing."""
        return launch() if self._timing is None else self._timing.timed(launch)

    def run_eagerly(self, reason: str) -> None:
        """Log that a step is not captured, once per reason."""
        if reason not in self._logged:
            self._logged.add(reason)
            _log.warning("%s: steps are launched operator by operator: %s", self.torch_device, reason)

    def _on_stream(self, work: Callable[[], T]) -> T:
        module = self.runtime.module
        current = module.current_stream()
        if current == self.compute:
            return work()
        # The caller is another thread, or another device was opened after this one.
        current = module.current_stream(self.torch_device)
        self.compute.wait_stream(current)
        with module.stream(self.compute):
            found = work()
        current.wait_stream(self.compute)
        return found

    def _copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> None:
        index = self.copies.put(np.array([src, dst], np.int64))
        for store in (*kv.keys, *kv.values, *kv.key_scales, *kv.value_scales):
            blocks = store.view(torch.uint8) if store.element_size() == 1 else store
            blocks[index[1]] = blocks[index[0]]

    def _translating(self, call: Callable[[], Any]) -> Any:
        """Run a call that waits outside the work queue, and convert its errors to those of the device."""
        try:
            return call()
        except Exception as error:
            failure = self._translate(error)
            if isinstance(failure, DeviceLost):
                self._failure = failure
            raise failure from error

    def _translate(self, error: Exception) -> HeadraceError:
        if isinstance(error, HeadraceError):
            return error
        kind, message = self.traits.error_patterns.kind(error), f"{self.torch_device}: {first_line(error)}"
        if kind == "lost":
            return DeviceLost(f"{message}: the device's state is lost; start the engine again")
        if kind == "memory":
            free, total = self.memory()
            remedy = "lower kv_memory or max_num_batched_tokens"
            return OutOfMemory(f"{message} ({free} of {total} bytes are free): {remedy}")
        return PlatformError(f"{self.torch_device}: {type(error).__name__}: {error}")

    def as_one_of_several(self) -> Capabilities:
        """See `interface.WorksInGroups`."""
        return replace(self.capabilities(), collectives=_COLLECTIVES)

    def _complete(self, capabilities: Capabilities) -> Capabilities:
        return replace(
            capabilities,
            static_shapes=self._uncaptured is None,  # only graphs need padding
            quant_formats=frozenset() if "linear" in self._missing else capabilities.quant_formats,
            # A vendor's library chooses its own order of sums.
            deterministic=bool(self.options.batch_invariant) and not self._missing and self.options.operators == TRITON,
            collectives=_COLLECTIVES if self.options.world_size > 1 else frozenset(),
        )

    def _find_timing(self) -> EventTiming | None:
        try:
            return EventTiming(self.runtime, self.compute)
        except RuntimeError as error:
            reason = f"its events hold no times here: {first_line(error)}"
            _log.warning("%s: times of steps are estimated: %s", self.torch_device, reason)
            return None

    def _why_eager(self) -> str | None:
        if not self.options.graph_tokens:
            return "option graph_tokens is 0"
        if self._chosen.eager:
            return self._chosen.eager
        if not self.runtime.captures:
            return "this build of torch cannot capture a step on this device"
        if self._missing:
            return f"operators served by reference read sizes on the host ({', '.join(self._missing)})"
        return None


class StreamExecutable:
    """A step that is launched onto the compute stream."""

    def __init__(
        self, device: AcceleratorDevice, step: Callable[[KV, Mapping[str, Tensor]], Mapping[str, Tensor]]
    ) -> None:
        self._device = device
        self._step = step

    def __call__(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        """Raises PlatformError if the launch fails. A later call or result raises what fails on the device."""
        return kv, self._device.submit(lambda: self._step(kv, inputs)).result()
