"""XLA's collectives: part of the compiled step, over the links between the chips."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headrace.errors import PlatformError
from headrace.platforms.interface import Tensor
from headrace.platforms.tpu.xla_runtime import XlaRuntime

__all__ = ["XlaCommunicator", "partition"]


class XlaCommunicator:
    """One group. Every process compiles the same collective, which runs in all groups of the partition at once."""

    def __init__(self, runtime: XlaRuntime, group: Sequence[int]) -> None:
        rank, world = runtime.rank()
        self._runtime = runtime
        self._groups = partition(group, world)
        if rank not in group:
            raise PlatformError(f"tpu: rank {rank} of {world}: cannot take part in a group of ranks {list(group)}")
        self._place, self._size = list(group).index(rank), len(group)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum, in x's shape and dtype."""
        return self._runtime.all_reduce(x, self._groups)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Every rank's x, in rank order along `dim`."""
        return self._runtime.all_gather(x, dim, self._groups)

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """This rank's share of the sum along `dim`. Raises PlatformError if the dimension is not divisible."""
        if x.shape[dim] % self._size:
            raise PlatformError(
                f"reduce_scatter: dimension {dim} of {x.shape[dim]} does not divide among {self._size} ranks"
            )
        return self._runtime.reduce_scatter(x, dim, self._groups)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        """x of the group's `root`-th rank: all other ranks add zeros."""
        return self.all_reduce(x if self._place == root else torch.zeros_like(x))


def partition(group: Sequence[int], world: int) -> list[list[int]]:
    """All ranks, divided into groups like this one, because one collective runs in all groups. Raises PlatformError if
    such groups don't cover all ranks."""
    ranks = list(group)
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    span = step * len(ranks)
    if step < 1 or world % span:
        raise PlatformError(f"tpu: ranks {ranks} of {world}: choose evenly spaced ranks whose groups tile the world")
    found = [
        list(range(base + first, base + first + span, step)) for base in range(0, world, span) for first in range(step)
    ]
    if ranks not in found:
        raise PlatformError(f"tpu: ranks {ranks} of {world}: choose evenly spaced ranks whose groups tile the world")
    return found
