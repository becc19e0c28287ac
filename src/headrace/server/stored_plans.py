"""`/v1/plans`: stores plans, which programs then run by their ids with inputs alone."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.caller import owner_of
from headrace.server.context import Context
from headrace.server.http_errors import HttpError
from headrace.server.plan_store import StoredPlan
from headrace.server.program_schemas import PlanReply, PlanRequest
from headrace.server.programs import with_language
from headrace.server.request_body import read_json
from headrace.server.route_spec import RouteSpec

__all__ = ["ROUTES", "forget_plan", "store_plan", "tell_plan"]


async def store_plan(context: Context, request: Request) -> Response:
    body, sent = await read_json(request, PlanRequest)

    def read() -> StoredPlan:
        from headrace.server.program_run import stored_plan

        return stored_plan(body.plan)

    stored = await with_language(context, len(sent), read)
    context.plans.put(owner_of(request.scope), stored.reply.id, stored)
    return _answer(stored)


async def tell_plan(context: Context, request: Request) -> Response:
    return _answer(_stored(context, request))


async def forget_plan(context: Context, request: Request) -> Response:
    stored = _stored(context, request)
    context.plans.remove(owner_of(request.scope), stored.reply.id)
    return Response(msgspec.json.encode({"id": stored.reply.id, "deleted": True}), media_type="application/json")


def _stored(context: Context, request: Request) -> StoredPlan:
    name = request.path_params["id"]
    found = context.plans.get(owner_of(request.scope), name)
    if found is None:
        raise HttpError(404, f"no plan {name[:200]!r} is stored", param="id", code="plan_not_found")
    return found


def _answer(stored: StoredPlan) -> Response:
    return Response(msgspec.json.encode(stored.reply), media_type="application/json")


ROUTES = (
    RouteSpec("PUT", "/v1/plans", store_plan, "Store a plan", PlanRequest, PlanReply),
    RouteSpec("GET", "/v1/plans/{id}", tell_plan, "Tell what a stored plan takes and gives", reply=PlanReply),
    RouteSpec("DELETE", "/v1/plans/{id}", forget_plan, "Forget a stored plan"),
)
