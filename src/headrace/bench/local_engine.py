"""Opens an engine in this process, for the verbs that measure one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.bench.load_options import memoized_encoder
from headrace.engine.service import BuiltEngine
from headrace.engine.startup import build_engine
from headrace.llm import AsyncLLM

__all__ = ["open_engine"]


def open_engine(model: str, options: dict[str, Any]) -> tuple[BuiltEngine, Callable[[str], Sequence[int]]]:
    """(An engine that is ready, the `encode` function of its tokenizer). Raises what loading raises."""
    # The client makes the configuration from the options; it is never started.
    client = AsyncLLM(model, **options)
    engine = build_engine(client.config, lambda stage, done: None)
    return engine, memoized_encoder(client.tokenizer)
