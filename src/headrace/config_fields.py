"""Types of the configuration's fields: frozen models, sizes in bytes, units."""

from __future__ import annotations

import re
from typing import Annotated, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, ValidationInfo, field_validator

__all__ = ["SIZE", "Bytes", "Frozen", "parse_size", "unit"]

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
