"""The bodies of Anthropic's messages API, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from headrace.server.lenient_body import LenientBody
from headrace.server.sampling_schema import limits
from headrace.server.schemas import Inert

__all__ = [
    "ContentBlock",
    "CountTokensReply",
    "CountTokensRequest",
    "InputMessage",
    "MessageReply",
    "MessagesRequest",
    "MessagesTool",
    "MessagesUsage",
    "ReplyBlock",
    "StreamEvent",
]


class ContentBlock(LenientBody):
    """A block of a message: text, image, document, tool_use, tool_result, thinking, redacted_thinking or
    search_result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    source: Any = None
    title: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[ContentBlock] | None = None
    is_error: bool | None = None


class InputMessage(LenientBody):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class MessagesTool(LenientBody):
    name: str
    type: str | None = None
    """`custom`, the default. Tools that Anthropic's servers run are left out."""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessagesToolChoice(LenientBody):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(LenientBody):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Meta(description="Without effect, and reported as ignored.")] | None = None


class OutputFormat(LenientBody):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(LenientBody):
    effort: Annotated[str, Meta(description="Handed to the chat template as `reasoning_effort`.")] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(LenientBody):
    PROMISES: ClassVar[dict[str, str]] = {
        "mcp_servers": "this server connects to no other",
        "container": "this server runs no code",
    }

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[ContentBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Annotated[Any, Inert] = None
    headrace: Annotated[dict[str, Any], Meta(description="Further fields of chat completions.")] | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    max_tokens: Annotated[int, limits("max_tokens")]
    """Cut to the rest of the context."""
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, limits("temperature")] | None = None
    top_p: Annotated[float, limits("top_p")] | None = None
    top_k: Annotated[int, limits("top_k")] | None = None
    metadata: Annotated[Any, Inert] = None
    service_tier: Annotated[str, Inert] | None = None


class MessagesUsage(Struct):
    input_tokens: int
    """Without those that came from the prefix cache."""
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class ReplyBlock(Struct, omit_defaults=True):
    """A block of an answer: text, thinking or tool_use."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class MessageReply(Struct):
    id: str
    type: str
    role: str
    model: str
    content: list[ReplyBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessagesUsage


class StreamEvent(Struct, omit_defaults=True):
    """The data of an event; which fields it has depends on its type, which is the event's name too."""

    type: str
    index: int | None = None
    message: MessageReply | None = None
    content_block: ReplyBlock | None = None
    delta: dict[str, Any] | None = None
    usage: MessagesUsage | None = None


class CountTokensReply(Struct):
    input_tokens: int
