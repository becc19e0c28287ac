"""An engine in this process, as the verbs that measure one choose it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.bench.load_options import memoized_encoder
from headrace.engine.service import BuiltEngine
from headrace.engine.startup import build_engine
from headrace.llm import AsyncLLM

__all__ = ["open_engine"]


def open_engine(model: str, options: dict[str, Any]) -> tuple[BuiltEngine, Callable[[str], Sequence[int]]]:
    """An engine that is ready, and what turns a text into its tokens. Raises what loading raises."""
    # A client knows how options become a configuration; this one is never started.
    client = AsyncLLM(model, **options)
    engine = build_engine(client.config, lambda stage, done: None)
    return engine, memoized_encoder(client.tokenizer)
