"""The header of a safetensors file, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["read_header"]

_MOST = 100 << 20
"""Bytes."""


def read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Its length in bytes, and what it says of each tensor, by name, which is not checked. Raises OSError; ValueError,
    AttributeError or RecursionError if it is no header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MOST:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(file.read(length))
    return length, {name: entry for name, entry in header.items() if name != "__metadata__"}
