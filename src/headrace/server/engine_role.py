"""`GET` and `POST /v1/engine/role`: the engine's part in a group of engines, and its change at run time."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.context import Context
from headrace.server.http_errors import HttpError
from headrace.server.kv_transfer import EngineRoleRequest
from headrace.server.replies import EngineRoleReply
from headrace.server.request_body import read_json
from headrace.server.route_spec import RouteSpec

__all__ = ["ROUTES"]

_PATH = "/v1/engine/role"


async def engine_role(context: Context, request: Request) -> Response:
    return Response(msgspec.json.encode(_reply(context)), media_type="application/json")


async def set_engine_role(context: Context, request: Request) -> Response:
    """Takes effect with the next request. Those that run, and the blocks that wait to be fetched, stay as they are."""
    body, _ = await read_json(request, EngineRoleRequest)
    _reply(context)
    assert context.role is not None
    context.role.role = body.role
    return await engine_role(context, request)


def _reply(context: Context) -> EngineRoleReply:
    info = context.client.info.transfer
    if context.role is None or info is None:
        message = "this engine exchanges no blocks with others: start it with --role"
        raise HttpError(404, message, code="not_found")
    return context.role.reply(info)


ROUTES = (
    RouteSpec("GET", _PATH, engine_role, "Show the engine's role", reply=EngineRoleReply, may_lack=True),
    RouteSpec(
        "POST", _PATH, set_engine_role, "Change the engine's role", EngineRoleRequest, EngineRoleReply, admin=True
    ),
)
