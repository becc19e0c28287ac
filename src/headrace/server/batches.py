"""OpenAI's batches: `/v1/batches`."""

from __future__ import annotations

import time
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import InvalidRequest
from headrace.server.batch_lines import named_model
from headrace.server.batch_schemas import BatchList, BatchObject, BatchRequest
from headrace.server.caller import caller_of, owner_of
from headrace.server.context import Context
from headrace.server.files import batch_store, page
from headrace.server.http_errors import HttpError
from headrace.server.request_body import read_json
from headrace.server.request_ids import new_request_id
from headrace.server.route_spec import RouteSpec

__all__ = ["ROUTES"]

_WINDOW = 86400


async def add_batch(context: Context, request: Request) -> Response:
    store = batch_store(context)
    body, _ = await read_json(request, BatchRequest)
    caller = caller_of(request.scope)
    if not caller.batches:
        raise HttpError(403, "this key may not begin batches: its entry has `batches: false`", code="not_allowed")
    file = await context.workers.run(0, partial(store.file, body.input_file_id, caller.name))
    if file is None or file.purpose != "batch":
        message = f"`input_file_id`: there is no file {body.input_file_id!r:.100} of the purpose batch"
        raise InvalidRequest(message, "input_file_id", "invalid_value")
    model = await context.workers.run(0, partial(named_model, store.path(file.id)))
    now, expires = int(time.time()), body.output_expires_after
    batch = BatchObject(
        new_request_id("batch").replace("-", "_"),
        body.endpoint,
        file.id,
        "validating",
        now,
        now + _WINDOW,
        (model or context.model)[:200],
        metadata=body.metadata,
        output_seconds=None if expires is None else expires.seconds,
    )
    await context.workers.run(0, partial(store.add, batch, caller.name))
    _wake(context)
    return _json(batch)


def _wake(context: Context) -> None:
    if context.runner is not None:
        context.runner.wake()


async def list_batches(context: Context, request: Request) -> Response:
    batches = await context.workers.run(0, partial(batch_store(context).batches, owner_of(request.scope)))
    shown, more = page(batches, [batch.id for batch in batches], request, 100)
    return _json(BatchList(shown, more, shown[0].id if shown else None, shown[-1].id if shown else None))


async def show_batch(context: Context, request: Request) -> Response:
    return _json(await _found(context, request))


async def _found(context: Context, request: Request) -> BatchObject:
    name = request.path_params["batch_id"]
    store = batch_store(context)
    batch = await context.workers.run(0, partial(store.get, name))
    if batch is None or await context.workers.run(0, partial(store.owner, name)) != owner_of(request.scope):
        raise HttpError(404, f"there is no batch {name[:100]!r}", code="not_found")
    return batch


async def cancel_batch(context: Context, request: Request) -> Response:
    batch, store = await _found(context, request), batch_store(context)
    move = partial(store.move, batch.id, ("validating", "in_progress"), "cancelling", cancelling_at=int(time.time()))
    if await context.workers.run(0, move) is None:
        batch = await _found(context, request)
        if batch.status not in ("cancelling", "cancelled"):
            raise HttpError(409, f"the batch is {batch.status}, and can no longer be cancelled", code="invalid_state")
    _wake(context)
    return _json(await _found(context, request))


def _json(data: object) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


ROUTES = (
    RouteSpec("POST", "/v1/batches", add_batch, "Begin a batch", BatchRequest, BatchObject),
    RouteSpec("GET", "/v1/batches", list_batches, "List the batches", reply=BatchList),
    RouteSpec("GET", "/v1/batches/{batch_id}", show_batch, "Describe a batch", reply=BatchObject),
    RouteSpec(
        "POST", "/v1/batches/{batch_id}/cancel", cancel_batch, "Cancel a batch", reply=BatchObject, conflicts=True
    ),
)
