"""Random plans on the real scheduler: each ends, or is refused with its node, and no block is lost.

HEADRACE_LANG_FUZZ=10000 draws so many (here: a hundred), from the number HEADRACE_LANG_FUZZ_FIRST on, as
`ci/program_fuzz.sh` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

from engine_fakes import ChatTokenizer, FakeEngine, FakeRunner, in_process, make_engine
from lang_writer import drawn, echo, mutated

from headrace import lang as hl
from headrace.client.batch import SequenceLimiter
from headrace.client.in_process_client import InProcessClient
from headrace.errors import HeadraceError, InvalidRequest, ProgramError
from headrace.lang.interpreter import Interpreter
from headrace.lang.plan import Plan, decode_plan
from headrace.programs import EngineBackend

COUNT = int(os.environ.get("HEADRACE_LANG_FUZZ", "100"))
FIRST = int(os.environ.get("HEADRACE_LANG_FUZZ_FIRST", "0"))
AT_ONCE = 8
MOST_WORK = 1500
"""Operations of a plan that is run."""
LENGTH = 512


Ending = tuple[dict[str, Any], list[dict[str, str]]] | HeadraceError | None


class Runs:
    """Runs plans on one engine with few blocks and slots."""

    def __init__(self, client: InProcessClient, runner: FakeRunner) -> None:
        self.runner = runner
        self.backend = EngineBackend(client, ChatTokenizer(), SequenceLimiter(1000))

    async def whole(self, plan: Plan, seed: int) -> Ending:
        """The outputs and messages, or the error."""
        given = {param.name: "hello" for param in plan.inputs}
        try:
            outputs, end = await Interpreter(plan, self.backend, {"echo": echo}, seed=seed).run(given)
        except HeadraceError as error:
            return error
        return outputs, end.as_messages()

    async def cancelled(self, plan: Plan, seed: int, steps: int) -> Ending:
        """Cancel the run after so many steps of the engine."""
        task = asyncio.ensure_future(self.whole(plan, seed))
        goal = self.runner.steps + steps
        while self.runner.steps < goal and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None


async def idle(client: InProcessClient, engine: FakeEngine) -> None:
    """Wait for the end of all work; nothing may be left of it."""
    while (stats := (await client.stats()).scheduler).running or stats.waiting:
        await asyncio.sleep(0)
    assert stats.blocks_held == 0
    assert stats.blocks_free + stats.blocks_cached == engine.scheduler.config.num_blocks - 1
    engine.scheduler.check()


def on_an_engine(work: Callable[[Runs, InProcessClient, FakeEngine], Awaitable[None]], blocks: int = 160) -> None:
    async def run() -> None:
        sizes = {"num_blocks": blocks, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": LENGTH}
        engine = make_engine(FakeRunner(8, LENGTH + 1), **sizes)
        async with in_process(engine) as client:
            await work(Runs(client, engine.runner), client, engine)

    asyncio.run(run())


def small(plan: Plan) -> bool:
    report = hl.check(plan)
    return not report.errors and report.work <= MOST_WORK and report.requests <= 100


def placed(error: HeadraceError) -> bool:
    """Whether an error tells where it happened."""
    return (isinstance(error, ProgramError) and bool(error.node)) or ": " in str(error)


def accepted(document: Any) -> Plan | ProgramError:
    try:
        plan = decode_plan(json.dumps(document))
        hl.check(plan).raise_first()
    except ProgramError as error:
        return error
    return plan


def test_random_programs_end_and_lose_nothing() -> None:
    plans = [plan for seed in range(FIRST, FIRST + COUNT) if small(plan := drawn(seed))]
    assert len(plans) > COUNT // 4

    async def work(runs: Runs, client: InProcessClient, engine: FakeEngine) -> None:
        ended = 0
        for at in range(0, len(plans), AT_ONCE):
            chance = random.Random(at)
            some = plans[at : at + AT_ONCE]
            first = await asyncio.gather(*(runs.whole(plan, 1) for plan in some))
            await idle(client, engine)
            others = [runs.cancelled(plan, 2, chance.randrange(80)) for plan in some]
            again = (await asyncio.gather(*(runs.whole(plan, 1) for plan in some), *others))[: len(some)]
            await idle(client, engine)
            for one, two, plan in zip(first, again, some, strict=True):
                if isinstance(one, HeadraceError):
                    assert placed(one), one
                    assert isinstance(one, (InvalidRequest, ProgramError)), one
                    assert str(two) == str(one)
                else:
                    assert one == two, plan.name
                    ended += 1
        assert ended > len(plans) // 2

    on_an_engine(work)


def test_cancelled_at_any_moment_a_program_leaves_nothing() -> None:
    @hl.program
    def everything(s: hl.State) -> None:
        s.user("Hi")
        s.assistant(hl.gen("a", max_tokens=6, stop="e"))
        with s.fork(3) as branch:
            branch.user("Which?", branch.index)
            branch.assistant(hl.select("b", ["yes", "no"]), hl.gen("c", max_tokens=5))
        s.user("Then?", hl.call("echo", text="x").to_text())
        s.assistant("So: ", hl.gen("d", max_tokens=4))
        with hl.for_(2) as turn:
            s.user("No. ", turn)
            s.assistant(hl.gen("e", max_tokens=1), ", ", hl.gen("f", max_tokens=2, ignore_eos=True))
        s.user("Which?")
        s.assistant(hl.gen("g", max_tokens=2, ignore_eos=True), ": ", hl.select("h", ["a", "b", "c"]))

    plan = everything.compile()

    async def work(runs: Runs, client: InProcessClient, engine: FakeEngine) -> None:
        whole = await runs.whole(plan, 3)
        for steps in range(80):
            await runs.cancelled(plan, 3, steps)
            await idle(client, engine)
        assert await runs.whole(plan, 3) == whole

    on_an_engine(work)


def test_random_documents_are_refused_with_their_node_or_end() -> None:
    bases = [hl.encode_plan(drawn(FIRST + seed)) for seed in range(30)]

    async def work(runs: Runs, client: InProcessClient, engine: FakeEngine) -> None:
        ran = refused = 0
        for seed in range(FIRST * 4, (FIRST + COUNT) * 4):
            chance = random.Random(seed)
            document = json.loads(bases[seed % len(bases)])
            for _ in range(chance.randrange(1, 3)):
                document = mutated(document, chance)
            plan = accepted(document)
            if isinstance(plan, ProgramError):
                assert plan.node, plan
                refused += 1
                continue
            if not small(plan) or any(param.type != "text" for param in plan.inputs):
                continue
            ending = await runs.whole(plan, 1)
            assert not isinstance(ending, HeadraceError) or placed(ending), ending
            ran += 1
        await idle(client, engine)
        assert min(ran, refused) > COUNT // 10

    on_an_engine(work)
