"""The bodies of Ollama's API, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from headrace.server.lenient_body import LenientBody
from headrace.server.replies import ChatLogprob
from headrace.server.schemas import Inert

__all__ = [
    "CallOut",
    "FunctionOut",
    "LocalModel",
    "LocalModels",
    "ModelDetails",
    "OldEmbeddingReply",
    "OldEmbeddingRequest",
    "OllamaChatRequest",
    "OllamaEmbedReply",
    "OllamaEmbedRequest",
    "OllamaGenerateRequest",
    "OllamaLine",
    "OllamaMessage",
    "OllamaRequest",
    "OllamaVersion",
    "PullReply",
    "PullRequest",
    "ShowReply",
    "ShowRequest",
    "SpokenLine",
]


class CalledIn(LenientBody):
    name: str
    arguments: dict[str, Any] | None = None


class CallIn(LenientBody):
    function: CalledIn


class OllamaMessage(LenientBody):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[CallIn] | None = None
    tool_name: str | None = None


class OllamaRequest(LenientBody):
    model: str
    stream: bool | None = None
    """True if left out."""
    format: str | dict[str, Any] | None = None
    """`json`, or a JSON schema."""
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    """For the chat template: whether the model reasons, or how hard (low, medium, high)."""
    keep_alive: Annotated[Any, Inert] = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    headrace: Annotated[dict[str, Any], Meta(description="Further fields of chat completions.")] | None = None


class OllamaChatRequest(OllamaRequest):
    messages: list[OllamaMessage] | None = None
    """Without any, the answer is that the model is loaded."""
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaRequest):
    prompt: str | None = None
    """Empty: the answer is that the model is loaded."""
    suffix: Annotated[str, Meta(description="Refused: no insertion into a text.")] | None = None
    system: str | None = None
    template: Annotated[str, Meta(description="Refused: templates come from the checkpoint.")] | None = None
    context: Annotated[list[int], Meta(description="Refused: use /api/chat.")] | None = None
    raw: bool | None = None
    images: list[str] | None = None


class FunctionOut(Struct):
    name: str
    arguments: dict[str, Any]


class CallOut(Struct):
    function: FunctionOut


class SpokenLine(Struct, omit_defaults=True):
    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[CallOut] | None = None


class OllamaLine(Struct, omit_defaults=True, kw_only=True):
    """A line of a stream, or a complete answer. The durations are nanoseconds."""

    model: str
    created_at: str
    message: SpokenLine | None = None
    """Of /api/chat."""
    response: str | None = None
    """Of /api/generate."""
    thinking: str | None = None
    logprobs: list[ChatLogprob] | None = None
    done: bool
    done_reason: str | None = None
    context: list[int] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class ModelDetails(Struct):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class LocalModel(Struct, omit_defaults=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str | None = None
    size_vram: int | None = None
    context_length: int | None = None


class LocalModels(Struct):
    models: list[LocalModel]


class ShowRequest(LenientBody):
    model: str | None = None
    name: str | None = None
    """The older name of `model`."""
    verbose: Annotated[bool, Inert] | None = None


class ShowReply(Struct):
    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class PullRequest(LenientBody):
    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    insecure: Annotated[bool, Inert] | None = None


class PullReply(Struct):
    status: str


class OllamaEmbedRequest(LenientBody):
    model: str
    input: str | list[str]
    truncate: bool | None = None
    """Whether long texts are cut, and not refused; true if left out."""
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    options: Annotated[Any, Inert] = None
    keep_alive: Annotated[Any, Inert] = None


class OllamaEmbedReply(Struct):
    """The durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OldEmbeddingRequest(LenientBody):
    model: str
    prompt: str
    options: Annotated[Any, Inert] = None
    keep_alive: Annotated[Any, Inert] = None


class OldEmbeddingReply(Struct):
    embedding: list[float]


class OllamaVersion(Struct):
    version: str
