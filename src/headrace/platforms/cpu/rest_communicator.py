"""Base class of communicators over shared memory: collectives that no step calls use a network communicator, made on
demand."""

from __future__ import annotations

from collections.abc import Callable

from headrace.platforms.interface import Tensor
from headrace.platforms.torch_communicator import TorchCommunicator

__all__ = ["RestCommunicator"]


class RestCommunicator:
    """`reduce_scatter` and `broadcast`. Inputs are not changed."""

    def __init__(self, rest: Callable[[], TorchCommunicator]) -> None:
        """`rest` connects the ranks of the group, so all of them must make the first such call."""
        self._rest = rest
        self._made: TorchCommunicator | None = None

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        return self._network().reduce_scatter(x, dim)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        return self._network().broadcast(x, root)

    def _network(self) -> TorchCommunicator:
        if self._made is None:
            self._made = self._rest()
        return self._made
