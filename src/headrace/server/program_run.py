"""A running program of the server. Imported with the first one: a server that runs none starts without `lang`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.client.batch import SequenceLimiter
from headrace.errors import InvalidRequest, ProgramError
from headrace.lang.backend import TokenCounts
from headrace.lang.check import CheckReport, RunLimits, check
from headrace.lang.interpreter import Interpreter, NodeReport, Path
from headrace.lang.plan import Limits, Plan, decode_plan, plan_id, tool_names
from headrace.lang.run_meter import RunMeter
from headrace.lang.running import read_inputs
from headrace.programs import EngineBackend
from headrace.programs.model_texts import ModelTexts
from headrace.server.context import Context
from headrace.server.logprobs import chat_logprobs
from headrace.server.plan_store import StoredPlan
from headrace.server.program_schemas import (
    DEFAULT_TIMEOUT,
    PlanBounds,
    PlanInput,
    PlanReply,
    ProgramEvent,
    ProgramLimits,
    ProgramNode,
    ProgramReply,
    ProgramRequest,
    ProgramUsage,
)

__all__ = ["LIMITS", "ProgramRun", "limits_reply", "read_program", "stored_plan"]

LIMITS = RunLimits(work=200_000, branches=256, requests=4096, tokens=1_000_000)
MOST_READ = 64 << 20
"""Characters and entries of values that the operations of a run may read."""
_ALTERNATIVES = 128


def limits_reply() -> ProgramLimits:
    return ProgramLimits(LIMITS.work, LIMITS.branches, LIMITS.requests or 0, LIMITS.tokens or 0, MOST_READ)


def _checked(document: Mapping[str, Any]) -> tuple[Plan, CheckReport, bytes]:
    """A plan that may run, its bounds and its document. Raises InvalidRequest that names the node."""
    try:
        data = msgspec.json.encode(document)
        plan = decode_plan(data)
        report = check(plan, LIMITS)
        report.raise_first()
    except ProgramError as error:
        raise InvalidRequest(str(error), f"plan.{error.node.split(' ')[0]}".rstrip("."), "invalid_plan") from None
    except RecursionError:
        raise InvalidRequest("the plan is nested too deeply", "plan", "invalid_plan") from None
    return plan, report, data


def stored_plan(document: Mapping[str, Any]) -> StoredPlan:
    """A plan to be stored. Raises InvalidRequest that names the node. Runs in any thread."""
    plan, report, data = _checked(document)
    inputs = [PlanInput(one.name, one.type, one.required) for one in plan.inputs]
    bounds = PlanBounds(report.work, report.branches, report.requests, report.tokens)
    tools = sorted(tool_names(plan))
    return StoredPlan(
        plan, PlanReply(plan_id(plan), "plan", plan.name, inputs, list(plan.outputs), tools, bounds), len(data)
    )


def read_program(body: ProgramRequest, stored: StoredPlan | None) -> tuple[Plan, dict[str, Any]]:
    """The plan, which may run, and its inputs. Raises InvalidRequest that names the node. Runs in any thread."""
    plan: Plan = _checked(body.plan or {})[0] if stored is None else stored.plan
    if not body.stream and (tools := tool_names(plan)):
        raise InvalidRequest(f"the plan calls {min(tools)!r}, which you answer: it needs `stream: true`", "stream")
    seconds = min(plan.limits.seconds or DEFAULT_TIMEOUT, body.timeout or DEFAULT_TIMEOUT)
    try:
        inputs = read_inputs(plan, body.inputs or {})
    except ProgramError as error:
        raise InvalidRequest(str(error), "inputs", "invalid_value") from None
    return msgspec.structs.replace(plan, limits=Limits(plan.limits.tokens, seconds)), inputs


class ProgramRun:
    """One run. `work` runs it; its events are read from `events`, None is the last."""

    def __init__(self, context: Context, name: str, plan: Plan, inputs: dict[str, Any], body: ProgramRequest) -> None:
        self.name, self.owner = name, ""
        self.events: asyncio.Queue[ProgramEvent | None] = asyncio.Queue()
        self.task: asyncio.Task[ProgramReply] | None = None
        self._inputs = inputs
        self._calls: dict[str, asyncio.Future[Any]] = {}
        self._numbers = 0
        places = context.program_places
        if places is None:
            places = context.program_places = SequenceLimiter(context.max_choices)
            context.program_texts = ModelTexts(context.tokenizer)
        backend = EngineBackend(
            context.client,
            context.tokenizer,
            places,
            priority=body.priority or 0,
            salt=body.cache_salt or "",
            in_thread=context.workers.run,
            texts=context.program_texts,
        )
        tell = self._tell
        self._run = Interpreter(
            plan,
            backend,
            {},
            seed=body.seed,
            on_text=(lambda name, path, text: tell("text.delta", name, path, text=text)) if body.stream else None,
            on_value=(lambda name, path, value: tell("value.done", name, path, value=value)) if body.stream else None,
            on_call=self._call,
            meter=RunMeter(MOST_READ),
        )

    def start(self) -> asyncio.Task[ProgramReply]:
        self.task = asyncio.create_task(self._work())
        return self.task

    def answer(self, call_id: str, output: Any, error: str | None) -> bool:
        """Give the answer of a call. False: nothing waits for it."""
        waiting = self._calls.pop(call_id, None)
        if waiting is None or waiting.done():
            return False
        if error is None:
            waiting.set_result(output)
        else:
            waiting.set_exception(ProgramError(error))
        return True

    @property
    def usage(self) -> TokenCounts:
        return self._run.usage

    def event(self, kind: Any, **fields: Any) -> ProgramEvent:
        self._numbers += 1
        return ProgramEvent(kind, self._numbers - 1, **fields)

    async def _work(self) -> ProgramReply:
        try:
            outputs, end = await self._run.run(self._inputs)
        finally:
            self.events.put_nowait(None)
        messages = end.as_messages() if end.is_chat else []
        text = messages[-1]["content"] if messages else end.text
        nodes = [_node(one) for one in self._run.nodes]
        return ProgramReply(self.name, "program", outputs, messages, text, _usage(self._run.usage), nodes)

    def _tell(self, kind: str, name: str, path: Path, **fields: Any) -> None:
        self.events.put_nowait(self.event(kind, name=name, path=list(path), **fields))

    async def _call(self, tool: str, path: Path, args: dict[str, Any]) -> Any:
        call_id = f"call-{secrets.token_hex(8)}"
        waiting = self._calls[call_id] = asyncio.get_running_loop().create_future()
        self._tell("tool.call", tool, path, call_id=call_id, arguments=args)
        try:
            return await waiting
        finally:
            self._calls.pop(call_id, None)


def _node(one: NodeReport) -> ProgramNode:
    logprobs = None if one.logprobs is None else chat_logprobs(one.logprobs, _ALTERNATIVES)
    return ProgramNode(one.name, list(one.path), one.finish_reason, _usage(one.usage), logprobs, one.scores)


def _usage(counts: TokenCounts) -> ProgramUsage:
    return ProgramUsage(
        counts.prompt_tokens,
        counts.completion_tokens,
        counts.cached_tokens,
        counts.requests,
        counts.encoded_tokens,
    )
