"""Remembers the tokens of texts: constants of plans come back in every run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence

__all__ = ["TextCache"]

_LONGEST = 1 << 15
_MOST = 1 << 20
"""Characters of one text, and of all."""


class TextCache:
    """Of the texts that are too many, those go first that have not been used for the longest time. Thread-safe."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._kept: dict[tuple[str, Hashable], tuple[int, ...]] = {}
        self._size = 0
        self._lock = threading.Lock()

    def ids(self, text: str, kind: Hashable, encode: Callable[[], Sequence[int]]) -> tuple[int, ...]:
        """The tokens of a text, which `encode` makes if they are not known. `kind`: how it is encoded."""
        if len(text) > _LONGEST:
            return tuple(encode())
        key = text, kind
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found
                return found
        found = tuple(encode())
        with self._lock:
            if key not in self._kept:
                self._kept[key] = found
                self._size += len(text)
            while self._size > self._most:
                oldest = next(iter(self._kept))
                del self._kept[oldest]
                self._size -= len(oldest[0])
        return found
