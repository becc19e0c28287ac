"""Runs whole plans on a server that takes them: Headrace's `/v1/programs`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.errors import EngineDead, HeadraceError, InvalidRequest, Overloaded, ProgramError
from headrace.lang.backend import PlanReply, TokenCounts
from headrace.lang.interpreter import NodeReport, OnText, OnValue
from headrace.lang.openai_endpoint import HttpBackend, events_of
from headrace.lang.plan import Plan, tool_names
from headrace.lang.tool_calls import call_tool

__all__ = ["PlanBackend"]

_PATH = "/v1/programs"
_OF_PROGRAMS = (None, "invalid_plan")
"""Codes of the errors that an interpreter raises as ProgramErrors."""
_LONGEST = 3600
"""Seconds that a run may take: the plan has its own limit."""


class PlanBackend(HttpBackend):
    """A `backend.PlanRunner`, if the server takes plans."""

    runs_plans = False

    async def find_plans(self) -> None:
        """Find out whether the server takes plans of this version."""
        if not self.kind.plans:
            return
        try:
            with self.reading():
                async with self.sending("GET", _PATH, None) as response:
                    major, _ = json.loads(await response.aread())["version"]
                    self.runs_plans = major == 1
        except InvalidRequest:
            return  # No such route.

    async def run_plan(
        self,
        plan: Plan,
        inputs: Mapping[str, Any],
        tools: Mapping[str, Callable[..., Any]],
        seed: int | None,
        on_text: OnText | None,
        on_value: OnValue | None,
    ) -> PlanReply:
        """The result. Cancelling closes the connection, which ends the run. Raises ProgramError and the model's
        errors."""
        called = tool_names(plan)
        for name in sorted(called - tools.keys()):
            raise ProgramError(f"no function {name!r} was given; there are: {', '.join(sorted(tools)) or 'none'}")
        body = self.named({"plan": msgspec.to_builtins(plan), "inputs": inputs, "timeout": _LONGEST})
        body |= {} if seed is None else {"seed": seed}
        try:
            with self.reading():
                if not (called or on_text or on_value):
                    async with self.sending("POST", _PATH, body) as response:
                        return _reply(json.loads(await response.aread()))
                async with self.sending("POST", _PATH, {**body, "stream": True}) as response:
                    return await _Stream(self, tools, on_text, on_value).read(response)
        except InvalidRequest as error:
            if error.code in _OF_PROGRAMS:
                raise ProgramError(str(error)) from None
            raise


class _Stream:
    """The events of one run, and its calls of functions, which run meanwhile."""

    def __init__(
        self,
        backend: PlanBackend,
        tools: Mapping[str, Callable[..., Any]],
        on_text: OnText | None,
        on_value: OnValue | None,
    ) -> None:
        self._backend, self._tools, self._on_text, self._on_value = backend, tools, on_text, on_value
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
        elif kind == "text.delta" and self._on_text is not None:
            self._on_text(one["name"], tuple(one["path"]), one["text"])
        elif kind == "value.done" and self._on_value is not None:
            self._on_value(one["name"], tuple(one["path"]), one.get("value"))
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
            answer["output"] = await call_tool(self._tools, name, args)
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
