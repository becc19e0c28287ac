"""A model in this process. Its event loop runs on another thread, so that Ctrl-C interrupts the thread that reads."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace.cli.command_options import CHAT_TEMPERATURE, with_whitespace
from headrace.cli.pieces import Pieces
from headrace.client.api import GenerateRequest
from headrace.errors import EngineDead
from headrace.llm import AsyncLLM
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.types import SamplingParams

__all__ = ["LocalSource"]

T = TypeVar("T")


class LocalSource:
    """A `text_sources.TextSource`."""

    is_remote = False

    def __init__(
        self,
        model: Path,
        options: Mapping[str, Any],
        progress: Callable[[str, float], None] | None = None,
        name: str | None = None,
    ) -> None:
        """`name`: what the header calls the model; default: that of its file."""
        self._name = name
        self._count = 0
        self._tokens: int | None = None
        self._finish: str | None = None
        self._llm = AsyncLLM(str(model), progress=progress, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-cli", daemon=True)
        self._thread.start()
        try:
            self._wait(self._llm.start())
        except BaseException:
            self.close()
            raise

    @property
    def header(self) -> str:
        info = self._llm.info
        sampling = "".join(f", {name} {value:g}" for name, value in info.sampling_defaults.items())
        name, context = self._name or info.name, info.max_model_len
        return f"{name} on {info.platform}, {info.dtype}, {context} tokens of context{sampling}"

    @property
    def tokens(self) -> int | None:
        return self._tokens

    @property
    def finish_reason(self) -> str | None:
        return self._finish

    def models(self) -> Sequence[str]:
        return ()

    def complete(self, prompt: str, params: Mapping[str, Any]) -> Pieces:
        return self._stream(self._llm.tokenizer.encode(prompt), params)

    def chat(self, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> Pieces:
        text = self._llm.tokenizer.apply_chat_template(ChatInputs(messages))
        chosen = {"temperature": CHAT_TEMPERATURE, **self._llm.info.sampling_defaults, **params}
        return self._stream(self._llm.tokenizer.encode_chat(text), chosen)

    def close(self) -> None:
        self._wait(self._llm.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _stream(self, prompt: list[int], params: Mapping[str, Any]) -> Pieces:
        self._count += 1
        self._tokens = self._finish = None
        room = self._llm.info.room(len(prompt))
        limited = {**with_whitespace(params), "max_tokens": max(1, min(params["max_tokens"], room))}
        request = GenerateRequest(f"cli-{self._count}", tuple(prompt), SamplingParams(**limited))
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        feeding = asyncio.run_coroutine_threadsafe(self._feed(request, pieces), self._loop)
        try:
            while (piece := pieces.get()) is not None:
                yield piece
            feeding.result()
        finally:
            feeding.cancel()

    async def _feed(self, request: GenerateRequest, pieces: queue.SimpleQueue[str | None]) -> None:
        try:
            async with contextlib.aclosing(self._llm.generate(request)) as outputs:  # type: ignore[type-var]
                async for output in outputs:
                    if output.usage is not None:
                        self._tokens = output.usage.completion_tokens
                    self._finish = output.finish_reason or self._finish
                    pieces.put(output.text)
                    if output.error is not None:
                        raise EngineDead(output.error)
        finally:
            pieces.put(None)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
