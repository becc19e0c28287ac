"""Which operations of a region wait for which others.

Operations on different states do not depend on one another, so the model may work on them at the same time. What can be
seen stays that of the program's order: functions are called in that order, and only once all before them has gone
well; nothing generates behind a `require` that has not been decided; and of several errors the first one of the program
is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.lang.plan import (
    CallOp,
    ForkOp,
    ForOp,
    GenOp,
    IfOp,
    Plan,
    PlanOp,
    Region,
    RequireOp,
    SelectOp,
    WhileOp,
    references,
    regions,
)

__all__ = ["DataFlow", "Flow", "Step", "run_flow"]

_AT_ONCE = 16
"""Operations of one region that run at the same time."""


class Step(NamedTuple):
    """One operation of a region."""

    needs: tuple[int, ...]
    """The earlier ones that it waits for."""
    slow: bool
    """It takes the time of a model's answer, or of a function's."""


Flow = tuple[Step, ...]


class DataFlow:
    """The flow of each region of a plan."""

    def __init__(self, plan: Plan) -> None:
        most = plan.limits.tokens
        # Who gets the last tokens of a budget must not depend on who is faster.
        self._in_order = most is not None and _most_tokens(plan.body) > most
        self._flows: dict[int, Flow | None] = {}
        self._facts: dict[int, _Facts] = {}

    def of(self, region: Region) -> Flow | None:
        """None: each operation needs the one before it, as far as the model is concerned."""
        if self._in_order:
            return None
        key = id(region)
        if key not in self._flows:
            self._flows[key] = self._flow(region)
        return self._flows[key]

    def _flow(self, region: Region) -> Flow | None:
        facts = [self._of_op(op) for op in region.ops]
        if sum(one.slow for one in facts) < 2:
            return None
        made_by: dict[int, int] = {}
        found: list[Step] = []
        before = [0] * len(facts)
        """For each operation the slow ones that it waits for, directly or not, as bits."""
        independent, seen, required, called = False, 0, -1, 0
        for at, (op, fact) in enumerate(zip(region.ops, facts, strict=True)):
            needs = {made_by[one] for one in fact.reads if one in made_by}
            if fact.calls:
                needs |= set(range(called, at))  # What is before the last call is behind that one.
                called = at
            elif required >= 0 and (fact.slow or fact.requires):
                needs.add(required)
            for one in needs:
                before[at] |= before[one] | (1 << one if facts[one].slow else 0)
            if fact.slow:
                independent |= before[at] != seen
                seen |= 1 << at
            required = at if fact.requires else required
            made_by.update(dict.fromkeys(_made(op), at))
            found.append(Step(tuple(sorted(needs)), fact.slow))
        return tuple(found) if independent else None

    def _of_op(self, op: PlanOp) -> _Facts:
        known = self._facts.get(id(op))
        if known is None:
            inner = [self._of_op(one) for region in regions(op).values() for one in region.ops]
            direct = [region.yields for region in regions(op).values()]
            direct += [value for name in op.__struct_fields__ if not isinstance(value := getattr(op, name), Region)]
            known = self._facts[id(op)] = _Facts(
                frozenset(one.id for one in references(direct)).union(*(one.reads for one in inner)),
                isinstance(op, (GenOp, SelectOp, CallOp)) or any(one.slow for one in inner),
                isinstance(op, CallOp) or any(one.calls for one in inner),
                isinstance(op, RequireOp) or any(one.requires for one in inner),
            )
        return known


async def run_flow(ops: Sequence[PlanOp], steps: Flow, run: Callable[[PlanOp], Awaitable[None]]) -> None:
    """Run the operations of a region, each once those that it needs have ended. Raises the error of the first one, in
    the program's order, that fails."""
    tasks: dict[int, asyncio.Future[None]] = {}
    running: set[asyncio.Future[None]] = set()
    try:
        for at, (op, step) in enumerate(zip(ops, steps, strict=True)):
            waits = [tasks[one] for one in step.needs if one in tasks]
            if step.slow or waits:
                tasks[at] = asyncio.ensure_future(_behind(waits, run, op))
                running.add(tasks[at])
            else:
                try:
                    await run(op)
                except Exception as error:
                    tasks[at] = asyncio.get_running_loop().create_future()
                    tasks[at].set_exception(error)
                    break
            if len(running) >= _AT_ONCE:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            ended = {one for one in running if one.done()}
            running -= ended
            if any(map(_failed, ended)):
                break
        await _settled(tasks)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


class _NotRun(Exception):
    """An operation that this one needs has failed."""


async def _behind(waits: Sequence[asyncio.Future[None]], run: Callable[[PlanOp], Awaitable[None]], op: PlanOp) -> None:
    if waits:
        await asyncio.wait(waits)
        if any(one.cancelled() or _failed(one) for one in waits):
            raise _NotRun
    await run(op)


async def _settled(tasks: Mapping[int, asyncio.Future[None]]) -> None:
    """Wait for the end of all. Once one has failed, the later ones are cancelled, and the earlier ones go on."""
    error: BaseException | None = None
    while tasks:
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_EXCEPTION)
        failed = [at for at, one in tasks.items() if _failed(one)]
        if not failed:
            break
        first = min(failed)
        error = tasks[first].exception()
        for at, one in tasks.items():
            if at > first:
                one.cancel()
        tasks = {at: one for at, one in tasks.items() if at < first}
    if error is not None:
        raise error


def _failed(task: asyncio.Future[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


class _Facts(NamedTuple):
    """Of one operation with all inside of it."""

    reads: frozenset[int]
    slow: bool
    calls: bool
    requires: bool


def _made(op: PlanOp) -> list[int]:
    """The values that an operation defines."""
    return [getattr(op, name) for name in ("out", "out_state") if hasattr(op, name)] + list(getattr(op, "outs", ()))


def _most_tokens(region: Region) -> int:
    total = 0
    for op in region.ops:
        inner = [_most_tokens(one) for one in regions(op).values()]
        if isinstance(op, GenOp):
            total += int(op.sampling.get("max_tokens", 0))
        elif isinstance(op, IfOp):
            total += max(inner)
        elif isinstance(op, (ForkOp, ForOp, WhileOp)):
            total += op.max * sum(inner)
    return total
