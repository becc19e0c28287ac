"""Bodies of the APIs whose clients add fields every month: unknown fields are ignored and reported in a header.

A field that promises something, or whose name is nearly that of a known field, is refused all the same.
"""

from __future__ import annotations

import difflib
from typing import Any, ClassVar, TypeVar

import msgspec
from starlette.requests import Request

from headrace.errors import InvalidRequest
from headrace.sampling import SAMPLING_FIELDS
from headrace.server.renaming import rename_fields
from headrace.server.request_body import decode_body, read_json
from headrace.server.schemas import Body, ChatRequest

__all__ = ["LenientBody", "as_chat", "ignored_header", "read_lenient"]

_NEAR = 0.85
_MOST_NAMES, _LONGEST_NAME = 20, 64
_NOT_EXTRA = frozenset({"max_tokens", "n", "logprobs", "prompt_logprobs", "stop", "structured_outputs"})
_EXTRAS = (SAMPLING_FIELDS.keys() - _NOT_EXTRA) | {
    "add_special_tokens",
    "cache_salt",
    "chat_template_kwargs",
    "prediction",
    "priority",
    "speculation",
}
"""Fields of chat completions that `headrace` may hold in a body of another API."""


class LenientBody(Body, forbid_unknown_fields=False, kw_only=True):
    PROMISES: ClassVar[dict[str, str]] = {}
    """Fields that are refused unless null, with the reason: without them the answer would be another."""


L = TypeVar("L", bound=LenientBody)


async def read_lenient(request: Request, kind: type[L]) -> tuple[L, list[str], bytes]:
    """(The body, the names of the ignored fields, its bytes). From now on errors name the fields in `headrace` so.
    Raises HttpError and InvalidRequest."""
    body, sent = await read_json(request, kind)
    given = msgspec.json.decode(sent, type=dict[str, msgspec.Raw])
    known = kind.__struct_fields__
    unknown = [name for name, value in given.items() if name not in known and bytes(value) != b"null"]
    for name in unknown:
        if name in kind.PROMISES:
            raise InvalidRequest(f"`{name}` is not supported: {kind.PROMISES[name]}", name, "unsupported_parameter")
        if near := difflib.get_close_matches(name[:100], known, 1, _NEAR):
            message = f"unknown field `{name[:200]}`: did you mean `{near[0]}`?"
            raise InvalidRequest(message, name[:200], "unknown_parameter")
    extras: dict[str, Any] | None = getattr(body, "headrace", None)
    if extras:
        # A prediction has no other place, should it lack one.
        named = _EXTRAS.intersection(["prediction", *extras])
        rename_fields(request.scope, {name: f"headrace.{name}" for name in named})
    return body, unknown, sent


def as_chat(fields: dict[str, Any], extras: dict[str, Any] | None) -> tuple[ChatRequest, bytes]:
    """The internal form of a conversation, checked, and its bytes. `fields` are those of chat completions, of which
    `extras` go first; those that are None are left out, in either, as if they had not been given."""
    for name in extras or ():
        if name not in _EXTRAS:
            param = f"headrace.{name[:100]}"
            raise InvalidRequest(
                f"`{param}` is not among its fields: {', '.join(sorted(_EXTRAS))}", param, "unknown_parameter"
            )
    given = [*fields.items(), *(extras or {}).items()]
    plain = {name: value for name, value in given if value is not None}
    sent = msgspec.json.encode(plain)
    return decode_body(sent, ChatRequest), sent


def ignored_header(names: list[str]) -> tuple[tuple[bytes, bytes], ...]:
    """The header that reports them; empty if nothing was ignored."""
    shown = [_header_safe(name) for name in names[:_MOST_NAMES]]
    return ((b"x-headrace-ignored", ", ".join(shown).encode()),) if shown else ()


def _header_safe(name: str) -> str:
    return "".join(letter if "!" <= letter <= "~" and letter != "," else "?" for letter in name[:_LONGEST_NAME])
