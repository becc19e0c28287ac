"""Definitions, types and roles of a plan: every value is defined once and before its use, every operation gets what it
takes, and generations stand where the model writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.errors import ProgramError
from headrace.lang.constraint_faults import constraint_fault
from headrace.lang.gen_options import read_constraint, read_sampling
from headrace.lang.operators import OPERATORS, fits, is_type, item_type, joined_type, type_of
from headrace.lang.plan import (
    CallOp,
    ExprOp,
    ForkOp,
    ForOp,
    GenOp,
    IfOp,
    Lit,
    NewStateOp,
    Operand,
    Plan,
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

__all__ = ["TypeChecker"]


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a value; of a state also what it holds."""

    type: str
    role: str | None = None
    form: str | None = None
    """`chat`, `text`, or None for an empty state."""


_GENERATED = ("text", "int", "float", "bool", "json")


class Wrong(Exception):
    """An operation that is wrong."""


class TypeChecker:
    """Walks a plan once, up to the first error."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[int, Kind] = {}
        """Values that are defined where the walk is."""
        self._defined: set[int] = set()
        """All that were ever defined."""
        self._node = self._at = ""

    def problem(self) -> tuple[str, str, str] | None:
        """The first error: node, message, and place in the program."""
        plan = self._plan
        try:
            for param in plan.inputs:
                self._node, self._at = f"inputs.{param.name}", ""
                self._input(param.name, param.id, param.type, param.required, param.default)
            if len({param.name for param in plan.inputs}) < len(plan.inputs):
                raise Wrong("two inputs have the same name")
            yields = self._region(plan.body, [Kind("state")], "body")
            self._node = "body.yields"
            if len(yields) != 1 or yields[0].type != "state":
                raise Wrong("the body yields the program's state, and nothing else")
            if yields[0].role is not None:
                raise Wrong(f"the {yields[0].role} message is not ended")
            self._at = ""
            for name, operand in plan.outputs.items():
                self._node = f"outputs.{name}"
                if self._kind(operand).type == "state":
                    raise Wrong("a state is no output")
        except Wrong as error:
            return self._node, str(error), self._at
        return None

    def _input(self, name: str, number: int, kind: str, required: bool, default: object) -> None:
        if not is_type(kind):
            raise Wrong(f"{kind!r} is no type of an input")
        if not required and default is not None and not fits(_constant(default), kind):
            raise Wrong(f"the default of {name!r} is no {kind}")
        self._define(number, Kind(kind))

    def _region(self, region: Region, args: Sequence[Kind], path: str) -> list[Kind]:
        """The kinds of the yields. Raises Wrong."""
        if len(region.args) != len(args):
            raise Wrong(f"{path.rpartition('.')[2]} takes {len(args)} arguments, got {len(region.args)}")
        outside = dict(self._known)
        for number, kind in zip(region.args, args, strict=True):
            self._define(number, kind)
        for index, op in enumerate(region.ops):
            self._node, self._at = f"{path}.ops[{index}]", op.at
            self._op(op)
        yields = [self._kind(operand) for operand in region.yields]
        if region is not self._plan.body:  # The outputs see the body's values.
            self._known = outside
        return yields

    def _define(self, number: int, kind: Kind) -> None:
        if number in self._defined:
            raise Wrong(f"value {number} is defined twice")
        self._defined.add(number)
        self._known[number] = kind

    def _kind(self, operand: Operand) -> Kind:
        if isinstance(operand, Lit):
            return Kind(_constant(operand.value))
        found = self._known.get(operand.id)
        if found is None:
            where = "outside of its block" if operand.id in self._defined else "before it is defined"
            raise Wrong(f"value {operand.id} is used {where}: the variable is unbound")
        return found

    def _wants(self, operand: Operand, wanted: str, what: str) -> None:
        found = self._kind(operand).type
        if not fits(found, wanted):
            raise Wrong(f"{what} takes {wanted}, got {found}")

    def _state(self, ref: Ref) -> Kind:
        found = self._kind(ref)
        if found.type != "state":
            raise Wrong(f"value {ref.id} is {found.type}, not a state")
        return found

    def _op(self, op: PlanOp) -> None:
        if isinstance(op, ExprOp):
            self._expr(op)
        elif isinstance(op, NewStateOp):
            self._define(op.out, Kind("state"))
        elif isinstance(op, TextOp):
            for part in op.parts:
                if self._kind(part).type == "state":
                    raise Wrong("a state is no text")
            self._define(op.out, self._inside(op.state))
        elif isinstance(op, (RoleBeginOp, RoleEndOp)):
            self._message(op)
        elif isinstance(op, (GenOp, SelectOp)):
            self._generation(op)
        elif isinstance(op, CallOp):
            self._call(op)
        elif isinstance(op, RequireOp):
            self._wants(op.cond, "bool", "a condition")
        else:
            self._control(op)

    def _message(self, op: RoleBeginOp | RoleEndOp) -> None:
        state = self._state(op.state)
        if isinstance(op, RoleEndOp):
            if state.role is None:
                raise Wrong("no message is open")
            self._define(op.out, replace(state, role=None))
            return
        if state.role is not None:
            raise Wrong(f"a {op.role} message begins inside the {state.role} message")
        if state.form == "text":
            raise Wrong("a message begins in a text without roles")
        self._define(op.out, Kind("state", op.role, "chat"))

    def _call(self, op: CallOp) -> None:
        for name, operand in op.args.items():
            if self._kind(operand).type == "state":
                raise Wrong(f"argument {name!r}: a state cannot be given to a function")
        if not is_type(op.type):
            raise Wrong(f"{op.type!r} is no type")
        self._define(op.out, Kind(op.type))

    def _expr(self, op: ExprOp) -> None:
        operator = OPERATORS.get(op.fn)
        if operator is None:
            raise Wrong(f"there is no operator {op.fn!r}")
        try:
            kind = operator.result([self._kind(operand).type for operand in op.args])
        except TypeError as error:
            raise Wrong(f"`{op.fn}` {error}") from None
        if kind == "state":
            raise Wrong("a state is no operand")
        self._define(op.out, Kind(kind))

    def _inside(self, ref: Ref) -> Kind:
        """A state that text is appended to."""
        state = self._state(ref)
        if state.role is None and state.form == "chat":
            raise Wrong("text stands outside of a message")
        return state if state.role is not None else Kind("state", None, "text")

    def _generation(self, op: GenOp | SelectOp) -> None:
        state = self._inside(op.state)
        if state.role not in (None, "assistant"):
            raise Wrong(f"{op.name!r} stands in the {state.role} message: the model writes only the assistant's")
        if isinstance(op, SelectOp):
            self._choices(op)
            self._define(op.out, Kind("text"))
        else:
            self._gen(op)
            self._define(op.out, Kind(op.type))
        self._define(op.out_state, state)

    def _choices(self, op: SelectOp) -> None:
        if item_type(self._kind(op.choices).type) not in ("text", "json"):
            raise Wrong("`choices` is a list of texts")
        if isinstance(op.choices, Lit):
            given = op.choices.value
            if not isinstance(given, list) or not given or not all(isinstance(one, str) and one for one in given):
                raise Wrong("`choices` is a list of texts, none of them empty")
            if len(given) > 1024:
                raise Wrong(f"a select has at most 1024 choices, got {len(given)}")

    def _gen(self, op: GenOp) -> None:
        if op.type not in _GENERATED:
            raise Wrong(f"{op.type!r} is no type of a generation")
        try:
            read_sampling(op.sampling, constrained=op.constraint is not None)
            if op.constraint is not None:
                read_constraint(op.constraint)
        except ProgramError as error:
            raise Wrong(str(error)) from None
        if not isinstance(op.sampling["max_tokens"], int):
            raise Wrong("`max_tokens` takes a whole number")
        if op.constraint is None and op.type != "text":
            raise Wrong(f"a value of type {op.type} needs a constraint")
        why = None if op.constraint is None else constraint_fault(op.constraint)
        if why is not None:
            raise Wrong(f"no text meets the constraint: {why}")
        if op.constraint is not None and op.sampling["max_tokens"] == 0:
            raise Wrong("no text of 0 tokens meets the constraint")

    def _control(self, op: ForkOp | IfOp | WhileOp | ForOp) -> None:
        node, at = self._node, self._at
        if isinstance(op, IfOp):
            self._wants(op.cond, "bool", "a condition")
            then = self._region(op.then, [], f"{node}.then")
            orelse = self._region(op.orelse, [], f"{node}.orelse")
            self._node, self._at = node, at
            if len(then) != len(orelse):
                raise Wrong("both blocks must yield the same number of values")
            kinds = [_either(one, other) for one, other in zip(then, orelse, strict=True)]
        elif isinstance(op, ForkOp):
            state, entry = self._state(op.state), self._entry(op)
            kinds = self._region(op.body, [state, entry, Kind("int")], f"{node}.body")
            self._node, self._at = node, at
            if any(kind.type == "state" for kind in kinds):
                raise Wrong("a branch cannot yield its state")
            kinds = [Kind(f"list<{kind.type}>") for kind in kinds]
        else:
            kinds = self._loop(op, node)
            self._node, self._at = node, at
        if len(kinds) != len(op.outs):
            raise Wrong(f"{len(kinds)} values are yielded, and {len(op.outs)} defined")
        for number, kind in zip(op.outs, kinds, strict=True):
            self._define(number, kind)

    def _loop(self, op: ForOp | WhileOp, node: str) -> list[Kind]:
        init = [self._kind(operand) for operand in op.init]
        if isinstance(op, WhileOp):
            holds = self._region(op.cond, init, f"{node}.cond")
            if len(holds) != 1 or not fits(holds[0].type, "bool"):
                raise Wrong("the condition of a loop yields one bool")
            yields = self._region(op.body, init, f"{node}.body")
        else:
            yields = self._region(op.body, [self._entry(op), Kind("int"), *init], f"{node}.body")
        if len(yields) != len(init):
            raise Wrong(f"{len(init)} values are carried, and {len(yields)} yielded")
        for before, after in zip(init, yields, strict=True):
            if (before.type == "state") != (after.type == "state") or (
                before.type != "state" and not fits(after.type, before.type)
            ):
                raise Wrong(f"a carried value is {before.type} before the loop and {after.type} after a pass")
        return [_either(before, after) for before, after in zip(init, yields, strict=True)]

    def _entry(self, op: ForkOp | ForOp) -> Kind:
        kind = self._kind(op.over).type
        if isinstance(op.over, Lit):
            count = op.over.value if kind == "int" else len(op.over.value) if isinstance(op.over.value, list) else 0
            if count > op.max:
                raise Wrong(f"it has {count} entries, and `max` is {op.max}")
        inner = "int" if kind == "int" else item_type(kind)
        if inner is None:
            raise Wrong(f"it runs over a list or a number, got {kind}")
        return Kind(inner)


def _constant(value: object) -> str:
    try:
        return type_of(value)
    except (TypeError, RecursionError) as error:
        raise Wrong(f"a constant is wrong: {error}") from None


def _either(one: Kind, other: Kind) -> Kind:
    """The kind of a value that is one or the other. Raises Wrong."""
    if "state" not in (one.type, other.type):
        return Kind(joined_type(one.type, other.type))
    if one.type != other.type:
        raise Wrong(f"a value is {one.type} in one block and {other.type} in the other")
    if one.role != other.role:
        raise Wrong("a message begins or ends in one block only")
    if None not in (one.form, other.form) and one.form != other.form:
        raise Wrong("a state has roles in one block, and none in the other")
    return Kind("state", one.role, one.form or other.form)
