"""The bodies of embeddings, scores and reranking, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.client.scoring import ScoreMethod
from headrace.embedding_facts import Pooling
from headrace.server.replies import PromptDetails
from headrace.server.schemas import Body, Inert

__all__ = [
    "EmbeddingItem",
    "EmbeddingReply",
    "EmbeddingRequest",
    "EmbeddingUsage",
    "RankedDocument",
    "RankedText",
    "RerankReply",
    "RerankRequest",
    "ScoreItem",
    "ScoreReply",
    "ScoreRequest",
]

MOST_INPUTS = 2048
"""As OpenAI bounds it."""
Truncate = Annotated[int, Meta(ge=-1, description="Tokens that are kept of a longer text; -1: as many as fit.")]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, description="Lower runs first.")]
Salt = Annotated[str, Meta(min_length=1, max_length=256, description="Prefixes are shared within one salt only.")]


class PooledRequest(Body, kw_only=True):
    """Fields of all requests that generate nothing."""

    MOST_VALUES: ClassVar[int] = 2**19

    model: str | None = None
    truncate_prompt_tokens: Truncate | None = None
    priority: Priority | None = None
    cache_salt: Salt | None = None
    user: Annotated[str, Inert] | None = None


class EmbeddingRequest(PooledRequest, kw_only=True):
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, description="Values of a vector: the first ones, at length 1.")] | None = None
    pooling: Pooling | None = None
    """The hidden state of the last token, or the mean over all tokens; otherwise as the checkpoint says."""
    normalize: bool | None = None
    """Vectors have length 1."""
    prompt_name: str | None = None
    """One of the checkpoint's prompts, which stands before each text."""
    add_special_tokens: bool | None = None


class EmbeddingItem(Struct):
    index: int
    embedding: list[float] | str
    """Numbers, or with `encoding_format` base64 the bytes of float32, little-endian."""
    object: str = "embedding"


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class EmbeddingReply(Struct):
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


class PairRequest(PooledRequest, kw_only=True):
    method: ScoreMethod | None = None
    """By the vectors' angle, by a classification head, or by the probability of the answer yes; otherwise as fits the
    checkpoint."""
    instruction: Annotated[str, Meta(max_length=4096)] | None = None
    """For models that answer yes or no."""


Text = Annotated[str, Meta(min_length=1)]
Texts = Annotated[list[Text], Meta(min_length=1, max_length=MOST_INPUTS)]


class ScoreRequest(PairRequest, kw_only=True):
    """Either `text_1` and `text_2`, or `queries` and `documents`."""

    text_1: Text | Texts | None = None
    text_2: Text | Texts | None = None
    queries: Text | Texts | None = None
    documents: Text | Texts | None = None
    items: Annotated[Text | Texts, Meta(description="Another name of `documents`.")] | None = None
    encoding_format: Annotated[Literal["float"], Inert] | None = None


class ScoreItem(Struct):
    index: int
    score: float
    object: str = "score"


class ScoreReply(Struct):
    id: str
    data: list[ScoreItem]
    model: str
    created: int
    usage: EmbeddingUsage
    object: str = "list"


class RerankRequest(PairRequest, kw_only=True):
    """With `documents` in the form of Cohere and Jina, with `texts` in that of text-embeddings-inference."""

    query: Text
    documents: Annotated[list[Text | dict[str, Any]], Meta(min_length=1, max_length=MOST_INPUTS)] | None = None
    texts: Texts | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Meta(ge=1, description="As `truncate_prompt_tokens`.")] | None = None
    rank_fields: Annotated[Any, Meta(description="Refused unless null: documents are texts.")] = None
    raw_scores: Annotated[bool, Meta(description="Refused if true.")] | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    """With `texts`: long texts are cut."""


class RankedDocument(Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: dict[str, Any] | UnsetType = UNSET


class RankedText(Struct, omit_defaults=True):
    """text-embeddings-inference's form."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class RerankReply(Struct):
    id: str
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage
