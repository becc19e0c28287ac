"""Reads JSON whose values can be written again: finite numbers, and texts of whole characters."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

__all__ = ["parse_json"]


def parse_json(text: str) -> Any:
    """The value of a text. Raises ValueError and RecursionError."""
    found = _DECODER.decode(text)
    if "\\u" in text:
        try:
            # An escape may be half of a surrogate pair, which no text can hold.
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise ValueError(f"{half} is half of a surrogate pair, which is no character") from None
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
