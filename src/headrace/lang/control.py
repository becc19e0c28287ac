"""Control flow of traced programs: `if_`, `else_`, `while_`, `for_`. Each body is recorded once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.lang.operators import item_type, joined_type
from headrace.lang.plan import ForOp, IfOp, Lit, Operand, Ref, WhileOp
from headrace.lang.state import State
from headrace.lang.tracing import Block, Snapshot, Tracer, current_tracer, fault
from headrace.lang.values import Value

__all__ = ["else_", "entries_of", "for_", "if_", "while_"]

Snapshots = dict[State, Snapshot]


@dataclass(eq=False, slots=True)
class OpenIf:
    """An `if_` that an `else_` may follow."""

    op: IfOp
    then: Block
    cond: Operand
    entry: Snapshots
    after_then: Snapshots


@contextlib.contextmanager
def if_(condition: Any) -> Iterator[None]:
    """The block runs if the condition holds when the program runs. `else_` may follow."""
    tracer = current_tracer()
    cond = _condition(tracer, condition)
    entry = _snapshots(tracer)
    with tracer.block() as then:
        yield
        after = _snapshots(tracer, entry)
    _merge(tracer, cond, then, Block(), entry, after, entry)


@contextlib.contextmanager
def else_() -> Iterator[None]:
    """The block runs if the condition of the `if_` right before it does not hold."""
    tracer = current_tracer()
    opened = tracer.open_if
    ops = tracer.blocks[-1].ops
    if opened is None or not ops or ops[-1] is not opened.op:
        raise fault("hl.else_() must follow the block of its hl.if_(…) at once")
    ops.pop()
    _restore(opened.entry)
    with tracer.block() as orelse:
        yield
        after = _snapshots(tracer, opened.entry)
    _merge(tracer, opened.cond, opened.then, orelse, opened.entry, opened.after_then, after)
    tracer.blocks[-1].ops[-1].at = opened.op.at
    tracer.open_if = None


def _condition(tracer: Tracer, condition: Any) -> Operand:
    if tracer.type_of(condition) not in ("bool", "json"):
        raise fault(f"a condition is true or false, and this is {tracer.type_of(condition)}: compare it with something")
    return tracer.operand(condition)


def _snapshots(tracer: Tracer, of: Snapshots | None = None) -> Snapshots:
    states = [state for state in tracer.states if isinstance(state, State)] if of is None else list(of)
    return {state: state.snapshot() for state in states}


def _restore(snapshots: Snapshots) -> None:
    for state, snapshot in snapshots.items():
        state.restore(snapshot)


def _merge(
    tracer: Tracer, cond: Operand, then: Block, orelse: Block, entry: Snapshots, one: Snapshots, other: Snapshots
) -> None:
    """Emit the operation, and set every state to what either block has made of it."""
    outs: list[int] = []
    yields: tuple[list[Operand], list[Operand]] = ([], [])

    def phi(left: Operand, right: Operand) -> int:
        outs.append(tracer.new_id())
        yields[0].append(left)
        yields[1].append(right)
        return outs[-1]

    for state in entry:
        left, right = one[state], other[state]
        if left.role != right.role or left.role != entry[state].role:
            raise fault("a message must begin and end in the same block")
        number = left.id if left.id == right.id else phi(Ref(left.id), Ref(right.id))
        variables: dict[str, Value] = {}
        maybe: dict[str, Value] = {}
        for name in dict.fromkeys([*left.variables, *left.maybe, *right.variables, *right.maybe]):
            a, b = _found(left, name), _found(right, name)
            sure = name in left.variables and name in right.variables
            if a is not None and a is b:
                (variables if sure else maybe)[name] = a
                continue
            types = [found.type for found in (a, b) if found is not None]
            kind = joined_type(types[0], types[-1])
            made = Value(tracer, phi(_or_null(a), _or_null(b)), kind, tracer.blocks[-1])
            (variables if sure else maybe)[name] = made
        form = left.form or right.form
        state.restore(Snapshot(number, variables, maybe, left.role, form))
    op = IfOp(cond=cond, then=then.region(yields[0]), orelse=orelse.region(yields[1]), outs=outs)
    tracer.emit(op)
    tracer.open_if = OpenIf(op, then, cond, entry, one)


def _found(snapshot: Snapshot, name: str) -> Value | None:
    found = snapshot.variables.get(name)
    return snapshot.maybe.get(name) if found is None else found


def _or_null(value: Value | None) -> Operand:
    return Lit(None) if value is None else Ref(value.id)


@dataclass(eq=False, slots=True)
class Slot:
    """A state or a variable in a loop: carried from one pass to the next if the body changes it."""

    state: State
    name: str | None
    """None: the state itself."""
    init: int
    type: str
    args: list[int]
    """Its numbers in the body, and in the condition of a while."""


class _Loop:
    """Records one loop: gives states and variables numbers of their own inside, and finds out which ones change."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.entry = _snapshots(tracer)
        self.slots = [
            slot
            for state, snapshot in self.entry.items()
            for slot in (
                Slot(state, None, snapshot.id, "state", []),
                *(Slot(state, name, value.id, value.type, []) for name, value in snapshot.variables.items()),
            )
        ]
        self.init: list[Operand] = []
        self.outs: list[int] = []

    def enter(self) -> None:
        """Give everything new numbers in the innermost block."""
        variables: dict[State, dict[str, Value]] = {state: {} for state in self.entry}
        numbers: dict[State, int] = {}
        for slot in self.slots:
            slot.args.append(self.tracer.new_id())
            if slot.name is None:
                numbers[slot.state] = slot.args[-1]
            else:
                variables[slot.state][slot.name] = self.tracer.value(slot.type, slot.args[-1])
        for state, snapshot in self.entry.items():
            form = state.snapshot().form
            state.restore(Snapshot(numbers[state], variables[state], snapshot.maybe, snapshot.role, form))

    def leave(self, blocks: list[Block], ends: Snapshots) -> list[Operand]:
        """Outside of the blocks: set the states to what is known after the loop. Returns the body's yields."""
        yields: list[Operand] = []
        for state, end in ends.items():
            entry = self.entry[state]
            if end.role != entry.role:
                raise fault("a message must begin and end in the same block")
            number, variables, maybe = entry.id, dict(entry.variables), dict(entry.maybe)
            for slot in (slot for slot in self.slots if slot.state is state):
                now = end.id if slot.name is None else end.variables[slot.name].id
                if now == slot.args[-1]:
                    self.tracer.aliases.update(dict.fromkeys(slot.args, slot.init))
                    continue
                self._check_type(slot, end)
                out = self._carry(blocks, slot.args, Ref(slot.init), Ref(now), yields)
                if slot.name is None:
                    number = out
                else:
                    variables[slot.name] = self.tracer.value(slot.type, out)
            for name in [*end.variables, *end.maybe]:
                made, before = _found(end, name), entry.maybe.get(name)
                if name in entry.variables or made is None or made is before:
                    continue
                args = [self.tracer.new_id() for _ in blocks]
                out = self._carry(blocks, args, _or_null(before), Ref(made.id), yields)
                kind = made.type if before is None else joined_type(made.type, before.type)
                maybe[name] = self.tracer.value(kind, out)
            state.restore(Snapshot(number, variables, maybe, entry.role, end.form))
        return yields

    def _carry(self, blocks: list[Block], args: list[int], init: Operand, now: Operand, yields: list[Operand]) -> int:
        for block, arg in zip(blocks, args, strict=True):
            block.args.append(arg)
        self.init.append(init)
        yields.append(now)
        self.outs.append(self.tracer.new_id())
        return self.outs[-1]

    def _check_type(self, slot: Slot, end: Snapshot) -> None:
        if slot.name is None:
            return
        found = end.variables[slot.name].type
        if slot.type not in (found, "json"):
            raise fault(f"{slot.name!r} is {slot.type} before the loop and {found} at the end of its block")


@contextlib.contextmanager
def while_(condition: Callable[[], Any], *, max: int | None = None) -> Iterator[None]:
    """The block runs as long as the condition, a function without arguments (`lambda: s["n"] < 3`), gives true, at
    most `max` times, which must be given."""
    tracer = current_tracer()
    if not callable(condition):
        raise fault("the condition is evaluated before each pass: give it as a function, hl.while_(lambda: …, max=…)")
    most = _bounded(max)
    loop = _Loop(tracer)
    with tracer.block() as cond:
        loop.enter()
        before = _snapshots(tracer, loop.entry)
        found = condition()
        holds = _condition(tracer, found)
        if not all(state.snapshot().same(before[state]) for state in before):
            raise fault("the condition of a loop may read variables, not change states")
    with tracer.block() as body:
        loop.enter()
        yield
        ends = _snapshots(tracer, loop.entry)
    yields = loop.leave([cond, body], ends)
    tracer.emit(WhileOp(init=loop.init, cond=cond.region([holds]), body=body.region(yields), max=most, outs=loop.outs))


@contextlib.contextmanager
def for_(over: Any, *, max: int | None = None) -> Iterator[Value]:
    """The block runs for each entry of a list, or for the numbers below a number; `max` is needed unless the list is
    constant. More entries at run time are an error."""
    tracer = current_tracer()
    operand, kind, most = entries_of(tracer, over, max)
    loop = _Loop(tracer)
    with tracer.block() as body:
        item, index = tracer.value(kind), tracer.new_id()
        body.args += [item.id, index]
        loop.enter()
        yield item
        ends = _snapshots(tracer, loop.entry)
    yields = loop.leave([body], ends)
    tracer.emit(ForOp(over=operand, init=loop.init, body=body.region(yields), max=most, outs=loop.outs))


def entries_of(tracer: Tracer, over: Any, most: int | None) -> tuple[Operand, str, int]:
    """What a loop or a fork runs over, the type of its entries, and how many there may be. Raises ProgramError."""
    kind = tracer.type_of(over)
    inner = "int" if kind == "int" else item_type(kind)
    if inner is None:
        raise fault(f"takes a list or a number, got {kind}")
    if not isinstance(over, Value):
        count = over if isinstance(over, int) else len(over)
        most = count if most is None else most
    return tracer.operand(over), inner, _bounded(most)


def _bounded(most: object) -> int:
    """Raises ProgramError."""
    if most is None:
        raise fault("`max` is needed: the number of passes or branches must be bounded before the program runs")
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise fault(f"`max` takes a whole number, got {most!r:.60}")
    return most
