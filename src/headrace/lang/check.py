"""Checks plans before they run: limits first, then definitions and types, roles, constraints, and what is unreachable.

A plan that `check` accepts is bounded: the report has upper bounds of its tokens and of its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.errors import ProgramError
from headrace.lang.operators import MOST_NESTING, is_deep
from headrace.lang.plan import (
    ForkOp,
    ForOp,
    GenOp,
    IfOp,
    Lit,
    Plan,
    PlanOp,
    Region,
    SelectOp,
    WhileOp,
    regions,
)
from headrace.lang.plan_types import TypeChecker

__all__ = ["CheckReport", "Problem", "RunLimits", "check"]

MOST_OPS, MOST_DEPTH = 10_000, 32
MOST_OPERANDS = 10_000
"""Entries of each list of operands, values, inputs and outputs."""
MOST_BRANCHES, MOST_PASSES = 128, 10_000
MOST_CONSTANT, MOST_CONSTANTS = 1 << 20, 8 << 20
"""Characters of one constant, and of all."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The most that a run of a plan may do by its bounds."""

    work: int = 10_000_000
    """Operations."""
    branches: int = 4096
    """Branches at once."""
    requests: int | None = None
    """Generations and selections; None: any number."""
    tokens: int | None = None
    """Tokens that it generates."""


@dataclass(frozen=True, slots=True)
class Problem:
    node: str
    """The path of the operation, as `body.ops[3].then.ops[0]`."""
    message: str
    severity: Literal["error", "warning"] = "error"
    at: str = ""
    """The program's FILE:LINE, if the plan has it."""

    def __str__(self) -> str:
        return f"{self.node}{f' ({self.at})' if self.at else ''}: {self.message}"


@dataclass(slots=True)
class CheckReport:
    problems: list[Problem] = field(default_factory=list)
    tokens: int = 0
    """Most tokens that a run generates."""
    requests: int = 0
    """Most times that a run generates or selects."""
    work: int = 0
    """Most operations of a run."""
    branches: int = 1
    """Most branches at once."""

    @property
    def errors(self) -> list[Problem]:
        return [one for one in self.problems if one.severity == "error"]

    def raise_first(self) -> None:
        """Raises ProgramError if there is an error."""
        if self.errors:
            first = self.errors[0]
            raise ProgramError(first.message, f"{first.node}{f' ({first.at})' if first.at else ''}")


class TooMuch(Exception):
    """A limit is exceeded: nothing further is looked at."""


def check(plan: Plan, limits: RunLimits | None = None) -> CheckReport:
    """The first error of a plan, warnings, and its bounds."""
    report = CheckReport()
    try:
        _check_size(plan)
        bounds = _bounds(plan, plan.body, "body", limits or RunLimits())
    except TooMuch as error:
        report.problems.append(error.args[0])
        return report
    report.tokens, report.requests, report.work, report.branches = bounds
    if plan.limits.tokens is not None:
        report.tokens = min(report.tokens, plan.limits.tokens)
    found = TypeChecker(plan).problem()
    if found is not None:
        node, message, at = found
        report.problems.append(Problem(node, message, at=at))
    report.problems += _unreachable(plan.body, "body")
    return report


def _check_size(plan: Plan) -> None:
    """Count operations and constants, without recursion. Raises TooMuch."""
    waiting: list[tuple[str, Region, int]] = [("body", plan.body, 1)]
    ops, characters = 0, 0
    _check_counts("inputs", "", plan.inputs)
    _check_counts("outputs", "", plan.outputs)
    for name, operand in plan.outputs.items():
        characters += _checked_constant(operand, f"outputs.{name}", "")
    for param in plan.inputs:
        characters += _checked_constant(Lit(param.default), f"inputs.{param.name}", "")
    while waiting:
        path, region, depth = waiting.pop()
        _check_counts(path, "", region.args, region.yields)
        for index, op in enumerate(region.ops):
            node = f"{path}.ops[{index}]"
            ops += 1
            if ops > MOST_OPS:
                raise TooMuch(Problem(node, f"the plan has more than {MOST_OPS} operations", at=op.at))
            for name in op.__struct_fields__:
                value = getattr(op, name)
                if isinstance(value, list):
                    _check_counts(node, op.at, value)
                if not isinstance(value, (Region, int, float)) and value is not None:
                    characters += _checked_constant(value, node, op.at)
            if characters > MOST_CONSTANTS:
                raise TooMuch(Problem(node, f"the constants have more than {MOST_CONSTANTS} characters", at=op.at))
            _check_limits(op, node)
            inner = regions(op)
            if inner and depth >= MOST_DEPTH:
                raise TooMuch(Problem(node, f"blocks are nested more than {MOST_DEPTH} deep", at=op.at))
            waiting += [(f"{node}.{name}", one, depth + 1) for name, one in inner.items()]


def _check_counts(node: str, at: str, *lists: Sized) -> None:
    if max(map(len, lists)) > MOST_OPERANDS:
        raise TooMuch(Problem(node, f"a list has more than {MOST_OPERANDS} operands or values", at=at))


def _checked_constant(value: Any, node: str, at: str) -> int:
    size = _size(value)
    if size > MOST_CONSTANT:
        raise TooMuch(Problem(node, f"a constant has more than {MOST_CONSTANT} characters", at=at))
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    if any(isinstance(one, Lit) and is_deep(one.value) for one in parts):
        message = f"a constant has more than {MOST_NESTING} lists and objects inside one another"
        raise TooMuch(Problem(node, message, at=at))
    return size


def _size(value: Any) -> int:
    """Characters and entries below a value, up to the limit."""
    total, waiting = 0, [value]
    while waiting and total <= MOST_CONSTANT:
        one = waiting.pop()
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, Lit):
            waiting.append(one.value)
        elif isinstance(one, dict):
            total += len(one) + sum(map(len, one))
            waiting += one.values()
        elif isinstance(one, (list, tuple)):
            total += len(one)
            waiting += one
        elif isinstance(one, int):
            total += one.bit_length() // 4
    return total


def _check_limits(op: PlanOp, node: str) -> None:
    if isinstance(op, ForkOp) and op.max > MOST_BRANCHES:
        raise TooMuch(Problem(node, f"a fork has at most {MOST_BRANCHES} branches, `max` is {op.max}", at=op.at))
    if isinstance(op, (ForOp, WhileOp)) and op.max > MOST_PASSES:
        raise TooMuch(Problem(node, f"a loop has at most {MOST_PASSES} passes, `max` is {op.max}", at=op.at))


def _bounds(plan: Plan, region: Region, path: str, limits: RunLimits) -> tuple[int, int, int, int]:
    """Tokens, requests, operations and branches at once, at most. Raises TooMuch."""
    tokens = requests = work = 0
    branches = 1
    for index, op in enumerate(region.ops):
        node = f"{path}.ops[{index}]"
        inner = {name: _bounds(plan, one, f"{node}.{name}", limits) for name, one in regions(op).items()}
        work += 1
        if isinstance(op, GenOp):
            wanted = op.sampling.get("max_tokens", 16)
            tokens += wanted if isinstance(wanted, int) and wanted > 0 else 0
            requests += 1
        elif isinstance(op, SelectOp):
            requests += 1
        elif isinstance(op, IfOp):
            found = [max(pair) for pair in zip(inner["then"], inner["orelse"], strict=True)]
            tokens, requests, work = tokens + found[0], requests + found[1], work + found[2]
            branches = max(branches, found[3])
        elif isinstance(op, (ForkOp, ForOp, WhileOp)):
            for one in inner.values():
                tokens, requests, work = tokens + op.max * one[0], requests + op.max * one[1], work + op.max * one[2]
                branches = max(branches, one[3] * (op.max if isinstance(op, ForkOp) else 1))
        own = plan.limits.tokens
        for count, most, what in (
            (work, limits.work, "a run may do more than {} operations"),
            (branches, limits.branches, "more than {} branches may run at once"),
            (requests, limits.requests, "a run may generate and select more than {} times"),
            (tokens if own is None else min(tokens, own), limits.tokens, "a run may generate more than {} tokens"),
        ):
            if most is not None and count > most:
                raise TooMuch(Problem(node, what.format(most), at=op.at))
    return tokens, requests, work, branches


def _unreachable(region: Region, path: str) -> Iterator[Problem]:
    """Warnings for blocks that never run."""
    for index, op in enumerate(region.ops):
        node = f"{path}.ops[{index}]"
        if isinstance(op, IfOp) and isinstance(op.cond, Lit):
            dead = "orelse" if op.cond.value else "then"
            if getattr(op, dead).ops:
                yield Problem(f"{node}.{dead}", "this block never runs: the condition is constant", "warning", op.at)
        elif isinstance(op, WhileOp) and isinstance(op.cond.yields[0] if op.cond.yields else None, Lit):
            never = not op.cond.yields[0].value  # type: ignore[union-attr]
            message = "this loop never runs" if never else "this loop ends only at its `max`: the condition is constant"
            yield Problem(node, message, "warning", op.at)
        elif isinstance(op, (ForOp, ForkOp)) and (op.max == 0 or (isinstance(op.over, Lit) and not op.over.value)):
            yield Problem(f"{node}.body", "this block never runs: there is nothing to run it for", "warning", op.at)
        for name, inner in regions(op).items():
            yield from _unreachable(inner, f"{node}.{name}")
