"""Runs plans: operation by operation; at the same time the branches of a fork, and what does not depend on one
another."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.deadlines import in_time
from headrace.errors import HeadraceError, ProgramError, excerpt
from headrace.lang.backend import Backend, Expected, RunScope, TokenCounts
from headrace.lang.choice_scores import best_choice
from headrace.lang.conversation import Conversation
from headrace.lang.critical_path import CriticalPath
from headrace.lang.data_flow import DataFlow, run_flow
from headrace.lang.evaluating import (
    Path,
    Place,
    Scope,
    entries_to_run,
    evaluate,
    holds,
    name_place,
    operands_of,
    parsed,
    within,
    written,
)
from headrace.lang.foresight import Foresight
from headrace.lang.operators import MOST_NESTING, MOST_SIZE, is_deep, is_large
from headrace.lang.plan import (
    CallOp,
    ExprOp,
    ForkOp,
    ForOp,
    GenOp,
    IfOp,
    NewStateOp,
    Plan,
    PlanOp,
    Region,
    RequireOp,
    RoleBeginOp,
    RoleEndOp,
    SelectOp,
    TextOp,
    WhileOp,
)
from headrace.lang.run_meter import RunMeter
from headrace.lang.tool_calls import call_tool

__all__ = ["Interpreter", "NodeReport", "Path", "derived_seed"]

MOST_CHOICES = 4096
MOST_OUTPUT = 4 * MOST_SIZE
"""Characters and entries of all outputs, counted as often as they would be written."""
_MOST_EXPECTED = 16
"""Requests that the engine is told of beforehand."""
_IN_LOOP = 1 << 16
"""Characters and entries. An operator that reads more runs in a thread: others run in the meantime."""

OnText = Callable[[str, Path, str], None]
OnValue = Callable[[str, Path, Any], None]
OnCall = Callable[[str, Path, dict[str, Any]], Awaitable[Any]]


@dataclass(slots=True)
class NodeReport:
    """What one `gen` or `select` did."""

    name: str
    path: Path
    finish_reason: str | None = None
    usage: TokenCounts = field(default_factory=TokenCounts)
    logprobs: Any = None
    scores: dict[str, float] | None = None
    """Of a select: each choice's score, by the method."""


class Interpreter:
    """One run of a checked plan."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        tools: Mapping[str, Callable[..., Any]],
        *,
        seed: int | None = None,
        on_text: OnText | None = None,
        on_value: OnValue | None = None,
        on_call: OnCall | None = None,
        meter: RunMeter | None = None,
    ) -> None:
        """`on_call` answers call-outs in the place of `tools`. `meter` bounds what the run computes itself."""
        self._on_call, self._meter = on_call, meter or RunMeter()
        self._plan, self._tools = plan, tools
        self._keeps = backend.begin_run() if isinstance(backend, RunScope) else None
        self._backend: Backend = self._keeps or backend
        self._seed = seed
        self._on_text, self._on_value = on_text, on_value
        self._left = plan.limits.tokens
        self._flow = DataFlow(plan)
        self._path = None if self._keeps is None else CriticalPath(plan, self._flow)
        self._foresight = Foresight()
        self.usage = TokenCounts()
        self.nodes: list[NodeReport] = []

    async def run(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Conversation]:
        """The outputs and the program's state at the end. Raises ProgramError and the backend's errors, which name the
        place."""
        scope = Scope(None, Place(self._plan.body))
        for param in self._plan.inputs:
            scope.values[param.id] = inputs[param.name]
        work = self._region(scope, [Conversation()])
        seconds = self._plan.limits.seconds
        try:
            (end,) = await (work if seconds is None else in_time(seconds, work))
        except asyncio.TimeoutError:
            raise ProgramError(f"the program ran longer than {seconds:g} s", self._plan.name) from None
        finally:
            if self._keeps is not None:
                self._keeps.close()
        outputs = {name: scope.read(operand) for name, operand in self._plan.outputs.items()}
        if is_large(outputs, MOST_OUTPUT, 2 * MOST_NESTING):
            raise ProgramError(f"the outputs have more than {MOST_OUTPUT} characters and entries", self._plan.name)
        return outputs, end

    async def _region(self, scope: Scope, args: list[Any]) -> list[Any]:
        region, path = scope.place.region, scope.place.path
        scope.values.update(zip(region.args, args, strict=True))
        flow = self._flow.of(region)
        if flow is None:
            for op in region.ops:
                await self._placed(op, scope, path)
        else:
            await run_flow(region.ops, flow, lambda op: self._placed(op, scope, path))
        found = [scope.read(operand) for operand in region.yields]
        if self._keeps is not None:
            ends = {id(one.known) for one in found if isinstance(one, Conversation)}
            for state in _made_states(region, scope):
                if id(state.known) not in ends:
                    self._keeps.let_go(state)
        return found

    async def _placed(self, op: PlanOp, scope: Scope, path: Path) -> None:
        try:
            await self._run(op, scope, path)
        except HeadraceError as error:
            name_place(error, op, path)
            raise

    async def _run(self, op: PlanOp, scope: Scope, path: Path) -> None:
        values = scope.values
        if isinstance(op, (TextOp, ExprOp, RequireOp, SelectOp, CallOp)):
            size = await self._meter.add(operands_of(op, scope))
        if isinstance(op, TextOp):
            values[op.out] = scope[op.state.id].add("".join(written(scope.read(part)) for part in op.parts))
        elif isinstance(op, RoleBeginOp):
            values[op.out] = scope[op.state.id].begin(op.role)
        elif isinstance(op, RoleEndOp):
            values[op.out] = scope[op.state.id].end()
        elif isinstance(op, NewStateOp):
            values[op.out] = Conversation()
        elif isinstance(op, ExprOp):
            work = partial(evaluate, op, [scope.read(one) for one in op.args])
            values[op.out] = await asyncio.to_thread(work) if size > _IN_LOOP else work()
        elif isinstance(op, RequireOp):
            if not holds(scope.read(op.cond)):
                raise ProgramError(op.message)
        elif isinstance(op, GenOp):
            await within(op.timeout, self._gen(op, scope, path))
        elif isinstance(op, SelectOp):
            await within(op.timeout, self._select(op, scope, path))
        elif isinstance(op, CallOp):
            values[op.out] = await within(op.timeout, self._call(op, scope, path))
        else:
            await self._control(op, scope, path)

    async def _control(self, op: ForkOp | IfOp | WhileOp | ForOp, scope: Scope, path: Path) -> None:
        if isinstance(op, IfOp):
            chosen = op.then if holds(scope.read(op.cond)) else op.orelse
            found = await self._region(Scope(scope, Place(chosen, path, op)), [])
        elif isinstance(op, ForkOp):
            found = await self._fork(op, scope, path)
        elif isinstance(op, ForOp):
            found = [scope.read(one) for one in op.init]
            entries = entries_to_run(op, scope)
            for index, entry in enumerate(entries):
                await self._meter.add(())
                place = Place(op.body, (*path, index), op, index, entries)
                found = await self._region(Scope(scope, place), [entry, index, *found])
        else:
            found = await self._while(op, scope, path)
        scope.values.update(zip(op.outs, found, strict=True))

    async def _while(self, op: WhileOp, scope: Scope, path: Path) -> list[Any]:
        found = [scope.read(one) for one in op.init]
        for index in range(op.max):
            await self._meter.add(())
            place = Place(op.cond, (*path, index), op, index)
            (cond,) = await self._region(Scope(scope, place), found)
            if not holds(cond):
                break
            found = await self._region(Scope(scope, place._replace(region=op.body)), found)
        return found

    async def _fork(self, op: ForkOp, scope: Scope, path: Path) -> list[Any]:
        state = scope[op.state.id]
        if self._keeps is not None:
            self._keeps.share(state)
        tasks = [
            asyncio.ensure_future(
                self._region(Scope(scope, Place(op.body, (*path, index), op, index)), [state, entry, index])
            )
            for index, entry in enumerate(entries_to_run(op, scope))
        ]
        try:
            rows = await asyncio.gather(*tasks)
        except BaseException:
            # A failed branch ends the others: their requests are aborted before the error is reported.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        if self._keeps is not None:
            self._keeps.let_go(state)
        return [[row[place] for row in rows] for place in range(len(op.outs))]

    async def _gen(self, op: GenOp, scope: Scope, path: Path) -> None:
        state = scope[op.state.id]
        sampling = self._sampling(op, path)
        wanted = sampling["max_tokens"]
        sampling["max_tokens"] = granted = self._reserve(wanted)
        on_text = self._on_text

        def pass_on(piece: str) -> None:
            if on_text is not None:
                on_text(op.name, path, piece)

        tell = None if on_text is None else pass_on
        if self._keeps is None:
            made = await self._backend.generate(state, sampling, op.constraint, tell)
        else:
            expected = partial(self._expected, op, scope)
            made = await self._keeps.generate(state, sampling, op.constraint, tell, self._turn(op, path), expected)
        if self._left is not None:
            self._left += granted - min(granted, made.usage.completion_tokens)
        self.usage.add(made.usage)
        self.nodes.append(NodeReport(op.name, path, made.finish_reason, made.usage, made.logprobs))
        value = parsed(op, made, granted)
        scope.values[op.out_state] = state.add(made.text).knowing(made.known)
        scope.values[op.out] = value
        self._tell(op.name, path, value)

    def _sampling(self, op: GenOp, path: Path) -> dict[str, Any]:
        sampling = dict(op.sampling)
        if sampling.get("seed") is None and self._seed is not None:
            sampling["seed"] = derived_seed(self._seed, op.out, path)
        return sampling

    def _expected(self, op: GenOp, scope: Scope) -> list[Expected]:
        """What will follow a generation on its state, as far as that is known now."""
        found: list[Expected] = []
        if self._left is not None:
            return found  # What a budget leaves for them depends on this one's length.
        walk = self._foresight.behind(op, scope)
        while len(found) < _MOST_EXPECTED and (one := walk.next()) is not None:
            turn = self._turn(one.op, one.path)
            if isinstance(one.op, GenOp):
                found.append(Expected(one.tail, turn, self._sampling(one.op, one.path), one.op.constraint))
                continue
            with suppress(ProgramError):
                found.append(Expected(one.tail, turn, choices=_choices(one.choices)))
            break
        return found

    def _turn(self, op: GenOp | SelectOp, path: Path) -> tuple[int, ...]:
        """For the engine: what has most of the plan behind it goes first; then, what shares a prefix stays together."""
        return () if self._path is None else (-self._path.left(op, path), op.out, *path)

    def _reserve(self, wanted: int) -> int:
        """Take tokens from the budget. Raises ProgramError if there are none left."""
        if self._left is None:
            return wanted
        granted = min(wanted, self._left)
        if granted < 1:
            raise ProgramError(f"the program's budget of {self._plan.limits.tokens} tokens is used up")
        self._left -= granted
        return granted

    async def _select(self, op: SelectOp, scope: Scope, path: Path) -> None:
        state = scope[op.state.id]
        choices = _choices(scope.read(op.choices))
        alone = op.method == "unconditional"
        if self._keeps is None:
            found = await self._backend.score(state, choices, alone)
        else:
            found = await self._keeps.score(state, choices, alone, self._turn(op, path))
        self.usage.add(found.usage)
        best, scores = best_choice(op.method, found.here, found.alone)
        named = dict(zip(choices, scores, strict=True))
        self.nodes.append(NodeReport(op.name, path, None, found.usage, None, named))
        scope.values[op.out_state] = state.add(choices[best]).knowing(found.known[best] if found.known else None)
        scope.values[op.out] = choices[best]
        if self._on_text is not None:
            self._on_text(op.name, path, choices[best])
        self._tell(op.name, path, choices[best])

    async def _call(self, op: CallOp, scope: Scope, path: Path) -> Any:
        args = {name: scope.read(one) for name, one in op.args.items()}
        if is_large(list(args.values()), MOST_SIZE, 2 * MOST_NESTING):
            raise ProgramError(f"the arguments have more than {MOST_SIZE} characters and entries")
        answer = call_tool(self._tools, op.tool, args) if self._on_call is None else self._on_call(op.tool, path, args)
        found = await answer
        if is_deep(found):
            raise ProgramError(f"the answer has more than {MOST_NESTING} lists and objects inside one another")
        return found

    def _tell(self, name: str, path: Path, value: Any) -> None:
        if self._on_value is not None:
            self._on_value(name, path, value)


def _choices(value: Any) -> list[str]:
    """The choices of a `select`. Raises ProgramError."""
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise ProgramError(f"the choices are no list of texts: {excerpt(value)}")
    if len(value) > MOST_CHOICES:
        raise ProgramError(f"takes at most {MOST_CHOICES} choices, got {len(value)}")
    return value


def _made_states(region: Region, scope: Scope) -> Iterator[Conversation]:
    """The states that the generations and the blocks of a region have made."""
    for op in region.ops:
        outs = [op.out_state] if isinstance(op, (GenOp, SelectOp)) else getattr(op, "outs", ())
        for number in outs:
            value = scope.values.get(number)
            if isinstance(value, Conversation):
                yield value


def derived_seed(seed: int, number: int, path: Path) -> int:
    """The seed of one generation: the same in every run, and another for each operation, branch and pass."""
    key = json.dumps([seed, number, list(path)]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1
