"""Token ids to text, at once or one by one, with the same result."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from headrace.tokenization.vocab import Vocab

__all__ = ["Pieces", "StreamDecoder", "decode_all"]


class Pieces(dict[int, "str | None"]):
    """Text of each token by id, made at the first access; None if its bytes are not complete characters.

    Ids beyond the vocabulary have an empty text (a model's head may be padded).
    """

    def __init__(self, vocab: Vocab) -> None:
        super().__init__()
        self.token_bytes = vocab.token_bytes

    def __missing__(self, token: int) -> str | None:
        try:
            text: str | None = self.raw(token).decode()
        except UnicodeDecodeError:
            text = None
        self[token] = text
        return text

    def raw(self, token: int) -> bytes:
        return self.token_bytes[token] if 0 <= token < len(self.token_bytes) else b""


class StreamDecoder:
    """Incremental detokenisation. The joined results of `push` and `flush` are what `decode_all` returns for the same
    ids.

    A character is returned when its last byte has come. Bytes that are not UTF-8 become U+FFFD, by the longest-prefix
    rule of the Unicode standard (3.9), as in Python's `errors="replace"`.
    """

    __slots__ = ("_pending", "_pieces", "_skip", "_strip")

    def __init__(self, pieces: Pieces, skip: frozenset[int], strip_space: bool) -> None:
        self._pieces = pieces
        self._skip = skip
        self._strip = strip_space
        self._pending = b""

    def push(self, token_id: int) -> str:
        """The text that this token completes; often empty."""
        if token_id in self._skip:
            return ""
        text = self._pieces[token_id]
        if text is None or self._pending or self._strip:
            return self._push_bytes(self._pieces.raw(token_id))
        return text

    @property
    def unfinished(self) -> bool:
        """True if a character has begun whose last byte has not come."""
        return bool(self._pending)

    def flush(self) -> str:
        """The rest of an incomplete character: U+FFFD, or nothing. After this the stream can be used again."""
        pending, self._pending = self._pending, b""
        return pending.decode("utf-8", "replace")

    def _push_bytes(self, raw: bytes) -> str:
        if self._strip and raw:
            self._strip = False
            raw = raw.removeprefix(b" ")
        data = self._pending + raw
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text


def decode_all(pieces: Pieces, ids: Iterable[int], skip: frozenset[int], strip_space: bool) -> str:
    """The text of a complete sequence."""
    data = b"".join(pieces.raw(token) for token in ids if token not in skip)
    return (data.removeprefix(b" ") if strip_space else data).decode("utf-8", "replace")
