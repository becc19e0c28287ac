"""What the engine offers to the server, the command line and Python: requests in, outputs out.

`EngineClient` has two forms with the same behaviour: the engine in a process of its own (the server) and in this process (`LLM`, `AsyncLLM`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from headrace.engine.stats import EngineStats
from headrace.types import Constraint, SamplingParams

__all__ = [
    "EngineClient",
    "GenerateRequest",
    "LogprobEntry",
    "ModelInfo",
    "Output",
    "Usage",
]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt. `params.n` choices are made of it."""

    id: str
    prompt: tuple[int, ...]
    """Token ids; never empty."""
    params: SamplingParams
    priority: int = 0
    salt: str = ""
    adapter: str = ""
    constraint: Constraint | None = None
    """What the output must look like."""
    echo: bool = False
    """The prompt's text, token ids and (where asked for) logprobs come first, in the first output of each choice."""


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """One token as reported: `token` is valid text (what cannot be decoded alone shows as U+FFFD), `raw` are its bytes."""

    token_id: int
    token: str
    raw: bytes
    logprob: float | None
    """None for the first token of a prompt."""
    rank: int
    top: tuple[tuple[int, str, bytes, float], ...] = ()
    """(id, text, raw bytes, logprob), most likely first."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    """Generated tokens, a stop token included, over all choices so far."""
    cached_tokens: int


@dataclass(slots=True)
class Output:
    """A piece of one choice. The concatenation of `text` over the pieces is the choice's text, whatever the chunking.

    Rule for stops: text ends before a stop string (after it with include_stop_str_in_output); `token_ids` and `logprobs` hold every generated token up to and including the one that completed the stop, and their lengths
    agree; completion_tokens counts them all.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[LogprobEntry] | None = None
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `error`."""
    stop_reason: int | str | None = None
    """The stop token id or the stop string."""
    usage: Usage | None = None
    """Running totals of the request; always set."""
    error: str | None = None
    queue_time: float | None = None
    """Seconds from arrival to the first scheduling; set with the first piece of each choice."""
    prompt_logprobs: list[LogprobEntry] | None = None
    """One entry a prompt token, echoed or not; set with the first piece of each choice where the request asked for them."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a front end must know of the model."""

    name: str
    path: str
    max_model_len: int
    vocab_size: int
    platform: str
    dtype: str
    created: int = 0
    kv_tokens: int | None = None
    """Token places of the KV cache, in which a sequence with all its output but the last token must fit. None: not known."""

    def room(self, prompt_tokens: int) -> int:
        """How many tokens may follow a prompt, by the context and by the cache; below 1 where not even one may."""
        room = self.max_model_len - prompt_tokens
        return room if self.kv_tokens is None else min(room, self.kv_tokens - prompt_tokens + 1)


class EngineClient(Protocol):
    """Thread: the event loop that created it."""

    @property
    def info(self) -> ModelInfo: ...

    async def start(self) -> None:
        """Load the model; returns when ready. Raises the loading error."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        """Stream the choices, interleaved. Closing the iterator aborts what still runs. Raises InvalidRequest, NeverFits and
        Overloaded before the first output; EngineDead when the engine is lost midway."""

    async def abort(self, request_id: str) -> None:
        """By exact id; unknown ids are ignored."""

    async def stats(self) -> EngineStats:
        """The figures; the last known ones during a step that takes long. Raises EngineDead when the engine is dead, restarting or
        hangs, and when its first figures do not come within a second."""

    async def check_health(self) -> None:
        """Raises EngineDead when the engine is dead, restarting or has not made progress for seconds."""

    async def close(self) -> None:
        """Stop the engine; running requests end with `abort`. Twice is harmless."""
