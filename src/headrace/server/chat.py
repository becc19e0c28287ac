"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.chat_dialect import ChatDialect
from headrace.server.context import Context
from headrace.server.exchange import Exchange, ExchangeOptions
from headrace.server.generation import GenerationRun
from headrace.server.kv_transfer import with_transfer
from headrace.server.parsed_chat import ParsedChatDialect
from headrace.server.prepared_chat import PreparedChat, prepare_chat
from headrace.server.request_body import read_json
from headrace.server.schemas import ChatRequest

__all__ = ["answer_chat"]


async def answer_chat(context: Context, request: Request) -> Response:
    arrival = time.monotonic()
    body, sent = await read_json(request, ChatRequest)
    prepared = await prepare_chat(context, body, sent)
    (job,) = with_transfer(context.role, context.client.info, body.kv_transfer_params, [prepared.job])
    prepared = replace(prepared, job=job)
    options = body.stream_options
    exchange = ExchangeOptions(
        request_id=prepared.job.id,
        arrival=arrival,
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
    )
    run = GenerationRun(context.client, [prepared.job])
    return Exchange(context, run, _dialect(context, prepared, run), exchange)


def _dialect(context: Context, prepared: PreparedChat, run: GenerationRun) -> ChatDialect:
    if prepared.new_reader is None:
        return ChatDialect(context, prepared.body, prepared.job, run)
    return ParsedChatDialect(context, prepared.body, prepared.job, run, prepared.new_reader, prepared.counts_reasoning)
