"""Random programs run to their end; random documents are refused with their node, or run.

HEADRACE_LANG_FUZZ=10000 draws so many of each (here: a few hundred), from the number HEADRACE_LANG_FUZZ_FIRST on.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

from lang_fakes import FakeBackend
from lang_writer import drawn, echo, mutated

from headrace import lang as hl
from headrace.errors import ProgramError

COUNT = int(os.environ.get("HEADRACE_LANG_FUZZ", "200"))
FIRST = int(os.environ.get("HEADRACE_LANG_FUZZ_FIRST", "0"))


async def run(plan: hl.LoadedPlan) -> hl.RunResult:
    backend = FakeBackend(lambda text: "ab"[len(text) % 2])
    given = {"given": "hello"} if plan.plan.inputs else {}
    found = await plan.arun(**given, on=backend, tools={"echo": echo}, seed=1)
    assert found.usage.requests <= hl.check(plan.plan).requests
    return found


def test_random_programs_run_to_their_end_and_the_same_each_time() -> None:
    async def all_of_them() -> None:
        for seed in range(FIRST, FIRST + COUNT):
            plan = drawn(seed)
            report = hl.check(plan)
            if report.errors:
                assert "operations" in report.errors[0].message or "at once" in report.errors[0].message, (seed, report)
                continue
            if report.work > 20_000:
                continue
            loaded = hl.load_plan(hl.encode_plan(plan))
            one, two = await run(loaded), await run(loaded)
            assert (one.outputs, one.messages) == (two.outputs, two.messages), seed
            assert hl.plan_graph(plan).startswith("<svg")

    asyncio.run(all_of_them())


def refusal(document: Any) -> hl.LoadedPlan | ProgramError:
    try:
        return hl.load_plan(json.dumps(document))
    except ProgramError as error:
        return error


async def failure(plan: hl.LoadedPlan) -> ProgramError | None:
    try:
        await run(plan)
    except ProgramError as error:
        return error
    return None


def test_random_documents_are_refused_with_their_node_or_run() -> None:
    bases = [hl.encode_plan(drawn(FIRST + seed)) for seed in range(40)]

    async def all_of_them() -> tuple[int, int]:
        ran = refused = 0
        for seed in range(FIRST * 3, (FIRST + COUNT) * 3):
            chance = random.Random(seed)
            document = json.loads(bases[seed % len(bases)])
            for _ in range(chance.randrange(1, 3)):
                document = mutated(document, chance)
            plan = refusal(document)
            if isinstance(plan, ProgramError):
                assert plan.node, plan
                refused += 1
                continue
            if hl.check(plan.plan).work > 20_000:
                continue
            error = await failure(plan)
            assert error is None or error.node, error
            ran += 1
        return ran, refused

    ran, refused = asyncio.run(all_of_them())
    assert min(ran, refused) > COUNT // 10
