"""Detects the form in which a chat template accepts messages, by rendering small conversations once.

Templates differ: some add a tool call's arguments to text and need JSON text, others call `tojson` and need an object;
some test whether the content is none, others fail on it; some loop over parts of content, others add it to a string.
The same request must work for all of them, so each template gets it in its own form, and unchanged if it accepts that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["PROBES", "PROBE_TOOLS", "Arguments", "Content", "TemplateForms", "read_forms"]

Content = Literal["any", "text", "parts"]
Arguments = Literal["any", "text", "object"]
NoContent = Literal["missing", "null", "empty"]
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TemplateForms:
    """The forms that one template accepts; the defaults are those that most templates accept."""

    content: Mapping[str, Content] = field(default_factory=dict)
    """By role; for a role that is not here, text."""
    arguments: Arguments = "object"
    """Arguments of tool calls."""
    no_content: NoContent = "empty"
    """The content of a message with tool calls and no text."""
    empty_hides_calls: bool = False
    """Calls of a message with an empty text are not shown, so an empty text is given as no content."""
    developer: bool = False
    """The template supports the role "developer"; for other templates such a message becomes a system message."""


_FIRST, _SECOND = "headrace-first", "headrace-second"
_PARTS = [{"type": "text", "text": _FIRST}, {"type": "text", "text": _SECOND}]
_PRINTED_PARTS = ("type': 'text", 'type": "text', 'type":"text', 'type\\": \\"text', 'type\\":\\"text')
"""Found in the text if a list of parts is printed as a list, by Python or as JSON."""
_KEY, _VALUE = "headrace_key", "headrace value"
_ARGUMENTS: dict[str, Any] = {"text": f'{{"{_KEY}": "{_VALUE}"}}', "object": {_KEY: _VALUE}}
_NO_CONTENT: dict[NoContent, Message] = {"missing": {}, "null": {"content": None}, "empty": {"content": ""}}
_UNKNOWN_ROLE = "headrace-role"
_ID = "a1B2c3D4e"
"""Some templates require exactly nine letters and digits."""
_NAME = "headrace_call"

PROBE_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "A probe.",
            "parameters": {
                "type": "object",
                "properties": {"headrace_argument": {"type": "string", "description": "A probe."}},
                "required": [],
            },
        },
    }
]


def _user(content: Any = "x") -> Message:
    return {"role": "user", "content": content}


def _talk(role: str, content: Any) -> list[Message]:
    """A conversation with a message of the role."""
    message = {"role": role, "content": content}
    before = [_user()] if role == "assistant" else []
    return [*before, message, *([] if role == "user" else [_user()])]


def _calling(no_content: NoContent, arguments: str, result: Any = "y") -> list[Message]:
    function = {"name": _NAME, "arguments": _ARGUMENTS[arguments]}
    call = {"id": _ID, "type": "function", "function": function}
    return [
        _user(),
        {"role": "assistant", **_NO_CONTENT[no_content], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": result},
    ]


PROBES: dict[str, list[Message]] = {
    **{f"{role} text": _talk(role, _FIRST) for role in ("user", "assistant", "system", "developer", _UNKNOWN_ROLE)},
    **{f"{role} parts": _talk(role, _PARTS) for role in ("user", "assistant", "system", "developer")},
    **{f"{none} {kind}": _calling(none, kind) for none in _NO_CONTENT for kind in _ARGUMENTS},
    **{f"{none} {kind} tool text": _calling(none, kind, _FIRST) for none in _NO_CONTENT for kind in _ARGUMENTS},
    **{f"{none} {kind} tool parts": _calling(none, kind, _PARTS) for none in _NO_CONTENT for kind in _ARGUMENTS},
}
"""Conversations by name."""


def read_forms(texts: Mapping[str, str | None]) -> TemplateForms:
    """The forms of a template, from the rendered PROBES; None stands for a probe that failed."""
    no_content = _no_content(texts)
    arguments = _arguments(texts, no_content) or "object"
    with_result = f"{no_content} {'object' if arguments == 'any' else arguments} tool"
    roles = {role: role for role in ("user", "assistant", "system", "developer")} | {"tool": with_result}
    return TemplateForms(
        content={role: _content(texts[f"{name} text"], texts[f"{name} parts"]) for role, name in roles.items()},
        arguments=arguments,
        no_content=no_content,
        empty_hides_calls=no_content != "empty" and _arguments(texts, "empty") is None,
        developer=_supports_developer(texts["developer text"], texts[f"{_UNKNOWN_ROLE} text"]),
    )


def _content(text: str | None, parts: str | None) -> Content:
    takes_text = text is not None and _FIRST in text
    takes_parts = _shows(parts, (_FIRST, _SECOND), _PRINTED_PARTS)
    if takes_parts:
        return "any" if takes_text else "parts"
    return "text"


def _no_content(texts: Mapping[str, str | None]) -> NoContent:
    """The first form that shows the calls; for templates that never do, the first that renders."""
    for none in _NO_CONTENT:
        if _arguments(texts, none):
            return none
    for none in _NO_CONTENT:
        if any(_shows(texts[f"{none} {kind}"], (), ("None",)) for kind in _ARGUMENTS):
            return none
    return "empty"


def _arguments(texts: Mapping[str, str | None], none: NoContent) -> Arguments | None:
    """The form in which arguments are shown; None if they are not shown."""
    as_text, as_object = texts[f"{none} text"], texts[f"{none} object"]
    wanted = (_KEY, _VALUE)  # Some templates show a call's name only as a part of its id.
    takes_text = _shows(as_text, (*wanted, _ARGUMENTS["text"]), ("None",))
    takes_object = _shows(as_object, wanted, ("None", f"'{_KEY}'"))
    if takes_text and takes_object:
        # A template that writes an object in a syntax of its own would take text for something in that syntax.
        return "any" if as_text == as_object else "object"
    return "text" if takes_text else "object" if takes_object else None


def _shows(text: str | None, wanted: Sequence[str], unwanted: Sequence[str]) -> bool:
    return text is not None and all(word in text for word in wanted) and not any(word in text for word in unwanted)


def _supports_developer(developer: str | None, unknown: str | None) -> bool:
    """Whether the template supports the role "developer"; false for one that writes the name of any role."""
    if developer is None or _FIRST not in developer:
        return False
    return unknown is None or developer != unknown.replace(_UNKNOWN_ROLE, "developer")
