"""The bodies of answers and stream chunks, as msgspec structs."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

__all__ = [
    "AnthropicError",
    "AnthropicErrorReply",
    "CalledFunction",
    "ChatAlternative",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatDelta",
    "ChatLogprob",
    "ChatLogprobs",
    "ChatMessage",
    "ChatToolCall",
    "CompletionDetails",
    "DetokenizeReply",
    "EngineRoleReply",
    "ErrorDetail",
    "ErrorReply",
    "HealthReply",
    "ModelCard",
    "ModelList",
    "OllamaErrorReply",
    "PromptDetails",
    "RenderReply",
    "TextChoice",
    "TextCompletion",
    "TextLogprobs",
    "TokenizeReply",
    "TokenizerInfo",
    "ToolCallDelta",
    "UsageReply",
    "VersionReply",
]

PromptLogprobs = list[dict[str, Any] | None]


class PromptDetails(Struct):
    cached_tokens: int


class CompletionDetails(Struct):
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    """Of all drafts of speculative decoding, whether a prediction or another drafter made them."""
    reasoning_tokens: int | UnsetType = UNSET
    """For models that mark their reasoning."""


class UsageReply(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class ChatAlternative(Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatAlternative]


class ChatLogprobs(Struct):
    content: list[ChatLogprob]
    refusal: None = None


class CalledFunction(Struct):
    arguments: str
    """JSON text; in a stream a piece of it."""
    name: str | UnsetType = UNSET


class ChatToolCall(Struct):
    id: str
    type: str
    function: CalledFunction


class ToolCallDelta(Struct):
    """A piece of a call: the first has the id and the name, further ones have more of the arguments."""

    index: int
    function: CalledFunction
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatMessage(Struct):
    role: str
    content: str | None
    refusal: None = None
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same text again: clients read either field."""


class ChatChoice(Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class ChatDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChunkChoice(Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageReply | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
    """In the last chunk of a choice."""


class TextLogprobs(Struct):
    """The form of OpenAI's completions, with `bytes` in addition: the bytes of each token, since its text may not show
    them."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    bytes: list[list[int]]


class TextChoice(Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TextCompletion(Struct):
    """A complete answer, or a chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageReply | UnsetType | None = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class EngineRoleReply(Struct):
    """The part of an engine in its group."""

    role: str
    connector: str
    address: str
    """Where other engines fetch blocks."""
    epoch: int
    """Number of this start of the engine."""


class ModelCard(Struct):
    """OpenAI's form and Anthropic's in one."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int | UnsetType
    type: str
    display_name: str
    created_at: str
    max_input_tokens: int | UnsetType
    max_tokens: int | UnsetType
    aliases: list[str] | UnsetType = UNSET
    """Its other names, if the server has several models, as the next."""
    state: str | UnsetType = UNSET
    """`loaded`, `loading`, `unloaded`, `asleep` or `failed`."""


class ModelList(Struct):
    object: str
    data: list[ModelCard]
    has_more: bool
    first_id: str | None
    last_id: str | None


class TokenizeReply(Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeReply(Struct):
    prompt: str


class RenderReply(Struct):
    """The prompt of a conversation."""

    prompt: str
    token_ids: list[int]
    count: int
    max_model_len: int


class TokenizerInfo(Struct):
    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None
    model_max_length: int


class HealthReply(Struct):
    status: str
    """`ok`, or `degraded`: of several models, at least one does not work."""
    models: dict[str, str] | UnsetType = UNSET
    """The state of each of several models; what is wrong with one that does not work."""


class VersionReply(Struct):
    version: str


class ErrorDetail(Struct):
    message: str
    type: str
    param: str | None
    """The path of the wrong field, as the client wrote it."""
    code: str | None


class ErrorReply(Struct):
    """Every answer other than 200, and the event that ends a failed stream."""

    error: ErrorDetail


class AnthropicError(Struct):
    type: str
    message: str


class AnthropicErrorReply(Struct):
    """Anthropic's form of an error: of answers other than 200, and of the event that ends a failed stream."""

    type: str
    error: AnthropicError
    request_id: str


class OllamaErrorReply(Struct):
    """Ollama's form of an error: of answers other than 200, and of the line that ends a failed stream."""

    error: str
