"""Parses the body of a request into a struct; an error names the field."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import CollectionType, DictType, LiteralType, StructType, Type, UnionType, type_info
from starlette.requests import Request

from headrace.errors import InvalidRequest
from headrace.server.foreign_fields import FOREIGN_FIELDS
from headrace.server.http_errors import HttpError
from headrace.server.json_limits import SMALL, check_json_limits
from headrace.server.schemas import Body

__all__ = ["MAX_BODY", "decode_body", "read_body", "read_json"]

MAX_BODY = 16 * 2**20
"""Bytes of a request's body; a longer one is refused with 413."""

_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*?)`(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*?)`(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_AT = re.compile(r"^(?P<what>.*) - at `(?:key` in `)?\$\.?(?P<path>.*)`$", re.DOTALL)
_STEP = re.compile(r"\[[^\]]*\]|[^.\[]+")
_WITH_INTEGERS = ("speculation",)
"""Fields that are objects with integers of ours."""

B = TypeVar("B", bound=Body)


async def read_json(request: Request, kind: type[B], context: int = 0) -> tuple[B, bytes]:
    """(The body, parsed and checked; its bytes). `context`: the token ids that a prompt may have, so that a prompt that
    fills the model's context is accepted. Raises HttpError and InvalidRequest."""
    body = await read_body(request)
    await check_json_limits(body, kind.MOST_PARTS, max(kind.MOST_VALUES, context + SMALL))
    return decode_body(body, kind), body


async def read_body(request: Request) -> bytes:
    """The complete body. Raises HttpError 413 before more than MAX_BODY bytes are in memory, and 415 for a compressed
    body."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        message = f"bodies with content-encoding {coding[:40]} are not supported: send the body uncompressed"
        headers = {"accept-encoding": "identity", "connection": "close"}
        raise HttpError(415, message, code="unsupported_content_encoding", headers=headers)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY:
        raise _too_large()
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_BODY:
            raise _too_large()
        pieces.append(piece)
    return b"".join(pieces)


def _too_large() -> HttpError:
    message = f"the body is larger than the {MAX_BODY} bytes that are accepted"
    # The rest is not read, so the connection cannot be used again.
    return HttpError(413, message, code="request_too_large", headers={"connection": "close"})


def decode_body(body: bytes, kind: type[B]) -> B:
    """Parse and check. Raises InvalidRequest whose `param` is the field's path as the client wrote it."""
    try:
        return _parse(body, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind, body) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not body.strip():
            raise InvalidRequest("the body is empty: send a JSON object", code="invalid_json") from None
        half = next((found for found in _ESCAPES.finditer(body) if found["half"]), None)
        why = f"{half['half'].decode()} is half of a surrogate pair, which is no character" if half else error
        raise InvalidRequest(f"the body is not valid JSON: {why}", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply", code="invalid_json") from None


def _parse(body: bytes, kind: type[B]) -> B:
    try:
        parsed: B = _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        # Converting the lists of a large body would block the event loop.
        parsed = msgspec.convert(_as_integers(msgspec.json.decode(body), lists=len(body) <= SMALL), kind)
    return parsed


def _as_integers(body: Any, lists: bool) -> Any:
    """The body with 2.0 as 2 in its own fields, and in lists too: JSON has one kind of number (RFC 8259, 6), and some
    clients write every number with a decimal point. A field that takes fractions takes 2 as well."""
    if not isinstance(body, dict):
        return body
    return {
        name: _as_integers(value, lists) if name in _WITH_INTEGERS else _as_integer(value, lists)
        for name, value in body.items()
    }


def _as_integer(value: Any, lists: bool) -> Any:
    if lists and isinstance(value, list):
        return [_as_integer(item, True) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@lru_cache
def _decoder(kind: type[B]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _explain(text: str, kind: type[Body], body: bytes) -> InvalidRequest:
    if match := _UNKNOWN.match(text):
        return _unknown(match["name"], match["path"], kind)
    if match := _MISSING.match(text):
        param = _join(match["path"], match["name"])
        return InvalidRequest(f"`{param}` is required", param, "missing_required_parameter")
    if match := _AT.match(text):
        param = match["path"].replace("[...]", "")
        what = match["what"].replace(" | null", "")
        if what.startswith("Invalid enum value") and (values := _values_at(kind, match["path"])):
            what += f"; one of {', '.join(values)}"
        elif " got " not in what and (value := _number_at(body, match["path"])) is not None:
            what += f", got {value}"
        return InvalidRequest(f"`{param}`: {what[:1].lower()}{what[1:]}", param, "invalid_value")
    return InvalidRequest(f"the body: {text[:1].lower()}{text[1:]}", code="invalid_value")


def _number_at(body: bytes, path: str) -> float | None:
    """The number at a path of names, as `speculation.max_tokens`; None for anything else and in a large body, which
    would take long to parse again."""
    try:
        value: Any = msgspec.json.decode(body) if len(body) <= SMALL else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The fault that was found first stands before this one.
        return None
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _unknown(name: str, path: str | None, kind: type[Body]) -> InvalidRequest:
    param = _join(path, name)[:200]
    message = f"unknown field `{param}`"
    if name in FOREIGN_FIELDS:
        message += f": {FOREIGN_FIELDS[name]}"
    elif near := difflib.get_close_matches(name[:100], _fields_at(kind, path), 1, 0.75):
        message += f": did you mean `{near[0]}`?"
    elif path and name in kind.__struct_fields__:
        message += ": it is a field of the request itself"
    else:
        message += ": it is not supported, and nothing is ignored silently"
    return InvalidRequest(message, param, "unknown_parameter")


def _join(path: str | None, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fields_at(kind: type[Body], path: str | None) -> list[str]:
    """Field names of the objects that may stand at `path`, as in `messages[0].content[...]`."""
    return [field.encode_name for one in _types_at(kind, path) if isinstance(one, StructType) for field in one.fields]


def _values_at(kind: type[Body], path: str | None) -> list[str]:
    """The texts that a field with a fixed set of values takes, sorted."""
    return sorted({str(v) for one in _types_at(kind, path) if isinstance(one, LiteralType) for v in one.values})


def _types_at(kind: type[Body], path: str | None) -> list[Type]:
    level = [_type_of(kind)]
    for step in _STEP.findall(path or ""):
        level = [inner for one in level for inner in _within(one, step)]
    return level


@lru_cache
def _type_of(kind: type[Body]) -> Type:
    return type_info(kind)


def _within(outer: Type, step: str) -> list[Type]:
    """The types one level further in, at `step`: a field's name or an index."""
    if isinstance(outer, StructType):
        inner = [field.type for field in outer.fields if field.encode_name == step]
    elif isinstance(outer, CollectionType):
        inner = [outer.item_type]
    else:
        inner = [outer.value_type] if isinstance(outer, DictType) else []
    return [one for t in inner for one in (t.types if isinstance(t, UnionType) else (t,))]
