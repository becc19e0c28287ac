"""Tracing: runs a program's function once with stand-ins for values, and records what it does as operations."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import ProgramError, excerpt
from headrace.lang.operators import type_of
from headrace.lang.plan import Lit, Operand, PlanOp, Ref, Region
from headrace.lang.values import Value
from headrace.structured_outputs import StructuredOutputs

__all__ = ["Block", "Snapshot", "TracedState", "Tracer", "current_tracer", "fault", "place"]

_HERE = str(Path(__file__).parent)
_CURRENT: ContextVar[Tracer | None] = ContextVar("headrace.lang.tracer", default=None)


def place() -> str:
    """The line of the user's program that is being executed, as FILE:LINE."""
    frame: Any = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith((_HERE, "<frozen")) or frame.f_code.co_filename == contextlib.__file__
    ):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def fault(message: str) -> ProgramError:
    """An error at the user's line."""
    return ProgramError(message, place())


def current_tracer() -> Tracer:
    found = _CURRENT.get()
    if found is None:
        raise fault("this belongs into a function under @program, which is traced when it is compiled or run")
    return found


@dataclass(eq=False, slots=True)
class Block:
    """A region that is being recorded."""

    args: list[int] = field(default_factory=list)
    ops: list[PlanOp] = field(default_factory=list)

    def region(self, yields: list[Operand]) -> Region:
        return Region(self.args, self.ops, yields)


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """A state at one point of the trace."""

    id: int
    variables: dict[str, Value]
    maybe: dict[str, Value]
    """Variables that only some way to here has set; null otherwise."""
    role: str | None
    form: str | None

    def same(self, other: Snapshot) -> bool:
        """True if nothing has changed in between. (`==` of values makes an expression.)"""
        pairs = ((self.variables, other.variables), (self.maybe, other.maybe))
        return self.id == other.id and all(
            one.keys() == two.keys() and all(one[name] is two[name] for name in one) for one, two in pairs
        )


class TracedState(Protocol):
    """A `state.State`, as control flow needs it."""

    def snapshot(self) -> Snapshot: ...

    def restore(self, snapshot: Snapshot) -> None: ...


class Tracer:
    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.states: list[TracedState] = []
        """States that may be used here."""
        self.aliases: dict[int, int] = {}
        """Values that turned out to be others."""
        self.forms: dict[int, StructuredOutputs] = {}
        """Forms that make instances of a class, by value."""
        self.open_if: Any = None
        """The `if_` that an `else_` may follow."""
        self.tools: dict[str, Callable[..., Any]] = {}
        """The functions that are called, by name."""
        self.depth = 0
        """Sub-programs that are being traced."""
        self._next = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def new_id(self) -> int:
        self._next += 1
        return self._next - 1

    def emit(self, op: PlanOp) -> None:
        op.at = place()
        self.blocks[-1].ops.append(op)

    def value(self, kind: str, number: int | None = None) -> Value:
        """A new value of the innermost block."""
        return Value(self, self.new_id() if number is None else number, kind, self.blocks[-1])

    @contextlib.contextmanager
    def block(self) -> Iterator[Block]:
        """Record into a new block. States that are made inside are not known outside."""
        made, known = Block(), len(self.states)
        self.blocks.append(made)
        try:
            yield made
        finally:
            self.blocks.pop()
            del self.states[known:]

    def operand(self, value: Any) -> Operand:
        """A value of the program, or a constant. Raises ProgramError for what is neither."""
        if isinstance(value, Value):
            if value.tracer is not self:
                raise fault("this value belongs to another program: pass it as an argument")
            if value.block not in self.blocks:
                raise fault(
                    "this value was made in a block that has ended: keep it in a variable, as s['name'] = value, and "
                    "read s['name'] behind the block"
                )
            return Ref(value.id)
        return Lit(constant(value))

    def type_of(self, value: Any) -> str:
        return value.type if isinstance(value, Value) else type_of(constant(value))

    def resolve(self, number: int) -> int:
        while number in self.aliases:
            number = self.aliases[number]
        return number


def constant(value: Any) -> Any:
    """A constant as JSON. Raises ProgramError."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, list) and any(isinstance(entry, Value) for entry in value):
        raise fault("a list with values in it is made by hl.list_of(a, b, …)")
    try:
        type_of(value)
    except TypeError as error:
        raise fault(f"{excerpt(value, 60)} cannot be part of a plan: {error}") from None
    except RecursionError:
        raise fault("a constant is nested too deeply") from None
    return value
