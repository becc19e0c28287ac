"""`LLM` and `AsyncLLM`: the engine in this process, for scripts and for programs with an event loop."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import Self

from headrace.client.api import GenerateRequest, LogprobEntry, ModelInfo, Output, Usage
from headrace.client.in_process import InProcessClient
from headrace.engine.stats import EngineStats
from headrace.errors import EngineDead, InvalidRequest
from headrace.hub.catalogue import resolve_model
from headrace.hub.reference import display_name
from headrace.options import make_config
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer
from headrace.types import SamplingParams

__all__ = ["LLM", "AsyncLLM", "Completion", "RequestOutput"]

T = TypeVar("T")
_CHAT_TOKENS = 512


@dataclass(slots=True)
class Completion:
    """One choice. For text, ids and stops the rule of `engine.api.Output` holds."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[LogprobEntry] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt."""

    prompt: str | None
    """None where token ids were given."""
    prompt_token_ids: list[int]
    outputs: list[Completion]
    prompt_logprobs: list[LogprobEntry] | None = None
    usage: Usage | None = None


class AsyncLLM(InProcessClient):
    """An `engine.api.EngineClient` in this process: `await start()`, then `async for output in generate(request)`."""

    def __init__(
        self,
        model: str = "smollm2",
        *,
        progress: Callable[[str, float], None] | None = None,
        **options: Any,
    ) -> None:
        """`model` is a directory, a .gguf file or a name of the catalogue. `options` are those of `headrace serve` that
        concern the engine, named as in docs/configuration.md (`max_model_len`, `dtype`, `kv_memory`…); None and `auto`
        leave the choice to the engine. Raises ModelNotFound, ConfigError, CheckpointError."""
        config = make_config(model, options)
        path = resolve_model(model)
        self.tokenizer: Tokenizer = load_tokenizer(path, config.model.chat_template)
        model_config = config.model.model_copy(update={"model": str(path)})
        server_config = config.server.model_copy(update={"served_model_name": display_name(model)})
        config = config.model_copy(update={"model": model_config, "server": server_config})
        super().__init__(config, self.tokenizer, progress)


class LLM:
    """A model to call from plain Python. Methods block, and may be called from several threads.

        with LLM("smollm2") as llm:
            print(llm.generate("The capital of France is")[0].outputs[0].text)

    Keyword arguments are the engine's options, as for `AsyncLLM` (docs/configuration.md).
    Raises what loading raises: ModelNotFound, CheckpointError, UnsupportedModel, ConfigError, PlatformError.
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        progress: Callable[[str, float], None] | None = None,
        **options: Any,
    ) -> None:
        self._client = AsyncLLM(model, progress=progress, **options)
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-llm", daemon=True)
        self._thread.start()
        self._finalizer = self._closing()
        try:
            self._run(self._client.start())
        except BaseException:
            self.close()
            raise
        # Once more: when the interpreter ends, the newest finalizer comes first, and the engine must end before its device does.
        self._finalizer.detach()
        self._finalizer = self._closing()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._client.tokenizer

    @property
    def info(self) -> ModelInfo:
        return self._client.info

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """One answer a prompt, in their order, computed together. Prompts are texts or token ids; one may stand alone.

        `params` holds for all, or is one a prompt. Raises InvalidRequest and its kinds for the first prompt that cannot be served (the
        others are then aborted), EngineDead.
        """
        texts, ids = self._encode(prompts)
        return self._run(self._answer_all(texts, ids, _each(params or SamplingParams(), len(ids))))

    def chat(
        self,
        messages: Sequence[dict[str, Any]] | Sequence[Sequence[dict[str, Any]]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The next message of one conversation, or of several. Without `params` at most 512 tokens are generated."""
        talks = [messages] if messages and isinstance(messages[0], dict) else messages
        texts, ids = [], []
        for talk in talks:
            text = self.tokenizer.apply_chat_template(list(talk), tools=tools, kwargs=template_kwargs)  # type: ignore[arg-type]
            texts.append(text)
            ids.append(self.tokenizer.encode(text, add_special_tokens=False))
        if params is None:
            room = [max(1, min(_CHAT_TOKENS, self.info.room(len(prompt)))) for prompt in ids]
            params = [SamplingParams(max_tokens=tokens) for tokens in room]
        return self._run(self._answer_all(texts, ids, _each(params, len(ids))))

    def stats(self) -> EngineStats:
        return self._run(self._client.stats())

    def close(self) -> None:
        """Ends what runs and releases the device. Twice is harmless."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _closing(self) -> weakref.finalize[[AsyncLLM, asyncio.AbstractEventLoop, threading.Thread, int], Self]:
        """Closes when nobody refers to this any more, and when the interpreter ends."""
        return weakref.finalize(self, _close, self._client, self._loop, self._thread, os.getpid())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_open()
        except EngineDead:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            _end_with_the_interpreter()
            raise

    def _check_open(self) -> None:
        """Raises EngineDead."""
        self._client.check_process()
        if self._finalizer.alive:
            return
        _end_with_the_interpreter()
        raise EngineDead("the engine was closed")

    def _encode(
        self, prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
    ) -> tuple[list[str | None], list[list[int]]]:
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]  # type: ignore[assignment]
        texts: list[str | None] = [prompt if isinstance(prompt, str) else None for prompt in prompts]
        ids = [self.tokenizer.encode(p) if isinstance(p, str) else list(p) for p in prompts]  # type: ignore[arg-type]
        return texts, ids

    async def _answer_all(
        self, texts: Sequence[str | None], ids: Sequence[list[int]], params: Sequence[SamplingParams]
    ) -> list[RequestOutput]:
        work = [self._answer(*one) for one in zip(texts, ids, params, strict=True)]
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, text: str | None, ids: list[int], params: SamplingParams) -> RequestOutput:
        answer = RequestOutput(text, ids, [Completion(i) for i in range(params.n)])
        request = GenerateRequest(f"llm-{next(self._numbers)}", tuple(ids), params)
        stream = self._client.generate(request)
        async for output in stream:
            _extend(answer, output)
        return answer


def _end_with_the_interpreter() -> None:
    """Where the interpreter ends, a daemon thread ends with it: an error would only be printed after the script's last word."""
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        threading.Event().wait()


# Handlers at exit run in the reverse order of their registration. Finalizers have one handler, registered with the first of them:
# with this one, so that what a script registers from here on still finds its engine.
weakref.finalize(LLM, lambda: None)


def _extend(answer: RequestOutput, output: Output) -> None:
    choice = answer.outputs[output.index]
    choice.text += output.text
    choice.token_ids += output.token_ids
    if output.logprobs is not None:
        choice.logprobs = [*(choice.logprobs or []), *output.logprobs]
    choice.finish_reason, choice.stop_reason, choice.error = output.finish_reason, output.stop_reason, output.error
    answer.prompt_logprobs = answer.prompt_logprobs or output.prompt_logprobs
    answer.usage = output.usage or answer.usage


def _each(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidRequest(
            f"{count} prompts, but {len(params)} sampling parameters: give one, or one a prompt", "params"
        )
    return list(params)


def _close(client: AsyncLLM, loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    if os.getpid() != process:  # Forked: the threads are the parent's.
        return
    if threading.current_thread() is thread or client.is_own_thread():
        # The collector runs in any thread, and these two cannot wait for themselves.
        threading.Thread(target=_close, args=(client, loop, thread, process), name="headrace-close").start()
        return
    asyncio.run_coroutine_threadsafe(client.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
