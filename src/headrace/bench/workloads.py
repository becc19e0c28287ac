"""The workloads: four fixed shapes over English text, and custom ones.

Lengths depend on the workload alone. The content depends on the seed too, so a second run with another seed has the
same shape and cannot use the prefix cache that the first run filled.
"""

from __future__ import annotations

import functools
import importlib
import math
import pydoc
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

__all__ = ["WORKLOADS", "Prompt", "Workload", "build", "corpus"]

_MODULES = (
    "argparse asyncio collections configparser csv datetime decimal difflib email fractions functools heapq html "
    "inspect io ipaddress itertools json logging mailbox optparse os pathlib pickle plistlib pprint random re sched "
    "secrets shelve shutil smtplib socket sqlite3 ssl statistics string subprocess tarfile tempfile textwrap threading "
    "traceback typing unittest uuid weakref xml.sax zipfile"
).split()


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of a workload. Lengths are in tokens; a pair is a log-uniform range."""

    name: str
    requests: int
    concurrency: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    shared_prefix: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: tuple[int, ...]
    max_tokens: int


WORKLOADS = {
    "W1": Workload("single", 4, 1, (128, 128), (128, 128)),
    "W2": Workload("mixed", 64, 16, (32, 512), (16, 128)),
    "W3": Workload("prefix", 32, 8, (32, 32), (32, 32), shared_prefix=1024),
    "W4": Workload("longprefill", 3, 1, (4096, 4096), (8, 8)),
}


@functools.cache
def corpus() -> str:
    """About two megabytes of English text: the documentation of the standard library's modules."""
    pages = []
    for name in _MODULES:
        text = pydoc.plain(pydoc.render_doc(importlib.import_module(name)))
        lines = (re.sub(r"^[ |]+", "", line).rstrip() for line in text.splitlines())
        pages.append("\n".join(line for line in lines if len(line) > 20 and not set(line) <= set("-=|_ ")))
    return "\n\n".join(pages)


def build(
    workload: Workload, encode: Callable[[str], Sequence[int]], seed: int = 0, requests: int | None = None
) -> list[Prompt]:
    """The prompts of a workload; `encode` is a tokenizer's."""
    tokens = encode(corpus())
    lengths = random.Random(1234)
    content = random.Random(f"{workload.name}-{seed}")
    if requests is not None:
        workload = replace(workload, requests=requests)

    def excerpt(n: int) -> tuple[int, ...]:
        start = content.randrange(0, len(tokens) - n)
        return tuple(tokens[start : start + n])

    prefix = excerpt(workload.shared_prefix) if workload.shared_prefix else ()
    made = []
    for _ in range(workload.requests):
        prompt, output = _log_uniform(lengths, workload.prompt), _log_uniform(lengths, workload.output)
        made.append(Prompt(prefix + excerpt(prompt), output))
    return made


def _log_uniform(rng: random.Random, span: tuple[int, int]) -> int:
    low, high = span
    return low if low == high else round(math.exp(rng.uniform(math.log(low), math.log(high))))
