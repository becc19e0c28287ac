"""What communicators over shared memory share: the collectives that no step calls go over a network's, made at their first use."""

from __future__ import annotations

from collections.abc import Callable

from headrace.platforms.interface import Tensor
from headrace.platforms.torch_communicator import TorchCommunicator

__all__ = ["RestCommunicator"]


class RestCommunicator:
    """`reduce_scatter` and `broadcast`. Inputs are left as they are."""

    def __init__(self, rest: Callable[[], TorchCommunicator]) -> None:
        """`rest` connects the group's ranks, so all of them must come to the first such call."""
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
