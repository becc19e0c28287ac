"""The workloads: four fixed shapes over English text, four tasks for measuring speculation, and custom ones.

Lengths depend on the workload alone. The content depends on the seed too, so a second run with another seed has the
same shape and cannot use the prefix cache that the first run filled.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.bench.tasks import TASKS, task_prompt
from headrace.bench.texts import corpus

__all__ = ["EARLIER_NAMES", "WORKLOADS", "Prompt", "Workload", "build"]


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of a workload. Lengths are in tokens; a pair is a log-uniform range."""

    name: str
    requests: int
    concurrency: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    shared_prefix: int = 0
    task: str | None = None
    """One of `tasks.TASKS`; None: any text."""

    @property
    def words(self) -> str:
        """The workload in a sentence."""
        shared = f"{self.shared_prefix} tokens that all prompts share and then " if self.shared_prefix else ""
        task = "English text" if self.task is None else f"the task {self.task}"
        return (
            f"{self.name}: {self.requests} requests, {self.concurrency} at a time; prompts of {task} with {shared}"
            f"{_span(self.prompt)} tokens, answers of {_span(self.output)} tokens, greedy and to full length"
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: tuple[int, ...]
    max_tokens: int


WORKLOADS = {
    "W1": Workload("W1", 4, 1, (128, 128), (128, 128)),
    "W2": Workload("W2", 64, 16, (32, 512), (16, 128)),
    "W3": Workload("W3", 32, 8, (32, 32), (32, 32), shared_prefix=1024),
    "W4": Workload("W4", 3, 1, (4096, 4096), (8, 8)),
    "edit": Workload("edit", 8, 1, (256, 512), (128, 256), task="edit"),
    "code": Workload("code", 8, 1, (256, 512), (192, 192), task="code"),
    "json": Workload("json", 8, 1, (256, 512), (192, 192), task="json"),
    "chat": Workload("chat", 8, 1, (192, 384), (192, 192), task="chat"),
}

EARLIER_NAMES = {"single": "W1", "mixed": "W2", "prefix": "W3", "longprefill": "W4"}
"""In earlier reports and in those of other harnesses. Their content is drawn with these, so that it stays the same."""
_DRAWN_AS = {name: earlier for earlier, name in EARLIER_NAMES.items()}


def build(
    workload: Workload, encode: Callable[[str], Sequence[int]], seed: int = 0, requests: int | None = None
) -> list[Prompt]:
    """The prompts of a workload; `encode` is a tokenizer's."""
    tokens = encode(corpus()) if workload.task is None else ()
    lengths = random.Random(1234)
    content = random.Random(f"{_DRAWN_AS.get(workload.name, workload.name)}-{seed}")
    if requests is not None:
        workload = replace(workload, requests=requests)

    def excerpt(n: int) -> tuple[int, ...]:
        start = content.randrange(0, len(tokens) - n)
        return tuple(tokens[start : start + n])

    prefix = excerpt(workload.shared_prefix) if workload.shared_prefix else ()
    made = []
    for _ in range(workload.requests):
        prompt, output = _log_uniform(lengths, workload.prompt), _log_uniform(lengths, workload.output)
        if workload.task is None:
            made.append(Prompt(prefix + excerpt(prompt), output))
        else:
            made.append(Prompt(task_prompt(TASKS[workload.task], prompt, encode, content), output))
    return made


def _span(span: tuple[int, int]) -> str:
    low, high = span
    return str(low) if low == high else f"{low} to {high}"


def _log_uniform(rng: random.Random, span: tuple[int, int]) -> int:
    low, high = span
    return low if low == high else round(math.exp(rng.uniform(math.log(low), math.log(high))))
