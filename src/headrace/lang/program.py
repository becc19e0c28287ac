"""`@program`: a Python function that is traced into a plan, and the ways to run it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from headrace.errors import ProgramError
from headrace.lang.check import check
from headrace.lang.operators import type_of
from headrace.lang.plan import Limits as PlanLimits
from headrace.lang.plan import Operand, Param, Plan, Ref, Region, references
from headrace.lang.running import Compiled, Runnable
from headrace.lang.state import State, as_value
from headrace.lang.tracing import Tracer, current_tracer, fault

__all__ = ["Outputs", "Program", "Static", "out", "program", "type_name"]

T = TypeVar("T")
_STATIC = "headrace.lang.static"
Static = Annotated[T, _STATIC]
"""The annotation of a parameter that is known when the program is compiled: Python may branch and loop on it."""
_DEEPEST = 32
_SIMPLE: Mapping[Any, str] = {str: "text", int: "int", float: "float", bool: "bool"}


class Outputs(dict[str, Any]):
    """What `hl.out` makes."""


def out(**values: Any) -> Outputs:
    """The values that a program returns, by name. Variables of the state are returned in any case."""
    return Outputs(values)


def type_name(annotation: Any) -> str:
    """The plan's type of a Python annotation; `json` for all that has none of its own."""
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return type_name(args[0])
    if origin in (list, Sequence, tuple) and args:
        return f"list<{type_name(args[0])}>"
    return "list<json>" if annotation in (list, tuple) else "json"


class Program(Runnable):
    """A function under `@program`. Called with a state, inside of another program, it is traced in its place."""

    def __init__(self, function: Callable[..., Any], name: str, limits: PlanLimits) -> None:
        self._function = function
        self._limits = limits
        self._compiled: dict[str, Compiled] = {}
        self._checked: set[int] = set()
        """Plans of these that `check` has accepted."""
        self.name = name
        self.__doc__ = function.__doc__
        self.__name__ = name
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise ProgramError(f"program {name!r}: the first parameter is the state: def {name}(s, …)")
        self._parameters = parameters[1:]
        self._hints = _annotations(function)
        for one in self._parameters:
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                raise ProgramError(f"program {name!r}: `{one}` cannot be an input: name each one")

    def __call__(self, state: State, *args: Any, **kwargs: Any) -> Any:
        """Trace this program on a state of another one. Returns what the function returns."""
        if not isinstance(state, State):
            raise ProgramError(f"program {self.name!r} is called with a state; run it by {self.name}.run(…)")
        tracer = current_tracer()
        if tracer.depth >= _DEEPEST:
            raise fault(f"programs call one another more than {_DEEPEST} deep: a plan has no recursion")
        try:
            given = self.bind(*args, **kwargs)
        except ProgramError as error:
            raise fault(str(error)) from None
        for one in self._parameters:
            if not self._is_static(one.name):
                # As in a run of its own: an input is a value, whatever is given for it.
                given[one.name] = as_value(given.get(one.name, one.default))
        tracer.depth += 1
        try:
            return self._function(state, **given)
        finally:
            tracer.depth -= 1

    def compile(self, **static: Any) -> Plan:
        """The plan. `static` are the parameters that are annotated as `Static`. Raises ProgramError."""
        for name in self.bind_some(static):
            if not self._is_static(name):
                message = f"`{name}` is an input of each run: only parameters that are `hl.Static` are compiled in"
                raise ProgramError(f"program {self.name!r}: {message}")
        return self.compiled(static).plan

    def bind_some(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check that arguments are those of parameters. Raises ProgramError."""
        names = [one.name for one in self._parameters]
        if unknown := [name for name in given if name not in names]:
            inputs = ", ".join(names) or "none"
            raise ProgramError(f"program {self.name!r}: it has no input {unknown[0]!r}; its inputs: {inputs}")
        return given

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Arguments by the names of the parameters. Raises ProgramError."""
        self.bind_some(kwargs)
        try:
            found = inspect.Signature(self._parameters).bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ProgramError(f"program {self.name!r}: {error}") from None
        return dict(found)

    def missing(self, given: Mapping[str, Any]) -> list[str]:
        self.bind_some(given)
        return [one.name for one in self._parameters if one.default is one.empty and one.name not in given]

    def split(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments as (those known when compiling, inputs of the plan)."""
        static = {name: value for name, value in given.items() if self._is_static(name)}
        return static, {name: value for name, value in given.items() if name not in static}

    def prepare(self, given: Mapping[str, Any]) -> tuple[Compiled, dict[str, Any]]:
        static, inputs = self.split(given)
        compiled = self.compiled(static)
        if id(compiled) not in self._checked:
            check(compiled.plan).raise_first()
            self._checked.add(id(compiled))
        return compiled, inputs

    def compiled(self, static: Mapping[str, Any]) -> Compiled:
        """The plan with the functions that it calls. The same static arguments are traced once."""
        key = repr(sorted(static.items()))
        if key not in self._compiled:
            self._compiled[key] = self._trace(static)
        return self._compiled[key]

    def _is_static(self, name: str) -> bool:
        return _STATIC in typing.get_args(self._hints.get(name))

    def _trace(self, static: Mapping[str, Any]) -> Compiled:
        tracer = Tracer()
        given: dict[str, Any] = {}
        inputs: list[Param] = []
        with tracer.active(), tracer.block() as body:
            state = State(tracer, tracer.new_id())
            body.args.append(state.ref.id)
            for parameter in self._parameters:
                if self._is_static(parameter.name):
                    given[parameter.name] = self._static(parameter, static)
                else:
                    param = self._input(parameter, tracer)
                    inputs.append(param)
                    given[parameter.name] = tracer.value(param.type, param.id)
            returned = self._function(state, **given)
            end = state.snapshot()
            if end.role is not None:
                raise ProgramError(f"program {self.name!r}: the {end.role} message is not ended")
            outputs: dict[str, Operand] = {name: tracer.operand(value) for name, value in end.variables.items()}
            outputs |= {name: Ref(value.id) for name, value in end.maybe.items()}
            outputs |= {name: tracer.operand(value) for name, value in _returned(returned).items()}
            region: Region = body.region([Ref(end.id)])
        plan = Plan(name=self.name, inputs=inputs, body=region, outputs=outputs, limits=self._limits)
        for ref in references(plan):
            ref.id = tracer.resolve(ref.id)
        forms = {
            name: tracer.forms[one.id]
            for name, one in outputs.items()
            if isinstance(one, Ref) and one.id in tracer.forms
        }
        return Compiled(plan, forms, dict(tracer.tools))

    def _static(self, parameter: inspect.Parameter, static: Mapping[str, Any]) -> Any:
        if parameter.name in static:
            return static[parameter.name]
        if parameter.default is parameter.empty:
            raise ProgramError(f"program {self.name!r}: `{parameter.name}` is needed when it is compiled")
        return parameter.default

    def _input(self, parameter: inspect.Parameter, tracer: Tracer) -> Param:
        kind = type_name(self._hints.get(parameter.name, Any))
        if parameter.default is parameter.empty:
            return Param(name=parameter.name, id=tracer.new_id(), type=kind)
        try:
            type_of(parameter.default)
        except TypeError as error:
            raise ProgramError(
                f"program {self.name!r}: the default of `{parameter.name}` cannot be part of a plan: {error}"
            ) from None
        return Param(name=parameter.name, id=tracer.new_id(), type=kind, required=False, default=parameter.default)


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:
        # A name that cannot be resolved; annotations that are no texts are still known.
        found = getattr(function, "__annotations__", {})
        return {name: hint for name, hint in found.items() if not isinstance(hint, str)}


def _returned(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, State):
        return {}
    return {"result": value}


@typing.overload
def program(function: Callable[..., Any], /) -> Program: ...
@typing.overload
def program(
    *, name: str | None = None, max_tokens: int | None = None, timeout: float | None = None
) -> Callable[[Callable[..., Any]], Program]: ...
def program(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    max_tokens: int | None = None,
    timeout: float | None = None,
) -> Any:
    """Make a program of a function over a state. `max_tokens` and `timeout` (seconds) limit a run as a whole."""

    def make(one: Callable[..., Any]) -> Program:
        return Program(one, name or one.__name__, PlanLimits(max_tokens, timeout))

    return make if function is None else make(function)
