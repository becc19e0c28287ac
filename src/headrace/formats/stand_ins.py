"""Characters that stand for special tokens in a parser's text.

Special tokens arrive apart from text. Some markers are longer than one token, and some tokens are read by argument
readers: then the token is one character of the text that is parsed. The characters are lone surrogates, which decoded
text never has, so that text which only quotes a token is not one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["NO_TOKENS", "StandIns"]

_FIRST = 0xD800


class StandIns:
    """Immutable."""

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        """`tokens`: the texts of special tokens."""
        self._chars = {token: chr(_FIRST + at) for at, token in enumerate(sorted(set(tokens)))}
        self._texts = {ord(char): token for token, char in self._chars.items()}
        longest_first = sorted(self._chars, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._any = re.compile(f"[{''.join(self._chars.values())}]") if longest_first else None

    def of(self, token: str) -> str:
        """The text that stands for a special token: its own if it has no character."""
        return self._chars.get(token, token)

    def put(self, literal: str) -> str:
        """A literal of a table with its tokens replaced."""
        return self._tokens.sub(lambda found: self._chars[found.group()], literal) if self._tokens else literal

    def shown(self, text: str) -> str:
        """A parsed text as the model wrote it."""
        return text.translate(self._texts) if self._any is not None and self._any.search(text) else text


NO_TOKENS = StandIns()
