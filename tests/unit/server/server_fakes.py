"""A fake engine and a byte tokenizer: enough to drive the server without a model."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import httpx
import numpy as np
from fastapi import FastAPI
from msgspec.structs import replace

from headrace.client.api import GenerateRequest, LogprobEntry, ModelInfo, Output, PromptScores, Usage
from headrace.client.request_outputs import TextStream
from headrace.client.speculation_choice import check_method
from headrace.client.validate import validated
from headrace.config import Config
from headrace.embedding_facts import EmbeddingFacts
from headrace.engine.stats import (
    EngineStats,
    EngineTotals,
    EngineView,
    MethodTotals,
    PrefixView,
    SchedulerView,
    SequenceView,
    SpeculationTotals,
)
from headrace.engine.wire import EngineInfo
from headrace.errors import EngineDead
from headrace.server import create_app
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.conversation import normalize_messages
from headrace.tokenization.template_forms import TemplateForms
from headrace.types import SchedulerStats

VOCAB = 300
BOS = 256
CONTEXT = 100
MODEL = "fake/model"
TOTALS = EngineTotals(12.5, 1.75, 3.5, 9, 0.625, 5000)
FACTS = EmbeddingFacts(4, prompts={"query": "Q:"})
LIMITS = EngineInfo(
    "/nowhere",
    CONTEXT,
    VOCAB,
    (),
    "fake",
    "float32",
    "float32",
    16,
    1 + CONTEXT // 16 + 1,
    8,
    max_num_batched_tokens=64,
)
DRAFTS = SpeculationTotals(0.375, (MethodTotals("ngram", 4, (4, 3), (3, 1)), MethodTotals("predicted", 1, (1,), (0,))))
STATS = EngineStats(
    SchedulerStats(2, 3, 10, 20, 30, 400, 1, 5, 6), 16, 7, 0.5, 0.25, 0.75, totals=TOTALS, speculation=DRAFTS
)
VIEW = EngineView(
    100.0,
    STATS,
    SchedulerView(
        8,
        [
            SequenceView("one#0", "decode", 97.5, 300, 256, 340, 40, 90, 22, 20),
            SequenceView("two#0", "prefill", 99.0, 80, 0, 32, 0, 20, 5, 2),
        ],
        [SequenceView("three#0", "waiting", 99.5, 12, 0, 0, 0, 20, 0, 0)],
        1,
        [0] * 10 + [1] * 20 + [2] * 8 + [4] * 14 + [5] * 5 + [3] * 3,
        [PrefixView(-1, 256, 256, 2, 2, "", False), PrefixView(0, 304, 48, 1, 0, "", True)],
        3,
        False,
    ),
)


class ByteStream:
    """Whole characters as their bytes come."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def unfinished(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id]))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class ByteTokenizer:
    """Token ids are bytes; 256 is the start of a text."""

    eos_token_ids: Sequence[int] = ()
    response_template = None
    named_tokens: ClassVar[dict[str, str]] = {"bos_token": "<s>"}
    template_source = '{{ tools }} <tool_call> "arguments"'

    def __init__(self) -> None:
        self.rendered: list[dict[str, Any]] = []

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def encode_chat(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self.encode(text, add_special_tokens)

    def encode_plain(self, text: str) -> list[int]:
        return self.encode(text, False)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text = bytes(i for i in ids if i < 256).decode(errors="replace")
        return text if skip_special_tokens or BOS not in ids else f"<s>{text}"

    def token_text(self, token_id: int) -> str:
        return "<s>" if token_id == BOS else bytes([token_id]).decode(errors="replace")

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> TextStream:
        return ByteStream()

    async def apply_chat_template_async(self, inputs: ChatInputs) -> str:
        messages = normalize_messages(inputs.messages, TemplateForms())
        call = {"messages": messages, "tools": inputs.tools, "documents": inputs.documents}
        call["generate"] = inputs.add_generation_prompt
        self.rendered.append({**call, "continue": inputs.continue_final_message, "kwargs": inputs.kwargs})
        return "|".join(m["content"] for m in messages) + ">" * inputs.add_generation_prompt


@dataclass
class FakeClient:
    """Answers every prompt with `reply`, one byte per step, and records the requests."""

    reply: str = "Hello"
    hold: int | None = None
    """Tokens after which every stream waits for `go`."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0
    """Streams that have come so far."""
    refuse: Exception | None = None
    """Raised before the first output."""
    fail_after: int | None = None
    """Tokens after which `failure` is raised."""
    failure: Exception = field(default_factory=lambda: EngineDead("the engine died"))
    dead: bool = False
    logprob: float = -0.5
    kv_tokens: int | None = None
    sampling_defaults: dict[str, int | float] = field(default_factory=dict)
    speculate: str | None = None
    """The engine's option."""
    embedding: EmbeddingFacts = FACTS
    drafts: tuple[int, int] = (0, 0)
    """Accepted and rejected ones of every request, from its first token on."""
    requests: list[GenerateRequest] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    """Ids of requests whose stream ended, by itself or because it was closed."""
    completed: list[str] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    stopped: bool = False

    @property
    def info(self) -> ModelInfo:
        known = (MODEL, "/nowhere", CONTEXT, VOCAB, "fake", "float32", 123, self.kv_tokens, self.embedding)
        return ModelInfo(*known, LIMITS.most_rivals, self.sampling_defaults)

    async def start(self) -> None: ...

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        check_method(request.speculation, self.speculate, bool(request.predicted))
        validated(request, replace(LIMITS, embedding=self.embedding))
        self.requests.append(request)
        if self.refuse is not None:
            raise self.refuse
        try:
            total = 0
            tokens = list(self.reply.encode())[: request.params.max_tokens]
            for step in range(len(tokens)):
                await asyncio.sleep(0)
                if step == self.hold:
                    self.held += 1
                    await self.go.wait()
                if step == self.fail_after:
                    raise self.failure
                for index in range(request.params.n):
                    total += 1
                    yield self._output(request, index, tokens[: step + 1], len(tokens) == step + 1, total)
            if not tokens:
                for index in range(request.params.n):
                    yield self._output(request, index, [], True, 0)
            self.completed.append(request.id)
        finally:
            self.closed.append(request.id)

    def _output(self, request: GenerateRequest, index: int, so_far: list[int], last: bool, total: int) -> Output:
        first = len(so_far) <= 1
        prompt = list(request.prompt) if request.echo and first else []
        before = bytes(so_far[:-1]).decode(errors="ignore")
        text = bytes(so_far).decode(errors="ignore")[len(before) :]
        if prompt:
            text = ByteTokenizer().decode(prompt, request.params.skip_special_tokens) + text
        scored = None
        if first and request.params.prompt_logprobs is not None:
            scored = [self._entry(t, i == 0) for i, t in enumerate(request.prompt)]
        scores = None
        if scored is not None and request.rivals is not None:
            own = len(request.prompt) - request.params.prompt_logprobs_start
            scores, scored = PromptScores([self.logprob] * own, [self.logprob] * len(request.rivals)), None
        entries = list(scored or ()) if request.echo else []
        if request.params.logprobs is not None:
            entries += [self._entry(t, False, request.params.logprob_token_ids) for t in so_far[-1:]]
        full = len(so_far) == request.params.max_tokens
        return Output(
            index,
            text,
            prompt + so_far[-1:],
            entries or None,
            ("length" if full else "stop") if last else None,
            None if full or not last else 7,
            Usage(len(request.prompt), total, 3, *self.drafts),
            queue_time=0.01 if first else None,
            prompt_logprobs=scored,
            embedding=None if request.pooling is None else pooled_bytes(request.prompt, request.pooling),
            scores=scores,
        )

    def _entry(self, token: int, first: bool, named: Sequence[int] = ()) -> LogprobEntry:
        """A named token's logprob is minus its id."""
        text, raw = ByteTokenizer().token_text(token), bytes([token]) if token < 256 else b"<s>"
        if named:
            top = tuple((t, ByteTokenizer().token_text(t), bytes([t]), float(-t)) for t in named)
            return LogprobEntry(token, text, raw, self.logprob, 1, top)
        top = ((token, text, raw, self.logprob), (0xFF, "\ufffd", b"\xff", -2.0), (0xFE, "\ufffd", b"\xfe", -3.0))
        return LogprobEntry(token, text, raw, None if first else self.logprob, 1, () if first else top)

    async def abort(self, request_id: str) -> None: ...

    async def stats(self) -> EngineStats:
        await self.check_health()
        return STATS

    async def view(self) -> EngineView:
        await self.check_health()
        return VIEW

    def park(self, request_id: str) -> None:
        self.parked.append(request_id)

    def release(self, request_ids: Sequence[str]) -> None:
        self.released += request_ids

    async def check_health(self) -> None:
        if self.dead:
            raise EngineDead("the engine does not answer")

    async def close(self) -> None:
        self.stopped = True


def pooled_bytes(prompt: Sequence[int], pooling: str) -> bytes:
    """The fake hidden states: the sum of the ids, their number, the last one, and the way of pooling."""
    values = [sum(prompt), len(prompt), prompt[-1], 1.0 if pooling == "mean" else 0.0]
    return np.array(values, "<f4").tobytes()


@dataclass
class Served:
    """An application around a fake engine, with a client that calls it directly."""

    engine: FakeClient
    tokenizer: ByteTokenizer
    app: FastAPI
    http: httpx.AsyncClient

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.post("/v1/completions", **{"model": MODEL, "prompt": "Hi", **body})

    async def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "Hi"}]
        return await self.post("/v1/chat/completions", **{"model": MODEL, "messages": messages, **body})


def serve_fake(config: Config | None = None, **engine: Any) -> Served:
    fake, tokenizer = FakeClient(**engine), ByteTokenizer()
    app = create_app(fake, tokenizer, config or Config())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return Served(fake, tokenizer, app, httpx.AsyncClient(transport=transport, base_url="http://server"))


def sdk_http(sdk: Any, served: Served) -> Any:
    """A client of the HTTP library that an SDK is built on, which calls the application directly."""
    roots = {base.__module__.partition(".")[0] for base in sdk.DefaultAsyncHttpxClient.__mro__}
    library = import_module("httpx2" if "httpx2" in roots else "httpx")
    transport = library.ASGITransport(served.app, raise_app_exceptions=False)
    return library.AsyncClient(transport=transport, base_url="http://server")


def with_key(key: str | None) -> Config:
    base = Config()
    return base.model_copy(update={"server": base.server.model_copy(update={"api_key": key})})


def events(response: httpx.Response) -> list[Any]:
    """The events of a stream, decoded; checks the framing and that `[DONE]` ends it."""
    import json

    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks[-1] == ""
    assert blocks[-2] == "data: [DONE]"
    assert all(block.startswith("data: ") for block in blocks[:-1])
    return [json.loads(block[6:], parse_constant=_no_constant) for block in blocks[:-2]]


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def fault(response: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    """The error object of an OpenAI-shaped answer, checked."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if param is not None:
        assert error["param"] == param, error
    return error
