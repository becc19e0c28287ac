"""The bodies of OpenAI's Responses API, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from headrace.server.lenient_body import LenientBody
from headrace.server.replies import ChatLogprob
from headrace.server.sampling_schema import limits
from headrace.server.schemas import Inert

__all__ = [
    "ContentPartOut",
    "DeletedResponse",
    "InputItem",
    "InputItems",
    "InputPart",
    "OutputItem",
    "ResponseEvent",
    "ResponseObject",
    "ResponseUsage",
    "ResponsesRequest",
    "ResponsesTool",
]


class InputPart(LenientBody):
    """input_text, output_text, refusal, summary_text, reasoning_text, input_image or input_file."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


class InputItem(LenientBody):
    """A message, function_call, function_call_output, reasoning, custom_tool_call or local_shell_call, or the output of
    one."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[InputPart] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    action: Any = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None


class ResponsesTool(LenientBody):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextFormat(LenientBody):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(LenientBody):
    format: TextFormat | None = None
    verbosity: Annotated[str, Inert] | None = None


class ReasoningConfig(LenientBody):
    effort: Annotated[str, Meta(description="Handed to the chat template as `reasoning_effort`.")] | None = None
    summary: Annotated[str, Inert] | None = None


class ResponsesRequest(LenientBody):
    PROMISES: ClassVar[dict[str, str]] = {
        "conversation": "send the items, or `previous_response_id`",
        "prompt": "this server keeps no prompts",
        "moderation": "this server moderates nothing",
    }

    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, limits("max_tokens")] | None = None
    """Cut to the rest of the context."""
    temperature: Annotated[float, limits("temperature")] | None = None
    top_p: Annotated[float, limits("top_p")] | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    stream: bool | None = None
    stream_options: Annotated[Any, Inert] = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, limits("logprobs")] | None = None
    store: bool | None = None
    """Keeps the response, if the server has a folder for that."""
    previous_response_id: str | None = None
    background: Annotated[bool, Meta(description="Refused unless false.")] | None = None
    metadata: dict[str, str] | None = None
    truncation: Annotated[str, Meta(description="`auto` is without effect, and reported as ignored.")] | None = None
    max_tool_calls: Annotated[int, Inert] | None = None
    user: str | None = None
    service_tier: Annotated[str, Inert] | None = None
    safety_identifier: Annotated[str, Inert] | None = None
    prompt_cache_key: Annotated[str, Inert] | None = None
    prompt_cache_options: Annotated[Any, Inert] = None
    prompt_cache_retention: Annotated[str, Inert] | None = None
    headrace: Annotated[dict[str, Any], Meta(description="Further fields of chat completions.")] | None = None


class ContentPartOut(Struct, omit_defaults=True):
    """output_text or reasoning_text."""

    type: str
    text: str
    annotations: list[Any] | None = None
    logprobs: list[ChatLogprob] | None = None


class OutputItem(Struct, omit_defaults=True):
    """A message, a reasoning or a function_call."""

    id: str
    type: str
    status: str
    role: str | None = None
    content: list[ContentPartOut] | None = None
    summary: list[Any] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class InputDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Struct):
    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(Struct):
    id: str
    object: str
    created_at: int
    status: str
    model: str
    output: list[OutputItem]
    tools: list[Any]
    tool_choice: Any
    parallel_tool_calls: bool
    store: bool
    completed_at: int | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    temperature: float | None = None
    text: dict[str, Any] | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    truncation: str = "disabled"
    background: bool = False
    usage: ResponseUsage | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str = "default"


class ResponseEvent(Struct, omit_defaults=True):
    """The data of an event; which fields it has depends on its type, which is the event's name too."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int | None = None
    item: OutputItem | None = None
    part: ContentPartOut | None = None
    delta: str | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    logprobs: list[ChatLogprob] | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None


class InputItems(Struct):
    object: str
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(Struct):
    id: str
    object: str
    deleted: bool
