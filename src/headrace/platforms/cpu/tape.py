"""A step recorded once as a list of native kernel calls, and replayed in one call.

While a step function runs under a `TapeRecorder`, bound operators append (kernel, arguments, buffers) instead of
computing. Buffers have the sizes of the bucket; the actual sizes are read at run time, so one tape serves every batch.
A torch operator in the step function is an error that names its line, because it would run only once, while the tape is
recorded.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.errors import PlatformError
from headrace.kernels.linear.cpu_pack import PackedWeight
from headrace.platforms.cpu.native_args import FIXED, Dim
from headrace.platforms.cpu.native_team import Team
from headrace.platforms.cpu.tape_arena import TapeArena
from headrace.platforms.interface import OpProfile

__all__ = ["Tape", "TapeRecorder"]

Tensor = torch.Tensor
_NAMES = {0: "T", 1: "S", 2: "R"}
_HERE = Path(__file__).resolve().parent
_TORCH = Path(torch.__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class _Entry:
    kernel: str
    shapes: tuple[tuple[int | str, ...], ...]
    itemsizes: tuple[int, ...]
    weight_bytes: int
    weight: str
    arithmetic: str
    table_rows: int
    """Rows of a packed matrix of which each token reads one; 0 if all are read."""


class Tape:
    """The recorded calls and everything that they point to. Freed after the team has run all submissions of it."""

    def __init__(self, team: Team) -> None:
        self._team = team
        functions = team.library.functions
        self.handle: int = functions.hr_tape_new()
        self._entries: list[_Entry] = []
        self._keep: list[Any] = []
        self.products: list[tuple[str, PackedWeight]] = []
        """Kernels and the matrices that they read, in order."""
        # Not at exit: the team may still run it.
        weakref.finalize(self, functions.hr_tape_free, self.handle).atexit = False

    def add(self, kernel: str, args: ctypes.Structure, keep: Sequence[Any], entry: _Entry) -> None:
        function = self._team.library.kernel(kernel)
        if self._team.library.functions.hr_tape_add(self.handle, function, ctypes.byref(args), ctypes.sizeof(args)):
            raise PlatformError("cpu: no memory for a tape")
        self._entries.append(entry)
        self._keep.extend(keep)
        self.products += [(kernel, x) for x in keep if isinstance(x, PackedWeight)]

    def profiling(self, on: bool) -> None:
        """Measure every operator from the next launch on. Must not be called while a launch is in flight."""
        self._team.library.functions.hr_tape_profile(self.handle, int(on))

    def profile(self, sizes: Mapping[str, int]) -> list[OpProfile]:
        times = (ctypes.c_uint64 * max(len(self._entries), 1))()
        runs = self._team.library.functions.hr_tape_times(self.handle, times)
        return [
            OpProfile(
                entry.kernel,
                entry.shapes,
                _bytes(entry, sizes),
                times[i] / 1e9 / runs if runs else 0.0,
                entry.weight,
                entry.arithmetic,
            )
            for i, entry in enumerate(self._entries)
        ]

    def __len__(self) -> int:
        return len(self._entries)


def _bytes(entry: _Entry, sizes: Mapping[str, int]) -> int:
    tokens = sizes.get("T", 0)
    total = entry.weight_bytes
    if entry.table_rows:
        total = total // entry.table_rows * min(tokens, entry.table_rows)
    for shape, item in zip(entry.shapes, entry.itemsizes, strict=True):
        held = [sizes.get(n, 0) if isinstance(n, str) else n for n in shape]
        if len(held) > 1 and not isinstance(shape[0], str):
            # A table of angles or embeddings: one row per token.
            held[0] = min(held[0], tokens)
        total += item * math.prod(held)
    return total


class TapeRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The launcher of operators while a step is recorded; it rejects every other torch operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would make torch import its compiler, which takes a second of every start and is never used here.
        return False

    def __init__(self, team: Team) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = Tape(team)
        self.arena = TapeArena()
        self._own = 0

    @contextmanager
    def own(self) -> Iterator[None]:
        self._own += 1
        try:
            yield
        finally:
            self._own -= 1

    def rows(self, x: Tensor) -> Dim:
        dim: Dim | None = getattr(x, "hr_dim", None)
        return Dim(FIXED, x.shape[0]) if dim is None else dim

    def empty(self, like: Dim, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        return self.buffer(like, shape, dtype)

    def buffer(self, dim: Dim, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor of the tape whose first dimension stands for `dim`."""
        with self.own():
            tensor = self.arena.tensor(shape, dtype)
        tensor.hr_dim = dim  # type: ignore[attr-defined]
        return tensor

    def call(self, kernel: str, args: ctypes.Structure, keep: Sequence[Any], sizes: Sequence[int] = ()) -> None:
        with self.own():
            tensors = [x for x in keep if isinstance(x, Tensor)]
            matrices = [x for x in keep if isinstance(x, PackedWeight)]
            entry = _Entry(
                kernel,
                tuple(self._shape(x) for x in tensors),
                tuple(x.element_size() for x in tensors),
                sum(int(getattr(x, "nbytes", 0)) for x in keep if not isinstance(x, Tensor)),
                ", ".join(dict.fromkeys(x.form for x in matrices)),
                matrices[0].arithmetic if matrices and kernel != "embedding" else "float32",
                matrices[0].shape[0] if matrices and kernel == "embedding" else 0,
            )
            # Buffers of the arena must stay reusable; all other objects must live as long as the tape.
            lasting = [x for x in keep if not (isinstance(x, Tensor) and hasattr(x, "hr_dim"))]
            self.tape.add(kernel, args, lasting, entry)

    def _shape(self, x: Tensor) -> tuple[int | str, ...]:
        dim = self.rows(x)
        first = _NAMES.get(dim.dim, x.shape[0] if x.dim() else 1)
        return (first, *x.shape[1:])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._own:
            return func(*args, **(kwargs or {}))
        raise PlatformError(
            f"{_caller()}: {func} is a torch operator, not one of the device: it would run only once, when the step is "
            "recorded; call a bound operator instead"
        )


def _caller() -> str:
    """File and line of the nearest frame outside torch and this folder."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename).resolve()
        if _HERE not in path.parents and _TORCH not in path.parents:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
