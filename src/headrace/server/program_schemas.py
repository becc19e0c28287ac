"""The bodies and answers of `/v1/programs`, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.server.replies import ErrorDetail
from headrace.server.schemas import Body

__all__ = [
    "PlanBounds",
    "PlanInput",
    "PlanReply",
    "PlanRequest",
    "ProgramEvent",
    "ProgramLimits",
    "ProgramNode",
    "ProgramReply",
    "ProgramRequest",
    "ProgramUsage",
    "ProgramsReply",
    "ToolOutputReply",
    "ToolOutputRequest",
]

DEFAULT_TIMEOUT, MOST_TIMEOUT = 600.0, 3600.0


class ProgramRequest(Body):
    MOST_PARTS: ClassVar[int] = 2**19
    MOST_VALUES: ClassVar[int] = 2**19

    plan: dict[str, Any] | None = None
    """The document of a plan: `headrace program compile` writes it."""
    plan_id: Annotated[str, Meta(max_length=200)] | None = None
    """A stored plan, instead."""
    model: str | None = None
    inputs: dict[str, Any] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stream: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, description="Lower runs first.")] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MOST_TIMEOUT, description="Seconds; 600 if left out.")] | None = None


class PlanRequest(Body):
    MOST_PARTS: ClassVar[int] = 2**19
    MOST_VALUES: ClassVar[int] = 2**19

    plan: dict[str, Any]


class PlanInput(Struct):
    name: str
    type: str
    required: bool


class PlanBounds(Struct):
    """The most that a run does."""

    operations: int
    branches: int
    generations: int
    tokens: int


class PlanReply(Struct):
    id: str
    """The SHA-256 of the document."""
    object: Literal["plan"]
    name: str
    inputs: list[PlanInput]
    outputs: list[str]
    tools: list[str]
    """Functions that the client must answer for."""
    bounds: PlanBounds


class ToolOutputRequest(Body):
    """The answer to one `tool.call`: `output`, or `error`."""

    call_id: str
    output: Any = None
    error: str | None = None


class ToolOutputReply(Struct):
    id: str
    call_id: str


class ProgramLimits(Struct):
    """The most that a run may do by the bounds of its plan."""

    operations: int
    branches: int
    generations: int
    tokens: int
    read_characters: int
    """Characters and entries of values that the operations of a run read."""


class ProgramsReply(Struct):
    object: Literal["programs"]
    version: tuple[int, int]
    """Of plans."""
    running: int
    limits: ProgramLimits


class ProgramUsage(Struct):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    requests: int
    """Generations, and choices that were scored."""
    encoded_tokens: int
    """Prompt tokens that were made of text; the others were known as tokens."""


class ProgramNode(Struct):
    """One `gen` or `select` that ran."""

    name: str
    path: list[int]
    finish_reason: str | None
    usage: ProgramUsage
    logprobs: Any = None
    scores: dict[str, float] | None = None


class ProgramReply(Struct):
    id: str
    object: Literal["program"]
    outputs: dict[str, Any]
    messages: list[dict[str, str]]
    text: str
    usage: ProgramUsage
    nodes: list[ProgramNode]


class ProgramEvent(Struct, omit_defaults=True):
    """The data of one event of a stream."""

    type: Literal[
        "program.created", "text.delta", "value.done", "tool.call", "program.completed", "program.failed",
        "program.cancelled",
    ]  # fmt: skip
    sequence_number: int
    id: str | UnsetType = UNSET
    """Of the program."""
    name: str | UnsetType = UNSET
    """Of the variable, or of the function to call."""
    path: list[int] | UnsetType = UNSET
    """Numbers of the branches and passes around the operation."""
    text: str | UnsetType = UNSET
    value: Any = UNSET
    call_id: str | UnsetType = UNSET
    arguments: dict[str, Any] | UnsetType = UNSET
    program: ProgramReply | UnsetType = UNSET
    error: ErrorDetail | UnsetType = UNSET
    status: int | UnsetType = UNSET
    """Of an error: the HTTP status that it would have had before the stream began."""
