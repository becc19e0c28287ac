"""Tokenises conversations piece by piece: what stands between two control tokens gives the same tokens in any prompt.

So the system prompt and the turns before the last one, which were tokenised before, are found in a small cache. Whether
a tokenizer really works so is checked with the first prompts; if not, every prompt is tokenised whole.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable

__all__ = ["SegmentEncoder"]

_log = logging.getLogger(__name__)
_CHECKS = 32
"""Prompts that are tokenised both ways."""
_MOST_CHARACTERS = 1 << 24
"""Of all cached pieces."""


class SegmentEncoder:
    """Not for several threads at once."""

    def __init__(self, encode: Callable[[str], list[int]], control_tokens: Iterable[str]) -> None:
        """`encode` tokenises a text, control tokens included."""
        texts = sorted({text for text in control_tokens if text}, key=len, reverse=True)
        self._encode = encode
        self._cut = re.compile("(" + "|".join(map(re.escape, texts)) + ")") if texts else None
        self._known: OrderedDict[str, list[int]] = OrderedDict()
        self._size = 0
        self._unchecked = _CHECKS

    def encode(self, text: str) -> list[int]:
        if self._cut is None:
            return self._encode(text)
        found: list[int] = []
        for piece in self._cut.split(text):
            if piece:
                found += self._piece(piece)
        if self._unchecked:
            return self._checked(text, found)
        return found

    def _piece(self, piece: str) -> list[int]:
        known = self._known
        ids = known.get(piece)
        if ids is not None:
            known.move_to_end(piece)
            return ids
        ids = known[piece] = self._encode(piece)
        self._size += len(piece)
        while self._size > _MOST_CHARACTERS:
            self._size -= len(known.popitem(last=False)[0])
        return ids

    def _checked(self, text: str, found: list[int]) -> list[int]:
        self._unchecked -= 1
        whole = self._encode(text)
        if whole != found:
            _log.info("prompts are tokenised whole: pieces of them give other tokens")
            self._cut = None
            self._known.clear()
        return whole
