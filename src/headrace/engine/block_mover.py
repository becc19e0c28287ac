"""Moves whole blocks between a cache and the host, by steps in launch order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace.kernels.ops import Ops, OptionalOps
from headrace.platforms.interface import KV, Device, Executable, Pending, Tensor
from headrace.types import Bucket

__all__ = ["BlockMover", "stored"]

Bytes = npt.NDArray[np.uint8]
Run = Callable[[Executable, Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Launches an executable on the runner's cache (`Runner.read`)."""
_MOST = 32
"""Blocks that one launch moves at the most. Numbers of blocks are padded to powers of two, with block 0."""


class BlockMover:
    """Compiled steps of `gather_blocks` and `scatter_blocks`, one per number of blocks."""

    def __init__(self, device: Device, ops: Ops) -> None:
        self._device, self._ops = device, cast(OptionalOps, ops)
        self._steps: dict[tuple[str, int], Executable] = {}
        self.part = slice(None)
        """This rank's part of the bytes that `scatter` gets."""
        self._staging = np.empty((0, 0), np.uint8)
        """What `scatter` copies from, kept: memory that is new costs more than the copy."""

    def block_bytes(self, run: Run) -> int:
        """Bytes of one block as the device gives them. Raises PlatformError if it cannot move blocks."""
        (_, pending), *_ = self.gather(run, [0])
        return int(pending.result().shape[1])

    def gather(self, run: Run, ids: Sequence[int]) -> list[tuple[int, Pending]]:
        """Launch reading these blocks. Gives (number, uint8 [at least that many, bytes]) for each part of `ids`."""
        found = []
        for start in range(0, len(ids), _MOST):
            part = ids[start : start + _MOST]
            padded = _padded(part)
            outputs = run(self._step("gather", len(padded)), {"block_ids": self._device.put(padded)})
            found.append((len(part), self._device.get(outputs["packed"])))
        return found

    def scatter(self, run: Run, loads: Sequence[tuple[int, Any]]) -> None:
        """Launch writing (block, bytes of all ranks); all blocks have the same number of bytes."""
        for start in range(0, len(loads), _MOST):
            part = loads[start : start + _MOST]
            ids = _padded([block for block, _ in part])
            rows = [np.frombuffer(data, np.uint8)[self.part] for _, data in part]
            packed = self._staged(len(ids), rows[0].nbytes)
            for row, data in zip(packed, rows, strict=False):
                row[:] = data
            inputs = {"block_ids": self._device.put(ids), "packed": self._device.put(packed)}
            run(self._step("scatter", len(ids)), inputs)

    def _staged(self, count: int, size: int) -> Bytes:
        """uint8 [count, size], of any content."""
        if len(self._staging) < count or self._staging.shape[1] != size:
            self._staging = np.zeros((count, size), np.uint8)
        return self._staging[:count]

    def _step(self, kind: str, count: int) -> Executable:
        found = self._steps.get((kind, count))
        if found is None:
            function = self._gather if kind == "gather" else self._scatter
            found = self._steps[kind, count] = self._device.compile(function, Bucket(count, count, count, 1))
        return found

    def _gather(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        return kv, {"packed": self._ops.gather_blocks(kv, inputs["block_ids"])}

    def _scatter(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        return kv, {"block_ids": self._ops.scatter_blocks(kv, inputs["block_ids"], inputs["packed"])}


def _padded(ids: Sequence[int]) -> npt.NDArray[np.int32]:
    padded = np.zeros(1 << (len(ids) - 1).bit_length(), np.int32)
    padded[: len(ids)] = ids
    return padded


def stored(parts: Sequence[tuple[int, Pending]]) -> list[Bytes] | None:
    """uint8 [bytes] for each block of all parts; None without a part. Blocks until they have arrived."""
    return [row for count, pending in parts for row in pending.result()[:count]] if parts else None
