"""Which branches of a program run first when there are few slots: those on its critical path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from engine_fakes import ChatTokenizer, FakeRunner, in_process, make_engine

from headrace import lang as hl
from headrace.client.api import GenerateRequest, Output
from headrace.client.batch import SequenceLimiter
from headrace.client.in_process_client import InProcessClient
from headrace.lang.interpreter import Interpreter
from headrace.programs import EngineBackend
from headrace.types import SamplingParams, StepPlan

LENGTH = 256
Programs = list[tuple[Any, dict[str, Any]]]


class Seen:
    """The requests in the order in which they are first computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prompts: dict[str, str] = {}
        self.order: list[str] = []
        generate, launch = InProcessClient.generate, FakeRunner.launch

        async def asked(client: InProcessClient, request: GenerateRequest) -> AsyncIterator[Output]:
            self.prompts[request.id] = bytes(request.prompt).decode(errors="replace")
            async for output in generate(client, request):
                yield output

        def launched(runner: FakeRunner, plan: StepPlan) -> Any:
            for child in plan.request_ids:
                name = child.partition("#")[0]
                if name not in self.order:
                    self.order.append(name)
            return launch(runner, plan)

        monkeypatch.setattr(InProcessClient, "generate", asked)
        monkeypatch.setattr(FakeRunner, "launch", launched)

    def heads(self) -> list[str]:
        """What each prompt begins with, up to a colon."""
        return [self.prompts[name].partition(":")[0] for name in self.order]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def steps(program: Any, slots: int, others: int = 0, **given: Any) -> int:
    """Run a program beside other requests, which came first; returns the engine's steps."""

    async def run() -> int:
        sizes = {"num_blocks": 400, "max_num_seqs": slots, "max_num_batched_tokens": 64, "max_model_len": LENGTH}
        engine = make_engine(FakeRunner(slots, LENGTH + 1), **sizes)
        async with in_process(engine) as client:

            async def other(at: int) -> None:
                params = SamplingParams(max_tokens=6, ignore_eos=True)
                async for _ in client.generate(GenerateRequest(f"other{at}", tuple(b"other:"), params)):
                    pass

            plain = [asyncio.ensure_future(other(at)) for at in range(others)]
            await asyncio.sleep(0)
            backend = EngineBackend(client, ChatTokenizer(), SequenceLimiter(1000))
            await Interpreter(program.compile(), backend, {}, seed=1).run(given)
            await asyncio.gather(*plain)
        return engine.runner.steps

    return asyncio.run(run())


@hl.program
def unequal(s: hl.State) -> None:
    """Short notes first, and then a chain: the longest path through the plan."""
    for at in range(6):
        note = hl.new_state()
        note.text(f"note{at}: ")
        note.gen(f"note{at}", max_tokens=10, ignore_eos=True)
    s.text("chain: ")
    for at in range(3):
        s.gen(f"part{at}", max_tokens=10, ignore_eos=True)
        s.text(f" {at} ")


def test_the_longest_path_goes_first(seen: Seen) -> None:
    steps(unequal, slots=2)
    assert seen.heads()[:2] == ["chain", "note0"]
    assert seen.heads().count("chain") == 3


def test_it_saves_steps_where_branches_are_unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    first = steps(unequal, slots=2)
    monkeypatch.setattr(Interpreter, "_turn", lambda self, op, path: ())
    assert steps(unequal, slots=2) > 1.1 * first


def test_other_requests_keep_their_places(seen: Seen) -> None:
    """Whatever is on a program's critical path waits for all that came before the program."""
    steps(unequal, slots=2, others=8)
    kinds = [name if name.startswith("other") else "program" for name in seen.order]
    first = kinds.index("program")
    assert {*kinds[:first]} == {f"other{at}" for at in range(8)}


def test_branches_that_share_a_prefix_stay_together(seen: Seen) -> None:
    @hl.program
    def forks(s: hl.State) -> None:
        one, other = hl.new_state(), hl.new_state()
        one.text("one: a text that branches share")
        other.text("other: another text that branches share")
        with one.fork(4) as branch:
            branch.gen("a", max_tokens=4, ignore_eos=True)
        with other.fork(4) as branch:
            branch.gen("b", max_tokens=4, ignore_eos=True)

    steps(forks, slots=2)
    assert seen.heads() == ["one"] * 4 + ["other"] * 4
