"""Runs plans: operation by operation, the branches of a fork at the same time."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.errors import HeadraceError, ProgramError, excerpt
from headrace.lang.backend import Backend, Generated, RunScope, TokenCounts
from headrace.lang.choice_scores import best_choice
from headrace.lang.conversation import Conversation
from headrace.lang.operators import MOST_SIZE, OPERATORS, as_text, is_large
from headrace.lang.plan import (
    CallOp,
    ExprOp,
    ForkOp,
    ForOp,
    GenOp,
    IfOp,
    Lit,
    NewStateOp,
    Operand,
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
from headrace.lang.strict_json import parse_json
from headrace.lang.tool_calls import call_tool

__all__ = ["Interpreter", "NodeReport", "Path", "derived_seed"]

MOST_CHOICES = 4096
MOST_OUTPUT = 4 * MOST_SIZE
"""Characters and entries of all outputs, counted as often as they would be written."""
_IN_LOOP = 1 << 16
"""Characters and entries. An operator that reads more runs in a thread: others run in the meantime."""

Path = tuple[int, ...]
"""Numbers of the branches and passes around an operation, outermost first."""
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


class Scope:
    """Values by number, in front of those of the region around it."""

    __slots__ = ("outer", "values")

    def __init__(self, outer: Scope | None = None) -> None:
        self.values: dict[int, Any] = {}
        self.outer = outer

    def __getitem__(self, number: int) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if number in scope.values:
                return scope.values[number]
            scope = scope.outer
        raise KeyError(number)

    def read(self, operand: Operand) -> Any:
        return operand.value if isinstance(operand, Lit) else self[operand.id]


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
        self.usage = TokenCounts()
        self.nodes: list[NodeReport] = []

    async def run(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Conversation]:
        """The outputs and the program's state at the end. Raises ProgramError and the backend's errors, which name the
        place."""
        scope = Scope()
        for param in self._plan.inputs:
            scope.values[param.id] = inputs[param.name]
        work = self._region(self._plan.body, scope, [Conversation()], ())
        seconds = self._plan.limits.seconds
        try:
            (end,) = await (work if seconds is None else asyncio.wait_for(work, seconds))
        except asyncio.TimeoutError:
            raise ProgramError(f"the program ran longer than {seconds:g} s", self._plan.name) from None
        finally:
            if self._keeps is not None:
                self._keeps.close()
        outputs = {name: scope.read(operand) for name, operand in self._plan.outputs.items()}
        if is_large(outputs, MOST_OUTPUT):
            raise ProgramError(f"the outputs have more than {MOST_OUTPUT} characters and entries", self._plan.name)
        return outputs, end

    async def _region(self, region: Region, scope: Scope, args: list[Any], path: Path) -> list[Any]:
        scope.values.update(zip(region.args, args, strict=True))
        for op in region.ops:
            await self._placed(op, scope, path)
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
            _name_place(error, op, path)
            raise

    async def _run(self, op: PlanOp, scope: Scope, path: Path) -> None:
        values = scope.values
        if isinstance(op, (TextOp, ExprOp, RequireOp, SelectOp, CallOp)):
            size = await self._meter.add(_read(op, scope))
        if isinstance(op, TextOp):
            values[op.out] = scope[op.state.id].add("".join(_written(scope.read(part)) for part in op.parts))
        elif isinstance(op, RoleBeginOp):
            values[op.out] = scope[op.state.id].begin(op.role)
        elif isinstance(op, RoleEndOp):
            values[op.out] = scope[op.state.id].end()
        elif isinstance(op, NewStateOp):
            values[op.out] = Conversation()
        elif isinstance(op, ExprOp):
            work = partial(_evaluate, op, [scope.read(one) for one in op.args])
            values[op.out] = await asyncio.to_thread(work) if size > _IN_LOOP else work()
        elif isinstance(op, RequireOp):
            if not _holds(scope.read(op.cond)):
                raise ProgramError(op.message)
        elif isinstance(op, GenOp):
            await _within(op.timeout, self._gen(op, scope, path))
        elif isinstance(op, SelectOp):
            await _within(op.timeout, self._select(op, scope, path))
        elif isinstance(op, CallOp):
            values[op.out] = await _within(op.timeout, self._call(op, scope, path))
        else:
            await self._control(op, scope, path)

    async def _control(self, op: ForkOp | IfOp | WhileOp | ForOp, scope: Scope, path: Path) -> None:
        if isinstance(op, IfOp):
            chosen = op.then if _holds(scope.read(op.cond)) else op.orelse
            found = await self._region(chosen, Scope(scope), [], path)
        elif isinstance(op, ForkOp):
            found = await self._fork(op, scope, path)
        elif isinstance(op, ForOp):
            found = [scope.read(one) for one in op.init]
            for index, entry in enumerate(_entries(op, scope)):
                await self._meter.add(())
                found = await self._region(op.body, Scope(scope), [entry, index, *found], (*path, index))
        else:
            found = await self._while(op, scope, path)
        scope.values.update(zip(op.outs, found, strict=True))

    async def _while(self, op: WhileOp, scope: Scope, path: Path) -> list[Any]:
        found = [scope.read(one) for one in op.init]
        for index in range(op.max):
            await self._meter.add(())
            (holds,) = await self._region(op.cond, Scope(scope), found, (*path, index))
            if not _holds(holds):
                break
            found = await self._region(op.body, Scope(scope), found, (*path, index))
        return found

    async def _fork(self, op: ForkOp, scope: Scope, path: Path) -> list[Any]:
        state = scope[op.state.id]
        if self._keeps is not None:
            self._keeps.share(state)
        tasks = [
            asyncio.ensure_future(self._region(op.body, Scope(scope), [state, entry, index], (*path, index)))
            for index, entry in enumerate(_entries(op, scope))
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
        sampling = dict(op.sampling)
        if sampling.get("seed") is None and self._seed is not None:
            sampling["seed"] = derived_seed(self._seed, op.out, path)
        wanted = sampling["max_tokens"]
        sampling["max_tokens"] = granted = self._reserve(wanted)
        on_text = self._on_text

        def pass_on(piece: str) -> None:
            if on_text is not None:
                on_text(op.name, path, piece)

        made = await self._backend.generate(state, sampling, op.constraint, None if on_text is None else pass_on)
        if self._left is not None:
            self._left += granted - min(granted, made.usage.completion_tokens)
        self.usage.add(made.usage)
        self.nodes.append(NodeReport(op.name, path, made.finish_reason, made.usage, made.logprobs))
        value = _parsed(op, made, granted)
        scope.values[op.out_state] = state.add(made.text).knowing(made.known)
        scope.values[op.out] = value
        self._tell(op.name, path, value)

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
        choices = scope.read(op.choices)
        if not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
            raise ProgramError(f"the choices are no list of texts: {excerpt(choices)}")
        if len(choices) > MOST_CHOICES:
            raise ProgramError(f"takes at most {MOST_CHOICES} choices, got {len(choices)}")
        found = await self._backend.score(state, choices, op.method == "unconditional")
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
        if is_large(list(args.values())):
            raise ProgramError(f"the arguments have more than {MOST_SIZE} characters and entries")
        if self._on_call is not None:
            return await self._on_call(op.tool, path, args)
        return await call_tool(self._tools, op.tool, args)

    def _tell(self, name: str, path: Path, value: Any) -> None:
        if self._on_value is not None:
            self._on_value(name, path, value)


def _made_states(region: Region, scope: Scope) -> Iterator[Conversation]:
    """The states that the generations and the blocks of a region have made."""
    for op in region.ops:
        outs = [op.out_state] if isinstance(op, GenOp) else getattr(op, "outs", ())
        for number in outs:
            value = scope.values.get(number)
            if isinstance(value, Conversation):
                yield value


def derived_seed(seed: int, number: int, path: Path) -> int:
    """The seed of one generation: the same in every run, and another for each operation, branch and pass."""
    key = json.dumps([seed, number, list(path)]).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1


def _read(op: TextOp | ExprOp | RequireOp | SelectOp | CallOp, scope: Scope) -> list[Any]:
    """The values that an operation reads; a text is written anew with what is added to it."""
    if isinstance(op, SelectOp):
        return [scope.read(op.choices)]
    if isinstance(op, CallOp):
        return [scope.read(one) for one in op.args.values()]
    if isinstance(op, ExprOp):
        return [scope.read(one) for one in op.args]
    if isinstance(op, RequireOp):
        return [scope.read(op.cond)]
    return [scope[op.state.id].text, *(scope.read(part) for part in op.parts)]


async def _within(seconds: float | None, work: Any) -> Any:
    if seconds is None:
        return await work
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        raise ProgramError(f"took longer than {seconds:g} s") from None


def _name_place(error: HeadraceError, op: PlanOp, path: Path) -> None:
    """Put the program's line before an error's message, once: the innermost operation is the first to see it."""
    if getattr(error, "_placed", False):
        return
    what = f"gen {op.name!r}" if isinstance(op, GenOp) else f"select {op.name!r}" if isinstance(op, SelectOp) else ""
    if isinstance(op, CallOp):
        what = f"call {op.tool!r}"
    where = f" in branch or pass {'.'.join(map(str, path))}" if path else ""
    line = f"{op.at}: " if op.at else ""
    error.args = (f"{line}{what or type(op).__name__.removesuffix('Op').lower()}{where}: {error}",)
    error._placed = True  # type: ignore[attr-defined]
    if isinstance(error, ProgramError):
        error.node = error.node or op.at


def _evaluate(op: ExprOp, operands: list[Any]) -> Any:
    try:
        found = OPERATORS[op.fn].run(*operands)
    except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        shown = ", ".join(excerpt(one, 60) for one in operands)
        raise ProgramError(f"`{op.fn}` of {shown}: {excerpt(str(error))}") from None
    if isinstance(found, (str, list)) and is_large(found):
        raise ProgramError(f"`{op.fn}` makes a value larger than {MOST_SIZE}")
    if isinstance(found, float) and not math.isfinite(found):
        raise ProgramError(f"`{op.fn}` makes {found}, which is no number of JSON")
    return found


def _written(value: Any) -> str:
    """A value as part of a text. Raises ProgramError before a text that is too long is made."""
    if is_large(value):
        raise ProgramError(f"a value that is written has more than {MOST_SIZE} characters and entries")
    return as_text(value)


def _holds(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ProgramError(f"a condition is true or false, got {excerpt(value, 60)}")
    return value


def _entries(op: ForOp | ForkOp, scope: Scope) -> list[Any]:
    over = scope.read(op.over)
    if isinstance(over, int) and not isinstance(over, bool):
        over = range(over) if over <= op.max else [None] * (op.max + 1)
    if not isinstance(over, (list, range)):
        raise ProgramError(f"runs over a list or a number, got {excerpt(over, 60)}")
    if len(over) > op.max:
        raise ProgramError(f"has more entries than its `max` of {op.max}")
    return list(over)


def _parsed(op: GenOp, made: Generated, granted: int) -> Any:
    if op.type == "text":
        return made.text
    try:
        return parse_json(made.text)
    except (ValueError, RecursionError):
        cut = f"; it was cut at {granted} tokens (max_tokens)" if made.finish_reason == "length" else ""
        raise ProgramError(f"the text is no {op.type}: {excerpt(made.text)}{cut}") from None
