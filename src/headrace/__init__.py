"""Headrace serves large language models on any hardware.

`LLM` and `AsyncLLM` run a model in this process; `headrace serve` serves OpenAI's API over HTTP. Heavy modules are
imported when one of them is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headrace.llm import LLM, AsyncLLM
    from headrace.structured_outputs import StructuredOutputs
    from headrace.types import SamplingParams

__all__ = ["LLM", "AsyncLLM", "SamplingParams", "StructuredOutputs", "__version__"]

__version__ = "0.1.0"


_HOME = {
    "LLM": "headrace.llm",
    "AsyncLLM": "headrace.llm",
    "SamplingParams": "headrace.types",
    "StructuredOutputs": "headrace.structured_outputs",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        # Here, so that a command can set its signal handlers before it imports anything.
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
