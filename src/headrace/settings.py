"""Reads the fields of a checkpoint's files with types and bounds: a missing or invalid field is an error that names it.

Headrace reads every value of config.json, tokenizer_config.json, quantization_config and a GGUF's metadata through
`Settings`. Values are not converted: a number in quotes is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel, excerpt

__all__ = ["LARGEST_ID", "MOST_LAYERS", "MOST_POSITIONS", "WIDEST_HEAD", "Settings", "same"]

_LARGEST = 1 << 31
_HUGE = 1e30
MOST_LAYERS = 10_000
LARGEST_ID = _LARGEST - 1
"""The largest token id."""
MOST_POSITIONS = 1 << 24
"""The longest context of a model. The longest published one has 10 million positions; tables of that length are
allocated."""
WIDEST_HEAD = 1 << 16
"""Most dimensions of one attention head."""


class Settings:
    """A view of one mapping. `prefix` is added before every key. `within` is the name of the mapping if it is
    nested."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "", within: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self._within = within

    def get(self, key: str) -> Any:
        """The raw value; None if it is absent or null."""
        return self._values.get(self._prefix + key)

    def layers(self, key: str) -> int:
        """A number of layers, less than ten thousand, because lists of that length are allocated."""
        return self.integer(key, most=MOST_LAYERS)

    def integer(self, key: str, default: int | None = None, most: int = _LARGEST - 1) -> int:
        """A positive int, at most `most`."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.wrong(key, value, "a positive integer")
        if value > most:
            raise self.wrong(key, value, f"at most {most}")
        return value

    def count(self, key: str, default: int) -> int:
        """A number of layers that may be 0."""
        value = self._present(key, default)
        if not isinstance(value, bool) and isinstance(value, int) and value == 0:
            return 0
        return self.integer(key, default, MOST_LAYERS)

    def number(self, key: str, default: float | None = None) -> float:
        """A float that is valid for arithmetic: finite, and far from the limits of float32."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_HUGE <= value <= _HUGE:
            raise self.wrong(key, value, "a number")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0, as `number`."""
        value = self.number(key, default)
        if value < 1 / _HUGE:
            raise self.wrong(key, value, "a number above 0")
        return value

    def base(self, key: str, default: float) -> float:
        """The base of a power: a finite float above 1, because its logarithm is a divisor."""
        value = self.number(key, default)
        if value <= 1:
            raise self.wrong(key, value, "a number above 1")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string that is valid Unicode."""
        return self._text(key, self._present(key, default))

    def texts(self, key: str) -> list[str]:
        """A list of strings; [] if it is absent."""
        return [self._text(key, value) for value in self.items(key)]

    def items(self, key: str) -> list[Any]:
        """A list of any values; [] if it is absent."""
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(key, value, "a list")
        return value

    def pair(self, key: str) -> tuple[int, int] | None:
        """Two positive ints; None if they are absent."""
        value = self.items(key)
        if self.get(key) is None:
            return None
        if len(value) != 2:
            raise self.wrong(key, value, "two positive integers")
        first, second = (Settings({"": part}, within=self.name(key)).integer("") for part in value)
        return first, second

    def section(self, key: str) -> Settings | None:
        """A nested mapping; None if it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, value, "an object")
        return Settings(value, within=self.name(key))

    def sections(self, key: str) -> dict[str, Settings]:
        """A mapping of mappings; {} if it is absent."""
        outer = self.section(key)
        if outer is None:
            return {}
        return {name: found for name in outer.names() if (found := outer.section(name)) is not None}

    def token_ids(self, key: str) -> list[int]:
        """One token id or a list of them; [] if it is absent."""
        value = self.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= LARGEST_ID:
                raise self.wrong(key, value, f"token ids from 0 to {LARGEST_ID}")
        return ids

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def optional_positive(self, key: str) -> float | None:
        return None if self.get(key) is None else self.positive(key)

    def optional_integer(self, key: str) -> int | None:
        return None if self.get(key) is None else self.integer(key)

    def optional_text(self, key: str) -> str | None:
        return None if self.get(key) is None else self.text(key)

    def refuse(self, family: str, neutral: Mapping[str, Any]) -> None:
        """Raise UnsupportedModel if an unsupported feature has another value than its neutral one (or null)."""
        for key, value in neutral.items():
            found = self.get(key)
            if found is not None and not same(found, value):
                raise UnsupportedModel(f"{family}: {self.name(key)} = {excerpt(found)} is not supported")

    def names(self) -> Iterator[str]:
        """All keys of the mapping, independently of the prefix."""
        return iter(self._values.keys())

    def values(self) -> dict[str, Any]:
        """A copy of the complete mapping."""
        return dict(self._values)

    def name(self, key: str) -> str:
        """The full name of a field in the file."""
        return f"{self._within}.{self._prefix}{key}" if self._within else f"{self._prefix}{key}"

    def wrong(self, key: str, value: Any, expected: str) -> CheckpointError:
        """The error for a field with an invalid value."""
        return CheckpointError(f"field {excerpt(self.name(key))} is {excerpt(value)}: expected {expected}")

    def _text(self, key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self.wrong(key, value, "text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.wrong(key, value, "text that is valid Unicode") from None
        return value

    def _present(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"field {excerpt(self.name(key))} is missing")
        return value


def same(found: Any, neutral: Any) -> bool:
    """True if a value is the neutral one. An array of a GGUF never is, and cannot be compared."""
    return isinstance(found, (bool, int, float, str)) and found == neutral
