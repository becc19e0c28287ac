"""States of programs as token ids.

A text's tokens depend on how it is cut, so what has been generated is never made of text again: text that follows is
encoded on its own and put behind it. Only if a template renders earlier messages in another way than before, or if the
vocabulary cannot write the new text alone, a prompt is encoded as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.client.request_outputs import TextStream
from headrace.programs.text_cache import TextCache
from headrace.tokenization.quoting import without_marks

__all__ = ["PathEncoder", "PathTokenizer", "TokenPath"]

_TAIL = 8
"""Tokens before a text that decide whether it begins with a space."""


class PathTokenizer(Protocol):
    """The part of a tokenizer that is used here."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def encode_chat(self, text: str, add_special_tokens: bool = False) -> list[int]: ...

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> TextStream: ...


class TokenPath(NamedTuple):
    """A text with its tokens."""

    text: str
    """As the template renders it; without a template the text itself."""
    ids: tuple[int, ...]
    open: str = ""
    """The request that has generated its end, and may be open in the engine."""
    encoded: int = 0
    """The number of its last tokens that were made of text for it."""


class PathEncoder:
    """Makes tokens of texts, each once. One serves all runs on a model; it may be used by several threads."""

    def __init__(self, tokenizer: PathTokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts = TextCache()

    def path(self, text: str, chat: bool, known: TokenPath | None) -> TokenPath:
        """The tokens of a text that may begin with one whose tokens are known."""
        if known is not None and text.startswith(known.text):
            added = self.behind(known.ids, text[len(known.text) :], chat)
            if added is not None:
                return TokenPath(text, known.ids + added, known.open, len(added))
        encode = self._tokenizer.encode_chat if chat else self._tokenizer.encode
        ids = self._texts.ids(text, ("whole", chat), lambda: encode(text)) if text else ()
        return TokenPath(text, ids, encoded=len(ids))

    def behind(self, ids: Sequence[int], text: str, chat: bool = False) -> tuple[int, ...] | None:
        """The tokens of a text behind others. None: on its own the vocabulary writes it in another way."""
        if not text:
            return ()
        found = self.encoded(text, chat)
        stream = self._tokenizer.stream(False, ids[-_TAIL:])
        written = "".join(map(stream.push, found)) + stream.flush()
        return found if written == without_marks(text) else None

    def encoded(self, text: str, chat: bool = False) -> tuple[int, ...]:
        """The tokens of a text on its own, without special tokens around it."""
        encode = self._tokenizer.encode_chat if chat else self._tokenizer.encode
        return self._texts.ids(text, ("part", chat), lambda: encode(text, False))

    def generated(
        self, prompt: TokenPath, ids: Sequence[int], text: str, skips_special: bool, cut: bool, name: str
    ) -> TokenPath | None:
        """The state behind a generation. `ids`: without a token that ended it. `cut`: a stop string has, so that the
        text ends before the tokens do; what is left of a token is encoded anew. None: that cannot be written alone."""
        kept = prompt.ids + tuple(ids)
        if cut:
            count, length = self._whole_tokens(prompt.ids, ids, text, skips_special)
            rest = self.behind(prompt.ids + tuple(ids[:count]), text[length:])
            if rest is None:
                return None
            kept = prompt.ids + tuple(ids[:count]) + rest
        return TokenPath(prompt.text + text, kept, name)

    def _whole_tokens(self, before: Sequence[int], ids: Sequence[int], text: str, skips: bool) -> tuple[int, int]:
        """How many tokens lie within the text, and how many characters they write."""
        stream = self._tokenizer.stream(skips, before[-_TAIL:])
        written = found = length = 0
        for at, token in enumerate(ids, 1):
            written += len(stream.push(token))
            if written > len(text):
                break
            if not stream.unfinished:
                found, length = at, written
        return found, length
