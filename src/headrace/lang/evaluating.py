"""The operations of plans that need no model: values, conditions, texts, and what an error says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.deadlines import in_time
from headrace.errors import HeadraceError, ProgramError, excerpt
from headrace.lang.backend import Generated
from headrace.lang.operators import MOST_BITS, MOST_NESTING, MOST_SIZE, OPERATORS, as_text, is_deep, is_large
from headrace.lang.plan import (
    CallOp,
    ExprOp,
    ForkOp,
    ForOp,
    GenOp,
    IfOp,
    Lit,
    Operand,
    PlanOp,
    Region,
    RequireOp,
    SelectOp,
    TextOp,
    WhileOp,
)
from headrace.lang.strict_json import parse_json

__all__ = [
    "Path",
    "Place",
    "Scope",
    "entries_to_run",
    "evaluate",
    "holds",
    "name_place",
    "operands_of",
    "parsed",
    "within",
    "written",
]

Path = tuple[int, ...]
"""Numbers of the branches and passes around an operation, outermost first."""


class Place(NamedTuple):
    """A region in a run."""

    region: Region
    path: Path = ()
    op: ForOp | ForkOp | IfOp | WhileOp | None = None
    """The operation that it is a part of."""
    number: int = 0
    """Of the pass, or of the branch."""
    entries: Sequence[Any] = ()
    """Those of a `for`, of all passes."""


class Scope:
    """The values of a region by number, in front of those of the region around it."""

    __slots__ = ("outer", "place", "values")

    def __init__(self, outer: Scope | None, place: Place) -> None:
        self.values: dict[int, Any] = {}
        self.outer, self.place = outer, place

    def __getitem__(self, number: int) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if number in scope.values:
                return scope.values[number]
            scope = scope.outer
        raise KeyError(number)

    def read(self, operand: Operand) -> Any:
        return operand.value if isinstance(operand, Lit) else self[operand.id]


def operands_of(op: TextOp | ExprOp | RequireOp | SelectOp | CallOp, scope: Scope) -> list[Any]:
    """The values that an operation reads; a text is written anew with what is added to it."""
    if isinstance(op, SelectOp):
        return [scope.read(op.choices)]
    if isinstance(op, CallOp):
        return [scope.read(one) for one in op.args.values()]
    if isinstance(op, ExprOp):
        return [scope.read(one) for one in op.args]
    if isinstance(op, RequireOp):
        return [scope.read(op.cond)]
    return [scope[op.state.id].text, *(scope.read(part) for part in op.parts)]


async def within(seconds: float | None, work: Any) -> Any:
    if seconds is None:
        return await work
    try:
        return await in_time(seconds, work)
    except asyncio.TimeoutError:
        raise ProgramError(f"took longer than {seconds:g} s") from None


def name_place(error: HeadraceError, op: PlanOp, path: Path) -> None:
    """Put the program's line before an error's message, once: the innermost operation is the first to see it."""
    if getattr(error, "_placed", False):
        return
    what = f"gen {op.name!r}" if isinstance(op, GenOp) else f"select {op.name!r}" if isinstance(op, SelectOp) else ""
    if isinstance(op, CallOp):
        what = f"call {op.tool!r}"
    where = f" in branch or pass {'.'.join(map(str, path))}" if path else ""
    line = f"{op.at}: " if op.at else ""
    error.args = (f"{line}{what or type(op).__name__.removesuffix('Op').lower()}{where}: {error}",)
    error._placed = True  # type: ignore[attr-defined]
    if isinstance(error, ProgramError):
        error.node = error.node or op.at


def evaluate(op: ExprOp, operands: list[Any]) -> Any:
    try:
        found = OPERATORS[op.fn].run(*operands)
    except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        shown = ", ".join(excerpt(one, 60) for one in operands)
        raise ProgramError(f"`{op.fn}` of {shown}: {excerpt(str(error))}") from None
    if isinstance(found, (str, list, dict)) and is_large(found):
        raise ProgramError(f"`{op.fn}` makes a value larger than {MOST_SIZE}, or deeper than {MOST_NESTING}")
    if isinstance(found, int) and found.bit_length() > MOST_BITS:
        raise ProgramError(f"`{op.fn}` makes a whole number of more than {MOST_BITS} bits")
    if isinstance(found, float) and not math.isfinite(found):
        raise ProgramError(f"`{op.fn}` makes {found}, which is no number of JSON")
    return found


def written(value: Any) -> str:
    """A value as part of a text. Raises ProgramError before a text that is too long is made."""
    if is_large(value):
        raise ProgramError(f"a value that is written is larger than {MOST_SIZE}, or deeper than {MOST_NESTING}")
    return as_text(value)


def holds(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ProgramError(f"a condition is true or false, got {excerpt(value, 60)}")
    return value


def entries_to_run(op: ForOp | ForkOp, scope: Scope) -> list[Any]:
    over = scope.read(op.over)
    if isinstance(over, int) and not isinstance(over, bool):
        over = range(over) if over <= op.max else [None] * (op.max + 1)
    if not isinstance(over, (list, range)):
        raise ProgramError(f"runs over a list or a number, got {excerpt(over, 60)}")
    if len(over) > op.max:
        raise ProgramError(f"has more entries than its `max` of {op.max}")
    return list(over)


def parsed(op: GenOp, made: Generated, granted: int) -> Any:
    if op.type == "text":
        return made.text
    try:
        value = parse_json(made.text)
        if is_deep(value):
            raise RecursionError
        return value
    except (ValueError, RecursionError):
        cut = f"; it was cut at {granted} tokens (max_tokens)" if made.finish_reason == "length" else ""
        raise ProgramError(f"the text is no {op.type}: {excerpt(made.text)}{cut}") from None
