"""Plans: programs as data, in JSON. `check` says whether a plan may run; `interpreter` runs it.

Values are in single assignment: each has a number and is defined once, by an input, an operation or a region's
arguments. A *state* (a conversation or a text) is a value too, which each operation replaces by the next one. So the
order of the operations on a state is in the data, and operations on different states do not depend on one another.
Regions are the bodies of control flow; they see the values that are defined around them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from headrace.errors import ProgramError, excerpt

__all__ = [
    "CallOp",
    "ExprOp",
    "ForOp",
    "ForkOp",
    "GenOp",
    "IfOp",
    "Limits",
    "Lit",
    "NewStateOp",
    "Operand",
    "Param",
    "Plan",
    "PlanOp",
    "Ref",
    "Region",
    "RequireOp",
    "Role",
    "RoleBeginOp",
    "RoleEndOp",
    "SelectMethod",
    "SelectOp",
    "TextOp",
    "WhileOp",
    "decode_plan",
    "encode_plan",
    "plan_id",
    "plan_schema",
    "references",
    "regions",
    "tool_names",
]

Role = Literal["system", "user", "assistant"]
SelectMethod = Literal["greedy", "mean", "sum", "unconditional"]
Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Seconds = Annotated[float, Meta(gt=0, le=1e6)]
MOST_BYTES = 16 << 20
"""Most bytes of a plan's document."""
MOST_NODES = 1_000_000
"""Most lists and objects: they take more time than bytes do."""


class Ref(Struct, tag_field="kind", tag="ref", forbid_unknown_fields=True):
    """The value with this number."""

    id: Id


class Lit(Struct, tag_field="kind", tag="lit", forbid_unknown_fields=True):
    """A constant: any JSON value."""

    value: Any


Operand = Ref | Lit


class Op(Struct, tag_field="op", forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Base of operations."""

    at: str = ""
    """The program's place that it comes from, as FILE:LINE."""


class NewStateOp(Op, tag="state"):
    """An empty state."""

    out: Id


class TextOp(Op, tag="text"):
    """Append texts to the open message, or to a state without roles. Values that are no text are written as JSON."""

    state: Ref
    parts: list[Operand]
    out: Id


class RoleBeginOp(Op, tag="role_begin"):
    state: Ref
    role: Role
    out: Id


class RoleEndOp(Op, tag="role_end"):
    state: Ref
    out: Id


class GenOp(Op, tag="gen"):
    """Generate text and append it. `type` is the value's: text, int, float, bool, or json, parsed from the text."""

    state: Ref
    name: Name
    out_state: Id
    out: Id
    type: str = "text"
    sampling: dict[str, Any] = {}
    """Fields of `SamplingParams` but `n`, `prompt_logprobs`, `prompt_logprobs_start` and `structured_outputs`."""
    constraint: dict[str, Any] | None = None
    """Fields of `StructuredOutputs`."""
    timeout: Seconds | None = None


class SelectOp(Op, tag="select"):
    """Score each choice as the continuation of the state; append the best."""

    state: Ref
    name: Name
    choices: Operand
    """A list of texts."""
    out_state: Id
    out: Id
    method: SelectMethod = "greedy"
    timeout: Seconds | None = None


class Region(Struct, forbid_unknown_fields=True):
    args: list[Id]
    ops: list[PlanOp]
    yields: list[Operand]


class ForkOp(Op, tag="fork"):
    """Run the body once for each entry, at the same time. Arguments: a copy of the state, the entry, its index. Each
    result is the list of the branches' yields."""

    state: Ref
    over: Operand
    """A list, or a number of branches."""
    max: Count
    body: Region
    outs: list[Id]


class IfOp(Op, tag="if"):
    cond: Operand
    then: Region
    orelse: Region
    outs: list[Id]


class WhileOp(Op, tag="while"):
    """`cond` and `body` take the carried values; `cond` yields a bool, `body` the next carried values."""

    init: list[Operand]
    cond: Region
    body: Region
    max: Count
    outs: list[Id]


class ForOp(Op, tag="for"):
    """The body takes the entry, its index and the carried values, and yields the next carried values."""

    over: Operand
    init: list[Operand]
    body: Region
    max: Count
    outs: list[Id]


class CallOp(Op, tag="call"):
    """Call a Python function of whoever runs the plan, by name."""

    tool: Name
    args: dict[str, Operand]
    out: Id
    type: str = "json"
    timeout: Seconds | None = None


class ExprOp(Op, tag="expr"):
    """A pure operator of `operators.OPERATORS`."""

    fn: Name
    args: list[Operand]
    out: Id


class RequireOp(Op, tag="require"):
    """End the program with an error if the condition does not hold."""

    cond: Operand
    message: str


PlanOp = (
    NewStateOp
    | TextOp
    | RoleBeginOp
    | RoleEndOp
    | GenOp
    | SelectOp
    | ForkOp
    | IfOp
    | WhileOp
    | ForOp
    | CallOp
    | ExprOp
    | RequireOp
)


class Param(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An input."""

    name: Name
    id: Id
    type: str = "text"
    required: bool = True
    default: Any = None


class Limits(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    tokens: Annotated[int, Meta(ge=1)] | None = None
    """Most tokens that a run may generate."""
    seconds: Seconds | None = None
    """Most seconds that a run may take."""


class Plan(Struct, forbid_unknown_fields=True, kw_only=True):
    format: Literal["headrace.plan"] = "headrace.plan"
    version: tuple[int, int] = (1, 0)
    name: Name
    inputs: list[Param]
    body: Region
    """Its argument is the program's state, its yield that state at the end."""
    outputs: dict[str, Operand]
    limits: Limits = Limits()


_DECODER = msgspec.json.Decoder(Plan)


def decode_plan(document: bytes | str) -> Plan:
    """A plan of its JSON document. Raises ProgramError with the place of what is wrong; `check` does the rest."""
    data = document.encode() if isinstance(document, str) else document
    if len(data) > MOST_BYTES:
        raise ProgramError(f"a plan has at most {MOST_BYTES} bytes, this document has {len(data)}", "$")
    if data.count(b"[") + data.count(b"{") > MOST_NODES:
        raise ProgramError(f"a plan's document has at most {MOST_NODES} lists and objects", "$")
    try:
        plan = _DECODER.decode(data)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        raise ProgramError(f"not a plan: {message}", place.rstrip("`") or "$") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProgramError(f"not JSON: {excerpt(str(error))}", "$") from None
    except RecursionError:
        raise ProgramError("the document is nested too deeply", "$") from None
    if plan.version[0] != 1 or plan.version[1] > 0:
        raise ProgramError(f"version {plan.version[0]}.{plan.version[1]} is not supported: this is 1.0", "$.version")
    return plan


def encode_plan(plan: Plan, indent: int = 0) -> bytes:
    """The document; with `indent` it is laid out for reading."""
    data = msgspec.json.encode(plan)
    return msgspec.json.format(data, indent=indent) if indent else data


def plan_id(plan: Plan) -> str:
    """The SHA-256 of the document. Keys are not sorted: the order of a schema's properties is that of the output."""
    return hashlib.sha256(encode_plan(plan)).hexdigest()


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return msgspec.json.schema(Plan)


def regions(op: PlanOp) -> dict[str, Region]:
    """The regions of an operation, by the names of its fields."""
    if isinstance(op, IfOp):
        return {"then": op.then, "orelse": op.orelse}
    if isinstance(op, WhileOp):
        return {"cond": op.cond, "body": op.body}
    return {"body": op.body} if isinstance(op, (ForkOp, ForOp)) else {}


def tool_names(plan: Plan) -> set[str]:
    """The functions that a plan calls."""
    found: set[str] = set()
    waiting = [plan.body]
    while waiting:
        for op in waiting.pop().ops:
            if isinstance(op, CallOp):
                found.add(op.tool)
            waiting += regions(op).values()
    return found


def references(node: object) -> Iterator[Ref]:
    """Every reference below a plan's node, in the order of the document."""
    if isinstance(node, Ref):
        yield node
    elif isinstance(node, Struct) and not isinstance(node, Lit):
        for name in node.__struct_fields__:
            yield from references(getattr(node, name))
    elif isinstance(node, (list, tuple)):
        for entry in node:
            yield from references(entry)
    elif isinstance(node, dict):
        for entry in node.values():
            yield from references(entry)
