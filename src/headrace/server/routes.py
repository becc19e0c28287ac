"""The routes beside generation: models, tokenize, detokenize, health, metrics, version."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace import __version__
from headrace.client.validate import check_ids
from headrace.errors import EngineDead, HeadraceError, InvalidRequest
from headrace.server.chat import render_chat
from headrace.server.context import Context
from headrace.server.decode import decode_body, read_body
from headrace.server.errors import HttpError
from headrace.server.replies import ModelCard, ModelList, TokenizeReply
from headrace.server.schemas import DetokenizeRequest, TokenizeRequest

__all__ = ["detokenize", "health", "list_models", "metrics", "show_model", "tokenize", "version"]

_HEALTH_TIMEOUT = 3.0


def _json(data: object) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


def _card(context: Context) -> ModelCard:
    info = context.client.info
    return ModelCard(context.model, "model", info.created, "headrace", info.max_model_len)


async def list_models(context: Context, request: Request) -> Response:
    return _json(ModelList("list", [_card(context)]))


async def show_model(context: Context, request: Request) -> Response:
    context.check_model(request.path_params["model"])
    return _json(_card(context))


async def tokenize(context: Context, request: Request) -> Response:
    body = decode_body(await read_body(request), TokenizeRequest)
    context.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either `prompt` or `messages`", "prompt", "invalid_value")
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        tokens = await asyncio.to_thread(context.tokenizer.encode, body.prompt, special)
    else:
        tokens = await render_chat(context, body)
    texts = [context.tokenizer.token_text(token) for token in tokens] if body.return_token_strs else UNSET
    return _json(TokenizeReply(len(tokens), context.client.info.max_model_len, tokens, texts))


async def detokenize(context: Context, request: Request) -> Response:
    body = decode_body(await read_body(request), DetokenizeRequest)
    context.check_model(body.model)
    ids = check_ids(body.tokens, context.client.info.vocab_size, "tokens")
    text = await asyncio.to_thread(context.tokenizer.decode, ids, bool(body.skip_special_tokens))
    return _json({"prompt": text})


async def health(context: Context, request: Request) -> Response:
    """200 while the engine makes progress; 503 when it is dead or hangs, and while the server drains."""
    try:
        await asyncio.wait_for(context.client.check_health(), _HEALTH_TIMEOUT)
    except asyncio.TimeoutError:
        raise EngineDead(f"the engine did not answer within {_HEALTH_TIMEOUT:.0f} seconds") from None
    return _json({"status": "ok"})


async def metrics(context: Context, request: Request) -> Response:
    try:
        context.metrics.stats = await asyncio.wait_for(context.client.stats(), _HEALTH_TIMEOUT)
    except (HeadraceError, asyncio.TimeoutError):
        context.metrics.stats = None
    return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def version(context: Context, request: Request) -> Response:
    return _json({"version": __version__})


async def no_route(context: Context, request: Request, error: HTTPException) -> Response:
    """For the framework's own 404 and 405, which says in a header what is allowed."""
    status, headers = error.status_code, dict(error.headers or {})
    what = f"{request.method} {request.url.path}"[:200]
    message = f"no such route: {what}" if status == 404 else f"this method is not allowed: {what}"
    code = "not_found" if status == 404 else "method_not_allowed"
    return context.refuse(HttpError(status, message, code=code, headers=headers))
