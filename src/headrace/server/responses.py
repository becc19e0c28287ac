"""OpenAI's Responses API: `/v1/responses`, and the responses that the server keeps."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import InvalidRequest
from headrace.server.answer_blocks import AnswerBlocks
from headrace.server.caller import owner_of
from headrace.server.context import Context
from headrace.server.exchange import Exchange, ExchangeOptions
from headrace.server.generation import GenerationRun
from headrace.server.http_errors import HttpError
from headrace.server.lenient_body import as_chat, ignored_header, read_lenient
from headrace.server.prepared_chat import prepare_chat
from headrace.server.renaming import rename_fields
from headrace.server.request_ids import new_request_id
from headrace.server.response_store import KeptResponse, ResponseStore
from headrace.server.responses_dialect import ResponsesDialect
from headrace.server.responses_request import chat_fields
from headrace.server.responses_schemas import (
    DeletedResponse,
    InputItem,
    InputItems,
    ResponseEvent,
    ResponseObject,
    ResponsesRequest,
)
from headrace.server.route_spec import RouteSpec
from headrace.server.stream_form import RESPONSES

__all__ = ["ROUTES"]

_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Fields of the internal form, as this API names them."""
_ENCRYPTED = "reasoning.encrypted_content"
_items_of = msgspec.json.Decoder(list[InputItem]).decode


class _Sent(msgspec.Struct):
    input: Any


async def answer_response(context: Context, request: Request) -> Response:
    arrival = time.monotonic()
    rename_fields(request.scope, _NAMES)
    body, unknown, sent = await read_lenient(request, ResponsesRequest)
    owner = owner_of(request.scope)
    items = [*await _earlier(context, body.previous_response_id, owner), *_own_items(sent)]
    encoded = msgspec.json.encode(items)
    fields, ignored = chat_fields(body, _items_of(encoded))
    chat, chat_sent = as_chat(fields, body.headrace)
    prepared = await prepare_chat(context, chat, chat_sent, cut=True)
    run = GenerationRun(context.client, [prepared.job])
    blocks = AnswerBlocks(prepared.new_reader and prepared.new_reader())
    keeps = context.responses is not None and body.store is not False
    dialect = ResponsesDialect(
        _in_progress(context, body, keeps),
        run,
        blocks,
        prepared.job.params.alternatives,
        _ENCRYPTED in (body.include or ()),
    )
    options = ExchangeOptions(
        request_id=prepared.job.id,
        arrival=arrival,
        stream=bool(body.stream),
        include_usage=True,
        form=replace(RESPONSES, error=dialect.fail),
        headers=ignored_header([*unknown, *ignored]),
        finish=_keeper(context, dialect, encoded, owner) if keeps else None,
    )
    return Exchange(context, run, dialect, options)


def _keeper(context: Context, dialect: ResponsesDialect, items: bytes, owner: str) -> Callable[[], Awaitable[None]]:
    async def keep() -> None:
        assert context.responses is not None
        kept = KeptResponse(msgspec.json.encode(dialect.response), items)
        await context.workers.run(0, partial(context.responses.put, dialect.response.id, kept, owner))

    return keep


def _own_items(sent: bytes) -> list[Any]:
    """As the client wrote them: what is kept is what it gets back."""
    given = msgspec.json.decode(sent, type=_Sent).input
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else list(given)


async def _earlier(context: Context, response_id: str | None, owner: str) -> list[Any]:
    """The items of the conversation up to an earlier response, with its output."""
    if response_id is None:
        return []
    param = "previous_response_id"
    if context.responses is None:
        message = f"`{param}`: this server keeps no responses: send the items, or serve with --state-dir"
        raise InvalidRequest(message, param, "unsupported_value")
    kept = await context.workers.run(0, partial(context.responses.get, response_id, owner))
    if kept is None:
        message = f"`{param}`: there is no response {response_id!r:.100}, or no longer"
        raise InvalidRequest(message, param, "previous_response_not_found")
    before: list[Any] = msgspec.json.decode(kept.items)
    return before + list(msgspec.json.decode(kept.response)["output"])


def _in_progress(context: Context, body: ResponsesRequest, keeps: bool) -> ResponseObject:
    tools = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": bool(tool.strict),
        }
        for tool in body.tools or ()
        if tool.type == "function"
    ]
    reasoning = body.reasoning
    return ResponseObject(
        new_request_id("resp").replace("-", "_"),
        "response",
        int(time.time()),
        "in_progress",
        context.model,
        [],
        tools,
        "auto" if body.tool_choice is None else body.tool_choice,
        body.parallel_tool_calls is not False,
        keeps,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        previous_response_id=body.previous_response_id,
        reasoning={"effort": reasoning and reasoning.effort, "summary": reasoning and reasoning.summary},
        temperature=1.0 if body.temperature is None else body.temperature,
        text=_text(body),
        top_p=1.0 if body.top_p is None else body.top_p,
        top_logprobs=body.top_logprobs or 0,
        user=body.user,
        metadata=body.metadata or {},
    )


def _text(body: ResponsesRequest) -> dict[str, Any]:
    asked = body.text and body.text.format
    form: dict[str, Any] = {"type": "text"}
    if asked and asked.type == "json_schema":
        form = {"type": asked.type, "name": asked.name or "answer", "schema": asked.schema}
        form |= {"description": asked.description, "strict": bool(asked.strict)}
    elif asked:
        form = {"type": asked.type}
    return {"format": form, "verbosity": (body.text and body.text.verbosity) or "medium"}


def _json(data: object) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


def _store(context: Context) -> ResponseStore:
    if context.responses is None:
        message = "this server keeps no responses: serve with --state-dir to keep those of requests with `store`"
        raise HttpError(404, message, code="not_found")
    return context.responses


async def _kept(context: Context, request: Request) -> KeptResponse:
    name = request.path_params["response_id"]
    kept = await context.workers.run(0, partial(_store(context).get, name, owner_of(request.scope)))
    if kept is None:
        raise _missing(name)
    return kept


def _missing(name: str) -> HttpError:
    return HttpError(404, f"there is no response {name[:100]!r}, or no longer", code="not_found")


async def show_response(context: Context, request: Request) -> Response:
    return Response((await _kept(context, request)).response, media_type="application/json")


async def list_input_items(context: Context, request: Request) -> Response:
    items: list[Any] = msgspec.json.decode((await _kept(context, request)).items)
    told = [{"id": f"item_{at}", **_in_parts(item)} for at, item in enumerate(items)]
    ids = [item["id"] for item in told]
    return _json(InputItems("list", told, ids[0] if ids else None, ids[-1] if ids else None, False))


def _in_parts(item: Any) -> Any:
    """A message whose content is a text, with the content as a part: the form that clients read."""
    content = item.get("content")
    if not isinstance(content, str):
        return item
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    part = {"type": kind, "text": content}
    return {"type": "message", **item, "content": [part | {"annotations": []} if kind == "output_text" else part]}


async def delete_response(context: Context, request: Request) -> Response:
    name = request.path_params["response_id"]
    if not await context.workers.run(0, partial(_store(context).delete, name, owner_of(request.scope))):
        raise _missing(name)
    return _json(DeletedResponse(name, "response", True))


async def cancel_response(context: Context, request: Request) -> Response:
    await _kept(context, request)
    raise HttpError(400, "only a response with `background: true` can be cancelled", code="invalid_value")


ROUTES = (
    RouteSpec(
        "POST",
        "/v1/responses",
        answer_response,
        "Answer a conversation, in the form of responses",
        ResponsesRequest,
        ResponseObject,
        ResponseEvent,
    ),
    RouteSpec("GET", "/v1/responses/{response_id}", show_response, "Show a kept response", reply=ResponseObject),
    RouteSpec("DELETE", "/v1/responses/{response_id}", delete_response, "Delete it", reply=DeletedResponse),
    RouteSpec("GET", "/v1/responses/{response_id}/input_items", list_input_items, "List its input", reply=InputItems),
    RouteSpec("POST", "/v1/responses/{response_id}/cancel", cancel_response, "Refused", reply=ResponseObject),
)
