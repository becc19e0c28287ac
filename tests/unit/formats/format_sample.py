"""An answer in a model's format, with what it must give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Call", "Sample", "properties"]

Call = tuple[str, str]


@dataclass
class Sample:
    name: str
    tools: str | None
    reasoning: str | None
    text: str
    content: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    """(name, arguments as text)"""
    ids: list[str | None] | None = None
    complete: bool = True
    opened: bool = False
    """The prompt has begun the reasoning."""
    schemas: dict[str, Any] = field(default_factory=dict)


def properties(**types: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in types.items()}}
