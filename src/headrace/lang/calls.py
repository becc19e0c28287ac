"""Call-outs to Python functions, conditions that must hold, further states, and expressions over lists."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, NoReturn

from headrace.lang.plan import CallOp, NewStateOp, RequireOp
from headrace.lang.program import type_name
from headrace.lang.state import State
from headrace.lang.tracing import current_tracer, fault
from headrace.lang.values import Value, apply

__all__ = ["call", "image", "join", "list_of", "mode", "new_state", "require"]


def call(tool: Callable[..., Any] | str, *args: Any, timeout: float | None = None, **kwargs: Any) -> Value:
    """Call a Python function when the program runs, with values and constants. The plan has its name only: whoever runs
    it has the function (a plan from a file gets it by `tools={"name": function}`). What it returns must be JSON; a
    return annotation gives the value's type. Async functions are awaited, others run in a thread."""
    tracer = current_tracer()
    kind = "json"
    if isinstance(tool, str):
        name, given = tool, kwargs
        if args:
            raise fault(f"call {name!r}: the function's parameters are not known here: give arguments by name")
    else:
        name = getattr(tool, "__name__", "")
        if not name.isidentifier():
            raise fault("a call-out needs a function with a name: use def")
        if tracer.tools.setdefault(name, tool) is not tool:
            raise fault(f"two functions are called {name!r}: the plan knows them by name")
        try:
            given = dict(inspect.signature(tool).bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise fault(f"call {name!r}: {error}") from None
        kind = _returned(tool)
    operands = {key: tracer.operand(value) for key, value in given.items()}
    made = tracer.value(kind)
    tracer.emit(CallOp(tool=name, args=operands, out=made.id, type=kind, timeout=timeout))
    return made


def _returned(tool: Callable[..., Any]) -> str:
    try:
        return type_name(typing.get_type_hints(tool).get("return"))
    except Exception:
        return "json"  # Annotations that cannot be resolved; the value's use is checked when it runs.


def image(source: Any) -> NoReturn:
    """Languages of this kind have images in prompts. No model that Headrace runs takes any."""
    raise fault("image: no model of Headrace takes images, so programs have none; describe it in text")


def require(condition: Any, message: str) -> None:
    """End the program with an error if the condition does not hold."""
    tracer = current_tracer()
    if tracer.type_of(condition) not in ("bool", "json"):
        raise fault(f"a condition is true or false, and this is {tracer.type_of(condition)}")
    tracer.emit(RequireOp(cond=tracer.operand(condition), message=message))


def new_state() -> State:
    """A state beside the program's own, empty."""
    tracer = current_tracer()
    number = tracer.new_id()
    tracer.emit(NewStateOp(out=number))
    return State(tracer, number)


def list_of(*values: Any) -> Value:
    """A list of values and constants."""
    return apply("list", *values)


def join(values: Any, separator: Any = "\n") -> Value:
    """The entries of a list as one text."""
    return apply("join", values, separator)


def mode(values: Any) -> Value:
    """The most frequent entry of a list: a vote. Of several the one that comes first."""
    return apply("mode", values)
