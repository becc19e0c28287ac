"""Types of the configuration's fields: frozen models, sizes in bytes, times, units."""

from __future__ import annotations

import re
from typing import Annotated, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, ValidationInfo, field_validator

__all__ = ["DURATION", "SIZE", "Bytes", "Frozen", "Seconds", "parse_duration", "parse_size", "unit"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_size(value: object) -> object:
    """The number of bytes that a text names: a number with an optional unit (k, M, G, or Ki, Mi, Gi; a B may follow).
    Values of other types are returned unchanged. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", value.strip().lower())
    if match is None or match[2] == "i":
        raise ValueError(f"{value!r} is no size: write it as 2GiB, 500M or 1000000")
    return int(float(match[1]) * _UNITS[match[2]])


SIZE = BeforeValidator(parse_size)
Bytes = Annotated[int, SIZE]
"""A number of bytes, or a text that `parse_size` reads."""
_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(value: object) -> object:
    """The seconds that a text names: a number of seconds, or numbers with units (ms, s, m, h, d), as 10m and 1h30m.
    Values of other types are returned unchanged. Raises ValueError."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if re.fullmatch(r"-?\d+(?:\.\d+)?", text):
        return float(text)
    if re.fullmatch(r"-?(?:\d+(?:\.\d+)?(?:ms|[smhd]))+", text):
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhd])", text)
        return sum(float(number) * _TIME_UNITS[name] for number, name in parts) * (-1 if text[0] == "-" else 1)
    raise ValueError(f"{value!r} is no time: write it as 10m, 90s or 1h30m")


DURATION = BeforeValidator(parse_duration)
Seconds = Annotated[float, DURATION]
"""A number of seconds, or a text that `parse_duration` reads."""


def unit(name: str) -> dict[str, JsonValue]:
    """The unit of a field's number, or the kind of its text, for help texts and the documentation."""
    return {"unit": name}


class Frozen(BaseModel):
    """Base class of all parts. A field's description is its help text and its row of docs/configuration.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: object, info: ValidationInfo) -> object:
        """Pydantic would take True for the number 1."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise ValueError("this option takes a value, not True or False")
        return value
