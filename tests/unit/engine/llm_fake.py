"""`LLM` on the fake engine: what a script does to it is seen without a model. Imported first by scripts of tests."""

from __future__ import annotations

import sys
from typing import Any

from engine_fakes import ByteTokenizer, FakeRunner, make_engine

import headrace.llm
from headrace.client.batch import SequenceLimiter
from headrace.client.in_process_client import InProcessClient
from headrace.config import Config
from headrace.types import SamplingParams

__all__ = ["LLM", "PARAMS", "FakeAsync", "begin"]

PARAMS = SamplingParams(max_tokens=3)


class FakeAsync(InProcessClient):
    def __init__(self, model: str = "", *, progress: Any = None, delay: float = 0.001, **options: Any) -> None:
        def build(config: Config, progress: Any) -> Any:
            return make_engine(FakeRunner(length=4096, delay=delay), max_model_len=4096, num_blocks=4096)

        super().__init__(Config(), ByteTokenizer(), progress, build)
        self.tokenizer = ByteTokenizer()
        self.places = SequenceLimiter(4096)


headrace.llm.AsyncLLM = FakeAsync  # type: ignore[assignment,misc]
LLM = headrace.llm.LLM


def begin(llm: LLM) -> None:
    """Wait until something runs."""
    while not llm.stats().scheduler.running:
        pass


if "torch" in sys.modules:
    sys.exit("these scripts are to be quick")
