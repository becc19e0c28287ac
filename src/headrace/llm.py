"""`LLM` and `AsyncLLM`: the engine in this process, for scripts and for programs with an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import Self

from headrace.client.api import GenerateRequest, ModelInfo
from headrace.client.batch import Completion, RequestOutput, SequenceLimiter, answer_all
from headrace.client.embedding_jobs import EmbeddingOptions, embedding_request, prompt_text, vector_of
from headrace.client.in_process_client import InProcessClient
from headrace.client.prompts import Prompt, params_per_prompt, read_prompts
from headrace.client.scoring import Encoders, PairAnswer, ScoreMethod, ScoreOptions, pairs_of, score_job
from headrace.client.speculation_choice import SpeculationChoice, read_predictions
from headrace.client.stops import special_stops
from headrace.embedding_facts import Floats, Pooling
from headrace.engine.stats import EngineStats
from headrace.errors import EngineDead, HeadraceError, InvalidRequest
from headrace.hub.catalogue import resolve_drafter, resolve_model
from headrace.hub.model_reference import display_name
from headrace.lang.backend import Backend
from headrace.lang.running import Runnable, RunResult
from headrace.options import make_config
from headrace.programs import EngineBackend
from headrace.programs.model_texts import ModelTexts
from headrace.progress import generating_bar
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.quoting import without_marks
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer
from headrace.types import SamplingParams

__all__ = ["LLM", "AsyncLLM", "Completion", "RequestOutput"]

T = TypeVar("T")
_CHAT_TOKENS = 512


class AsyncLLM(InProcessClient):
    """A `client.api.EngineClient` in this process: `await start()`, then `async for output in generate(request)`."""

    def __init__(
        self,
        model: str = "smollm2",
        *,
        progress: Callable[[str, float], None] | None = None,
        **options: Any,
    ) -> None:
        """`model` is a directory, a .gguf file or a catalogue name. `options` are the engine options of `headrace
        serve`, named as in docs/configuration.md (`max_model_len`, `dtype`, `kv_memory`…); with None and `auto` the
        engine chooses the value. Raises ModelNotFound, ConfigError, CheckpointError."""
        config = make_config(model, options)
        path = resolve_model(model)
        self.tokenizer: Tokenizer = load_tokenizer(path, config.model.chat_template)
        model_config = config.model.model_copy(update={"model": str(path)})
        server_config = config.server.model_copy(update={"served_model_name": display_name(model)})
        scheduler_config = config.scheduler.with_draft_model(
            lambda name, is_model: resolve_drafter(name, is_model, resolve_model)
        )
        config = config.model_copy(
            update={"model": model_config, "server": server_config, "scheduler": scheduler_config}
        )
        super().__init__(config, self.tokenizer, progress)
        self.places = SequenceLimiter(config.scheduler.max_waiting)
        """Sequences of `LLM` and of programs that are in the engine at once."""
        self._program_texts = ModelTexts(self.tokenizer)

    def program_backend(self) -> EngineBackend:
        """For one or more programs of `headrace.lang`. Thread: this client's event loop."""
        return EngineBackend(self, self.tokenizer, self.places, texts=self._program_texts)

    @contextlib.asynccontextmanager
    async def open_backend(self) -> AsyncIterator[EngineBackend]:
        """For programs of `headrace.lang`: `await program.arun(…, on=async_llm)`."""
        yield self.program_backend()


class LLM:
    """A model for plain Python programs. Methods block, and may be called from several threads.

        with LLM("smollm2") as llm:
            print(llm.generate("The capital of France is")[0].outputs[0].text)

    Keyword arguments are the engine's options, as for `AsyncLLM` (docs/configuration.md).
    Raises the errors of loading: ModelNotFound, CheckpointError, UnsupportedModel, ConfigError, PlatformError.
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
        self._finalizer = self._make_finalizer()
        try:
            self._run(self._client.start())
        except BaseException:
            self.close()
            raise
        # Registered again: when the interpreter ends, the newest finalizer runs first, and the engine must end before
        # its device.
        self._finalizer.detach()
        self._finalizer = self._make_finalizer()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._client.tokenizer

    @property
    def info(self) -> ModelInfo:
        return self._client.info

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        predictions: str | Sequence[str | Sequence[int] | None] | None = None,
        speculation: bool | Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """One answer for each prompt, in the order of the prompts, which are computed together.

        A prompt is a text, a list or array of token ids, or a dict with one of both as `prompt` or `prompt_token_ids`.
        A single prompt needs no list. There may be any number: they enter the engine's queue when it has room. `params`
        applies to all prompts, or is a list with one for each prompt; None is what the checkpoint recommends
        (`info.sampling_defaults`, of its generation_config.json), which given parameters do not inherit.

        `predictions` are what the answers are expected to repeat, for speculative decoding: a text for all prompts, or
        a list with a text, token ids or None for each. `speculation` is False (no drafts) or a mapping of `method` and
        `max_tokens`, the most drafts of a step. Both change nothing but the speed.

        `progress` draws a bar on a terminal's stderr; None: only for more than one prompt.

        All prompts are checked before the first is computed: raises InvalidRequest and its subclasses for the first
        invalid one, and later for a request that turns out to contradict itself (a constraint that cannot be enforced,
        bans that leave no token). A prompt that fails later for another reason has an answer with the error
        (`finish_reason` is `error`, and `error` has the reason), and the other prompts have their answers. Raises
        EngineDead.
        """
        self._check_open()
        texts, ids = read_prompts(prompts, self.tokenizer.encode)
        drafts = self._drafts(predictions, speculation, len(ids))
        chosen = params_per_prompt(params, len(ids), self.info.sampling_defaults)
        return self._answer(texts, ids, chosen, drafts, progress)

    def chat(
        self,
        messages: Sequence[dict[str, Any]] | Sequence[Sequence[dict[str, Any]]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
        predictions: str | Sequence[str | Sequence[int] | None] | None = None,
        speculation: bool | Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """The next message of one conversation, or of several. Without `params` at most 512 tokens are generated, with
        the checkpoint's sampling; for errors and the other arguments see `generate`."""
        talks = _conversations(messages)
        texts: list[str | None] = []
        ids: list[list[int]] = []
        for talk in talks:
            text = self.tokenizer.apply_chat_template(ChatInputs(talk, tools, kwargs=template_kwargs))
            texts.append(without_marks(text))
            ids.append(self.tokenizer.encode_chat(text))
        if params is None:
            room = [max(1, min(_CHAT_TOKENS, self.info.room(len(prompt)))) for prompt in ids]
            (chosen,) = params_per_prompt(None, 1, self.info.sampling_defaults)
            params = [replace(chosen, max_tokens=tokens) for tokens in room]
        drafts = self._drafts(predictions, speculation, len(ids))
        return self._answer(texts, ids, params_per_prompt(params, len(ids)), drafts, progress)

    def embed(
        self,
        inputs: Prompt | Iterable[Prompt],
        *,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        progress: bool | None = None,
    ) -> list[Floats]:
        """One vector, float32 [dimensions], for each input, in their order. Inputs are as the prompts of `generate`.

        `pooling` is `last` or `mean`, over the hidden states of the tokens; `normalize`: vectors have length 1;
        `prompt_name`: one of the checkpoint's prompts, which stands before each text. With None the checkpoint decides;
        if it is no embedding model, the last token is pooled and vectors have length 1. Raises InvalidRequest, and
        EngineDead.
        """
        self._check_open()
        options = EmbeddingOptions(pooling, dimensions, normalize, prompt_name)
        options.check(self.info.embedding)
        before = prompt_text(self.info.embedding, prompt_name)
        _, ids = read_prompts(inputs, lambda text: self.tokenizer.encode(before + text))
        jobs = [embedding_request(one, self._name(), options, self.info, self.tokenizer.encode) for one in ids]
        answers = self._answer_jobs(jobs, "inputs", progress)
        return [vector_of(one.outputs[0].pooled or b"", options, self.info.embedding) for one in answers]

    def score(
        self,
        queries: str | Sequence[str],
        documents: str | Sequence[str],
        *,
        method: ScoreMethod | None = None,
        instruction: str | None = None,
        progress: bool | None = None,
    ) -> list[float]:
        """How well each document fits its query, or all of them the only one.

        `method` is `cosine` (of embeddings), `head` (the checkpoint's classifier) or `yes_no` (the probability that the
        model answers yes, for which `instruction` says what fits); None: as the checkpoint is made. Raises
        InvalidRequest, and EngineDead.
        """
        self._check_open()
        pairs = pairs_of(queries, documents, ("queries", "documents"))
        encoders = Encoders(self.tokenizer.encode, self.tokenizer.encode_plain)
        job = score_job(pairs, self._name(), ScoreOptions(method, instruction, prompts=True), self.info, encoders)
        answers = self._answer_jobs(job.requests, "documents", progress)
        return job.scores([PairAnswer(one.outputs[0].pooled, one.scores) for one in answers])

    def run(
        self,
        program: Runnable,
        *args: Any,
        seed: int | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        **kwargs: Any,
    ) -> RunResult:
        """Run a program of `headrace.lang` with its arguments; the same as `program.run(…, on=llm)`."""
        return program.run(*args, on=self, seed=seed, tools=tools, **kwargs)

    def run_with_backend(self, work: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        """Run on this model's event loop what `headrace.lang` gives."""
        self._check_open()
        return self._run(work(self._client.program_backend()))

    def stats(self) -> EngineStats:
        return self._run(self._client.stats())

    def close(self) -> None:
        """End running requests and release the device. A second call has no effect."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_finalizer(self) -> weakref.finalize[[AsyncLLM, asyncio.AbstractEventLoop, threading.Thread, int], Self]:
        """A finalizer that closes the engine when this object is no longer referenced or the interpreter ends."""
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

    def _answer(
        self,
        texts: Sequence[str | None],
        ids: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        drafts: tuple[list[tuple[int, ...] | None], SpeculationChoice],
        progress: bool | None,
    ) -> list[RequestOutput]:
        requests = [
            GenerateRequest(
                self._name(),
                tuple(prompt),
                self._with_special_stops(one),
                predicted=predicted or (),
                speculation=drafts[1].of_prediction(predicted),
            )
            for prompt, one, predicted in zip(ids, params, drafts[0], strict=True)
        ]
        for index, request in enumerate(requests):
            self._check(request, f"prompts[{index}]: " if len(requests) > 1 else "")
        shown = len(requests) > 1 if progress is None else progress
        with generating_bar(len(requests), shown) as report:
            answers = self._run(answer_all(self._client, requests, self._client.places, report))
        for answer, text in zip(answers, texts, strict=True):
            answer.prompt = text
        return answers

    def _answer_jobs(
        self, requests: Sequence[GenerateRequest], what: str, progress: bool | None
    ) -> list[RequestOutput]:
        """The answers to requests that generate nothing. Raises the first error."""
        for index, request in enumerate(requests):
            self._check(request, f"{what}[{index}]: " if len(requests) > 1 else "")
        with generating_bar(len(requests), len(requests) > 1 if progress is None else progress) as report:
            answers = self._run(answer_all(self._client, requests, self._client.places, report))
        for answer in answers:
            if answer.outputs[0].error is not None:
                raise HeadraceError(answer.outputs[0].error)
        return answers

    def _name(self) -> str:
        return f"llm-{next(self._numbers)}"

    def _drafts(
        self, predictions: object, speculation: object, count: int
    ) -> tuple[list[tuple[int, ...] | None], SpeculationChoice]:
        def encode(text: str) -> list[int]:
            return self.tokenizer.encode(text, add_special_tokens=False)

        return read_predictions(predictions, count, encode), SpeculationChoice.of(speculation)

    def _with_special_stops(self, params: SamplingParams) -> SamplingParams:
        """Add the special tokens whose text is a stop string: if the output leaves special tokens out, it never has
        their text, so the token itself must stop."""
        if not params.stop or not params.skip_special_tokens:
            return params
        found = special_stops(params.stop, self.tokenizer)
        return replace(params, stop_token_ids=params.stop_token_ids + found) if found else params

    def _check(self, request: GenerateRequest, where: str) -> None:
        try:
            self._client.check(request)
        except InvalidRequest as error:
            error.args = (f"{where}{error}",)
            raise


def _end_with_the_interpreter() -> None:
    """Block a daemon thread while the interpreter ends: an error would only be printed after the script's output."""
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        threading.Event().wait()


# Handlers at exit run in the reverse order of their registration. All finalizers have one handler, which is registered
# with the first finalizer: with this one, so that the engine still runs when a script's own handlers are called.
weakref.finalize(LLM, lambda: None)


def _close(client: AsyncLLM, loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    if os.getpid() != process:  # Forked: the threads are the parent's.
        return
    if threading.current_thread() is thread or client.is_own_thread():
        # The garbage collector runs in any thread, and these two threads cannot wait for themselves.
        threading.Thread(target=_close, args=(client, loop, thread, process), name="headrace-close").start()
        return
    asyncio.run_coroutine_threadsafe(client.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def _conversations(messages: object) -> list[list[Mapping[str, Any]]]:
    """One conversation or several, as lists of messages. Raises InvalidRequest for another shape."""
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        talks = [messages] if messages and isinstance(messages[0], Mapping) else messages
        if all(isinstance(talk, Sequence) and all(isinstance(one, Mapping) for one in talk) for talk in talks):
            return [list(talk) for talk in talks]
    raise InvalidRequest(
        '`messages` takes a list of messages such as {"role": "user", "content": …}, or a list of such lists',
        "messages",
        "invalid_value",
    )
