"""Wraps torch's module for one kind of device: streams, events, graphs, pinned memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["TorchRuntime"]


@dataclass(frozen=True, slots=True)
class TorchRuntime:
    """`module` is the result of `torch.get_device_module(kind)`, or an object with the same members."""

    module: Any
    kind: str
    """The type of `torch.device`."""
    pinned: bool = True
    """True if host memory can be pinned for asynchronous copies."""
    graph: str = ""
    """Name of the module's graph class; empty if steps cannot be captured."""
    graph_options: tuple[tuple[str, Any], ...] = ()
    """Keyword arguments of the module's `graph` context."""

    def device(self, index: int) -> torch.device:
        return torch.device(self.kind, index)

    def host(self, shape: Sequence[int], dtype: torch.dtype, pinned: bool = True) -> torch.Tensor:
        """An uninitialized host tensor. Pinned memory comes from torch's cache, which reuses it only after the copies
        that use it are complete."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=pinned and self.pinned)

    @property
    def captures(self) -> bool:
        """True if this build of torch can capture a step."""
        return bool(self.graph) and hasattr(self.module, self.graph)

    def new_graph(self) -> Any:
        return getattr(self.module, self.graph)()

    def capture(self, graph: Any, pool: Any, stream: Any) -> AbstractContextManager[Any]:
        """A context in which launched work is recorded and not run."""
        context: AbstractContextManager[Any] = self.module.graph(
            graph, pool=pool, stream=stream, **dict(self.graph_options)
        )
        return context
