"""Collectives between ranks, one device each: over gloo, in the host's memory, as for a chip without links of its
own."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headrace.platforms.torch_communicator import TorchCommunicator

__all__ = ["HostCommunicator"]


class HostCommunicator:
    """Copies to the host and back around each collective. The copies wait for the device, so a step may hold them where
    it runs
    operator by operator; what records steps needs collectives that can be recorded."""

    def __init__(self, host: TorchCommunicator) -> None:
        self._host = host

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._around(self._host.all_reduce, x)

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return self._around(lambda part: self._host.all_gather(part, dim), x)

    def reduce_scatter(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return self._around(lambda part: self._host.reduce_scatter(part, dim), x)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        return self._around(lambda part: self._host.broadcast(part, root), x)

    @staticmethod
    def _around(collective: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return collective(x.cpu()).to(x.device)
