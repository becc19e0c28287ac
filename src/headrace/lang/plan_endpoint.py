"""Runs whole plans on a server that takes them: Headrace's `/v1/programs`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx
import msgspec

from headrace.errors import ConfigError, EngineDead, HeadraceError, InvalidRequest, Overloaded, ProgramError
from headrace.lang.backend import PlanReply, TokenCounts
from headrace.lang.interpreter import NodeReport, OnText, OnValue
from headrace.lang.openai_bodies import KINDS
from headrace.lang.openai_endpoint import HttpBackend, events_of
from headrace.lang.plan import Plan, tool_names
from headrace.lang.tool_calls import call_tool

__all__ = ["PlanBackend"]

Tools = Mapping[str, Callable[..., Any]]
_PATH = "/v1/programs"
_OF_PROGRAMS = (None, "invalid_plan")
"""Codes of the errors that an interpreter raises as ProgramErrors."""
_LONGEST = 3600
"""Seconds that a run may take: the plan has its own limit."""


class _Host(NamedTuple):
    """What the program's own process does for a run: its functions, and who hears of events."""

    tools: Tools
    on_text: OnText | None
    on_value: OnValue | None

    @property
    def listens(self) -> bool:
        return self.on_text is not None or self.on_value is not None


class PlanBackend(HttpBackend):
    """A `backend.PlanRunner`, if the server takes plans. A single run finds that out by sending its plan."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        model: str | None = None,
        kind: str | None = None,
        plans: bool | None = None,
    ) -> None:
        """`plans`: whether it runs plans must be (True), must not be (False) or may be."""
        super().__init__(client, url, model, kind)
        self._wanted, self._asking = plans, asyncio.Lock()
        no = plans is False or (plans is None and kind is not None and not KINDS[kind].plans)
        self.runs_plans: bool | None = False if no else None
        self._stored: dict[int, tuple[Plan, asyncio.Future[str | None]]] = {}
        """Plans that were sent to be kept, and the server's ids of them."""

    async def find_plans(self) -> bool:
        """Find out what the server is, and whether it takes plans of this version. Raises ConfigError if it must."""
        async with self._asking:
            if self.runs_plans is None:
                await self.connect()
                self.runs_plans = self.kind.plans and await self._has_plans()
        if self._wanted and not self.runs_plans:
            raise ConfigError(f"{self.url} runs no plans: leave `plans` out, and they are run from here")
        return self.runs_plans

    async def _has_plans(self) -> bool:
        try:
            with self.reading():
                async with self.sending("GET", _PATH, None) as response:
                    major, _ = json.loads(await response.aread())["version"]
                    return bool(major == 1)
        except InvalidRequest:
            return False  # No such route.

    async def run_plan(
        self,
        plan: Plan,
        inputs: Mapping[str, Any],
        tools: Mapping[str, Callable[..., Any]],
        seed: int | None,
        on_text: OnText | None,
        on_value: OnValue | None,
    ) -> PlanReply | None:
        """The result; None if the server takes no plans. Cancelling closes the connection, which ends the run. Raises
        ProgramError and the model's errors."""
        host = _Host(tools, on_text, on_value)
        body = self.named({"inputs": inputs, "timeout": _LONGEST})
        body |= {} if seed is None else {"seed": seed}
        body |= {} if self.priority is None else {"priority": self.priority}
        body |= {"stream": True} if host.listens or tool_names(plan) else {}
        try:
            reply = await self._sent(plan, body, host)
        except HeadraceError:
            if self.runs_plans is None and not await self.find_plans():
                return None
            raise
        self.runs_plans = True
        return reply

    async def _sent(self, plan: Plan, body: Mapping[str, Any], host: _Host) -> PlanReply:
        for name in sorted(tool_names(plan) - host.tools.keys()):
            known = ", ".join(sorted(host.tools)) or "none"
            raise ProgramError(f"no function {name!r} was given; there are: {known}")
        try:
            kept = await self._kept(plan)
            if kept is not None:
                try:
                    return await self._answer({**body, "plan_id": kept}, host)
                except InvalidRequest as error:
                    if error.code != "plan_not_found":
                        raise
            return await self._answer({**body, "plan": msgspec.to_builtins(plan)}, host)
        except InvalidRequest as error:
            if error.code in _OF_PROGRAMS:
                raise ProgramError(str(error)) from None
            raise

    async def _answer(self, body: Mapping[str, Any], host: _Host) -> PlanReply:
        with self.reading():
            async with self.sending("POST", _PATH, dict(body)) as response:
                if "stream" in body:
                    return await _Stream(self, host).read(response)
                return _reply(json.loads(await response.aread()))

    async def _kept(self, plan: Plan) -> str | None:
        """The id of a plan that the server keeps; None: send it. Plans are kept by batches, which run them often."""
        if self.runs_plans is None:
            return None
        if id(plan) not in self._stored:
            self._stored[id(plan)] = plan, asyncio.ensure_future(self._store(plan))
        return await asyncio.shield(self._stored[id(plan)][1])

    async def _store(self, plan: Plan) -> str | None:
        try:
            with self.reading():
                async with self.sending("PUT", "/v1/plans", {"plan": msgspec.to_builtins(plan)}) as response:
                    return str(json.loads(await response.aread())["id"])
        except HeadraceError:
            return None  # What is wrong shows when it is sent to run.


class _Stream:
    """The events of one run, and its calls of functions, which run meanwhile."""

    def __init__(self, backend: PlanBackend, host: _Host) -> None:
        self._backend, self._host = backend, host
        self._program = ""
        self._calls: set[asyncio.Task[None]] = set()

    async def read(self, response: Any) -> PlanReply:
        try:
            async for data in events_of(response):
                found = self._take(json.loads(data))
                if found is not None:
                    return found
        finally:
            for call in self._calls:
                call.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)
        raise EngineDead(f"{self._backend.url}: the program's events have ended without a result")

    def _take(self, one: dict[str, Any]) -> PlanReply | None:
        kind = one["type"]
        if kind == "program.created":
            self._program = one["id"]
        elif kind == "text.delta" and self._host.on_text is not None:
            self._host.on_text(one["name"], tuple(one["path"]), one["text"])
        elif kind == "value.done" and self._host.on_value is not None:
            self._host.on_value(one["name"], tuple(one["path"]), one.get("value"))
        elif kind == "tool.call":
            task = asyncio.ensure_future(self._call(one["call_id"], one["name"], one.get("arguments") or {}))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        elif kind == "program.failed":
            raise _error(one)
        elif kind == "program.cancelled":
            raise EngineDead("the program was cancelled on the server")
        return _reply(one["program"]) if kind == "program.completed" else None

    async def _call(self, call_id: str, name: str, args: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"call_id": call_id}
        try:
            answer["output"] = await call_tool(self._host.tools, name, args)
        except HeadraceError as error:
            answer["error"] = str(error)
        async with self._backend.sending("POST", f"{_PATH}/{self._program}/tool_outputs", answer):
            pass


def _error(one: dict[str, Any]) -> HeadraceError:
    detail, status = one["error"], one["status"]
    message = str(detail["message"])
    if status < 500:
        return InvalidRequest(message, code=detail.get("code"))
    return Overloaded(message) if detail.get("code") == "overloaded" else EngineDead(message)


def _reply(found: dict[str, Any]) -> PlanReply:
    nodes = [
        NodeReport(
            one["name"],
            tuple(one["path"]),
            one["finish_reason"],
            _counts(one["usage"]),
            one.get("logprobs"),
            one.get("scores"),
        )
        for one in found["nodes"]
    ]
    return PlanReply(found["outputs"], found["messages"], found["text"], _counts(found["usage"]), nodes)


def _counts(found: dict[str, int]) -> TokenCounts:
    return TokenCounts(**{name: int(found[name]) for name in TokenCounts.__dataclass_fields__})
