"""The router's own routes about its engines: which there are, how many, and that one gets nothing new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace import __version__
from headrace.route.engine_group import EngineGroup, UpdateRunning
from headrace.route.fleet import Fleet
from headrace.route.replica import Replica
from headrace.server.http_errors import HttpError
from headrace.server.request_body import read_body

__all__ = ["RouterControl"]

T = TypeVar("T")


class _Hold(msgspec.Struct, forbid_unknown_fields=True):
    replica: int
    hold: bool = True


class _Scale(msgspec.Struct, forbid_unknown_fields=True):
    replicas: int


class _Update(msgspec.Struct, forbid_unknown_fields=True):
    path: str | None = None


class RouterControl:
    """Thread: the event loop's."""

    def __init__(self, fleet: Fleet, group: EngineGroup | None) -> None:
        self._fleet, self._group = fleet, group
        self.routes = {
            ("GET", "/v1/router/replicas"): self._replicas,
            ("POST", "/v1/router/hold"): self._hold,
            ("POST", "/v1/router/scale"): self._scale,
            ("POST", "/v1/router/update"): self._update,
        }

    async def _replicas(self, request: Request) -> Response:
        members = {} if self._group is None else {row["replica"]: row for row in self._group.members()}
        rows = [self._row(one, members.get(one.number)) for one in self._fleet.replicas]
        known = {one.number for one in self._fleet.replicas}
        rows += [_absent(member) for number, member in members.items() if number not in known]
        group = None if self._group is None else self._group.summary()
        rows.sort(key=lambda row: int(row["replica"]))
        return _json({"version": __version__, "group": group, "replicas": rows})

    def _row(self, one: Replica, member: Mapping[str, Any] | None) -> dict[str, Any]:
        index = self._fleet.index
        row: dict[str, Any] = {
            "replica": one.number,
            "url": one.url,
            "role": one.role,
            "state": _state(one, member),
            "why": one.why,
            "model": None if one.facts is None else one.facts.model,
            "events": index.known(one.name),
            "reads_prompts": one.facts is not None and self._fleet.reads(one.facts.model),
            "blocks": index.size(one.name),
            "queued_tokens": one.load.queued,
            "waiting": one.load.waiting,
            "running": one.load.running,
            "requests": one.load.tickets,
            "prefill_ms_per_token": round(one.load.rates.prefill, 4),
            "ejections": one.ejections,
        }
        if member is not None:
            row.update(restarts=member["restarts"], where=member["where"])
        return row

    async def _hold(self, request: Request) -> Response:
        """Send no new requests to a replica, or send them again. Those that it has are not touched."""
        wanted = await _body(request, _Hold, '{"replica": NUMBER, "hold": true or false}')
        found = next((one for one in self._fleet.replicas if one.number == wanted.replica), None)
        if found is None:
            there = ", ".join(str(one.number) for one in self._fleet.replicas)
            raise HttpError(404, f"there is no replica {wanted.replica}: there are {there}", param="replica")
        found.held_back = wanted.hold
        return _json({"replica": found.number, "hold": found.held_back, "requests": found.load.tickets})

    async def _scale(self, request: Request) -> Response:
        """Have so many engines."""
        group = self._needs_group()
        wanted = await _body(request, _Scale, '{"replicas": NUMBER}')
        try:
            group.scale(wanted.replicas)
        except UpdateRunning as error:
            raise _conflict(error) from None
        return _json(group.summary())

    async def _update(self, request: Request) -> Response:
        """Begin to replace all engines, one by one."""
        group = self._needs_group()
        wanted = await _body(request, _Update, '{"path": "a model\'s files"}, or {}')
        try:
            group.update(wanted.path)
        except UpdateRunning as error:
            raise _conflict(error) from None
        return _json(group.summary(), 202)

    def _needs_group(self) -> EngineGroup:
        if self._group is None:
            raise HttpError(
                409,
                "the router did not start its engines, so it starts and ends none: use headrace serve --replicas",
                code="no_group",
            )
        return self._group


def _conflict(error: UpdateRunning) -> HttpError:
    return HttpError(409, str(error), code=error.code)


def _state(one: Replica, member: Mapping[str, Any] | None) -> str:
    if member is not None and member["phase"] == "draining":
        return "draining"
    if member is not None and one.state == "new":
        return "starting"
    return "held" if one.held_back and one.state == "ready" else one.state


def _absent(member: Mapping[str, Any]) -> dict[str, Any]:
    """The row of an engine that has no address now."""
    nothing = dict.fromkeys(("url", "role", "model", "prefill_ms_per_token"))
    counts = dict.fromkeys(("blocks", "queued_tokens", "waiting", "running", "requests", "ejections"), 0)
    flags = {"events": False, "reads_prompts": False}
    return {
        "replica": member["replica"],
        **nothing,
        **counts,
        **flags,
        "state": member["phase"],
        "why": member["why"],
        "restarts": member["restarts"],
        "where": member["where"],
    }


async def _body(request: Request, kind: type[T], form: str) -> T:
    try:
        return msgspec.json.decode(await read_body(request) or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise HttpError(400, f"the body must be {form}: {error}", code="invalid_value") from None


def _json(data: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")
