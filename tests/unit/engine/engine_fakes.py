"""A tokenizer of bytes, and a runner that computes tokens with numpy: an engine without torch and without a model."""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from headrace.client.api import GenerateRequest
from headrace.client.in_process_client import InProcessClient
from headrace.config import Config
from headrace.core import CoreConfig, Scheduler
from headrace.engine.core_loop import EngineCore
from headrace.engine.drafting import Drafting
from headrace.engine.wire import EngineInfo
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.types import NO_TOKEN, Delta, SamplingParams, StepPlan, StepResult, TokenLogprobs

BOS, EOS = 256, 257
VOCAB = 300


class ByteStream:
    def __init__(self, skip: bool) -> None:
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def unfinished(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        if token_id < 256:
            return self._decoder.decode(bytes([token_id]))
        return "" if self._skip else f"<{token_id}>"

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """Token ids are bytes; those from 256 on are special."""

    def __init__(self, eos_token_ids: Sequence[int] = ()) -> None:
        self.eos_token_ids = eos_token_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else f"<{token_id}>".encode()

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> ByteStream:
        return ByteStream(skip_special_tokens)


class ChatTokenizer(ByteTokenizer):
    """With a template. Bytes that are no UTF-8 become others in text, as with any vocabulary of bytes."""

    async def apply_chat_template_async(self, inputs: ChatInputs) -> str:
        texts = [f"<{one['role'][0]}>{one['content']}" for one in inputs.messages]
        return "".join(texts) + "<a>" * inputs.add_generation_prompt

    def encode_chat(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self.encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(one for one in ids if one < 256).decode(errors="replace")


INFO = EngineInfo("/nowhere", 128, VOCAB, (EOS,), "fake", "float32", "float32", 4, 64, 8)


def make_request(
    text: str | tuple[int, ...] = "ab", id: str = "r", echo: bool = False, **params: Any
) -> GenerateRequest:
    prompt = tuple(text.encode()) if isinstance(text, str) else text
    return GenerateRequest(id, prompt, SamplingParams(**{"max_tokens": 16, **params}), echo=echo)


def scored(token: int, k: int = 2) -> TokenLogprobs:
    return TokenLogprobs(token, -token / 100, 1 + token % 3, tuple((token + i, -float(i)) for i in range(k)))


def delta(text: str | bytes | list[int] = "", logprobs: bool = False, **fields: Any) -> Delta:
    ids = text if isinstance(text, list) else list(text.encode() if isinstance(text, str) else text)
    return Delta("r#0", ids, [scored(i) for i in ids] if logprobs else None, **fields)


def next_token(previous: int, position: int, seed: int, vocab: int = 256) -> int:
    """The token of the fake model after `previous`, at `position`."""
    return (previous * 7 + position * 13 + seed % 101 + 5) % vocab


@dataclass
class FakeRunner:
    """Executes plans on a numpy history, as a device would: in order, and only when asked for the result."""

    slots: int = 8
    length: int = 129
    delay: float = 0.0
    """Seconds that a step takes."""
    vocab: int = 256
    fail: Callable[[StepPlan], Exception | None] = lambda plan: None
    steps: int = 0
    history: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.history = np.zeros((self.slots, self.length), np.int32)

    def launch(self, plan: StepPlan) -> FakeLaunched:
        self.steps += 1
        return FakeLaunched(self, plan, time.monotonic() + self.delay)

    def recover(self) -> bool:
        return False

    def where_not_finite(self, tokens: Sequence[int]) -> str:
        return f"looked at {list(tokens)}"

    def run(self, plan: StepPlan) -> StepResult:
        error = self.fail(plan)
        if error is not None:
            raise error
        self.history[plan.history_slots, plan.history_positions] = plan.history_tokens
        seq = np.arange(plan.num_seqs).repeat(np.diff(plan.query_start))
        known = self.history[plan.slots[seq], plan.positions]
        ids = np.where(plan.token_ids == NO_TOKEN, known, plan.token_ids)
        self.history[plan.slots[seq], plan.positions] = ids
        tokens, scores = np.full(plan.num_rows, NO_TOKEN, np.int32), np.zeros(plan.num_rows, np.float32)
        for row in range(plan.num_rows):
            at = plan.rows[row]
            target = plan.row_target[row]
            token = int(target)
            if target == NO_TOKEN:
                seed = int(plan.sampling.seed[row])
                token = next_token(int(ids[at]), int(plan.positions[at]) + 1, seed, self.vocab)
                tokens[row] = token
                self.history[plan.slots[plan.row_seq[row]], plan.positions[at] + 1] = token
            scores[row] = -(token + int(plan.positions[at])) / 10
        if plan.sampling.num_logprobs < 0:
            return StepResult(tokens)
        k = plan.sampling.num_logprobs
        top = np.arange(k, dtype=np.int32)[None].repeat(plan.num_rows, 0)
        return StepResult(tokens, scores, np.ones(plan.num_rows, np.int32), top, -top.astype(np.float32))


@dataclass
class HeldRunner(FakeRunner):
    """Stands still once request `held` has come to its eighth token, until it is released: it is under way for as long
    as a test wants it to be."""

    held: str = "r"
    go: threading.Event = field(default_factory=threading.Event)

    def run(self, plan: StepPlan) -> StepResult:
        ends = zip(plan.request_ids, plan.positions[plan.query_start[1:] - 1], strict=True)
        if any(name.startswith(f"{self.held}#") and position >= 8 for name, position in ends):
            assert self.go.wait(600)
        return super().run(plan)


@dataclass
class FakeLaunched:
    runner: FakeRunner
    plan: StepPlan
    ready: float

    def sample(self) -> None:
        assert self.plan.split

    def done(self) -> bool:
        return time.monotonic() >= self.ready

    def result(self) -> StepResult:
        time.sleep(max(0.0, self.ready - time.monotonic()))
        return self.runner.run(self.plan)


@dataclass
class FakeEngine:
    """A `service.BuiltEngine` on the real scheduler and the fake runner."""

    core: EngineCore
    info: EngineInfo
    runner: FakeRunner
    scheduler: Scheduler
    closed: bool = False

    def close(self) -> None:
        self.closed = True


def make_engine(runner: FakeRunner | None = None, drafting: Drafting | None = None, **sizes: Any) -> FakeEngine:
    defaults = {
        "num_blocks": 64,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
        "max_model_len": 128,
    }
    config = CoreConfig(**{**defaults, "vocab_size": VOCAB, **sizes})
    runner = runner or FakeRunner(config.max_num_seqs, config.max_model_len)
    scheduler = Scheduler(config, drafting)
    core = EngineCore(scheduler, runner, config.max_num_seqs, config.block_size, drafting=drafting)
    shared = ("max_model_len", "num_blocks", "max_num_seqs", "max_num_batched_tokens")
    info = msgspec.structs.replace(INFO, **{name: getattr(config, name) for name in shared})
    return FakeEngine(core, info, runner, scheduler)


@asynccontextmanager
async def in_process(engine: FakeEngine | None = None, config: Config | None = None) -> AsyncIterator[InProcessClient]:
    """A client of the engine, which is closed in any case."""
    made = engine or make_engine()
    found = InProcessClient(config or Config(), ByteTokenizer(), build=lambda config, progress: made)
    await found.start()
    try:
        yield found
    finally:
        if isinstance(made.runner, HeldRunner):
            made.runner.go.set()
        await found.close()
    assert made.closed


def expected(prompt: tuple[int, ...], count: int, seed: int = 0, vocab: int = 256) -> list[int]:
    """The text that the fake model generates."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids[-1], len(ids), seed, vocab))
    return ids[len(prompt) :]
