"""Asynchronous copies to and from an accelerator: staged in pinned memory, read back on a separate stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from headrace.platforms.accelerator.torch_runtime import TorchRuntime

__all__ = ["AsyncCopies", "EventPending"]

T = TypeVar("T")
_MAX_STAGED = 1 << 20
"""Largest array in bytes that is staged. Torch never frees pinned memory, so the host copies larger arrays directly and
waits."""


class AsyncCopies:
    """Copies of one device. `put` runs on the compute stream, `get` on a separate stream that waits for it."""

    def __init__(self, runtime: TorchRuntime, device: torch.device, compute: Any) -> None:
        self._runtime = runtime
        self._device = device
        self._compute = compute
        self._stream = runtime.module.Stream(device=device)
        self._pending: deque[tuple[Any, torch.Tensor, torch.Tensor]] = deque()

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Copy an array to a new tensor, which no launched work uses yet."""
        if array.nbytes > _MAX_STAGED:
            source = torch.from_numpy(array if array.flags.writeable else array.copy())
            return torch.empty(array.shape, dtype=source.dtype, device=self._device).copy_(source)
        staged = self._runtime.host(array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype)
        staged.numpy()[...] = array
        return torch.empty(staged.shape, dtype=staged.dtype, device=self._device).copy_(staged, non_blocking=True)

    def get(self, tensor: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Return (event, host tensor). The tensor holds the copy once the event has passed. bfloat16 becomes
        float32."""
        module = self._runtime.module
        self._drop_finished()
        ready, done = module.Event(), module.Event()
        ready.record(self._compute)
        with module.stream(self._stream):
            self._stream.wait_event(ready)
            source = tensor.detach()
            source = source.float() if source.dtype == torch.bfloat16 else source
            host = self._runtime.host(source.shape, source.dtype, source.numel() * source.element_size() <= _MAX_STAGED)
            host.copy_(source, non_blocking=True)
            done.record(self._stream)
        # The memory that a copy reads must not be reused before the copy is complete.
        self._pending.append((done, tensor, host))
        return done, host

    def settle(self) -> None:
        """Let the compute stream wait for all copies requested so far, because their sources will be overwritten."""
        self._drop_finished()
        if self._pending:
            self._compute.wait_event(self._pending[-1][0])

    def synchronize(self) -> None:
        """Wait for all copies."""
        self._stream.synchronize()
        self._pending.clear()

    def _drop_finished(self) -> None:
        while self._pending and self._pending[0][0].query():
            self._pending.popleft()


class EventPending:
    """A host copy behind an event. `guarded(call)` runs a call of the runtime and translates its errors."""

    def __init__(self, event: Any, host: torch.Tensor, guarded: Callable[[Callable[[], Any]], Any]) -> None:
        self._event = event
        self._host: torch.Tensor | None = host
        self._translating = guarded
        self._array: npt.NDArray[Any] | None = None
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Never blocks. True also if the copy has failed, because `result` then raises at once."""
        if self._array is not None:
            return True
        try:
            return bool(self._event.query())
        except RuntimeError:
            return True

    def result(self) -> npt.NDArray[Any]:
        """Raises what the device's work raised. May be called from any thread."""
        with self._lock:
            if self._array is None:
                self._translating(self._event.synchronize)
                assert self._host is not None
                self._array = self._host.numpy().copy()
                self._host = None
            return self._array
