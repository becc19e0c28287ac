"""The inputs of a chat template. Nothing is imported here: the server makes them before it loads a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ChatInputs"]


@dataclass(frozen=True, slots=True)
class ChatInputs:
    """A conversation to render."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    """The functions that the model may call; None or empty: none."""
    add_generation_prompt: bool = True
    """The text ends where the assistant's next message begins."""
    continue_final_message: bool = False
    """The text ends with the last message's content, unchanged and not closed; excludes `add_generation_prompt`."""
    kwargs: Mapping[str, Any] | None = None
    """More variables for the template."""
    documents: Sequence[Mapping[str, Any]] | None = None
    """Texts that the answer should use, for templates that show them."""
