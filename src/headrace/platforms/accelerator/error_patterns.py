"""Classifies an accelerator's error: memory ran out, the device is lost, or one piece of work failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

__all__ = ["ErrorPatterns", "first_line", "root_cause"]


@dataclass(frozen=True, slots=True)
class ErrorPatterns:
    """Phrases that identify a runtime's errors, in lower case."""

    lost: tuple[str, ...]
    """After these errors the context is unusable: every later call fails, too."""
    memory: tuple[str, ...] = ("out of memory",)

    def kind(self, error: BaseException) -> Literal["memory", "lost", "other"]:
        """The kind of an error, by its type and its text."""
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            return "memory"
        if not isinstance(error, RuntimeError | OSError):
            return "other"
        text = str(error).lower()
        if any(phrase in text for phrase in self.lost):
            return "lost"
        return "memory" if any(phrase in text for phrase in self.memory) else "other"


def root_cause(error: BaseException) -> BaseException:
    """The first error in the chain that led to this one."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__ or error.__context__ or error
    return error


def first_line(error: BaseException) -> str:
    """The first line of an error's text: runtimes append a paragraph of advice."""
    return (str(error).splitlines() or [type(error).__name__])[0]
