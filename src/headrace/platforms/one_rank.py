"""Collectives of a group with one rank."""

from __future__ import annotations

from headrace.platforms.interface import Tensor

__all__ = ["OneRank"]


class OneRank:
    """An `interface.Communicator` that returns its inputs."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return x

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        return x

    def all_to_all(self, x: Tensor, dim: int) -> Tensor:
        return x

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        return x
