"""Rows of the table of sampling parameters: valid values, conversions, and errors that name the parameter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import InvalidRequest
from headrace.structured_outputs import StructuredOutputs

__all__ = ["DeviceRow", "Field", "Kind", "field_of", "row", "token_ids"]

Kind = Literal["whole", "number", "flag", "texts", "ids", "biases", "structure"]
_EXPECTED = {
    "whole": "a whole number",
    "number": "a number",
    "flag": "True or False",
    "texts": "a text or a list of texts",
    "ids": "a list of token ids",
    "biases": "a mapping of token ids to numbers",
    "structure": "StructuredOutputs or a mapping of its fields",
}
_SHOWN = 60
"""Most characters of an invalid value that an error repeats."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A parameter that the sampler reads for each row: an array among the inputs of a step, with the parameter's
    name."""

    dtype: Literal["float32", "int32"]
    neutral: float
    """The value without effect, which padding rows have."""
    trials: tuple[float, ...]
    """Values with which tests compare operators with their reference."""


@dataclass(frozen=True, slots=True)
class Field:
    """One sampling parameter."""

    kind: Kind
    doc: str
    least: float | None = None
    most: float | None = None
    above: bool = False
    """`least` itself is excluded."""
    shortest: int = 0
    longest: int | None = None
    """Entries of a list."""
    none: str | None = None
    """The meaning of None as a separate value; if it has none, None means the default."""
    api: tuple[float | None, float | None] | None = None
    """The server's own range, if it is narrower."""
    api_longest: int | None = None
    device: DeviceRow | None = None
    adjust: Callable[[Any], Any] | None = None
    """Applied to the checked value, because several values may mean the same."""

    def convert(self, name: str, value: object) -> Any:
        """The value in the form of `SamplingParams`. Raises InvalidRequest."""
        try:
            found = _CONVERT[self.kind](_plain(value))
        except (TypeError, ValueError, OverflowError):
            raise _wrong(name, f"takes {_EXPECTED[self.kind]}, got {_show(value)}") from None
        self._check(name, found)
        return found if self.adjust is None else self.adjust(found)

    def _check(self, name: str, value: Any) -> None:
        if self.kind in ("whole", "number"):
            self._check_range(name, value)
        elif self.kind in ("texts", "ids", "biases") and len(value) < self.shortest:
            raise _wrong(name, "is empty: nothing could be sampled")
        elif self.longest is not None and len(value) > self.longest:
            raise _wrong(name, f"has {len(value)} entries: at most {self.longest} are accepted")
        elif self.kind == "texts":
            for text in value:
                if not 0 < len(text) <= _LONGEST_TEXT:
                    raise _wrong(name, f"strings have 1 to {_LONGEST_TEXT} characters, got one of {len(text)}")
        elif self.kind == "biases":
            for token, bias in value:
                if not -100 <= bias <= 100:
                    raise _wrong(name, f"of token {token} must be between -100 and 100, got {bias}")

    def _check_range(self, name: str, value: float) -> None:
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        # NaN fails every comparison.
        if not ((value > low if self.above else value >= low) and value <= high):
            text = f"above {low:g}" if self.above else f"at least {low:g}"
            text += "" if high == math.inf else f" and at most {high:.15g}"
            raise _wrong(name, f"must be {text}, got {_show(value)}")


_LONGEST_TEXT = 4096


def row(default: object, field: Field) -> Any:
    """A field of the dataclass `SamplingParams` with its row of the table as metadata."""
    return dataclasses.field(default=default, metadata={"row": field})


def field_of(declared: dataclasses.Field[Any]) -> Field:
    field: Field = declared.metadata["row"]
    return field


def token_ids(value: object, name: str) -> tuple[int, ...]:
    """A list, tuple, range or array of token ids as a tuple. Raises InvalidRequest for texts, bytes, bools and
    fractions."""
    try:
        return _ids(_plain(value))
    except (TypeError, ValueError, OverflowError):
        raise _wrong(name, f"takes {_EXPECTED['ids']}, got {_show(value)}") from None


def _wrong(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"`{name}` {what}", name, "invalid_value")


def _show(value: object) -> str:
    if type(value).__module__ != "builtins" and not isinstance(value, (int, float)):
        return f"a value of type {type(value).__module__}.{type(value).__qualname__}"
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a very long integer"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _plain(value: Any) -> Any:
    """Convert scalars and arrays of numpy and similar libraries to Python values."""
    if type(value).__module__ == "builtins":
        return value
    tolist = getattr(value, "tolist", None)
    return value if tolist is None else tolist()


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    value = _plain(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _entries(value: Any) -> Iterable[Any]:
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        raise TypeError
    # The order of a set differs between runs.
    return sorted(value) if isinstance(value, (set, frozenset)) else value


def _texts(value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(_entries(value))
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    return texts


def _ids(value: Any) -> tuple[int, ...]:
    ids = tuple(_entries(value))
    # Long lists of plain integers, the usual case, need no conversion of each entry.
    return ids if set(map(type, ids)) <= {int} else tuple(map(_whole, ids))


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    if isinstance(value, Mapping):
        return tuple({_key(token): _number(bias) for token, bias in value.items()}.items())
    return tuple((_whole(token), _number(bias)) for token, bias in _entries(value))


def _key(key: Any) -> int:
    """A token id as a key. Keys of JSON objects are texts."""
    if not isinstance(key, str):
        return _whole(key)
    if not (key.isascii() and key.removeprefix("-").isdecimal() and len(key) <= 20):
        raise _wrong("logit_bias", f"key {_show(key)} is not a token id")
    return int(key)


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "whole": _whole,
    "number": _number,
    "flag": _flag,
    "texts": _texts,
    "ids": _ids,
    "biases": _biases,
    "structure": StructuredOutputs.of,
}
