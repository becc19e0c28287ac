"""What follows a generation, as far as it is known beforehand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace import lang as hl
from headrace.lang.conversation import Conversation, Tail
from headrace.lang.evaluating import Place, Scope
from headrace.lang.foresight import Foreseen, Foresight
from headrace.lang.interpreter import Interpreter
from headrace.lang.plan import GenOp, Plan, PlanOp, Region


def generations(region: Region) -> dict[str, GenOp]:
    return {op.name: op for op in region.ops if isinstance(op, GenOp)}


def begun(plan: Plan, **given: Any) -> Scope:
    """The outermost scope of a run, before its operations that are no generations."""
    scope = Scope(None, Place(plan.body))
    scope.values.update({param.id: given[param.name] for param in plan.inputs})
    scope.values[plan.body.args[0]] = Conversation()
    return scope


def way(op: GenOp, scope: Scope) -> list[Foreseen]:
    """All that follows a generation."""
    walk, found = Foresight().behind(op, scope), list[Foreseen]()
    while len(found) < 50 and (one := walk.next()) is not None:
        found.append(one)
        if not isinstance(one.op, GenOp):
            break
    return found


def names(program: Any, first: str = "a", **given: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, text before it, path) of what follows a generation of the outermost region."""
    plan = program.compile()
    found = way(generations(plan.body)[first], begun(plan, **given))
    return [(one.op.name, one.tail.text + one.tail.opening, one.path) for one in found]


def test_states_follow_themselves_alone() -> None:
    @hl.program
    def two(s: hl.State) -> None:
        other = hl.new_state()
        s.gen("a", max_tokens=3)
        other.gen("x", max_tokens=3)
        s.text(" and ")
        other.text(" or ")
        s.text("then ")
        other.gen("y", max_tokens=3)
        s.gen("b", max_tokens=3)

    assert names(two) == [("b", " and then ", ())]
    assert names(two, "x") == [("y", " or ", ())]


def test_messages_may_lie_between() -> None:
    @hl.program
    def turns(s: hl.State, name: str) -> None:
        with s.assistant():
            s.gen("a", max_tokens=3)
            s.text(".")
        s.user("more, ", name)
        s.system("short")
        with s.assistant():
            s.text("Well, ")
            s.gen("b", max_tokens=3)
            s.gen("c", max_tokens=3)

    plan = turns.compile()
    found = way(generations(plan.body)["a"], begun(plan, name="Ada"))
    between = (("user", "more, Ada"), ("system", "short"))
    assert [one.tail for one in found] == [Tail(".", between, "assistant", "Well, "), Tail()]


def test_loops_are_entered_as_often_as_is_known() -> None:
    @hl.program
    def loops(s: hl.State, items: list[str]) -> None:
        s.gen("a", max_tokens=3)
        with hl.for_(items, max=9) as item:
            s.text(item)
            with hl.for_(2):
                s.gen("b", max_tokens=3)
        s["n"] = 0
        with hl.while_(lambda: s["n"] < 2, max=5):
            s["n"] = s["n"] + 1
            s.text("<", s["n"], ">")
            s.gen("c", max_tokens=3)
        s.gen("d", max_tokens=3)

    inner = [("b", "x", (0, 0)), ("b", "", (0, 1)), ("b", "y", (1, 0)), ("b", "", (1, 1))]
    outer = [("c", "<1>", (0,)), ("c", "<2>", (1,)), ("d", "", ())]
    assert names(loops, items=["x", "y"]) == inner + outer
    assert names(loops, items=[]) == outer


def test_a_pass_is_left_for_the_next_one() -> None:
    """From within a loop that runs: the scopes around it are those of the run."""

    @hl.program
    def loop(s: hl.State) -> None:
        with hl.for_(["x", "y", "z"]) as item, hl.if_(item != "z"):
            s.text(item)
            s.gen("a", max_tokens=3)
        s.gen("end", max_tokens=3)

    plan = loop.compile()
    outer = begun(plan)
    each: Any = next(op for op in plan.body.ops if op.__struct_config__.tag == "for")
    one = Scope(outer, Place(each.body, (0,), each, 0, ["x", "y", "z"]))
    choice: Any = next(op for op in each.body.ops if op.__struct_config__.tag == "if")
    inner = Scope(one, Place(choice.then, (0,), choice))
    found = way(generations(choice.then)["a"], inner)
    assert [(step.op.name, step.tail.text, step.path) for step in found] == [("a", "y", (1,)), ("end", "", ())]
    assert outer.values == begun(plan).values
    assert not inner.values


def test_conditions_on_what_is_known_are_decided() -> None:
    @hl.program
    def chosen(s: hl.State, loud: bool) -> None:
        s.gen("a", max_tokens=3)
        with hl.if_(loud):
            s.text("!")
        with hl.else_():
            s.text(".")
        hl.require(loud | ~loud, "never")
        s.gen("b", max_tokens=3)
        with hl.if_(s["a"] == "no"):
            s.text("?")
        s.gen("c", max_tokens=3)

    assert names(chosen, loud=True) == [("b", "!", ())]
    assert names(chosen, loud=False) == [("b", ".", ())]


def test_a_selection_ends_what_is_known() -> None:
    @hl.program
    def chosen(s: hl.State) -> None:
        s.gen("a", max_tokens=3)
        s.text(" is ")
        s.select("way", ["left", "right"])
        s.gen("b", max_tokens=3)
        s.text(".")
        s.gen("c", max_tokens=3)

    assert names(chosen) == [("way", " is ", ())]
    assert names(chosen, "b") == [("c", ".", ())]


@pytest.mark.parametrize("what", ["call", "require", "fork", "value", "if", "for", "while", "choices"])
def test_what_depends_on_the_answer_or_has_its_order_is_not_passed(what: str) -> None:
    @hl.program
    def stopped(s: hl.State) -> None:
        a = s.gen("a", max_tokens=3)
        if what == "call":
            hl.call("echo", text="x")
        elif what == "require":
            hl.require(a != "", "empty")
        elif what == "fork":
            with s.fork(2) as branch:
                branch.text("x")
        elif what == "value":
            s.text(a.upper())
        elif what == "if":
            with hl.if_(a == "x"):
                s.text("x")
        elif what == "for":
            with hl.for_(a.split(" "), max=3):
                s.text("x")
        elif what == "while":
            with hl.while_(lambda: a == "x", max=3):
                s.text("x")
        else:
            s.select("c", hl.list_of(a, "x"))
        s.gen("b", max_tokens=3)

    assert names(stopped) == []


def test_a_value_that_is_not_used_for_the_text_is_passed() -> None:
    @hl.program
    def counted(s: hl.State) -> None:
        a = s.gen("a", max_tokens=3)
        s["seen"] = a.length()
        s["n"] = 1
        s["n"] = s["n"] + 1
        s.text("no. ", s["n"], ": ")
        s.gen("b", max_tokens=3)

    assert names(counted) == [("b", "no. 2: ", ())]


def test_a_long_region_is_read_in_pieces() -> None:
    """From each generation few operations are followed, however many there are."""

    @hl.program
    def long(s: hl.State) -> None:
        states = [hl.new_state() for _ in range(40)]
        draw = random.Random(1)
        for at in range(800):
            draw.choice(states).gen(f"g{at}", max_tokens=1)

    plan = long.compile()
    scope, reads, foresight = begun(plan), [0], Foresight()

    class Counted(list[Any]):
        def __getitem__(self, at: Any) -> Any:
            reads[0] += 1
            return super().__getitem__(at)

    ops: list[PlanOp] = Counted(plan.body.ops)
    plan.body.ops = ops
    found = [foresight.behind(op, scope).next() for op in ops if isinstance(op, GenOp)]
    assert sum(one is not None for one in found) > 500
    assert reads[0] <= 64 * len(ops)


def test_long_texts_are_not_foreseen() -> None:
    @hl.program
    def reading(s: hl.State, document: str) -> None:
        s.gen("a", max_tokens=3)
        s.text(document)
        s.gen("b", max_tokens=3)

    assert [text for _, text, _ in names(reading, document="x" * 1990)] == ["x" * 1990]
    assert names(reading, document="x" * 2001) == []


def test_more_passes_than_may_be_are_left_to_the_run() -> None:
    """It refuses them, however many they are."""

    @hl.program
    def counted(s: hl.State, count: int) -> None:
        s.gen("a", max_tokens=3)
        with hl.for_(count, max=3):
            s.text("x")
        s.gen("b", max_tokens=3)

    assert [names(counted, count=count) for count in (-1, 3)] == [[("b", "", ())], [("b", "xxx", ())]]
    assert [names(counted, count=count) for count in (4, 10**30)] == [[], []]


def test_entries_of_large_values_are_not_looked_at() -> None:
    class Unread(list[str]):
        def __iter__(self) -> Any:
            raise AssertionError("read")

    @hl.program
    def measured(s: hl.State, many: list[str]) -> None:
        s.gen("a", max_tokens=3)
        s["length"] = many.length()
        s.gen("b", max_tokens=3)

    assert names(measured, many=Unread(["x"] * 201)) == [("b", "", ())]


def test_a_budget_of_tokens_is_left_to_the_run() -> None:
    @hl.program(max_tokens=100)
    def limited(s: hl.State) -> None:
        s.gen("a", max_tokens=3)
        s.gen("b", max_tokens=3)

    plan, backend = limited.compile(), object()
    assert Interpreter(plan, backend, {})._expected(generations(plan.body)["a"], begun(plan)) == []  # type: ignore[arg-type]
