"""The engine's interface for the server, the command line and Python: requests in, outputs out.

`EngineClient` has two implementations with the same behaviour: the engine in a separate process (the server) and in
this process (`LLM`, `AsyncLLM`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.client.cache_feed import CacheFeed
from headrace.client.speculation_choice import SpeculationChoice
from headrace.embedding_facts import NO_EMBEDDINGS, EmbeddingFacts, Pooling
from headrace.engine.profiling import ProfileReport
from headrace.engine.stats import EngineStats, EngineView
from headrace.engine.wire import TransferInfo
from headrace.types import Constraint, RemoteBlocks, SamplingParams

__all__ = [
    "EngineClient",
    "GenerateRequest",
    "LogprobEntry",
    "ModelInfo",
    "Output",
    "PromptScores",
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
    """The constraint on the output."""
    echo: bool = False
    """The first output of each choice starts with the prompt's text, token ids and, if requested, logprobs."""
    predicted: tuple[int, ...] = ()
    """Tokens that the caller expects as the output: drafts of speculative decoding."""
    speculation: SpeculationChoice = field(default_factory=SpeculationChoice)
    keep: bool = False
    """Its one choice stays open in the engine after its end, until another request extends it or it is released."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """`params.bad_words` as tokens; the client sets it."""
    pooling: Pooling | None = None
    """The answer is the prompt's pooled hidden states, and nothing is generated: `params.max_tokens` is 0."""
    extends: str = ""
    """Id of an open request whose tokens this prompt goes on with. If it is not open any more, nothing changes but
    what must be computed."""
    gives_blocks: bool = False
    """The full blocks of its prompt are put where other engines can fetch them."""
    remote: RemoteBlocks | None = None
    """Where its first blocks can be fetched."""
    whole: bool = False
    """The answer comes in one piece, at its end, unless the client must look for stop strings."""
    since: float | None = None
    """Monotonic seconds: the place in the queue is that of a request which came then. None: now."""
    turn: tuple[int, ...] = ()
    """The place among the requests with the same `since` and priority: the lowest runs first."""
    then: GenerateRequest | None = None
    """What will probably be asked next, with this one's id as `extends`; its prompt is what follows the tokens of this
    one, and its `prompt_logprobs_start` counts from there. The engine begins it at this one's end. If the next request
    that extends this one is the same, it takes over what was begun; any other ends it, as does releasing this one."""
    rivals: tuple[int, ...] | None = None
    """Tokens to score in the place of the prompt's token `prompt_logprobs_start`, besides its own: at most
    `ModelInfo.rivals`. Not None: the output has `scores` instead of `prompt_logprobs`."""


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """One reported token. `token` is valid text (bytes that cannot be decoded alone become U+FFFD), `raw` are its
    bytes."""

    token_id: int
    token: str
    raw: bytes
    logprob: float | None
    """None for the first token of a prompt, and for those before `prompt_logprobs_start`."""
    rank: int
    top: tuple[tuple[int, str, bytes, float], ...] = ()
    """(id, text, raw bytes, logprob), most likely first."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    """Tokens generated so far for all choices, including a stop token."""
    cached_tokens: int
    accepted_drafts: int = 0
    """Drafts of speculative decoding that became tokens of the output, so far and for all choices."""
    rejected_drafts: int = 0
    """Drafts that were verified in vain; they are in no other count."""


class PromptScores(NamedTuple):
    """Logprobs alone, for requests that need nothing else."""

    own: list[float]
    """Of the prompt's tokens from `prompt_logprobs_start` on; 0 for the first token of all."""
    rivals: list[float]


@dataclass(slots=True)
class Output:
    """A piece of one choice. The texts of all pieces together are the choice's text, independently of the chunking.

    Rule for stops: text ends before a stop string (after it with include_stop_str_in_output). `token_ids` and
    `logprobs` have the same length: every generated token up to and including the one that completed the stop.
    completion_tokens counts all of them.
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
    request_fault: bool = False
    """The error is the request's own, not the engine's: the same request would fail again."""
    queue_time: float | None = None
    """Seconds from arrival to the first scheduling; set in the first piece of each choice."""
    prompt_logprobs: list[LogprobEntry] | None = None
    """One entry per prompt token, echoed or not; set in the first piece of each choice if the request asked for
    them."""
    embedding: bytes | None = None
    """The pooled hidden states of a request with `pooling`: float32 [hidden], little-endian."""
    scores: PromptScores | None = None
    """Set in the first piece if the request has `rivals`."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The facts about the model that a front end needs."""

    name: str
    path: str
    max_model_len: int
    vocab_size: int
    platform: str
    dtype: str
    created: int = 0
    kv_tokens: int | None = None
    """Tokens that fit in the KV cache. A sequence with its output, except the last token, must fit. None: unknown."""
    embedding: EmbeddingFacts = NO_EMBEDDINGS
    rivals: int = 0
    """The most `rivals` of a request."""
    sampling_defaults: Mapping[str, int | float] = field(default_factory=dict)
    """Sampling parameters of requests that state none, by name: what the checkpoint recommends."""
    layout_id: bytes = b""
    """Equal for engines whose KV blocks hold the same bytes for the same tokens."""
    block_size: int = 0
    """Tokens per KV block."""
    max_num_seqs: int = 0
    transfer: TransferInfo | None = None
    """How other engines fetch blocks from this one; None: not at all."""

    def room(self, prompt_tokens: int) -> int:
        """The number of tokens that may follow a prompt, by context and cache; below 1 if not even one may."""
        room = self.max_model_len - prompt_tokens
        return room if self.kv_tokens is None else min(room, self.kv_tokens - prompt_tokens + 1)


class EngineClient(Protocol):
    """Thread: the event loop that created it."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def cache_feed(self) -> CacheFeed:
        """The changes of the engine's prefix cache."""

    async def start(self) -> None:
        """Load the model; returns when ready. Raises the loading error."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        """Stream the pieces of all choices, interleaved. Closing the iterator aborts the choices that still run. Raises
        InvalidRequest, NeverFits and Overloaded before the first output, and EngineDead if the engine is lost later."""

    async def abort(self, request_id: str) -> None:
        """Abort the request with this exact id; unknown ids are ignored."""

    def park(self, request_id: str) -> None:
        """Let an open request give up its place; its tokens stay in the cache until it is released, unless the memory
        is needed. For several requests that go on with its tokens."""

    def release(self, request_ids: Sequence[str]) -> None:
        """Let go of open and parked requests; unknown ids are ignored."""

    async def stats(self) -> EngineStats:
        """The engine's stats; the last known ones during a long step. Raises EngineDead if the engine is dead,
        restarting or hangs, and if its first stats don't arrive within a second."""

    async def view(self) -> EngineView:
        """A look into the engine, made for this call; as `stats` in all else."""

    async def flush_cache(self) -> int:
        """Empty the prefix cache; returns how many of its blocks are free now. Those that running requests use stay
        with them. Raises as `stats`."""

    async def start_profile(self, folder: str, steps: int) -> None:
        """Begin a profile of the engine's steps in a new file of `folder`; it ends by itself after so many. Raises
        InvalidRequest if one runs or the platform has none, ConfigError for the folder; in all else as `stats`."""

    async def stop_profile(self) -> ProfileReport:
        """End it; returns its file once that is complete. Raises InvalidRequest if there is none; in all else as
        `stats`."""

    async def check_health(self) -> None:
        """Raises EngineDead if the engine is dead, restarting or has made no progress for seconds."""

    async def close(self) -> None:
        """Stop the engine; running requests end with `abort`. Calling it twice is harmless."""
