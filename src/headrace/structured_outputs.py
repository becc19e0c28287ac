"""Constraints on the output: as a caller states them, and as the engine compiles them."""

from __future__ import annotations

import inspect
import json as json_text
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.errors import InvalidRequest, excerpt

__all__ = ["KINDS", "Constraint", "ConstraintKind", "StructuredOutputs", "Whitespace"]

ConstraintKind = Literal[
    "json_schema", "json_object", "regex", "choice", "lark", "gbnf", "structural_tag", "tool_calls"
]
Whitespace = Literal["flexible", "compact"]
KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
"""The fields of `StructuredOutputs` of which exactly one is given."""
_FIELD = "structured_outputs"
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output must look like, as the client asked for it. A backend of `grammar/` compiles it or refuses it."""

    kind: ConstraintKind
    text: str = ""
    """The schema (JSON, its keys in the client's order), the expression, the grammar; a JSON list of strings for
    `choice`; the tag's JSON text for `structural_tag`; empty for `json_object`; for `tool_calls` the JSON text of
    {"lark": …, "schemas": […], "strict": […], "texts": […]}, a grammar that refers to the schemas as `schema_0` and so
    on, and to texts of a limited form as `PATTERN_0` and so on (`grammar/raw_text.py`)."""
    whitespace: Whitespace = "flexible"
    """Between the parts of a JSON text: up to 32 characters, or none."""
    strict: bool = False
    """A schema held to OpenAI's strict rules: every property required, no others allowed; refused otherwise."""
    field: str = "response_format"
    """The request's field that asked for it, for errors."""
    after: tuple[int, ...] = ()
    """Token ids that end reasoning: the constraint begins after one of them. Empty: it begins at once."""
    opens: tuple[int, ...] = ()
    """Token ids that begin reasoning: the constraint begins at once, unless the first token is one of them. Empty, with
    `after`: the prompt has begun the reasoning."""


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """The form that the output must have: exactly one of the first six fields.

    A constraint is enforced to the token or refused with InvalidRequest, when this is made or when it is compiled.
    """

    json: Any = None
    """A JSON schema as a mapping or as text; or a pydantic model class or any other type that pydantic can describe
    (a dataclass, a TypedDict, `list[int]`, an Enum). Held as text, or as the type."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    """One of these texts."""
    grammar: str | None = None
    """Lark, or EBNF in GBNF's form (with `::=`)."""
    structural_tag: Any = None
    """Free text with tags whose content has a schema: a mapping or JSON text of `structures` (each with `begin`,
    `schema`, `end`) and `triggers`, or of `{"type": "structural_tag", "format": …}`. Held as text."""
    whitespace: Whitespace = "flexible"
    """Between the parts of JSON: up to 32 characters, or none (`compact`)."""
    strict: bool = False
    """Refuse a schema that breaks OpenAI's strict rules."""
    _adapter: Any = field(default=None, init=False, repr=False, compare=False)
    """pydantic's view of the type that was given."""

    def __post_init__(self) -> None:
        """Raises InvalidRequest."""
        if self.whitespace not in ("flexible", "compact"):
            raise _wrong("whitespace", f"is 'flexible' or 'compact', got {_shown(self.whitespace)}")
        for name in ("json_object", "strict"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, f"takes True or False, got {_shown(getattr(self, name))}")
        kind = self._kind()
        value = getattr(self, kind)
        if kind == "json":
            schema, adapter = _schema(value)
            object.__setattr__(self, "json", schema)
            object.__setattr__(self, "_adapter", adapter)
        elif kind == "choice":
            object.__setattr__(self, "choice", _choices(value))
        elif kind == "structural_tag":
            object.__setattr__(self, "structural_tag", _tag(value))
        elif kind == "grammar" and isinstance(value, str) and "%json" in value:
            raise _wrong(kind, "may not hold %json, which would not be checked: give the schema as `json`")
        elif kind != "json_object" and not (isinstance(value, str) and value):
            raise _wrong(kind, f"takes a text that is not empty, got {_shown(value)}")

        for text in self.choice or (getattr(self, kind),):
            if isinstance(text, str) and _SURROGATE.search(text):
                raise _wrong(kind, f"has half of a surrogate pair, which is no character: {_shown(text)}")

    @classmethod
    def of(cls, value: object) -> StructuredOutputs:
        """The value itself, or made of a mapping of its fields. Raises InvalidRequest, TypeError for other types."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise TypeError
        known = (*KINDS, "whitespace", "strict")
        unknown = [name for name in value if name not in known]
        if unknown:
            raise InvalidRequest(
                f"`{_FIELD}` has no field {_shown(unknown[0])}; there are {', '.join(known)}", _FIELD, "invalid_value"
            )
        return cls(**value)

    def constraint(self) -> Constraint:
        """The form that the engine compiles."""
        kind = self._kind()
        return Constraint(*self._text(kind), whitespace=self.whitespace, strict=self.strict, field=f"{_FIELD}.{kind}")

    def parse(self, text: str) -> Any:
        """The value of a complete output: an instance of the type given as `json`, the value of other JSON, else the
        text. Raises ValueError for a text that is cut, or that a validator of the type refuses."""
        if self._adapter is not None:
            return self._adapter.validate_json(text)
        return json_text.loads(text) if self.json is not None or self.json_object else text

    def _kind(self) -> str:
        given = [kind for kind in KINDS if getattr(self, kind) is not None and getattr(self, kind) is not False]
        if len(given) != 1:
            found = ", ".join(given) or "none"
            message = f"`{_FIELD}` requires exactly one of {', '.join(KINDS)}, got {found}"
            raise InvalidRequest(message, _FIELD, "invalid_value")
        return given[0]

    def _text(self, kind: str) -> tuple[ConstraintKind, str]:
        if kind == "json":
            return "json_schema", self.json if self._adapter is None else _described(self._adapter, self.json)
        if kind == "choice":
            return "choice", json_text.dumps(self.choice)
        if kind == "structural_tag":
            return "structural_tag", self.structural_tag
        if kind == "grammar":
            assert self.grammar is not None
            return ("gbnf" if "::=" in self.grammar else "lark"), self.grammar
        return ("json_object", "") if kind == "json_object" else ("regex", self.regex or "")


def _schema(value: Any) -> tuple[Any, Any]:
    """What `json` holds, and the adapter of a type."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, (Mapping, bool)):
        return _dumped("json", value), None
    if isinstance(value, (int, float, bytes, list, tuple, set)):
        raise _wrong("json", f"takes a JSON schema (a mapping or text) or a type, got {_shown(value)}")
    if inspect.isroutine(value):
        raise _wrong("json", f"takes a JSON schema or a type, got the function {_shown(value)}")
    # Late: only types need it.
    from pydantic import TypeAdapter

    try:
        adapter: Any = TypeAdapter(value)
    except Exception as error:
        # pydantic and what a class's own hooks raise.
        raise _wrong("json", f"takes a JSON schema or a type, got {_shown(value)}: {_first_line(error)}") from None
    _described(adapter, value)
    return value, adapter


def _described(adapter: Any, value: Any) -> str:
    """The JSON schema of a type."""
    try:
        return json_text.dumps(adapter.json_schema())
    except Exception as error:
        raise _wrong("json", f"{_shown(value)} has no JSON schema: {_first_line(error)}") from None


def _dumped(name: str, value: Mapping[str, Any] | bool) -> str:
    try:
        return json_text.dumps(dict(value) if isinstance(value, Mapping) else value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong(name, f"is no JSON: {str(error)[:200]}") from None


def _tag(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise _wrong("structural_tag", f"takes a mapping or JSON text, got {_shown(value)}")
    return _dumped("structural_tag", value)


def _choices(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _wrong("choice", f"takes a list of texts, got {_shown(value)}")
    # A set has no order that would be the same in every run.
    choices = tuple(sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)
    if not choices or not all(isinstance(text, str) and text for text in choices):
        raise _wrong("choice", "takes a list of texts, none of them empty")
    return choices


def _wrong(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"`{_FIELD}.{name}` {what}", f"{_FIELD}.{name}", "invalid_value")


def _shown(value: object) -> str:
    return excerpt(value, 60)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
