"""Headrace serves large language models on any hardware.

`LLM` and `AsyncLLM` run a model in this process; `headrace serve` answers OpenAI's API over HTTP. Nothing heavy is imported
until one of them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.types import SamplingParams

if TYPE_CHECKING:
    from headrace.llm import LLM, AsyncLLM

__all__ = ["LLM", "AsyncLLM", "SamplingParams", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("LLM", "AsyncLLM"):
        from headrace import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
