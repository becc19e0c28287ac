"""The bodies of requests, as msgspec structs: parsed, checked for type and range, and shown in the OpenAPI schema.

Fields are OpenAI's and, under the names that vLLM uses, what goes beyond. Every optional field may be null. What
depends on the model (vocabulary, context) is checked in `params`; a field that is not here is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from headrace.sampling import MAX_CHOICES
from headrace.server.sampling_schema import limits, with_sampling_fields

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "ContentPart",
    "DetokenizeRequest",
    "FunctionCall",
    "FunctionTool",
    "GenerationRequest",
    "Message",
    "NamedSchema",
    "Prediction",
    "PredictionPart",
    "ResponseFormat",
    "SpeculationBody",
    "StreamOptions",
    "StructuredOutputsBody",
    "TokenizeRequest",
    "Tool",
    "ToolCall",
]

Inert = Meta(description="Accepted for compatibility; without effect.")
REFUSED = Meta(description="Refused unless null.")


class Body(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Base of request bodies: unknown fields are refused."""

    MOST_PARTS: ClassVar[int] = 2**16
    """Lists, objects and keys that a body may hold, in total."""
    MOST_VALUES: ClassVar[int] = 2**17
    """Values that a body may hold, counted by their commas."""


class StreamOptions(Body):
    include_usage: bool | None = None
    """A last chunk with the usage of the complete request."""
    continuous_usage_stats: bool | None = None
    """Running totals in every chunk."""
    include_obfuscation: Annotated[bool, Inert] | None = None


class StructuredOutputsBody(Body):
    """A constraint on the output: exactly one of the first six."""

    json: str | dict[str, Any] | None = None
    """A JSON schema."""
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """Lark, or EBNF in GBNF's form (with `::=`)."""
    structural_tag: str | dict[str, Any] | None = None
    """Free text with tags whose content has a schema: `structures` and `triggers`, or `format`."""
    whitespace: Literal["flexible", "compact"] | None = None
    """Between the parts of JSON: up to 32 characters (the default), or none."""


class PredictionPart(Body):
    type: Literal["text"]
    text: str


class Prediction(Body):
    """A text that much of the output is expected to repeat: drafts of speculative decoding."""

    type: Literal["content"]
    content: str | list[PredictionPart]


class SpeculationBody(Body):
    """Drafts for one request. They never change its output."""

    method: str | None = None
    """The method that the server runs; or `predicted`, for drafts of the prediction alone."""
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1, description="Most drafts of a step; 0: none.")] | None = None


class GenerationRequest(Body):
    """Fields of both completions and chat. The sampling parameters that are declared here are read by name; all others
    of the table are added to the bodies by `with_sampling_fields`."""

    model: str | None = None
    max_tokens: Annotated[int, limits("max_tokens")] | None = None
    n: Annotated[int, limits("n")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    prompt_logprobs: Annotated[int, limits("prompt_logprobs")] | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, description="Lower runs first.")] | None = None
    cache_salt: (
        Annotated[str, Meta(min_length=1, max_length=256, description="Prefixes are shared within one salt only.")]
        | None
    ) = None

    structured_outputs: StructuredOutputsBody | None = None

    prediction: Prediction | None = None
    speculation: bool | SpeculationBody | None = None

    kv_transfer_params: (
        Annotated[dict[str, Any], Meta(description="The prompt's blocks go to another engine, or come from it.")] | None
    ) = None

    user: Annotated[str, Inert] | None = None
    store: Annotated[bool, Inert] | None = None
    metadata: Annotated[dict[str, str], Inert] | None = None
    service_tier: Annotated[str, Inert] | None = None
    safety_identifier: Annotated[str, Inert] | None = None
    prompt_cache_key: Annotated[str, Inert] | None = None
    prompt_cache_retention: Annotated[str, Inert] | None = None
    prompt_cache_options: Annotated[Any, Inert] = None

    truncate_prompt_tokens: (
        Annotated[int, Meta(ge=-1, description="Keep the prompt's last tokens; -1: so many that one more fits.")] | None
    ) = None


@with_sampling_fields
class CompletionRequest(GenerationRequest, kw_only=True):
    MOST_VALUES: ClassVar[int] = 2**19

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: Annotated[int, limits("logprobs")] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES, description="Must equal n.")] | None = None
    suffix: Annotated[str, Meta(description="Refused: no insertion into a text.")] | None = None


class ContentPart(Body):
    type: Literal["text", "refusal", "image_url", "input_audio", "audio_url", "video_url", "file"]
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    audio_url: Any = None
    video_url: Any = None
    file: Any = None
    cache_control: Annotated[Any, Inert] = None


class FunctionCall(Body):
    name: str
    arguments: str | dict[str, Any] | None = None
    """JSON text, as the model wrote it."""
    parsed_arguments: Annotated[Any, Inert] = None
    """Set by openai's `parse` on the client's side, and sent back with the call."""


class ToolCall(Body):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: Annotated[Any, Inert] = None
    parsed: Annotated[Any, Inert] = None
    """Set by openai's `parse` on the client's side."""
    provider_specific_fields: Annotated[Any, Inert] = None
    thinking_blocks: Annotated[Any, Inert] = None
    images: Annotated[Any, Inert] = None
    phase: Annotated[Any, Inert] = None
    id: Annotated[Any, Inert] = None
    """These five stand in answers of other servers, which clients send back."""
    audio: Annotated[Any, Meta(description="Refused unless null.")] = None
    function_call: Annotated[Any, Meta(description="Refused unless null: use tool_calls.")] = None


class FunctionTool(Body):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: FunctionTool


class NamedSchema(Body):
    """OpenAI's wrapping of a JSON schema."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    """Refuse a schema that breaks OpenAI's strict rules."""


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: NamedSchema | None = None
    structures: list[dict[str, Any]] | None = None
    """With `triggers`, for type structural_tag: each has `begin`, `schema` and `end`."""
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None
    """The newer form of a structural tag."""


@with_sampling_fields
class ChatRequest(GenerationRequest, kw_only=True):
    messages: list[Message]
    max_completion_tokens: Annotated[int, limits("max_tokens")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, limits("logprobs")] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: Annotated[str, Meta(description="Handed to the chat template.")] | None = None
    verbosity: Annotated[str, Inert] | None = None
    modalities: list[Literal["text"]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Annotated[str, Meta(description="Refused: templates come from the checkpoint.")] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    documents: Annotated[list[dict[str, Any]], Meta(description="Handed to the chat template.")] | None = None
    include_reasoning: Annotated[bool, Meta(description="False: the answer has no reasoning.")] | None = None

    audio: Annotated[Any, REFUSED] = None
    function_call: Annotated[Any, REFUSED] = None
    functions: Annotated[Any, REFUSED] = None
    moderation: Annotated[Any, REFUSED] = None
    web_search_options: Annotated[Any, REFUSED] = None


class TokenizeRequest(Body):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    MOST_VALUES: ClassVar[int] = 2**19

    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None
