"""What runs at the same time within one block, and what stays in the program's order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from counted_lines import counted
from lang_fakes import FakeBackend

from headrace import lang as hl
from headrace.errors import InvalidRequest, ProgramError
from headrace.lang.backend import Generated, Scores
from headrace.lang.conversation import Conversation
from headrace.lang.data_flow import DataFlow


class Watched(FakeBackend):
    """Notes what begins and ends. A generation behind a text that holds a key of `turns` takes so many turns of the
    loop, and fails if the text holds `bad`."""

    def __init__(self, **turns: int) -> None:
        super().__init__(lambda text: text[-1])
        self.turns = turns
        self.log: list[str] = []

    async def generate(self, conversation: Conversation, *args: Any) -> Generated:
        name = conversation.text
        self.log.append(f"+{name}")
        for _ in range(next((count for key, count in self.turns.items() if key in name), 1)):
            await asyncio.sleep(0)
        if "bad" in name:
            raise InvalidRequest(f"{name} is bad")
        self.log.append(f"-{name}")
        return await super().generate(conversation, *args)

    async def score(self, conversation: Conversation, *args: Any) -> Scores:
        self.log.append(f"+{conversation.text}")
        return await super().score(conversation, *args)


def state(text: Any) -> Any:
    found = hl.new_state()
    found.text(text)
    return found


def run(program: Any, backend: FakeBackend, **more: Any) -> hl.RunResult:
    found: hl.RunResult = asyncio.run(program.arun(on=backend, seed=1, **more))
    return found


def test_states_that_do_not_depend_on_one_another_are_worked_on_together() -> None:
    @hl.program
    def two(s: hl.State) -> None:
        one, other = state("a"), state("b")
        one.gen("x")
        other.gen("y")
        s.text(one["x"], other["y"])
        s.gen("z")

    backend = Watched(a=5, b=2)
    found = run(two, backend)
    assert backend.log == ["+a", "+b", "-b", "-a", "+ab", "-ab"]
    assert found.outputs == {"z": "b"}
    assert [one.name for one in found.nodes] == ["y", "x", "z"]


def test_seeds_are_those_of_the_program_in_order() -> None:
    def seeds(limit: int | None) -> dict[str, int]:
        @hl.program(max_tokens=limit)
        def two(s: hl.State) -> None:
            one, other = state("a"), state("b")
            one.gen("x", max_tokens=10)
            other.gen("y", max_tokens=10)

        backend = Watched(a=5)
        run(two, backend)
        order = [entry for entry in backend.log if entry.startswith("+")]
        assert order == ["+a", "+b"]
        assert backend.log.index("-a") > backend.log.index("+b") or limit == 15
        return {talk.text: sampling["seed"] for talk, sampling, _ in backend.asked}

    assert seeds(None) == seeds(20) == seeds(15), "a budget that may run out is spent in the program's order"


def test_functions_are_called_in_order_and_only_if_all_before_has_gone_well() -> None:
    called: list[int] = []

    def note(number: int) -> int:
        called.append(number)
        return number

    @hl.program
    def good(s: hl.State) -> Any:
        slow = state("slow")
        slow.gen("x")
        first = hl.call(note, 1)
        quick = state("quick")
        quick.gen("y")
        return hl.list_of(first, hl.call(note, 2))

    backend = Watched(slow=9)
    assert run(good, backend)["result"] == [1, 2]
    assert called == [1, 2]
    assert backend.log.index("+quick") < backend.log.index("-slow")

    @hl.program
    def fails(s: hl.State) -> Any:
        slow = state("bad slow")
        slow.gen("x")
        return hl.call(note, 3)

    with pytest.raises(InvalidRequest, match="bad slow"):
        run(fails, Watched(slow=9))
    assert called == [1, 2]


def test_nothing_generates_behind_a_requirement_that_is_not_decided() -> None:
    @hl.program
    def guarded(s: hl.State) -> None:
        one, other = state("a"), state("b")
        hl.require(one.gen("x") == "no", "it is not")
        other.gen("y")

    backend = Watched(a=5)
    with pytest.raises(ProgramError, match="it is not"):
        run(guarded, backend)
    assert backend.log == ["+a", "-a"]


@pytest.mark.parametrize(("slow", "quick"), [(7, 1), (1, 7)])
def test_the_first_error_of_the_program_is_reported(slow: int, quick: int) -> None:
    @hl.program
    def fails(s: hl.State) -> None:
        long = state("long")
        long.gen("w")
        state("bad one").gen("x")
        state("bad two").gen("y")
        behind = state("z")
        behind.text(long["w"])
        behind.gen("v")

    backend = Watched(one=slow, two=quick, long=30)
    with pytest.raises(InvalidRequest, match="bad one"):
        run(fails, backend)
    assert "-long" in backend.log, "an earlier one might have failed before"
    assert "+zg" not in backend.log


def test_an_operator_that_fails_does_not_hide_an_earlier_error() -> None:
    @hl.program
    def fails(s: hl.State, number: int) -> Any:
        state("bad a").gen("x")
        state("b").gen("y")
        return hl.list_of(1)[number]

    with pytest.raises(InvalidRequest, match="bad a"):
        run(fails, Watched(a=9), number=5)


def test_cancelling_a_run_ends_all_that_is_under_way() -> None:
    @hl.program
    def two(s: hl.State) -> None:
        state("a").gen("x")
        state("b").gen("y")

    async def cancel() -> None:
        backend = FakeBackend(waits=asyncio.Event())
        task = asyncio.ensure_future(two.arun(on=backend))
        while len(backend.asked) < 2:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert backend.cancelled == 2

    asyncio.run(cancel())


def test_only_so_many_are_under_way_at_once() -> None:
    @hl.program
    def many(s: hl.State) -> None:
        for at in range(40):
            state(f"s{at}").gen(f"x{at}")

    backend = Watched(s=3)
    run(many, backend)
    level = most = 0
    for entry in backend.log:
        level += 1 if entry[0] == "+" else -1
        most = max(most, level)
    assert 1 < most <= 16


def test_large_plans_cost_little() -> None:
    """The flow of many generations, each behind a call, is found in work that grows with their number."""

    def lines_run(number: int) -> int:
        @hl.program
        def many(s: hl.State) -> None:
            for at in range(number):
                one = state("a")
                one.gen(f"x{at}", max_tokens=1)
                hl.call("note", number=at)

        plan = many.compile()
        flow, lines = counted(lambda: DataFlow(plan).of(plan.body))
        assert flow is not None
        assert max(len(step.needs) for step in flow) <= 8
        return lines

    assert lines_run(1000) < 4.5 * lines_run(250)


def test_a_call_is_behind_all_that_is_before_it() -> None:
    order: list[Any] = []

    @hl.program
    def mixed(s: hl.State) -> None:
        for at in range(4):
            state(f"slow{at}").gen(f"x{at}")
            hl.call(note, at)

    backend = Watched(slow0=1, slow1=9, slow2=1, slow3=5)

    def note(number: int) -> int:
        order.append((number, sum(entry.startswith("-") for entry in backend.log) > number))
        return number

    run(mixed, backend)
    assert order == [(at, True) for at in range(4)]
