"""How a native operator's call reaches the team: at once, or onto a tape (`tape.TapeRecorder`)."""

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
    """What an operator needs beside its kernel."""

    def own(self) -> AbstractContextManager[Any]:
        """Inside, torch is the operator's own business and not the model's."""

    def rows(self, x: Tensor) -> Dim:
        """The first dimension of x as kernels take it."""

    def empty(self, like: Dim, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Room for a result; `like` says what its first dimension stands for."""

    def call(self, kernel: str, args: ctypes.Structure, keep: Sequence[Any], sizes: Sequence[int] = ()) -> None:
        """Run or record a kernel. `keep` are the tensors that the arguments point to; `sizes` are T, S, R, the number of bias
        triplets and the length of a block-table row, where the caller knows them from the tensors it was given."""


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
