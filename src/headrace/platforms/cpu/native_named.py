"""The native operator of the logprobs that requests ask for by token."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import torch

from headrace.platforms.cpu.native_args import Dim
from headrace.platforms.cpu.native_linear import HasLauncher

__all__ = ["NamedLogprobsArgs", "NativeNamed"]

Tensor = torch.Tensor


class NamedLogprobsArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "named", "top", "y")),
        ("rows", Dim),
        *((name, ctypes.c_int32) for name in ("vocab", "width", "alternatives")),
    )


class NativeNamed:
    """See `ops.OptionalOps.named_logprobs`."""

    def __init__(self, owner: HasLauncher, check: Callable[[], None]) -> None:
        """`check` is called once, before the first call: it raises if the library has other arguments."""
        self._owner = owner
        self._check: Callable[[], None] | None = check

    def table(self) -> Mapping[str, Callable[..., Any]]:
        return {"named_logprobs": self.named_logprobs}

    def named_logprobs(self, logits: Tensor, named: Tensor, top_logprobs: Tensor) -> Tensor:
        if self._check is not None:
            self._check()
            self._check = None
        launcher = self._owner.launcher
        with launcher.own():
            given = (logits.float().contiguous(), named.contiguous(), top_logprobs.contiguous())
            rows, width = launcher.rows(logits), named.shape[1]
            y = launcher.empty(rows, (logits.shape[0], width))
            sizes = (logits.shape[1], width, top_logprobs.shape[1])
            args = NamedLogprobsArgs(*(x.data_ptr() for x in (*given, y)), rows, *sizes)
            launcher.call("named_logprobs", args, (*given, y))
            return y
