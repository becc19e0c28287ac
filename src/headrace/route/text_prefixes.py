"""Placing by the beginnings of texts, where tokens cannot be read: approximate, from what the router itself has sent.

A text is cut into pieces of a fixed length, and each piece gets the hash of all text up to its end. An engine counts as
holding the pieces of the requests that it got. What it has evicted is not known, so its part starts empty again when it
grows too large.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from headrace.route.prefix_index import Held, PrefixIndex

__all__ = ["PIECE_TOKENS", "TextPrefixes"]

_PIECE = 256
"""Bytes of a piece."""
PIECE_TOKENS = 64
"""Tokens that a piece counts as."""
_MOST_PIECES = 1 << 15
"""Of one engine."""
_START = b"text"


class _Texts(msgspec.Struct):
    """The fields with which a prompt begins, in the order of templates."""

    model: str | None = None
    cache_salt: str | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Texts).decode


class TextPrefixes:
    """Thread: the event loop's."""

    def __init__(self) -> None:
        self._index = PrefixIndex()

    def chain(self, body: bytes) -> list[bytes]:
        """The hashes of a request's text; empty for a body without one."""
        try:
            texts = _decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return []
        parts = (texts.tools, texts.system, texts.instructions, texts.messages, texts.prompt, texts.input)
        text = b"".join(bytes(part) for part in parts)
        return list(_hashes(f"{texts.model}\0{texts.cache_salt}".encode(), text))

    def held(self, chain: list[bytes]) -> dict[str, Held]:
        return self._index.held(chain)

    def sent(self, engine: str, chain: list[bytes]) -> None:
        """Note that an engine has got a request."""
        if not self._index.known(engine) or self._index.size(engine) > _MOST_PIECES:
            self._index.replace(engine, 0, 0, ())
        self._index.store(engine, _START, chain)

    def forget(self, engine: str) -> None:
        self._index.forget(engine)


def _hashes(name: bytes, text: bytes) -> Iterator[bytes]:
    before = blake2b(name, digest_size=16).digest()
    for at in range(0, len(text) - _PIECE + 1, _PIECE):
        before = blake2b(before + text[at : at + _PIECE], digest_size=16).digest()
        yield before
