"""Events of the parser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Event", "EventKind"]

EventKind = Literal["content", "reasoning", "call", "arguments", "end", "syntax"]


@dataclass(slots=True)
class Event:
    """One piece of an answer. The `raw` texts of all events, joined, are the model's text."""

    kind: EventKind
    """`call` starts a tool call, `end` ends it; `syntax` has no text of its own: markers and blanks."""
    text: str = ""
    """The content, the reasoning, the called function's name, or a fragment of the arguments' JSON text."""
    raw: str = ""
    """The part of the model's text that this event accounts for."""
    call_id: str | None = None
    """With `call`: the id that the model wrote; None if the format has none."""
