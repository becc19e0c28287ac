"""What a program will ask for next, behind a generation: as far as that does not depend on what is generated.

The operations behind the generation are followed without running them: texts and roles on its state are noted,
operators and conditions on known values are evaluated, and loops are entered as often as that is known. It ends at what
is not known, what could end the program, and what others must see in its order: a call, a `require` that is not
decided, a fork.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.errors import ProgramError
from headrace.lang.conversation import Tail
from headrace.lang.evaluating import Path, Place, Scope, evaluate, holds, written
from headrace.lang.operators import is_large
from headrace.lang.plan import (
    CallOp,
    ExprOp,
    ForkOp,
    ForOp,
    GenOp,
    IfOp,
    Operand,
    PlanOp,
    Ref,
    Region,
    RequireOp,
    RoleBeginOp,
    RoleEndOp,
    SelectOp,
    TextOp,
    WhileOp,
)

__all__ = ["Foreseen", "Foresight"]

_MOST_OPERATIONS = 64
"""That are followed from one generation to the next."""
_MOST_FORESEEN = 2000
"""Characters and values between two of them, which are tokenised in the event loop."""
_MOST_EVALUATED = 200
"""Characters and entries of values that are evaluated beforehand: operators may make many of few."""
_UNKNOWN = object()


class Foreseen(NamedTuple):
    """A generation or a selection that follows a generation."""

    tail: Tail
    op: GenOp | SelectOp
    path: Path
    choices: Any = None
    """Of a selection."""


class Foresight:
    """Follows the regions of one plan."""

    def __init__(self) -> None:
        self._indices: dict[int, dict[int, int]] = {}

    def behind(self, op: GenOp, scope: Scope) -> Walk:
        """The way on from a generation. `scope`: of its region, as far as it has been run."""
        return Walk(self, op, scope)

    def after(self, region: Region, op: PlanOp) -> int:
        """The index behind an operation of a region."""
        found = self._indices.get(id(region))
        if found is None:
            found = self._indices[id(region)] = {id(one): at for at, one in enumerate(region.ops, 1)}
        return found[id(op)]


class _Stop(Exception):
    """What follows is not known."""


class Walk:
    """The way on from one generation. What it finds is kept beside the run's own values."""

    def __init__(self, foresight: Foresight, op: GenOp, scope: Scope) -> None:
        self._foresight = foresight
        self._scope = _beside(scope)
        self._at = foresight.after(scope.place.region, op)
        self._around: list[tuple[Scope, int]] = []
        """Regions that were entered on the way, each with the index behind what was entered."""
        self._scope.values[op.out_state] = Tail()

    def next(self) -> Foreseen | None:
        """The next generation or selection on the state of the one before; nothing is known behind a selection."""
        try:
            for _ in range(_MOST_OPERATIONS):
                found = self._step()
                if found is not None:
                    return found
        except (_Stop, KeyError, ProgramError):
            pass
        return None

    def _step(self) -> Foreseen | None:
        scope, ops = self._scope, self._scope.place.region.ops
        if self._at == len(ops):
            self._leave()
            return None
        op = ops[self._at]
        self._at += 1
        if isinstance(op, (TextOp, RoleBeginOp, RoleEndOp, GenOp, SelectOp)):
            tail = _known(scope, op.state)
            return self._on_state(op, tail) if isinstance(tail, Tail) else None
        if isinstance(op, ExprOp):
            self._expression(op)
        elif isinstance(op, RequireOp):
            if not holds(scope.read(op.cond)):
                raise _Stop
        elif isinstance(op, IfOp):
            self._enter(Place(op.then if holds(scope.read(op.cond)) else op.orelse, scope.place.path, op), [])
        elif isinstance(op, ForOp):
            carried = [_known(scope, one) for one in op.init]
            self._pass(op, _entries(scope.read(op.over), op.max), -1, scope.place.path, carried)
        elif isinstance(op, WhileOp):
            self._ask(op, 0, scope.place.path, [_known(scope, one) for one in op.init])
        elif isinstance(op, (CallOp, ForkOp)):
            raise _Stop
        return None

    def _on_state(self, op: TextOp | RoleBeginOp | RoleEndOp | GenOp | SelectOp, tail: Tail) -> Foreseen | None:
        values = self._scope.values
        if isinstance(op, GenOp):
            values[op.out_state] = Tail()
            return Foreseen(tail, op, self._scope.place.path)
        if isinstance(op, SelectOp):
            choices = self._scope.read(op.choices)
            if is_large(choices, _MOST_FORESEEN):
                raise _Stop
            return Foreseen(tail, op, self._scope.place.path, choices)
        if isinstance(op, TextOp):
            parts = [self._scope.read(part) for part in op.parts]
            if is_large(parts, _MOST_FORESEEN):
                raise _Stop
            tail = tail.add("".join(map(written, parts)))
            if tail.size > _MOST_FORESEEN:
                raise _Stop
            values[op.out] = tail
        else:
            values[op.out] = tail.begin(op.role) if isinstance(op, RoleBeginOp) else tail.end()
        return None

    def _expression(self, op: ExprOp) -> None:
        operands = [_known(self._scope, one) for one in op.args]
        if not any(one is _UNKNOWN for one in operands) and not is_large(operands, _MOST_EVALUATED):
            self._scope.values[op.out] = evaluate(op, operands)

    def _enter(self, place: Place, args: list[Any]) -> None:
        self._around.append((self._scope, self._at))
        self._scope, self._at = Scope(self._scope, place), 0
        bound = zip(place.region.args, args, strict=True)
        self._scope.values.update((number, value) for number, value in bound if value is not _UNKNOWN)

    def _leave(self) -> None:
        """Go on behind the end of a region: with the next pass, or behind the operation that it belongs to."""
        scope, place = self._scope, self._scope.place
        found = [_known(scope, one) for one in place.region.yields]
        if self._around:
            self._scope, self._at = self._around.pop()
        else:
            around = None if scope.outer is None else scope.outer.outer
            if around is None or place.op is None:
                raise _Stop
            self._scope, self._at = _beside(around), self._foresight.after(around.place.region, place.op)
        op = place.op
        if isinstance(op, ForOp):
            self._pass(op, place.entries, place.number, place.path[:-1], found)
        elif isinstance(op, WhileOp) and place.region is op.body:
            self._ask(op, place.number + 1, place.path[:-1], found)
        elif isinstance(op, WhileOp):
            carried = [_known(scope, Ref(number)) for number in op.cond.args]
            if found[0] is _UNKNOWN:
                raise _Stop
            if holds(found[0]):
                self._enter(place._replace(region=op.body), carried)
            else:
                self._set(op, carried)
        elif isinstance(op, IfOp):
            self._set(op, found)
        else:
            raise _Stop

    def _pass(self, op: ForOp, entries: Any, done: int, path: Path, carried: list[Any]) -> None:
        """Enter the next pass of a loop, behind pass `done`."""
        at = done + 1
        if at < len(entries):
            self._enter(Place(op.body, (*path, at), op, at, entries), [entries[at], at, *carried])
        else:
            self._set(op, carried)

    def _ask(self, op: WhileOp, index: int, path: Path, carried: list[Any]) -> None:
        """Enter the condition of a pass."""
        if index < op.max:
            self._enter(Place(op.cond, (*path, index), op, index), carried)
        else:
            self._set(op, carried)

    def _set(self, op: ForOp | WhileOp | IfOp, found: list[Any]) -> None:
        pairs = zip(op.outs, found, strict=True)
        self._scope.values.update((number, value) for number, value in pairs if value is not _UNKNOWN)


def _beside(scope: Scope) -> Scope:
    """A scope for what is found out about the rest of another's region."""
    return Scope(scope, scope.place)


def _known(scope: Scope, operand: Operand) -> Any:
    try:
        return scope.read(operand)
    except KeyError:
        return _UNKNOWN


def _entries(over: Any, most: int) -> Any:
    """The entries of a loop, without a copy."""
    if isinstance(over, int) and not isinstance(over, bool):
        over = range(min(over, most + 1))  # A range of far more has no length.
    if not isinstance(over, (list, range)) or len(over) > most:
        raise _Stop
    return over
