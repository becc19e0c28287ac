"""`POST /v1/score` and `POST /v1/rerank`: how well documents fit a query."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from headrace.client.api import Output
from headrace.client.scoring import Encoders, PairAnswer, ScoreJob, ScoreOptions, pairs_of, score_job
from headrace.errors import InvalidRequest
from headrace.server.context import Context
from headrace.server.embedding_schemas import (
    EmbeddingUsage,
    PairRequest,
    RankedDocument,
    RankedText,
    RerankReply,
    RerankRequest,
    ScoreItem,
    ScoreReply,
    ScoreRequest,
)
from headrace.server.embeddings import pooled_exchange
from headrace.server.renaming import rename_fields
from headrace.server.replies import PromptDetails, UsageReply
from headrace.server.request_body import read_json
from headrace.server.request_ids import new_request_id
from headrace.server.request_params import MOST_CHARACTERS, check_characters
from headrace.server.route_spec import RouteSpec

__all__ = ["ROUTES"]

Pairs = list[tuple[str, str]]
Write = Callable[[str, list[float], EmbeddingUsage], bytes]
"""(the request's id, the scores in the order of the pairs, usage) → the body."""


async def answer_score(context: Context, request: Request) -> Response:
    arrival = time.monotonic()
    body, sent = await read_json(request, ScoreRequest)
    pairs, prompts = _pairs(body)

    def write(name: str, scores: list[float], usage: EmbeddingUsage) -> bytes:
        items = [ScoreItem(index, score) for index, score in enumerate(scores)]
        return msgspec.json.encode(ScoreReply(name, items, context.model, int(time.time()), usage))

    rename_fields(request.scope, {} if prompts else {"queries": "text_1", "documents": "text_2"})
    options = _options(body, body.truncate_prompt_tokens, prompts)
    return await _answer(context, body, len(sent), pairs, options, arrival, write)


def _pairs(body: ScoreRequest) -> tuple[Pairs, bool]:
    """(The pairs, whether the texts have the parts of a query and a document)."""
    named = body.queries is not None or body.documents is not None or body.items is not None
    if named and (body.text_1 is not None or body.text_2 is not None):
        raise InvalidRequest("give either `text_1` and `text_2`, or `queries` and `documents`", "text_1")
    if body.documents is not None and body.items is not None:
        raise InvalidRequest("`items` is another name of `documents`: give one of them", "items")
    names = ("queries", "documents") if named else ("text_1", "text_2")
    given = (
        (body.queries, body.items if body.documents is None else body.documents)
        if named
        else (body.text_1, body.text_2)
    )
    first, second = given
    if first is None or second is None:
        missing = names[0] if first is None else names[1]
        raise InvalidRequest(f"`{missing}` is required", missing, "missing_required_parameter")
    return pairs_of(first, second, names), named


async def answer_rerank(context: Context, request: Request) -> Response:
    arrival = time.monotonic()
    body, sent = await read_json(request, RerankRequest)
    _refuse(body)
    rename_fields(request.scope, {"queries": "query"} | ({} if body.texts is None else {"documents": "texts"}))
    shown: Sequence[dict[str, Any]] = [{"text": text} for text in body.texts or ()]
    shown = shown or [_document(one, index) for index, one in enumerate(body.documents or ())]
    pairs = [(body.query, one["text"]) for one in shown]
    cut = body.max_tokens_per_doc or (-1 if body.truncate else None)
    cut = cut if body.truncate_prompt_tokens is None else body.truncate_prompt_tokens

    def write(name: str, scores: list[float], usage: EmbeddingUsage) -> bytes:
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: body.top_n]
        if body.texts is not None:
            texts = body.texts
            ranked = [RankedText(at, scores[at], texts[at] if body.return_text else UNSET) for at in order]
            return msgspec.json.encode(ranked)
        results = [RankedDocument(at, scores[at], shown[at] if body.return_documents else UNSET) for at in order]
        return msgspec.json.encode(RerankReply(name, context.model, results, usage))

    return await _answer(context, body, len(sent), pairs, _options(body, cut, True), arrival, write)


def _refuse(body: RerankRequest) -> None:
    if (body.documents is None) == (body.texts is None):
        raise InvalidRequest("give either `documents` or `texts`", "documents", "missing_required_parameter")
    if body.rank_fields is not None:
        message = "`rank_fields` is not supported: a document is a text, or an object with `text`"
        raise InvalidRequest(message, "rank_fields", "unsupported_parameter")
    if body.raw_scores:
        message = "`raw_scores` is not supported: scores of heads and answers are from 0 to 1"
        raise InvalidRequest(message, "raw_scores", "unsupported_value")


def _document(one: str | dict[str, Any], index: int) -> dict[str, Any]:
    document = {"text": one} if isinstance(one, str) else one
    text = document.get("text")
    if not isinstance(text, str) or not text:
        param = f"documents[{index}]"
        raise InvalidRequest(f"`{param}` is a text, or an object with a `text`", param, "invalid_value")
    return document


def _options(body: PairRequest, cut: int | None, prompts: bool) -> ScoreOptions:
    if cut == 0:
        message = "`truncate_prompt_tokens` must be at least 1, or -1, got 0"
        raise InvalidRequest(message, "truncate_prompt_tokens", "invalid_value")
    return ScoreOptions(body.method, body.instruction, prompts, cut, body.cache_salt or "", body.priority or 0)


async def _answer(
    context: Context, body: PairRequest, size: int, pairs: Pairs, options: ScoreOptions, arrival: float, write: Write
) -> Response:
    context.check_model(body.model)
    name = new_request_id("score")
    job = await context.workers.run(size, partial(_job, context, pairs, name, options))

    def body_of(outputs: list[Output], usage: UsageReply) -> bytes:
        scores = job.scores([PairAnswer(one.embedding, one.scores) for one in outputs])
        return write(name, scores, EmbeddingUsage(job.tokens, job.tokens, PromptDetails(_cached(usage, job))))

    return pooled_exchange(context, job.requests, name, arrival, body_of)


def _cached(usage: UsageReply, job: ScoreJob) -> int:
    return min(usage.prompt_tokens_details.cached_tokens, job.tokens)


def _job(context: Context, pairs: Pairs, name: str, options: ScoreOptions) -> ScoreJob:
    """Tokenises the texts; any thread."""
    info = context.client.info
    check_characters(sum(len(document) for _, document in pairs), "documents", 8 * MOST_CHARACTERS)
    tokenizer = context.tokenizer
    return score_job(pairs, name, options, info, Encoders(tokenizer.encode, tokenizer.encode_plain))


_RERANK = RouteSpec(
    "POST", "/v1/rerank", answer_rerank, "Order documents by a query", RerankRequest, RerankReply, listed=RankedText
)
_SCORE = RouteSpec("POST", "/v1/score", answer_score, "Score pairs of texts", ScoreRequest, ScoreReply)
ROUTES = (
    _SCORE,
    replace(_SCORE, path="/score"),
    _RERANK,
    replace(_RERANK, path="/rerank"),
    replace(_RERANK, path="/v2/rerank"),
)
