"""Packs weights for a device while the checkpoint is read.

Each weight is checked and packed, and its stored values are released, so that memory holds only the packed weights and
those in progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import torch

from headrace.checkpoints.packed.tree import keep_packed_alone
from headrace.checkpoints.released_memory import MappedFiles, trim_heap
from headrace.kernels.ops import Ops
from headrace.kernels.registry import pack
from headrace.kernels.weight import Weight
from headrace.platforms.interface import Device, PackedForms
from headrace.quant.finite_values import check_weight
from headrace.quant.weights import place

__all__ = ["Packing"]

_AHEAD = 2
"""Weights in the queue per thread."""
_TRIMMED = 32 << 20
"""After this number of bytes of weights, the free memory of the heap is returned to the system."""


class Packing:
    """The function that `Checkpoint.build` calls with every finished weight, as a context manager.

    The end of the context waits for the last weight, and raises the error of a failed one.

    On a device whose memory is the host's, `threads` threads pack while the next weights are read. Elsewhere each
    weight is moved and packed at once.
    """

    def __init__(
        self,
        ops: Ops,
        device: Device,
        checkpoint: Path,
        threads: int,
        move: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> None:
        """`move` puts a tensor on the device; None: the device reads host memory."""
        self._ops, self._path, self._move = ops, str(checkpoint), move
        self._forms = device.extension(PackedForms)
        self._files = MappedFiles(checkpoint)
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[Future[None]] = deque()
        self._untrimmed = 0

    def __enter__(self) -> Packing:
        if self._move is None and self._threads > 1:
            # One torch thread each: torch would divide every one of thousands of small operations between them.
            self._pool = ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self._wait(0)
        trim_heap()

    def finish(self, weight: Weight, operators: tuple[str, ...]) -> Weight:
        """The weight in the form that the model stores, packed for each operator that will be called with it.

        Another thread may work on it until this context ends. Raises CheckpointError for an invalid weight.
        """
        if self._move is not None:
            check_weight(weight, self._path)
            weight = place(weight, self._move)
            self._pack(weight, operators)
        elif self._pool is None:
            self._check_and_pack(weight, operators)
        else:
            self._wait(_AHEAD * self._threads)
            self._running.append(self._pool.submit(self._check_and_pack, weight, operators))
        return weight

    def _wait(self, most: int) -> None:
        """Wait until at most this number of weights is in progress."""
        while len(self._running) > most:
            self._running.popleft().result()

    def _check_and_pack(self, weight: Weight, operators: tuple[str, ...]) -> None:
        check_weight(weight, self._path)
        self._pack(weight, operators)

    def _pack(self, weight: Weight, operators: tuple[str, ...]) -> None:
        size = weight.nbytes
        for name in operators:
            pack(self._ops, name, weight)
        if self._forms is not None:
            keep_packed_alone(weight, self._forms)
        self._files.give_back()
        self._untrimmed += size
        if self._untrimmed >= _TRIMMED:
            self._untrimmed = 0
            trim_heap()
