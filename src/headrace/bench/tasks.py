"""Prompts whose answers repeat the prompt, or themselves, more or less: for measuring speculation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.bench.texts import corpus, from_a_line, records, sources

__all__ = ["TASKS", "Task", "task_prompt"]

_CHARACTERS = 40
"""Far more than a token has on the average, so that a piece of text is long enough."""
_BEGUN = 8
"""Tokens of the answer that the prompt of an edit contains: without them a small model may answer in words."""


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of text of the requested length between two fixed ones. `begun`: tokens of the piece that come again
    after it."""

    before: str
    piece: Callable[[int, random.Random], str]
    after: str
    begun: int = 0


TASKS = {
    "edit": Task(
        "This is a part of a Python file:\n\n```python\n",
        lambda size, rng: from_a_line(sources(), size, rng),
        "\n```\n\nThis is the same part again, with an added comment:\n\n```python\n",
        _BEGUN,
    ),
    "code": Task("", lambda size, rng: from_a_line(sources(), size, rng), ""),
    "json": Task(
        "A JSON array of persons. All have the fields id, first_name, last_name, email, age, address, occupation and "
        "newsletter.\n\n[\n",
        records,
        "",
    ),
    "chat": Task(
        "A conversation between a user and a helpful assistant.\n\nUser: I have read this in a manual:\n\n",
        lambda size, rng: from_a_line(corpus(), size, rng),
        "\n\nI do not understand it. Please explain it in your own words, and tell me what it is good for.\n\n"
        "Assistant:",
    ),
}


def task_prompt(task: Task, length: int, encode: Callable[[str], Sequence[int]], rng: random.Random) -> tuple[int, ...]:
    """A prompt of this task of exactly `length` tokens."""
    before, after = (tuple(encode(text)) if text else () for text in (task.before, task.after))
    count = length - len(before) - len(after) - task.begun
    assert count >= max(task.begun, 1), "a workload's prompts have room for its task's fixed texts"
    piece = tuple(encode(task.piece(_CHARACTERS * count, rng)))[:count]
    assert len(piece) == count, "a token has fewer characters on the average"
    return before + piece + after + piece[: task.begun]
