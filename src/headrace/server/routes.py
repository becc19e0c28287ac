"""The routes other than generation: models, tokenize, detokenize, health, metrics, version."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from functools import partial

import msgspec
from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace import __version__
from headrace.client.validate import check_ids
from headrace.deadlines import in_time
from headrace.errors import EngineDead, HeadraceError, InvalidRequest
from headrace.server.caller import caller_of
from headrace.server.context import Context
from headrace.server.http_errors import HttpError
from headrace.server.prepared_chat import render_chat, rendered_prompt
from headrace.server.replies import (
    DetokenizeReply,
    HealthReply,
    ModelCard,
    ModelList,
    RenderReply,
    TokenizeReply,
    TokenizerInfo,
    VersionReply,
)
from headrace.server.request_body import read_json
from headrace.server.request_params import CHARACTERS_PER_TOKEN, MOST_CHARACTERS, check_characters
from headrace.server.schemas import ChatRequest, DetokenizeRequest, TokenizeRequest

__all__ = [
    "detokenize",
    "health",
    "list_models",
    "metrics",
    "model_card",
    "render",
    "show_model",
    "tokenize",
    "tokenizer_info",
    "version",
]

_HEALTH_TIMEOUT = 3.0
_MOST_TOKENS = 2**17
"""Ids that `/detokenize` accepts; more for a model with a longer context."""


def _json(data: object) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


def model_card(name: str, created: int, most: int | None) -> ModelCard:
    """`most`: tokens of a prompt and its answer together; None if it is not known."""
    at = datetime.fromtimestamp(created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    limit = UNSET if most is None else most
    return ModelCard(name, "model", created, "headrace", limit, "model", name, at, limit, limit)


def _own_card(context: Context) -> ModelCard:
    info = context.client.info
    return model_card(context.model, info.created, info.max_model_len)


async def list_models(context: Context, request: Request) -> Response:
    shown = [context.model] if caller_of(request.scope).may_use(context.model) else []
    first = shown[0] if shown else None
    return _json(ModelList("list", [_own_card(context) for _ in shown], False, first, first))


async def show_model(context: Context, request: Request) -> Response:
    context.check_model(request.path_params["model"])
    if not caller_of(request.scope).may_use(context.model):
        raise context.no_model(context.model)
    return _json(_own_card(context))


async def tokenize(context: Context, request: Request) -> Response:
    body, sent = await read_json(request, TokenizeRequest)
    context.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either `prompt` or `messages`", "prompt", "invalid_value")
    limit = context.client.info.max_model_len
    # A text may be longer than the context, up to a limit.
    most = max(MOST_CHARACTERS, CHARACTERS_PER_TOKEN * limit)
    text, special = body.prompt, body.add_special_tokens is not False
    if text is None:
        text = await render_chat(context, body, sent, partial(check_characters, param="messages", most=most))
        special = bool(body.add_special_tokens)
    else:
        check_characters(len(text), "prompt", most)
    reply = await context.workers.run(len(sent), partial(_tokenize, context, limit, text, special, body))
    return Response(reply, media_type="application/json")


def _tokenize(context: Context, limit: int, text: str, special: bool, body: TokenizeRequest) -> bytes:
    """The encoded reply. Runs in any thread."""
    encode = context.tokenizer.encode if body.messages is None else context.tokenizer.encode_chat
    tokens = encode(text, special)
    texts = [context.tokenizer.token_text(token) for token in tokens] if body.return_token_strs else UNSET
    return msgspec.json.encode(TokenizeReply(len(tokens), limit, tokens, texts))


async def render(context: Context, request: Request) -> Response:
    """The prompt that a request to /v1/chat/completions makes, as text and as tokens; nothing is generated."""
    body, sent = await read_json(request, ChatRequest)
    text, tokens = await rendered_prompt(context, body, sent)
    return _json(RenderReply(text, tokens, len(tokens), context.client.info.max_model_len))


async def tokenizer_info(context: Context, request: Request) -> Response:
    tokenizer = context.tokenizer
    named = tokenizer.named_tokens
    info = TokenizerInfo(
        type(tokenizer).__name__,
        named.get("bos_token"),
        named.get("eos_token"),
        named.get("pad_token"),
        tokenizer.template_source or None,
        context.client.info.max_model_len,
    )
    return _json(info)


async def detokenize(context: Context, request: Request) -> Response:
    body, sent = await read_json(request, DetokenizeRequest, context.client.info.max_model_len)
    context.check_model(body.model)
    info = context.client.info
    most = max(_MOST_TOKENS, info.max_model_len)
    if len(body.tokens) > most:
        message = f"`tokens` has {len(body.tokens)} ids: at most {most} are turned into text at once"
        raise InvalidRequest(message, "tokens", "array_above_max_length")
    ids = check_ids(body.tokens, info.vocab_size, "tokens")
    text = await context.workers.run(len(sent), partial(context.tokenizer.decode, ids, bool(body.skip_special_tokens)))
    return _json(DetokenizeReply(text))


async def health(context: Context, request: Request) -> Response:
    """Answer 200 while the engine makes progress; 503 if it is dead or hangs, and while the server drains."""
    try:
        await in_time(_HEALTH_TIMEOUT, context.client.check_health())
    except asyncio.TimeoutError:
        raise EngineDead(f"the engine did not answer within {_HEALTH_TIMEOUT:.0f} seconds") from None
    return _json(HealthReply("ok"))


async def metrics(context: Context, request: Request) -> Response:
    try:
        context.metrics.stats = await in_time(_HEALTH_TIMEOUT, context.client.stats())
    except (HeadraceError, asyncio.TimeoutError):
        context.metrics.stats = None
    return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def version(context: Context, request: Request) -> Response:
    return _json(VersionReply(__version__))


async def no_route(context: Context, request: Request, error: HTTPException, remedy: str = "") -> Response:
    """Answer the framework's own 404 and 405; a 405 lists the allowed methods in a header. `remedy`: of a 404."""
    status, headers = error.status_code, dict(error.headers or {})
    what = f"{request.method} {request.url.path}"[:200]
    message = f"no such route: {what}{remedy}" if status == 404 else f"this method is not allowed: {what}"
    code = "not_found" if status == 404 else "method_not_allowed"
    return context.refuse(HttpError(status, message, code=code, headers=headers), request.scope)
