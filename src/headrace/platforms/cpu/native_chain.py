"""The native operator of drafts of which each depends on the one before it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from headrace.platforms.cpu.native_args import Dim
from headrace.platforms.cpu.native_linear import HasLauncher

__all__ = ["CorrectLogitsArgs", "NativeChain"]

Tensor = torch.Tensor


class CorrectLogitsArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "corrections", "y")),
        ("rows", Dim),
        *((name, ctypes.c_int32) for name in ("width", "at", "drafts", "held")),
    )


class NativeChain:
    """See `ops.OptionalOps.correct_logits`."""

    def __init__(self, owner: HasLauncher, check: Callable[[], None]) -> None:
        """`check` is called once, before the first call: it raises if the library has other arguments."""
        self._owner = owner
        self._check: Callable[[], None] | None = check

    def table(self) -> Mapping[str, Callable[..., Any]]:
        return {"correct_logits": self.correct_logits}

    def correct_logits(self, logits: Tensor, corrections: Tensor, at: int, drafts: int) -> Tensor:
        if self._check is not None:
            self._check()
            self._check = None
        launcher = self._owner.launcher
        with launcher.own():
            given, (held, width) = [part.float().contiguous() for part in (logits, corrections)], logits.shape
            rows = launcher.rows(corrections)
            y = launcher.empty(rows, corrections.shape)
            args = CorrectLogitsArgs(*(t.data_ptr() for t in (*given, y)), rows, width, at, drafts, held)
            launcher.call("correct_logits", args, (*given, y))
            return y
