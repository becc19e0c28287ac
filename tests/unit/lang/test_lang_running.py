"""Running programs: values, forks, budgets, seeds, batches, streams, errors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from lang_fakes import FakeBackend
from pydantic import BaseModel, field_validator

from headrace import lang as hl
from headrace.errors import EngineDead, ProgramError
from headrace.lang.choice_scores import best_choice


@hl.program
def ask(s: hl.State, question: str) -> None:
    s.user(question)
    s.assistant(hl.gen("answer", max_tokens=10))


def test_a_run_has_outputs_messages_text_and_usage() -> None:
    found = ask.run("Why?", on=FakeBackend(lambda text: "Because."))
    assert found["answer"] == "Because."
    assert found.messages == [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    assert found.text == "Because."
    assert (found.usage.requests, found.usage.completion_tokens) == (1, 8)
    assert [node.name for node in found.nodes] == ["answer"]
    with pytest.raises(KeyError, match="no output; there are: answer"):
        found["other"]


class Person(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def positive(cls, age: int) -> int:
        if age < 0:
            raise ValueError("an age is not negative")
        return age


@pytest.mark.parametrize(
    ("options", "said", "value"),
    [
        ({"type": int}, "42", 42),
        ({"type": float}, "-1.5", -1.5),
        ({"type": bool}, "true", True),
        ({"type": str}, "x", "x"),
        ({"json": {"type": "array"}}, "[1, 2]", [1, 2]),
        ({"json_object": True}, '{"a": 1}', {"a": 1}),
        ({"choices": ["a", "b"]}, "a", "a"),
        ({"regex": "a+"}, "aa", "aa"),
        ({"grammar": 'start: "a"'}, "a", "a"),
        ({"type": Person}, '{"name": "Ada", "age": 36}', Person(name="Ada", age=36)),
        ({"json": Person}, '{"name": "Ada", "age": 36}', Person(name="Ada", age=36)),
        ({"type": list[int]}, "[1]", [1]),
    ],
)
def test_constraints_give_typed_values(options: dict[str, Any], said: str, value: Any) -> None:
    @hl.program
    def one(s: hl.State) -> None:
        s.gen("x", **options)

    assert one.run(on=FakeBackend(lambda text: said))["x"] == value


def test_a_text_that_is_no_value_names_the_line_and_the_reason() -> None:
    @hl.program
    def one(s: hl.State) -> None:
        s.gen("x", type=Person)

    with pytest.raises(ProgramError, match=r"test_lang_running\.py:\d+: gen 'x': the text is no json"):
        one.run(on=FakeBackend(lambda text: '{"name": '))
    with pytest.raises(ProgramError, match="an age is not negative"):
        one.run(on=FakeBackend(lambda text: '{"name": "A", "age": -1}'))


def test_values_of_json_are_checked_when_they_are_used() -> None:
    @hl.program
    def use(s: hl.State, given: Any) -> Any:
        return hl.out(name=given["name"].strip(), first=given["tags"][0], many=given["tags"].length() > 1)

    found = use.run({"name": " Ada ", "tags": ["x", "y"]}, on=FakeBackend())
    assert found.outputs == {"name": "Ada", "first": "x", "many": True}
    with pytest.raises(ProgramError, match="`item` of"):
        use.run({"tags": []}, on=FakeBackend())


def test_expressions() -> None:
    @hl.program
    def all_of_them(s: hl.State, a: int, t: str) -> Any:
        parts = t.split(",")
        return hl.out(
            numbers=hl.list_of(a + 1, 1 + a, a - 1, 1 - a, a * 2, a // 2, a % 2, -a),
            ratio=a / 2,
            tests=hl.list_of(a == 3, a != 3, a < 3, a <= 3, a > 3, a >= 3, (a > 1) & (a < 9), ~(a > 1) | False),
            texts=hl.list_of(t.strip(), t.lower(), t.upper(), t.replace("B", "c"), "<" + t + ">"),
            asks=hl.list_of(t.startswith(" "), t.endswith("d"), t.contains("B"), parts.contains("B")),
            mode=hl.mode(hl.list_of("x", "y", "y", "x")),
            joined=hl.join(parts, "+"),
            made=hl.list_of(hl.list_of("12")[0].to_int(), a.to_float(), a.to_text()),
            json=hl.join(hl.list_of('{"k"', " [7]}"), ":").json()["k"][0],
        )

    assert all_of_them.run(3, " a,B", on=FakeBackend()).outputs == {
        "numbers": [4, 4, 2, -2, 6, 1, 1, -3],
        "ratio": 1.5,
        "tests": [True, False, False, True, False, True, True, False],
        "texts": ["a,B", " a,b", " A,B", " a,c", "< a,B>"],
        "asks": [True, False, True, True],
        "mode": "x",
        "joined": " a+B",
        "made": [12, 3.0, "3"],
        "json": 7,
    }


def test_branches_of_a_fork_run_at_the_same_time_and_do_not_see_one_another() -> None:
    @hl.program
    def many(s: hl.State) -> Any:
        s.text("Q")
        with s.fork(5) as branch:
            branch.text(branch.index)
            branch.gen("x")
        return branch["x"]

    async def run() -> None:
        gate = asyncio.Event()
        backend = FakeBackend(lambda text: text, gate)
        task = asyncio.ensure_future(many.arun(on=backend))
        while len(backend.asked) < 5:
            await asyncio.sleep(0)
        gate.set()
        assert (await task)["result"] == ["Q0", "Q1", "Q2", "Q3", "Q4"]

    asyncio.run(run())


def test_a_failing_branch_aborts_the_others() -> None:
    @hl.program
    def many(s: hl.State) -> None:
        with s.fork(3) as branch:
            hl.require(branch.index < 2, "the third branch fails")
            branch.gen("x")

    async def run() -> None:
        backend = FakeBackend(waits=asyncio.Event())
        with pytest.raises(ProgramError, match=r"in branch or pass 2: the third branch fails"):
            await many.arun(on=backend)
        assert backend.cancelled == 2

    asyncio.run(run())


def test_cancelling_a_run_aborts_its_requests() -> None:
    async def run() -> None:
        backend = FakeBackend(waits=asyncio.Event())
        task = asyncio.ensure_future(ask.arun("x", on=backend))
        while not backend.asked:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert backend.cancelled == 1

    asyncio.run(run())


def test_a_budget_of_tokens_covers_all_generations() -> None:
    @hl.program(max_tokens=12)
    def three(s: hl.State) -> None:
        for name in "abc":
            s.gen(name, max_tokens=10)

    backend = FakeBackend(lambda text: "xxxxxx")
    with pytest.raises(ProgramError, match="budget of 12 tokens is used up"):
        three.run(on=backend)
    assert [asked[1]["max_tokens"] for asked in backend.asked] == [10, 6]
    assert hl.check(three.compile()).tokens == 12


def test_time_limits_of_a_program_and_of_an_operation() -> None:
    @hl.program(timeout=0.001)
    def slow(s: hl.State) -> None:
        s.gen("a")

    @hl.program
    def slow_node(s: hl.State) -> None:
        s.gen("a", timeout=0.001)

    async def run() -> None:
        for program, message in ((slow, "longer than 0.001 s"), (slow_node, "gen 'a': took longer")):
            with pytest.raises(ProgramError, match=message):
                await program.arun(on=FakeBackend(waits=asyncio.Event()))

    asyncio.run(run())


def test_a_seed_gives_every_generation_its_own() -> None:
    @hl.program
    def many(s: hl.State) -> None:
        s.gen("a")
        s.gen("own", seed=5)
        with s.fork(2) as branch:
            branch.gen("b")

    def seeds(seed: int | None) -> list[Any]:
        backend = FakeBackend()
        many.run(on=backend, seed=seed)
        return [asked[1].get("seed") for asked in backend.asked]

    assert seeds(7) == seeds(7)
    assert len(set(seeds(7))) == 4
    assert seeds(7)[1] == 5
    assert not set(seeds(7)) & (set(seeds(8)) - {5})
    assert seeds(None) == [None, 5, None, None]


def test_select_takes_the_most_likely_choice() -> None:
    @hl.program
    def pick(s: hl.State, options: list[str]) -> Any:
        s.user("Which?")
        s.assistant("It is ", hl.select("one", ["cat", "dog", "bird"]), " and ", hl.select("two", options))

    found = pick.run(["x", "yes"], on=FakeBackend(lambda text: "yes" if "dog" in text else "dog"))
    assert found.outputs == {"one": "dog", "two": "yes"}
    assert found.text == "It is dog and yes"
    assert found.nodes[0].scores == {"cat": -3.0, "dog": pytest.approx(-0.1), "bird": -3.0}
    with pytest.raises(ProgramError, match="the choices are no list of texts"):
        pick.run([], on=FakeBackend())


@pytest.mark.parametrize(
    ("method", "best"),
    [("greedy", 1), ("sum", 2), ("mean", 0), ("unconditional", 2)],
)
def test_methods_of_select(method: Any, best: int) -> None:
    here = [[-3.0, -0.1, -0.1, -0.1, -0.1], [-1.0, -9.0], [-2.0]]
    alone = [[-3.0, -0.1, -0.1, -0.1, -0.1], [-1.0, -9.0], [-5.0]]
    assert best_choice(method, here, alone)[0] == best


def test_greedy_extends_short_choices_and_decides_ties_by_the_sum() -> None:
    assert best_choice("greedy", [[-1.0], [-1.0, -0.5]])[0] == 1
    assert best_choice("greedy", [[-1.0, -2.0], [-1.0, -2.0]])[0] == 0
    assert best_choice("greedy", [[-1.0, -1.0, -1.0], [-1.0]])[0] == 1


def test_call_outs_may_be_async_and_fail_with_their_name() -> None:
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    def fails(x: int) -> int:
        raise RuntimeError("no such thing")

    def odd(x: int) -> object:
        return object()

    @hl.program
    def call(s: hl.State, which: hl.Static[Any]) -> Any:
        return hl.call(which, 1)

    assert call.run(later, on=FakeBackend())["result"] == 2
    with pytest.raises(ProgramError, match="call 'fails': fails raised RuntimeError: no such thing"):
        call.run(fails, on=FakeBackend())
    with pytest.raises(ProgramError, match="odd returned what is no JSON"):
        call.run(odd, on=FakeBackend())


def test_a_plan_from_a_file_gets_its_functions_when_it_runs() -> None:
    @hl.program
    def call(s: hl.State) -> Any:
        return hl.call("double", number=4)

    plan = hl.load_plan(hl.encode_plan(call.compile()))
    assert plan.run(on=FakeBackend(), tools={"double": lambda number: 2 * number})["result"] == 8
    with pytest.raises(ProgramError, match="no function 'double' was given; there are: none"):
        plan.run(on=FakeBackend())


def test_inputs_are_checked_before_anything_runs() -> None:
    backend = FakeBackend()
    for given, message in (
        ({}, "missing"),
        ({"question": 3}, "takes text, got 3"),
        ({"question": "x", "q": 1}, "has no input 'q'"),
    ):
        with pytest.raises(ProgramError, match=message):
            ask.run(**given, on=backend)
    with pytest.raises(ProgramError, match=r"rows\[1\]"):
        ask.run_batch([{"question": "a"}, {"question": 1}], on=backend)
    assert backend.asked == []


def test_a_batch_keeps_its_order_and_its_failures_apart() -> None:
    @hl.program
    def check(s: hl.State, n: int) -> None:
        hl.require(n != 1, "not one")
        s.text(n)
        s.gen("x")

    found = check.run_batch([{"n": n} for n in range(4)], on=FakeBackend(lambda text: text), concurrency=2, seed=1)
    assert [one.error is None for one in found] == [True, False, True, True]
    assert [one["x"] for one in found if one.error is None] == ["0", "2", "3"]
    with pytest.raises(ProgramError, match="not one"):
        found[1]["x"]


def test_a_lost_model_ends_a_batch() -> None:
    def lost(text: str) -> str:
        raise EngineDead("gone")

    with pytest.raises(EngineDead, match=r"test_lang_running\.py:\d+: gen 'answer': gone"):
        ask.run_batch([{"question": "a"}, {"question": "b"}], on=FakeBackend(lost))


def test_a_stream_has_pieces_values_and_the_result() -> None:
    async def collect() -> list[hl.RunEvent]:
        return [event async for event in ask.astream("Q", on=FakeBackend(lambda text: "Yes"))]

    events = asyncio.run(collect())
    assert [(one.kind, one.text or one.value) for one in events[:-1]] == [
        ("text", "Y"),
        ("text", "e"),
        ("text", "s"),
        ("value", "Yes"),
    ]
    assert events[-1].result is not None
    assert events[-1].result["answer"] == "Yes"


def test_leaving_a_stream_aborts_the_run() -> None:
    @hl.program
    def two(s: hl.State) -> None:
        s.gen("a")
        with s.fork(2) as branch:
            branch.gen("b")

    async def run() -> int:
        backend = FakeBackend()
        async for event in two.astream(on=backend):
            if event.kind == "value":
                backend.waits = asyncio.Event()
                while len(backend.asked) < 3:
                    await asyncio.sleep(0)
                break
        else:
            pytest.fail("the stream ended")
        await asyncio.sleep(0)
        return backend.cancelled

    assert asyncio.run(run()) in (0, 2)


def test_inside_of_an_event_loop_run_still_works() -> None:
    async def notebook() -> Any:
        return ask.run("Q", on=FakeBackend(lambda text: "A"))["answer"]

    assert asyncio.run(notebook()) == "A"


def test_where_a_program_runs_is_checked() -> None:
    with pytest.raises(ProgramError, match="`on` takes"):
        ask.run("Q", on=3)  # type: ignore[arg-type]


@dataclass
class Point:
    x: int


def test_dataclasses_come_back_as_instances() -> None:
    @hl.program
    def point(s: hl.State) -> None:
        s.gen("p", type=Point)

    assert point.run(on=FakeBackend(lambda text: '{"x": 3}'))["p"] == Point(3)


def test_a_program_is_checked_before_it_runs() -> None:
    @hl.program
    def wrong(s: hl.State) -> None:
        s.gen("x")
        s.gen("y", json={"enum": []})

    backend = FakeBackend()
    with pytest.raises(ProgramError, match=r"body\.ops\[1\] \(test_lang_running\.py:\d+\): no text meets"):
        wrong.run(on=backend)
    assert backend.asked == []
