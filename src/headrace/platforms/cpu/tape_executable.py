"""A step function as an executable: recorded at the first call, replayed at every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace.errors import HeadraceError, PlatformError
from headrace.kernels.step_inputs import PERSISTENT, STEP_INPUTS
from headrace.platforms.cpu.native import HostCopy
from headrace.platforms.cpu.native_args import FIXED, Dim
from headrace.platforms.cpu.native_launch import Launcher
from headrace.platforms.cpu.native_team import Sizes, Team
from headrace.platforms.cpu.tape import Tape, TapeRecorder
from headrace.platforms.interface import KV, OpProfile, StepFn, Tensor
from headrace.types import Bucket

__all__ = ["TapeExecutable"]

_COUNTED = ((0, "tokens"), (1, "seqs"), (2, "rows"))
"""Dimensions whose actual size a tape reads at run time, with their number in `native_args.Dim`."""
_COUNTING = {0: "token_ids", 1: "slots", 2: "rows"}
"""Of each such dimension an input that has it."""
_MOST_VIEWS = 64
_SIZED = frozenset({"sizes", "bias_row", "block_tables"})
"""Inputs that define the sizes of a step."""
_MIN_BIASES = 1024


@dataclass(slots=True)
class _Recorded:
    recorder: TapeRecorder
    kv: KV
    inputs: dict[str, Tensor]
    """The buffers of the tape, and the persistent tensors themselves."""
    outputs: Mapping[str, Tensor]
    addresses: dict[str, int]
    """Input → address of its buffer."""
    flexible: frozenset[str]
    """Inputs whose first dimension may be smaller than the buffer's."""
    passed: frozenset[str]
    """Inputs that another tape wrote: read where they are, not copied."""


class TapeExecutable:
    """A step on a tape. `swap(launcher)` replaces the launcher of the operators and returns the previous one;
    `recorded(tape)` is called before the tape first runs."""

    def __init__(
        self,
        team: Team,
        step_fn: StepFn,
        bucket: Bucket,
        swap: Callable[[Launcher], Launcher],
        recorded: Callable[[Tape], None],
    ) -> None:
        self._team, self._step_fn, self._bucket, self._swap, self._recorded = team, step_fn, bucket, swap, recorded
        self._tape: _Recorded | None = None
        self._last: dict[str, Tensor] = {}
        self._sizes: list[int] = [0] * 5
        self._narrowed: dict[tuple[int, ...], Mapping[str, Tensor]] = {}
        """Views of the outputs, by the numbers of tokens, sequences and rows."""
        self._latest: Mapping[str, Tensor] | None = None
        self._copies: Any = (HostCopy * 0)()

    def __call__(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        tape, last = self._tape, self._last
        # A tensor never changes after `put`: the same tensor needs neither a check nor a copy again.
        changed = {name: tensor for name, tensor in inputs.items() if last.get(name) is not tensor}
        if tape is None or tape.kv is not kv or not self._fits(tape, inputs, changed):
            tape, changed = self._record(kv, inputs), dict(inputs)
        sizes = self._sizes if changed.keys().isdisjoint(_SIZED) else self._sizes_of(inputs)
        count = 0
        for name, tensor in changed.items():
            size = 0 if name in PERSISTENT or name in tape.passed else tensor.nbytes
            if size:
                copy = self._copies[count]
                copy.dst, copy.src, copy.bytes = tape.addresses[name], tensor.data_ptr(), size
                count += 1
        self._last = dict(inputs)
        keep = (tape, self._last)
        self._team.run_tape(tape.recorder.tape.handle, Sizes(*sizes), self._copies, count, keep)
        self._sizes = sizes
        if self._latest is None or not changed.keys().isdisjoint(_COUNTING.values()):
            self._latest = self._outputs_of(tape, inputs)
        return kv, self._latest

    def _outputs_of(self, tape: _Recorded, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        counts = tuple([inputs[name].shape[0] for name in _COUNTING.values() if name in inputs])
        narrowed = self._narrowed.get(counts)
        if narrowed is None:
            if len(self._narrowed) == _MOST_VIEWS:
                self._narrowed.clear()
            narrowed = self._narrowed[counts] = {name: self._narrow(x, inputs) for name, x in tape.outputs.items()}
        return narrowed

    def profile(self, on: bool | None = None) -> list[OpProfile]:
        """The operators of the tape in order, with mean seconds over the measured launches. `on` switches measuring."""
        if self._tape is None:
            return []
        self._team.wait(self._team.run_tape(None, None, None, 0, None))
        tape = self._tape.recorder.tape
        found = tape.profile(dict(zip("TSR", self._sizes, strict=False)))
        if on is not None:
            tape.profiling(on)
        return found

    def _sizes_of(self, inputs: Mapping[str, Tensor]) -> list[int]:
        sizes = inputs.get("sizes")
        found = [0, 0, 0] if sizes is None else sizes.tolist()[:3]
        for name, size, most in zip(("tokens", "seqs", "rows"), found, self._limits(), strict=True):
            if size > most:
                raise PlatformError(f"cpu: a step of {size} {name}, but it was compiled for {most} at most")
        biases, table = inputs.get("bias_row"), inputs.get("block_tables")
        return [*found, 0 if biases is None else len(biases), 0 if table is None else table.shape[1]]

    def _limits(self) -> tuple[int, int, int]:
        return self._bucket.tokens, self._bucket.seqs, self._bucket.rows

    def _fits(self, tape: _Recorded, inputs: Mapping[str, Tensor], changed: Mapping[str, Tensor]) -> bool:
        if inputs.keys() != tape.inputs.keys():
            return False
        for name, tensor in changed.items():
            mine = tape.inputs[name]
            if name in PERSISTENT:
                if mine is not tensor:
                    return False
            elif name in tape.passed:
                if mine is not _buffer_of(tensor):
                    return False
            elif mine.dtype != tensor.dtype or not self._shape_fits(name, mine.shape, tensor.shape, tape.flexible):
                return False
        return True

    @staticmethod
    def _shape_fits(name: str, mine: Sequence[int], given: Sequence[int], flexible: frozenset[str]) -> bool:
        if name == "block_tables":
            return given[0] * given[1] <= mine[0] * mine[1]
        if name in flexible:
            return given[0] <= mine[0] and tuple(given[1:]) == tuple(mine[1:])
        return tuple(given) == tuple(mine)

    def _record(self, kv: KV, inputs: Mapping[str, Tensor]) -> _Recorded:
        recorder = TapeRecorder(self._team)
        flexible: set[str] = set()
        passed: set[str] = set()
        buffers: dict[str, Tensor] = {}
        for name, tensor in inputs.items():
            if name in PERSISTENT:
                buffers[name] = tensor
                continue
            buffer = _buffer_of(tensor)
            if buffer is not None:
                passed.add(name)
                buffers[name] = buffer
                continue
            dim, capacity = self._capacity(name, tensor)
            if dim is not None:
                flexible.add(name)
            shape = (capacity, *tensor.shape[1:]) if tensor.dim() else ()
            if name == "block_tables":
                shape = (capacity, max(self._bucket.blocks, tensor.shape[1]))
            buffers[name] = recorder.buffer(dim or Dim(FIXED, capacity), shape, tensor.dtype)
        before = self._swap(recorder)
        try:
            with torch.inference_mode(), recorder:
                _, outputs = self._step_fn(kv, dict(buffers))
        except HeadraceError:
            raise
        except Exception as error:
            raise PlatformError(f"cpu: recording a step: {type(error).__name__}: {error}") from error
        finally:
            self._swap(before)
        self._recorded(recorder.tape)
        addresses = {name: x.data_ptr() for name, x in buffers.items()}
        self._tape = _Recorded(recorder, kv, buffers, dict(outputs), addresses, frozenset(flexible), frozenset(passed))
        self._last, self._narrowed, self._latest, self._sizes = {}, {}, None, [0] * 5
        self._copies = (HostCopy * max(len(buffers), 1))()
        return self._tape

    def _capacity(self, name: str, tensor: Tensor) -> tuple[Dim | None, int]:
        """The meaning of the first dimension (None: a plain number) and its largest size."""
        bucket, given = self._bucket, tensor.shape[0] if tensor.dim() else 1
        first = STEP_INPUTS[name].dims[0] if name in STEP_INPUTS else None
        for index, counted in _COUNTED:
            if first == counted:
                return Dim(index, 1), max(getattr(bucket, counted), given)
        grown = max(_MIN_BIASES, 1 << max(given - 1, 0).bit_length())
        most = {"seqs + 1": bucket.seqs + 1, "masks": bucket.rows, "biases": grown}.get(first or "")
        return (None, given) if most is None else (Dim(FIXED, 0), max(most, given))

    def _narrow(self, x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """An output with as many rows as the caller's inputs of the same dimension."""
        dim: Dim | None = getattr(x, "hr_dim", None)
        name = None if dim is None else _COUNTING.get(dim.dim)
        if dim is None or name is None or name not in inputs:
            return x
        rows = x[: inputs[name].shape[0] * dim.fixed]
        rows.hr_buffer = x
        return rows


def _buffer_of(tensor: Tensor) -> Tensor | None:
    """The buffer of a tape whose first rows an output is; None for other tensors."""
    buffer: Tensor | None = getattr(tensor, "hr_buffer", None)
    return buffer
