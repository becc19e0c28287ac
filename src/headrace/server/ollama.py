"""Ollama's API: `/api/chat`, `/api/generate`, and what its clients ask about models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace import __version__
from headrace.errors import InvalidRequest
from headrace.server.answer_blocks import AnswerBlocks
from headrace.server.context import Context
from headrace.server.exchange import Exchange, ExchangeOptions
from headrace.server.generation import GenerationRun
from headrace.server.lenient_body import as_chat, ignored_header, read_lenient
from headrace.server.ollama_dialect import OllamaDialect, OllamaForm
from headrace.server.ollama_models import local_model, running_model, show
from headrace.server.ollama_request import chat_fields, generate_fields, plain_name
from headrace.server.ollama_schemas import (
    LocalModel,
    LocalModels,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaLine,
    OllamaRequest,
    OllamaVersion,
    PullReply,
    PullRequest,
    ShowReply,
    ShowRequest,
)
from headrace.server.prepared_chat import prepare_chat
from headrace.server.renaming import rename_fields
from headrace.server.route_spec import RouteSpec
from headrace.server.stream_form import LINES

__all__ = ["ROUTES", "lines", "list_local", "list_running", "pull", "show_local"]

_LINES_MEDIA = "application/x-ndjson"
_NAMES = {
    "response_format.json_schema.schema": "format",
    "response_format": "format",
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    **{
        name: f"options.{name}"
        for name in ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "stop", "seed")
    },
}
"""Fields of the internal form, as Ollama's API names them."""


async def answer_chat(context: Context, request: Request) -> Response:
    arrival = time.monotonic()
    rename_fields(request.scope, _NAMES)
    body, unknown, _ = await read_lenient(request, OllamaChatRequest)
    form = OllamaForm(body.model, False, arrival)
    if not body.messages:
        return _loaded(context, body, form)
    fields, ignored = chat_fields(body, context.client.info.max_model_len)
    return await _answer(context, body, form, fields, [*unknown, *ignored])


async def answer_generate(context: Context, request: Request) -> Response:
    arrival = time.monotonic()
    rename_fields(request.scope, {**_NAMES, "messages": "prompt"})
    body, unknown, _ = await read_lenient(request, OllamaGenerateRequest)
    form = OllamaForm(body.model, True, arrival)
    if not body.prompt and not body.images:
        return _loaded(context, body, form)
    fields, ignored = generate_fields(body, context.client.info.max_model_len)
    raw = body.prompt if body.raw else None
    return await _answer(context, body, form, fields, [*unknown, *ignored], raw)


async def _answer(
    context: Context,
    body: OllamaRequest,
    form: OllamaForm,
    fields: dict[str, Any],
    ignored: Sequence[str],
    raw: str | None = None,
) -> Response:
    fields["model"] = plain_name(body.model, context.model)
    chat, sent = as_chat(fields, body.headrace)
    prepared = await prepare_chat(context, chat, sent, cut=True, raw=raw)
    run = GenerationRun(context.client, [prepared.job])
    blocks = AnswerBlocks(prepared.new_reader and prepared.new_reader())
    options = ExchangeOptions(
        request_id=prepared.job.id,
        arrival=form.arrival,
        stream=body.stream is not False,
        include_usage=True,
        form=LINES,
        headers=ignored_header(list(ignored)),
    )
    return Exchange(context, run, OllamaDialect(form, run, blocks, prepared.job.params.alternatives), options)


def _loaded(context: Context, body: OllamaRequest, form: OllamaForm) -> Response:
    """A request without a prompt asks for the model to be loaded, or with `keep_alive` 0 to be unloaded, which a server
    with one model does not do."""
    context.check_model(plain_name(body.model, context.model))
    unload = body.keep_alive in (0, "0", "0s")
    return lines(form.empty("unload" if unload else "load"), body.stream is not False)


def lines(reply: object, stream: bool) -> Response:
    """An answer that is one line of a stream, or a whole."""
    encoded = msgspec.json.encode(reply)
    if stream:
        return Response(encoded + b"\n", media_type=_LINES_MEDIA)
    return Response(encoded, media_type="application/json")


def _json(data: object) -> Response:
    return lines(data, False)


async def list_local(context: Context, request: Request) -> Response:
    return _json(LocalModels([await context.workers.run(0, partial(_local, context))]))


async def list_running(context: Context, request: Request) -> Response:
    local = await context.workers.run(0, partial(_local, context))
    return _json(LocalModels([running_model(local, context.client.info)]))


def _local(context: Context) -> LocalModel:
    info = context.client.info
    return local_model(context.model, info.path, info.created)


async def show_local(context: Context, request: Request) -> Response:
    body, _, _ = await read_lenient(request, ShowRequest)
    _check_name(context, body.model or body.name)
    return _json(await context.workers.run(0, partial(show, context)))


async def pull(context: Context, request: Request) -> Response:
    """The model that is served is there; no other is fetched."""
    body, _, _ = await read_lenient(request, PullRequest)
    _check_name(context, body.model or body.name)
    return lines(PullReply("success"), body.stream is not False)


def _check_name(context: Context, name: str | None) -> None:
    if name is None:
        raise InvalidRequest("`model` is required", "model", "missing_required_parameter")
    context.check_model(plain_name(name, context.model))


async def tell_version(context: Context, request: Request) -> Response:
    return _json(OllamaVersion(__version__))


ROUTES = (
    RouteSpec(
        "POST",
        "/api/chat",
        answer_chat,
        "Answer a conversation, in Ollama's form",
        OllamaChatRequest,
        OllamaLine,
        OllamaLine,
        stream_media=_LINES_MEDIA,
        family="ollama",
    ),
    RouteSpec(
        "POST",
        "/api/generate",
        answer_generate,
        "Answer a prompt, in Ollama's form",
        OllamaGenerateRequest,
        OllamaLine,
        OllamaLine,
        stream_media=_LINES_MEDIA,
        family="ollama",
    ),
    RouteSpec("GET", "/api/tags", list_local, "List the models", reply=LocalModels, family="ollama"),
    RouteSpec("GET", "/api/ps", list_running, "List the loaded models", reply=LocalModels, family="ollama"),
    RouteSpec("POST", "/api/show", show_local, "Describe a model", ShowRequest, ShowReply, family="ollama"),
    RouteSpec(
        "POST",
        "/api/pull",
        pull,
        "Tell that the model is there",
        PullRequest,
        PullReply,
        PullReply,
        stream_media=_LINES_MEDIA,
        family="ollama",
    ),
    RouteSpec("GET", "/api/version", tell_version, "Report the version", reply=OllamaVersion, family="ollama"),
)
