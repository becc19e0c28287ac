"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import ContextOverflow
from headrace.server.answer_blocks import AnswerBlocks
from headrace.server.context import Context
from headrace.server.exchange import Exchange, ExchangeOptions
from headrace.server.generation import GenerationRun
from headrace.server.lenient_body import as_chat, ignored_header, read_lenient
from headrace.server.messages_dialect import MessagesDialect
from headrace.server.messages_request import chat_fields
from headrace.server.messages_schemas import (
    CountTokensReply,
    CountTokensRequest,
    MessageReply,
    MessagesRequest,
    StreamEvent,
)
from headrace.server.prepared_chat import prepare_chat, rendered_prompt
from headrace.server.renaming import rename_fields
from headrace.server.request_ids import new_request_id
from headrace.server.route_spec import RouteSpec
from headrace.server.stream_form import MESSAGES

__all__ = ["ROUTES"]

_NAMES = {
    "stop": "stop_sequences",
    "response_format.json_schema": "output_config.format",
    "chat_template_kwargs": "thinking",
}
"""Fields of the internal form, as Anthropic's API names them."""


async def answer_messages(context: Context, request: Request) -> Response:
    arrival = time.monotonic()
    rename_fields(request.scope, _NAMES)
    body, unknown, _ = await read_lenient(request, MessagesRequest)
    fields, ignored = chat_fields(body)
    chat, sent = as_chat(fields, body.headrace)
    try:
        prepared = await prepare_chat(context, chat, sent, cut=True)
    except ContextOverflow as error:
        raise _too_long(error) from None
    run = GenerationRun(context.client, [prepared.job])
    message_id = new_request_id("msg").replace("-", "_")
    sequences = body.stop_sequences or []

    def stop_sequence(reason: int | str | None) -> str | None:
        text = context.tokenizer.token_text(reason) if isinstance(reason, int) else reason
        return text if text in sequences else None

    blocks = AnswerBlocks(prepared.new_reader and prepared.new_reader())
    dialect = MessagesDialect(context.model, message_id, run, blocks, body.max_tokens, stop_sequence)
    options = ExchangeOptions(
        request_id=new_request_id("req"),
        arrival=arrival,
        stream=bool(body.stream),
        include_usage=True,
        form=MESSAGES,
        headers=ignored_header([*unknown, *ignored]),
    )
    return Exchange(context, run, dialect, options)


async def count_tokens(context: Context, request: Request) -> Response:
    rename_fields(request.scope, _NAMES)
    body, unknown, _ = await read_lenient(request, CountTokensRequest)
    fields, ignored = chat_fields(body)
    chat, sent = as_chat(fields, body.headrace)
    _, prompt = await rendered_prompt(context, chat, sent)
    headers = {name.decode(): value.decode() for name, value in ignored_header([*unknown, *ignored])}
    headers["request-id"] = new_request_id("req")
    reply = msgspec.json.encode(CountTokensReply(len(prompt)))
    return Response(reply, headers=headers, media_type="application/json")


def _too_long(error: ContextOverflow) -> ContextOverflow:
    """Clients parse the numbers of this message."""
    if error.tokens is None:
        return error
    return ContextOverflow(f"prompt is too long: {error.tokens} tokens > {error.limit} maximum", "messages")


ROUTES = (
    RouteSpec(
        "POST",
        "/v1/messages",
        answer_messages,
        "Answer a conversation, in Anthropic's form",
        MessagesRequest,
        MessageReply,
        StreamEvent,
        family="anthropic",
    ),
    RouteSpec(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "Count the tokens of a conversation",
        CountTokensRequest,
        CountTokensReply,
        family="anthropic",
    ),
)
