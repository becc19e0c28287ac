"""What the interpreter of plans needs of a model: an endpoint over HTTP, or an engine in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from headrace.lang.conversation import Conversation, Tail

__all__ = [
    "Backend",
    "Expected",
    "Generated",
    "ModelSource",
    "PlanReply",
    "PlanRunner",
    "Prioritisable",
    "RunBackend",
    "RunScope",
    "Scores",
    "TokenCounts",
]


@dataclass(slots=True)
class TokenCounts:
    """Tokens of one request, or of a run."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    requests: int = 0
    encoded_tokens: int = 0
    """Prompt tokens that were made of text for it; the others were known as tokens."""

    def add(self, other: TokenCounts) -> None:
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cached_tokens += other.cached_tokens
        self.requests += other.requests
        self.encoded_tokens += other.encoded_tokens


@dataclass(slots=True)
class Generated:
    text: str
    finish_reason: str | None
    usage: TokenCounts = field(default_factory=TokenCounts)
    logprobs: Any = None
    """If they were asked for, in the form of whoever made them."""
    known: Any = None
    """For `Conversation.known` of the state behind it."""


@dataclass(slots=True)
class Scores:
    """A log-probability for each token of each choice."""

    here: list[list[float]]
    alone: list[list[float]]
    """Behind nothing; empty unless they were asked for."""
    usage: TokenCounts = field(default_factory=TokenCounts)
    known: Sequence[Any] = ()
    """For each choice, `Conversation.known` of the state behind it; empty: nothing."""


class Backend(Protocol):
    """Errors are HeadraceErrors. Cancelling a call aborts its request."""

    async def generate(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any],
        constraint: Mapping[str, Any] | None,
        on_text: Callable[[str], None] | None,
    ) -> Generated:
        """Continue the conversation. `on_text` gets the pieces of the text as they come."""

    async def score(self, conversation: Conversation, choices: Sequence[str], alone: bool) -> Scores:
        """Score texts as continuations of the conversation."""


@runtime_checkable
class RunScope(Protocol):
    """A backend that keeps the states of a run in the engine, between its generations."""

    def begin_run(self) -> RunBackend:
        """The backend of one run."""


@runtime_checkable
class Prioritisable(Protocol):
    """A backend whose requests may have a priority."""

    def with_priority(self, priority: int) -> Backend:
        """The same backend, with this priority of all requests."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A `generate`, or a `score`, that will probably follow a generation."""

    tail: Tail
    """What lies between the two."""
    turn: tuple[int, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    constraint: Mapping[str, Any] | None = None
    choices: Sequence[str] = ()
    """Of a `score`; nothing is known of what follows it."""


class RunBackend(Backend, Protocol):
    """In `generate` and `score`, `turn` says which request of the run goes first: the one with the lowest. `expected`
    gives what will probably follow, one request behind the other."""

    async def generate(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any],
        constraint: Mapping[str, Any] | None,
        on_text: Callable[[str], None] | None,
        turn: tuple[int, ...] = (),
        expected: Callable[[], Sequence[Expected]] | None = None,
    ) -> Generated: ...

    async def score(
        self, conversation: Conversation, choices: Sequence[str], alone: bool, turn: tuple[int, ...] = ()
    ) -> Scores: ...

    def share(self, conversation: Conversation) -> None:
        """Several requests will go on with this state."""

    def let_go(self, conversation: Conversation) -> None:
        """No request goes on with this state any more."""

    def close(self) -> None:
        """The run has ended: let go of everything."""


@dataclass(slots=True)
class PlanReply:
    """The result of a plan that was run elsewhere."""

    outputs: dict[str, Any]
    messages: list[dict[str, str]]
    text: str
    usage: TokenCounts
    nodes: list[Any]


@runtime_checkable
class PlanRunner(Protocol):
    """A backend that may run whole plans."""

    runs_plans: bool | None
    """None: that is not known yet."""

    async def find_plans(self) -> bool:
        """Find out whether it does."""

    async def run_plan(
        self,
        plan: Any,
        inputs: Mapping[str, Any],
        tools: Mapping[str, Callable[..., Any]],
        seed: int | None,
        on_text: Callable[[str, tuple[int, ...], str], None] | None,
        on_value: Callable[[str, tuple[int, ...], Any], None] | None,
    ) -> PlanReply | None:
        """Run a checked plan. None: it runs no plans. Cancelling ends the run."""


class ModelSource(Protocol):
    """Where a program can run: opened for one run or one batch, on the event loop of that run."""

    def open_backend(self) -> AbstractAsyncContextManager[Backend]: ...
