"""Passes the call of a native operator to the team at once, or records it onto a tape (`tape.TapeRecorder`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from headrace.platforms.cpu.native_args import FIXED, Dim
from headrace.platforms.cpu.native_team import Team

__all__ = ["EagerLauncher", "Launcher"]

Tensor = torch.Tensor


class Launcher(Protocol):
    """The functions that an operator uses to call its kernel."""

    def own(self) -> AbstractContextManager[Any]:
        """A context in which the operator itself may call torch; a model may not."""

    def rows(self, x: Tensor) -> Dim:
        """The first dimension of x as a kernel argument."""

    def empty(self, like: Dim, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor for a result; `like` is the meaning of its first dimension."""

    def call(self, kernel: str, args: ctypes.Structure, keep: Sequence[Any], sizes: Sequence[int] = ()) -> None:
        """Run or record a kernel. `keep`: the tensors that the arguments point to. `sizes`: T, S, R, the number of bias
        triplets and the length of a block-table row, as far as the caller knows them from its tensors."""


class EagerLauncher:
    """Runs every call at once and waits for it."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def own(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def rows(self, x: Tensor) -> Dim:
        return Dim(FIXED, x.shape[0])

    def empty(self, like: Dim, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def call(self, kernel: str, args: ctypes.Structure, keep: Sequence[Any], sizes: Sequence[int] = ()) -> None:
        function = self._team.library.kernel(kernel)
        self._team.wait(self._team.run_kernel(function, args, sizes, keep))
