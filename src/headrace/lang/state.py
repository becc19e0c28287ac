"""`State`: the conversation or text that a traced program builds, with its variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from typing_extensions import Self

from headrace.errors import ProgramError
from headrace.lang.choice_scores import METHOD_NAMES
from headrace.lang.gen_options import GenOptions, read_options
from headrace.lang.operators import item_type
from headrace.lang.plan import GenOp, Ref, Role, RoleBeginOp, RoleEndOp, SelectMethod, SelectOp, TextOp
from headrace.lang.tracing import Snapshot, Tracer, fault
from headrace.lang.values import Value, apply

__all__ = [
    "GenPart",
    "MessagePart",
    "RoleBlock",
    "SelectPart",
    "State",
    "as_value",
    "gen_part",
    "message_part",
    "select_part",
]


@dataclass(frozen=True, slots=True)
class GenPart:
    """A text to be generated, where a state gets it."""

    name: str
    options: GenOptions
    timeout: float | None


@dataclass(frozen=True, slots=True)
class SelectPart:
    """A choice to be made, where a state gets it."""

    name: str
    choices: Any
    method: SelectMethod
    timeout: float | None


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A message, for `s += hl.user(…)`."""

    role: Role
    parts: tuple[Any, ...]


def gen_part(name: str, *, timeout: float | None = None, **options: Any) -> GenPart:
    _check_name(name)
    try:
        return GenPart(name, read_options(options), timeout)
    except ProgramError as error:
        raise fault(f"gen {name!r}: {error}") from None


def select_part(name: str, choices: Any, *, method: str = "greedy", timeout: float | None = None) -> SelectPart:
    _check_name(name)
    if method not in METHOD_NAMES:
        raise fault(f"select {name!r}: `method` is one of {', '.join(METHOD_NAMES)}, got {method!r}")
    if not isinstance(choices, Value):
        if isinstance(choices, str) or not isinstance(choices, Sequence):
            raise fault(f"select {name!r}: `choices` is a list of texts")
        if not choices or not all(
            isinstance(one, (str, Value)) and not (isinstance(one, str) and not one) for one in choices
        ):
            raise fault(f"select {name!r}: `choices` is a list of texts, none of them empty")
        if any(isinstance(one, Value) for one in choices):
            choices = apply("list", *choices)
    return SelectPart(name, choices, METHOD_NAMES[method], timeout)


def message_part(role: Role, parts: tuple[Any, ...]) -> MessagePart:
    return MessagePart(role, parts)


class State:
    """One conversation (of messages with roles) or one text (without roles), and variables by name."""

    def __init__(self, tracer: Tracer, number: int) -> None:
        self._tracer = tracer
        self._id = number
        self._variables: dict[str, Value] = {}
        self._maybe: dict[str, Value] = {}
        self._role: str | None = None
        self._form: str | None = None
        """`chat` or `text`, from the first operation on."""
        self._generated: int | None = None
        """The state right after a generation."""
        tracer.states.append(self)

    # Text and roles

    def text(self, *parts: Any) -> Self:
        """Append texts, values, `hl.gen(…)` and `hl.select(…)` in their order."""
        texts: list[Any] = []
        for part in parts:
            if isinstance(part, (GenPart, SelectPart)):
                self._append(texts)
                texts = []
                self._generate(part) if isinstance(part, GenPart) else self._choose(part)
            elif isinstance(part, MessagePart):
                raise fault(f"a message cannot stand in a text: append it as s += hl.{part.role}(…)")
            else:
                texts.append(part)
        self._append(texts)
        return self

    def __iadd__(self, part: Any) -> Self:
        if isinstance(part, MessagePart):
            return self._message(part.role, part.parts)
        return self.text(part)

    def system(self, *parts: Any) -> Any:
        """A system message of these parts. Without parts: a context manager for the message's parts."""
        return self._message_or_block("system", parts)

    def user(self, *parts: Any) -> Any:
        """As `system`, a user's message."""
        return self._message_or_block("user", parts)

    def assistant(self, *parts: Any) -> Any:
        """As `system`, the model's message."""
        return self._message_or_block("assistant", parts)

    def gen(self, name: str, *, timeout: float | None = None, **options: Any) -> Value:
        """Generate text here; returns its value, which is also the variable `name`."""
        return self._generate(gen_part(name, timeout=timeout, **options))

    def select(self, name: str, choices: Any, *, method: str = "greedy", timeout: float | None = None) -> Value:
        """Append the choice that the model finds most likely here; returns it, also as the variable `name`."""
        return self._choose(select_part(name, choices, method=method, timeout=timeout))

    # Variables

    def __getitem__(self, name: str) -> Value:
        if name in self._variables:
            return self._variables[name]
        if name in self._maybe:
            raise fault(f"{name!r} is not bound on every way to here: use s.get({name!r}, default)")
        known = ", ".join(sorted(self._variables)) or "none"
        raise fault(f"no variable {name!r} is bound here; bound are: {known}")

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        found = as_value(value)
        self._tracer.operand(found)
        self._bind(name, found)

    def set(self, name: str, value: Any) -> Value:
        self[name] = value
        return self._variables[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The variable, or `default` if the way to here has not set it."""
        if name in self._variables:
            return self._variables[name]
        return apply("default", self._maybe[name], default) if name in self._maybe else default

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    # Control flow needs these

    @property
    def tracer(self) -> Tracer:
        return self._tracer

    @property
    def ref(self) -> Ref:
        if self not in self._tracer.states:
            raise fault("this state belongs to a block that has ended")
        return Ref(self._id)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._id, dict(self._variables), dict(self._maybe), self._role, self._form)

    def restore(self, snapshot: Snapshot) -> None:
        self._id, self._role, self._form = snapshot.id, snapshot.role, snapshot.form
        self._variables, self._maybe = dict(snapshot.variables), dict(snapshot.maybe)
        self._generated = None

    def fork(self, over: Any, max: int | None = None) -> Any:
        """As `hl.fork`, for a block: `with s.fork(3) as branch: …`."""
        from headrace.lang.forks import Fork

        return Fork(self, over, max)

    # Recording

    def begin(self, role: Role) -> None:
        if self._role is not None:
            raise fault(f"a {role} message cannot begin inside the {self._role} message")
        self._enter("chat")
        state, out = self.ref, self._tracer.new_id()
        self._tracer.emit(RoleBeginOp(state=state, role=role, out=out))
        self._id, self._role = out, role

    def end(self) -> None:
        state, out = self.ref, self._tracer.new_id()
        self._tracer.emit(RoleEndOp(state=state, out=out))
        self._id, self._role = out, None

    def _message_or_block(self, role: Role, parts: tuple[Any, ...]) -> Any:
        return self._message(role, parts) if parts else RoleBlock(self, role)

    def _message(self, role: Role, parts: tuple[Any, ...]) -> Self:
        for part in parts:
            if isinstance(part, Value) and self._generated == self._id and part is self._last:
                raise fault(
                    f"the text of this value is in the state already: write s.{role}(hl.gen(…)), or "
                    f"`with s.{role}():` and s.gen inside"
                )
        self.begin(role)
        self.text(*parts)
        self.end()
        return self

    _last: Value | None = None

    def _enter(self, form: str) -> None:
        if self._form not in (None, form):
            raise fault(
                "text outside of a message in a state with roles: put it into s.system, s.user or s.assistant"
                if form == "text"
                else "a message in a state that has begun as text without roles: use hl.new_state() for messages"
            )
        self._form = form

    def _append(self, parts: list[Any]) -> None:
        if not parts:
            return
        if self._role is None:
            self._enter("text")
        for part in parts:
            if isinstance(part, State):
                raise fault("a state is no text: give its variables, as other['name']")
        operands = [self._tracer.operand(part) for part in parts]
        state, out = self.ref, self._tracer.new_id()
        self._tracer.emit(TextOp(state=state, parts=operands, out=out))
        self._id = out

    def _generating(self, what: str) -> None:
        if self._role is None:
            if self._form == "chat":
                raise fault(f"{what} outside of a message: write s.assistant(hl.gen(…)) or `with s.assistant():`")
            self._enter("text")
        elif self._role != "assistant":
            raise fault(f"{what} in the {self._role} message: the model writes only the assistant's")

    def _generate(self, part: GenPart) -> Value:
        self._generating(f"gen {part.name!r}")
        state, out_state = self.ref, self._tracer.new_id()
        value = self._tracer.value(part.options.type)
        if part.options.form is not None:
            self._tracer.forms[value.id] = part.options.form
        self._tracer.emit(
            GenOp(
                state=state,
                name=part.name,
                out_state=out_state,
                out=value.id,
                type=part.options.type,
                sampling=dict(part.options.sampling),
                constraint=part.options.constraint,
                timeout=part.timeout,
            )
        )
        return self._made(part.name, out_state, value)

    def _choose(self, part: SelectPart) -> Value:
        self._generating(f"select {part.name!r}")
        if item_type(self._tracer.type_of(part.choices)) not in ("text", "json"):
            raise fault(f"select {part.name!r}: `choices` is a list of texts")
        choices = self._tracer.operand(part.choices)
        state, out_state = self.ref, self._tracer.new_id()
        value = self._tracer.value("text")
        self._tracer.emit(
            SelectOp(
                state=state,
                name=part.name,
                choices=choices,
                out_state=out_state,
                out=value.id,
                method=part.method,
                timeout=part.timeout,
            )
        )
        return self._made(part.name, out_state, value)

    def _made(self, name: str, out_state: int, value: Value) -> Value:
        self._id = self._generated = out_state
        self._last = value
        self._bind(name, value)
        return value

    def _bind(self, name: str, value: Value) -> None:
        self._variables[name] = value
        self._maybe.pop(name, None)


class RoleBlock:
    """`with s.assistant():` — what is appended inside belongs to the message."""

    def __init__(self, state: State, role: Role) -> None:
        self._state, self._role = state, role

    def __enter__(self) -> State:
        self._state.begin(self._role)
        return self._state

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._state.end()


def as_value(value: Any) -> Value:
    """A value itself; a constant, or a list with values in it, as a value of its own type. Raises ProgramError."""
    if isinstance(value, Value):
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(entry, Value) for entry in value):
        return apply("list", *value)
    return apply("const", value)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or len(name) > 200:
        raise fault(f"a variable's name is a text of 1 to 200 characters, got {name!r:.60}")
