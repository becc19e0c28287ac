"""An engine in this process, as the verbs that measure one choose it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from headrace.bench.load_options import remembering
from headrace.engine.service import BuiltEngine
from headrace.engine.startup import build_engine
from headrace.llm import AsyncLLM

__all__ = ["add_engine_options", "engine_options", "open_engine"]

_OPTIONS = ("platform", "threads", "dtype", "kv_dtype", "quantize")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Named as those of `headrace serve`."""
    add = parser.add_argument_group("engine").add_argument
    add("--platform", default=argparse.SUPPRESS, help="the platform to use (default: the best here)")
    add("--threads", type=int, default=argparse.SUPPRESS, metavar="N", help="on a host platform (default: one a core)")
    add("--dtype", default=argparse.SUPPRESS, help="auto, float32, bfloat16 or float16")
    add("--kv-dtype", default=argparse.SUPPRESS, help="auto, float32, bfloat16, float16, int8 or float8_e4m3")
    add("--quantize", default=argparse.SUPPRESS, help="int8 or int4: quantise wide weights on load")


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the user gave, as the arguments of `LLM`."""
    return {name: getattr(args, name) for name in _OPTIONS if hasattr(args, name)}


def open_engine(model: str, options: dict[str, Any]) -> tuple[BuiltEngine, Callable[[str], Sequence[int]]]:
    """An engine that is ready, and what turns a text into its tokens. Raises what loading raises."""
    # A client knows how options become a configuration; this one is never started.
    client = AsyncLLM(model, **options)
    engine = build_engine(client.config, lambda stage, done: None)
    return engine, remembering(client.tokenizer)
