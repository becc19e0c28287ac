"""The default base class of devices that torch supports: all eleven members of `interface.Device` for a `torch.device`.

A platform passes its capabilities and overrides members with better versions: `op` for its kernels, `compile` for
graphs, `get` for copies on a stream. If `async_exec` is declared, launched work runs in order on one thread of the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import DeviceLost, HeadraceError, OutOfMemory, PlatformError
from headrace.kernels import paged
from headrace.kernels.spec import OpSpec
from headrace.platforms.host import host_memory
from headrace.platforms.interface import KV, Communicator, Executable, Pending, StepFn, Tensor, own_extension
from headrace.platforms.one_rank import OneRank
from headrace.platforms.work_queue import DeferredOutputs, FuturePending, InlineQueue, ThreadQueue, WorkQueue, resolve
from headrace.types import Bucket, Capabilities, KVLayout

__all__ = ["EagerExecutable", "TorchDevice"]

T = TypeVar("T")


class TorchDevice:
    """One opened `torch.device`."""

    def __init__(
        self,
        device: torch.device,
        capabilities: Capabilities,
        threads: int | None = None,
        queue: WorkQueue | None = None,
    ) -> None:
        """`threads`: size of torch's pool for the thread that runs the work; None leaves torch's choice. `queue`: the
        work queue of a device that is asynchronous by itself; None: a thread if `async_exec` is declared, otherwise
        none."""
        self.torch_device = device
        self._capabilities = capabilities
        self._threads = threads
        self._closed = False
        self._failure: HeadraceError | None = None
        on_thread = queue is None and capabilities.async_exec
        self._queue: WorkQueue = queue or (
            ThreadQueue(f"headrace-{device}", self._start) if on_thread else InlineQueue()
        )
        if not on_thread:
            self._start()  # this thread runs the work

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes from the device's module of torch if it reports them, otherwise those of the host."""
        query = getattr(torch.get_device_module(self.torch_device), "mem_get_info", None)
        if query is None:
            return host_memory()
        free, total = query(self.torch_device)
        return int(free), int(total)

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy an array to a new tensor, which no launched work uses yet."""
        self._check_open()
        return torch.from_numpy(np.array(array, copy=True)).to(self.torch_device)

    def get(self, tensor: Tensor) -> Pending:
        """Copy to the host after all launched work. 16-bit floats that numpy lacks become float32."""
        return FuturePending(self.submit(lambda: _to_host(resolve(tensor))))

    def alloc_kv(self, layout: KVLayout, num_blocks: int) -> KV:
        """A zeroed `kernels.kv.TorchKV`."""
        self._check_open()
        needed, (free, total) = num_blocks * layout.bytes_per_block, self.memory()
        if needed > free:
            raise OutOfMemory(
                f"{self.torch_device}: a KV cache of {num_blocks} blocks needs {needed} bytes, "
                f"but {free} of {total} are free: lower num_blocks or kv_memory"
            )
        return self.submit(lambda: paged.alloc(layout, num_blocks, self.torch_device)).result()

    def copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> KV:
        """Copy in place. All sources are gathered before any destination is written."""
        index = torch.tensor([list(src), list(dst)], dtype=torch.int64)

        def work() -> None:
            cache, (source, target) = resolve(kv), index.to(self.torch_device)
            for store in (*cache.keys, *cache.values, *cache.key_scales, *cache.value_scales):
                blocks = store.view(torch.uint8) if store.element_size() == 1 else store
                blocks[target] = blocks[source]

        self.submit(work, lasting=True)
        return kv

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        """An executable that runs the step operator by operator."""
        self._check_open()
        return EagerExecutable(self, step_fn)

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        """None: the reference serves every operator."""
        return None

    def communicator(self, group: Sequence[int]) -> Communicator:
        """The communicator of a single rank. Raises PlatformError for a larger group."""
        if len(group) != 1:
            raise PlatformError(
                f"{self.torch_device}: no collectives here, but a group of {len(group)} ranks was requested"
            )
        return OneRank()

    def extension(self, kind: Callable[..., T]) -> T | None:
        """The device itself, for the optional protocols that a subclass implements."""
        return own_extension(self, kind)

    def close(self) -> None:
        """Wait for launched work and close the queue."""
        if not self._closed:
            self._closed = True
            self._queue.close()

    def submit(self, work: Callable[[], T], lasting: bool = False) -> Future[T]:
        """Run work after all launched work; its errors become PlatformErrors. For subclasses and executables.

        `lasting`: no caller reads the result and later work depends on it, so all later work raises its error. The loss
        of the device is always raised by all later work.
        """
        self._check_open()

        def guarded() -> T:
            if self._failure is not None:
                raise self._failure
            try:
                with torch.no_grad():
                    return work()
            except Exception as error:
                failure = self._translate(error)
                self._failure = failure if lasting or isinstance(failure, DeviceLost) else None
                raise failure from error

        return self._queue.submit(guarded)

    def _translate(self, error: Exception) -> HeadraceError:
        if isinstance(error, HeadraceError):
            return error
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            free, total = self.memory()
            return OutOfMemory(f"{self.torch_device}: {error} ({free} of {total} bytes are free)")
        return PlatformError(f"{self.torch_device}: {type(error).__name__}: {error}")

    def _start(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)

    def _check_open(self) -> None:
        if self._closed:
            raise PlatformError(f"{self.torch_device}: the device has been closed")


class EagerExecutable:
    """Calls the step function in the device's order."""

    def __init__(self, device: TorchDevice, step_fn: StepFn) -> None:
        self._device = device
        self._step_fn = step_fn
        self._names: tuple[str, ...] | None = None

    def __call__(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        given = dict(inputs)

        def work() -> Mapping[str, Tensor]:
            _, outputs = self._step_fn(resolve(kv), {name: resolve(tensor) for name, tensor in given.items()})
            self._names = tuple(outputs)
            return outputs

        return kv, DeferredOutputs(self._device.submit(work), self._names)


def _to_host(tensor: torch.Tensor) -> npt.NDArray[Any]:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    copied: npt.NDArray[Any] = tensor.cpu().numpy().copy()
    return copied
