"""`Value`: stands in a traced program for what is known only when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from headrace.errors import ProgramError
from headrace.lang.operators import OPERATORS, item_type
from headrace.lang.plan import ExprOp

if TYPE_CHECKING:
    from headrace.lang.tracing import Block, Tracer

__all__ = ["Value", "apply"]


def apply(fn: str, *operands: Any) -> Value:
    """The result of a pure operator. Raises ProgramError if the types don't fit."""
    from headrace.lang.tracing import current_tracer, fault

    tracer = current_tracer()
    refs = [tracer.operand(one) for one in operands]
    try:
        kind = OPERATORS[fn].result([tracer.type_of(one) for one in operands])
    except TypeError as error:
        raise fault(f"`{fn}` {error}") from None
    made = tracer.value(kind)
    tracer.emit(ExprOp(fn=fn, args=refs, out=made.id))
    return made


class Value:
    """A value of a plan, with its type. Operators and methods build expressions; what Python would have to know now
    (`if value:`, `for x in value`, `int(value)`, f-strings) raises ProgramError with the remedy."""

    __slots__ = ("block", "id", "tracer", "type")

    def __init__(self, tracer: Tracer, number: int, kind: str, block: Block) -> None:
        self.tracer, self.id, self.type, self.block = tracer, number, kind, block

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return apply("eq", self, other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return apply("ne", self, other)

    def __lt__(self, other: Any) -> Value:
        return apply("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return apply("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return apply("gt", self, other)

    def __ge__(self, other: Any) -> Value:
        return apply("ge", self, other)

    def __and__(self, other: Any) -> Value:
        return apply("and", self, other)

    def __or__(self, other: Any) -> Value:
        return apply("or", self, other)

    def __rand__(self, other: Any) -> Value:
        return apply("and", other, self)

    def __ror__(self, other: Any) -> Value:
        return apply("or", other, self)

    def __invert__(self) -> Value:
        return apply("not", self)

    def __neg__(self) -> Value:
        return apply("neg", self)

    def __add__(self, other: Any) -> Value:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return apply("mul", other, self)

    def __floordiv__(self, other: Any) -> Value:
        return apply("floordiv", self, other)

    def __truediv__(self, other: Any) -> Value:
        return apply("div", self, other)

    def __mod__(self, other: Any) -> Value:
        return apply("mod", self, other)

    def __getitem__(self, key: Any) -> Value:
        """An entry of a list, or of JSON."""
        return apply("item", self, key)

    def strip(self) -> Value:
        return apply("strip", self)

    def lower(self) -> Value:
        return apply("lower", self)

    def upper(self) -> Value:
        return apply("upper", self)

    def replace(self, old: Any, new: Any) -> Value:
        return apply("replace", self, old, new)

    def startswith(self, part: Any) -> Value:
        return apply("startswith", self, part)

    def endswith(self, part: Any) -> Value:
        return apply("endswith", self, part)

    def contains(self, part: Any) -> Value:
        """True if the text has the part, or the list the entry."""
        return apply("contains", self, part)

    def split(self, separator: Any) -> Value:
        return apply("split", self, separator)

    def length(self) -> Value:
        return apply("length", self)

    def json(self) -> Value:
        """The JSON value that a text spells."""
        return apply("json", self)

    def to_int(self) -> Value:
        return apply("int", self)

    def to_float(self) -> Value:
        return apply("float", self)

    def to_text(self) -> Value:
        return apply("text", self)

    def __bool__(self) -> NoReturn:
        raise _unknown("whether it is true", "use `with hl.if_(value):`, hl.while_(lambda: …), `&`, `|` and `~`")

    def __iter__(self) -> NoReturn:
        cure = "use `with hl.for_(value, max=…) as item:` or `s.fork(value, max=…)`" if item_type(self.type) else ""
        raise _unknown("its entries", cure or "a call-out (hl.call) can take it apart")

    def __len__(self) -> NoReturn:
        raise _unknown("its length", "use value.length()")

    def __contains__(self, part: object) -> NoReturn:
        raise _unknown("what it contains", "use value.contains(part)")

    def __int__(self) -> NoReturn:
        raise _unknown("its number", "use value.to_int()")

    def __float__(self) -> NoReturn:
        raise _unknown("its number", "use value.to_float()")

    def __index__(self) -> NoReturn:
        raise _unknown("its number", "use hl.for_ for a loop, and value[index] for an entry")

    def __str__(self) -> str:
        raise _unknown("its text", "give it as an argument of its own: s.user('about ', value), or use `+`")

    def __format__(self, form: str) -> str:
        raise _unknown("its text", "give it as an argument of its own: s.user('about ', value), or use `+`")

    def __repr__(self) -> str:
        return f"<value {self.id}: {self.type}>"


def _unknown(what: str, cure: str) -> ProgramError:
    from headrace.lang.tracing import fault

    return fault(f"a value is known only when the program runs, and Python asks for {what} now: {cure}")
