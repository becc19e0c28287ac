"""The router as an ASGI application: what it answers itself, and what it passes to an engine."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.errors import HeadraceError
from headrace.keys.key_ring import ANYONE, Caller, KeyRing
from headrace.route.engine_group import EngineGroup
from headrace.route.fleet import Fleet, Query
from headrace.route.relay import Call, Relay
from headrace.route.router_control import RouterControl
from headrace.route.router_metrics import RouterMetrics
from headrace.route.split_bodies import SPLIT_PATHS, splits
from headrace.server.access import sent_keys
from headrace.server.answer_send import AnswerSend
from headrace.server.cancel_scope import CancelScope, ClientDisconnected
from headrace.server.error_forms import error_response, family_of
from headrace.server.http_errors import HttpError, ShuttingDown, to_http
from headrace.server.request_body import read_body

__all__ = ["RouterApp", "RouterState"]

_OPEN = frozenset({"/health"})
_STATEFUL = ("/v1/files", "/v1/batches", "/v1/responses/", "/v1/programs/", "/v1/engine/")
_CONTROL = ("/reset_prefix_cache", "/start_profile", "/stop_profile", "/sleep", "/wake_up", "/is_sleeping")
_OF_ONE = (*_STATEFUL, *_CONTROL)
"""Paths about what one engine keeps or does: they say nothing about which."""
_MOST_NUMBER = 32
"""Characters of a temperature that is looked at."""


_NULL = msgspec.Raw(b"null")


class _Asked(msgspec.Struct):
    """What decides about the way of a request, of its body."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    # Of these nothing is made: whatever a client puts there costs no more than its bytes.
    seed: msgspec.Raw = _NULL
    temperature: msgspec.Raw = _NULL


class _Named(msgspec.Struct):
    """The model of a body whose other fields cannot be read: who may use it is asked all the same."""

    model: str | None = None


_asked = msgspec.json.Decoder(_Asked, strict=False).decode
_named = msgspec.json.Decoder(_Named).decode


@dataclass(slots=True)
class RouterState:
    """Thread: the event loop's."""

    fleet: Fleet
    keys: KeyRing = field(default_factory=KeyRing)
    metrics: RouterMetrics = field(default_factory=RouterMetrics)
    active: set[CancelScope] = field(default_factory=set)
    inflight: int = 0
    draining: bool = False
    group: EngineGroup | None = None
    """Engines that are started and ended with the router."""


class RouterApp:
    def __init__(self, state: RouterState) -> None:
        self.state = state
        self._own = {
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            **RouterControl(state.fleet, state.group).routes,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        send = AnswerSend(send, given)
        self.state.inflight += 1
        try:
            await self._answer(scope, receive, send)
        except (ClientDisconnect, ClientDisconnected):
            return
        except (HttpError, HeadraceError) as error:
            await self._refuse(to_http(error), scope, receive, send)
        finally:
            self.state.inflight -= 1

    async def _refuse(self, error: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
        self.state.metrics.refused.labels(error.status).inc()
        await error_response(error, family_of(scope))(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: AnswerSend) -> None:
        path = scope["path"]
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        caller = self.state.keys.find(sent_keys(scope)) or (ANYONE if path in _OPEN else None)
        if caller is None:
            raise HttpError(
                401,
                "a valid API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if self.state.draining and path != "/metrics":
            raise ShuttingDown
        own = self._own.get((method, path))
        if own is not None:
            if method == "POST" and not caller.admin:
                raise HttpError(403, "this key may not control replicas: it is not an admin's", code="not_allowed")
            await (await own(Request(scope, receive)))(scope, receive, send)
            return
        limiter = caller.limiter if method == "POST" else None
        if limiter is not None:
            send.more = lambda: limiter.headers(time.monotonic())
            limiter.enter(time.monotonic())
        try:
            await self._pass_on(scope, receive, send, caller)
        finally:
            if limiter is not None:
                limiter.leave()

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        fleet, path = self.state.fleet, scope["path"]
        if path.startswith(_OF_ONE) and (len(fleet.replicas) > 1 or self.state.group is not None):
            message = f"{path[:200]} is about what one engine keeps: ask that engine itself, not the router"
            raise HttpError(501, message, code="not_routed")
        body = await read_body(Request(scope, receive))
        began = time.perf_counter()
        asked = _parse(body)
        call = Call(
            scope["method"].encode(),
            _target(scope),
            path,
            scope["headers"],
            body,
            _streams(path, asked),
            _one_answer(asked),
        )
        query = await self._query(call, asked, caller)
        if caller.limiter is not None:
            caller.limiter.admit_prompt(query.tokens, time.monotonic())
        self.state.metrics.seconds.observe(time.perf_counter() - began)
        relay = Relay(fleet, self.state.metrics, call, query, send)
        async with CancelScope(self.state.active, receive) as cancel_scope:
            try:
                await relay.run()
            except asyncio.CancelledError:
                why = cancel_scope.reason()
                if why is None:
                    raise
                await relay.stop(why)
            finally:
                if caller.limiter is not None:
                    caller.limiter.charge(relay.pieces, time.monotonic())

    async def _query(self, call: Call, asked: _Asked, caller: Caller) -> Query:
        fleet = self.state.fleet
        model = asked.model
        names = list(fleet.models())
        if model is not None and names and model not in names and model.removesuffix(":latest") in names:
            model = model.removesuffix(":latest")  # As Ollama's clients write it.
        if model is None and caller.models is not None and len(names) > 1:
            # One of the models that the key may use.
            model = next((name for name in names if caller.may_use(name)), None)
        if not caller.may_use(model or next(iter(names), "")):
            message = f"the model {(model or '')[:200]!r} is not open to this key"
            raise HttpError(404, message, param="model", code="model_not_found")
        if model is not None and names and model not in names:
            message = f"the model {model[:200]!r} does not exist: there are {', '.join(map(repr, names))}"
            raise HttpError(404, message, param="model", code="model_not_found")
        if call.method != b"POST" or not call.body:
            return Query(model)
        answer = asked.max_tokens or asked.max_completion_tokens or asked.max_output_tokens
        query = await fleet.query(call.path, call.body, model, answer)
        query.splits = call.path in SPLIT_PATHS and bool(query.chains) and splits(call.body)
        return query

    # What the router answers itself

    async def _health(self, request: Request) -> Response:
        if not any(one.usable for one in self.state.fleet.replicas):
            known = {one.number: one.why or "held back" for one in self.state.fleet.replicas}
            members = [] if self.state.group is None else self.state.group.members()
            known = {**{row["replica"]: row["why"] for row in members}, **known}
            why = "; ".join(f"replica {number}: {known[number]}" for number in sorted(known))
            message = f"no engine can take requests: {why}"
            raise HttpError(503, message, kind="server_error", code="no_engine", headers={"retry-after": "2"})
        return _json({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        members = [] if self.state.group is None else self.state.group.members()
        restarts = {row["replica"]: row["restarts"] for row in members}
        return Response(self.state.metrics.render(self.state.fleet, restarts), media_type=CONTENT_TYPE_LATEST)

    async def _models(self, request: Request) -> Response:
        cards: dict[str, Any] = {}
        for replica in self.state.fleet.replicas:
            if isinstance(replica.card, dict):
                cards.setdefault(str(replica.card.get("id")), replica.card)
        names = list(cards)
        first, last = (names[0], names[-1]) if names else (None, None)
        return _json(
            {"object": "list", "data": list(cards.values()), "has_more": False, "first_id": first, "last_id": last}
        )


def _parse(body: bytes) -> _Asked:
    """Of a body that is no JSON object nothing is known: the engine says what is wrong with it."""
    try:
        return _asked(body)
    except (msgspec.MsgspecError, RecursionError):
        try:
            return _Asked(_named(body).model)
        except (msgspec.MsgspecError, RecursionError):
            return _Asked()


def _streams(path: str, asked: _Asked) -> bool:
    """Ollama's API streams unless told not to."""
    return asked.stream is not False if path in ("/api/chat", "/api/generate") else asked.stream is True


def _one_answer(asked: _Asked) -> bool:
    """It has a seed or is greedy."""
    if bytes(asked.seed) != b"null":
        return True
    text = bytes(asked.temperature)
    try:
        return len(text) <= _MOST_NUMBER and float(text) == 0
    except ValueError:
        return False


def _target(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return raw + b"?" + query if query else raw


def _json(data: Any) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")
