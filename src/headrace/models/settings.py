"""Typed reading of a config.json or of GGUF metadata: a missing or absurd field is an error that names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel

__all__ = ["Settings"]

_LARGEST = 1 << 31
_MOST_LAYERS = 10_000


class Settings:
    """A view of one mapping; `prefix` stands before every key."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def get(self, key: str) -> Any:
        """The raw value, None where it is absent or null."""
        return self._values.get(self._prefix + key)

    def layers(self, key: str) -> int:
        """A count of layers. No model has ten thousand; lists of that length are made of it."""
        count = self.integer(key)
        if count > _MOST_LAYERS:
            raise CheckpointError(
                f"field {self._prefix + key!r} is {count}: at most {_MOST_LAYERS} layers are supported"
            )
        return count

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive int below 2^31."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
            raise CheckpointError(f"field {self._prefix + key!r} is {_short(value)}: expected a positive integer")
        return value

    def count(self, key: str, default: int) -> int:
        """A layer count that may be 0."""
        return 0 if self._present(key, default) == 0 else self.integer(key, default)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite float."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise CheckpointError(f"field {self._prefix + key!r} is {_short(value)}: expected a number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"field {self._prefix + key!r} is {_short(value)}: expected true or false")
        return value

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def optional_integer(self, key: str) -> int | None:
        return None if self.get(key) is None else self.integer(key)

    def refuse(self, family: str, neutral: Mapping[str, Any]) -> None:
        """Raise UnsupportedModel where a feature that is not built has any value but its neutral one (or null)."""
        for key, value in neutral.items():
            found = self.get(key)
            if found is not None and found != value:
                raise UnsupportedModel(f"{family}: {self._prefix + key} = {_short(found)} is not supported")

    def _present(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"field {self._prefix + key!r} is missing")
        return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
