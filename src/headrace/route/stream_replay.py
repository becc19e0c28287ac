"""A stream whose engine is lost goes on elsewhere, exactly where it stopped.

A request that is greedy or has a seed has the same answer on every engine of one model and arithmetic. So another one
is asked the whole request again, and what the client has got is cut off its answer, after it was compared. Whatever
cannot be compared, or differs, is never joined: the stream ends with an error then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.route.upstream import UpstreamLost
from headrace.server.stream_form import DONE, event

__all__ = ["Continuation", "Differs", "EngineFailed", "ShownStream", "parsed_event", "plain_choices", "texts_of"]

_MOST = 4 * 2**20
"""Bytes of a stream that are kept: a longer one does not go on elsewhere."""
_FAILURES = frozenset({"engine_unavailable", "shutting_down", "aborted"})
"""Codes of errors that end a stream because of its engine, and not of the request."""
_TEXTS = ("text", "content", "reasoning_content", "reasoning")
_KNOWN = frozenset({"index", "delta", "role", "finish_reason", "stop_reason", *_TEXTS})
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_ERROR = b'data: {"error"'
_END = b"\n\n"
_Key = tuple[int, str]


class Differs(Exception):
    """The second answer cannot be compared with the first, or is another one."""


class EngineFailed(UpstreamLost):
    """The engine ended its stream with an error."""

    def __init__(self, error: bytes) -> None:
        super().__init__("it ended its stream with an error")
        self.error = error
        """The event."""


class ShownStream:
    """What a client has got of a stream in OpenAI's form."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._size = 0
        self._rest = b""

    def take(self, piece: bytes) -> bytes:
        """The whole events of what has come, to be sent. Raises EngineFailed if the first of them is an error that
        another engine may not have."""
        data = self._rest + piece
        failed = data.find(_ERROR)
        if failed == 0 and data.endswith(_END):
            self._rest = b""
            if _code(data) in _FAILURES:
                raise EngineFailed(data)
        elif failed > 0:
            data, self._rest = data[:failed], data[failed:]
        else:
            end = data.rfind(_END) + len(_END) if _END in data else 0
            data, self._rest = data[:end], data[end:]
        if self._size <= _MOST:
            self._size += len(data)
            self._events.append(data)
        return data

    def rest(self) -> bytes:
        """At the stream's end: what did not make a whole event, or the error that waits. Raises EngineFailed."""
        rest, self._rest = self._rest, b""
        if rest.startswith(_ERROR) and _code(rest) in _FAILURES:
            raise EngineFailed(rest)
        return rest

    def continuation(self) -> Continuation:
        """Raises Differs if nothing can be joined to what was shown."""
        if self._size > _MOST:
            raise Differs
        return Continuation(b"".join(self._events))


class Continuation:
    """Cuts what a client has got off a second stream of the same answer. What follows is passed on as it is, under the
    first stream's id, tool calls included."""

    def __init__(self, shown: bytes, passes_errors: bool = False) -> None:
        """`passes_errors`: an error of the second stream is passed on. Raises Differs."""
        self._passes_errors = passes_errors
        self._shown: dict[_Key, str] = {}
        self._at: dict[_Key, int] = {}
        """Characters that have come again."""
        self._ended: set[int] = set()
        self._met: set[int] = set()
        """Choices that have begun."""
        self._head: dict[str, Any] = {}
        self._rest = b""
        for one in _events(shown):
            self._head = self._head or {name: one[name] for name in ("id", "created") if name in one}
            for choice in plain_choices(one):
                index = choice["index"]
                self._met.add(index)
                for name, text in texts_of(choice):
                    self._shown[index, name] = self._shown.get((index, name), "") + text
                if choice.get("finish_reason") is not None:
                    self._ended.add(index)
        joins = self._shown and not self._ended and self._met == {index for index, _ in self._shown}
        self._missing = set(self._shown) if joins else None
        """Texts that have not come again as a whole; None if the two streams are compared to the end."""

    def feed(self, data: bytes) -> bytes:
        """What is new of the second stream. Raises Differs, and UpstreamLost for an error that is not passed on."""
        whole, end, self._rest = (self._rest + data).rpartition(_END)
        return b"".join(map(self._new, (whole + end).split(_END)[:-1]))

    def _new(self, block: bytes) -> bytes:
        if block.startswith(_ERROR):
            if not self._passes_errors:
                raise UpstreamLost("the second engine failed, too")
            return block + _END
        if not block.startswith(b"data: {"):
            return block + _END
        if self._missing is not None and not self._missing:
            return event({**_fields(block), **self._head})
        new = self._cut(parsed_event(block))
        if self._missing is not None:
            self._missing = {key for key in self._missing if self._at.get(key, 0) < len(self._shown[key])}
        return new

    def _cut(self, one: dict[str, Any]) -> bytes:
        choices = one.get("choices")
        fresh = [choice for choice in plain_choices(one) if self._is_fresh(choice)]
        if choices and not fresh:
            return b""
        return event({**one, **self._head, "choices": fresh})

    def _is_fresh(self, choice: dict[str, Any]) -> bool:
        """Cut what was shown off a choice; True if something is left. Raises Differs if that would follow text which
        has not come again, or the choice's end."""
        index, fresh = choice["index"], False
        for name, text in texts_of(choice):
            key = index, name
            at, shown = self._at.get(key, 0), self._shown.get(key, "")
            known = shown[at : at + len(text)]
            if not text.startswith(known):
                raise Differs
            self._at[key] = at + len(text)
            _parts(choice)[name] = text[len(known) :]
            fresh = fresh or len(text) > len(known)
        ends = choice.get("finish_reason") is not None
        behind = any(len(text) > self._at.get(key, 0) for key, text in self._shown.items() if key[0] == index)
        if ((fresh or ends) and behind) or (fresh and index in self._ended):
            raise Differs
        first = index not in self._met
        self._met.add(index)
        return fresh or first or (ends and index not in self._ended)


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    for block in data.split(_END):
        if block.startswith(b"data: {"):
            yield parsed_event(block)


def parsed_event(block: bytes) -> dict[str, Any]:
    """Of an event without its end. Raises Differs for what is no JSON, or nested too deeply."""
    try:
        return _decode(block[6:])
    except (msgspec.MsgspecError, RecursionError):
        raise Differs from None


def _fields(block: bytes) -> dict[str, msgspec.Raw]:
    """Raises Differs."""
    try:
        return _decode_raw(block[6:])
    except (msgspec.MsgspecError, RecursionError):
        raise Differs from None


def plain_choices(one: dict[str, Any]) -> list[dict[str, Any]]:
    """Raises Differs for choices with more than text: tool calls, logprobs, token ids."""
    choices: list[dict[str, Any]] = one.get("choices") or []
    for choice in choices:
        for part in (choice, choice.get("delta") or {}):
            if any(value is not None and name not in _KNOWN for name, value in part.items()):
                raise Differs
    return choices


def _parts(choice: dict[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = choice.get("delta") or choice
    return parts


def texts_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    parts = _parts(choice)
    return [(name, parts[name]) for name in _TEXTS if parts.get(name)]


class _Detail(msgspec.Struct):
    code: str | None = None


class _Error(msgspec.Struct):
    error: _Detail


def _code(data: bytes) -> str | None:
    try:
        return msgspec.json.decode(data.removesuffix(DONE).removeprefix(b"data: "), type=_Error).error.code
    except (msgspec.MsgspecError, RecursionError):
        return None
