"""The generations that follow others, as far as they are known beforehand."""

from __future__ import annotations

import random
from typing import Any

from headrace import lang as hl
from headrace.lang.evaluating import Scope
from headrace.lang.expected import next_gens
from headrace.lang.interpreter import Interpreter
from headrace.lang.plan import GenOp


def following(program: Any) -> dict[str, tuple[str, int]]:
    """Name of a generation → that of the one behind it, and the number of texts between them."""
    region = program.compile().body
    names = {id(op): op.name for op in region.ops if isinstance(op, GenOp)}
    return {names[first]: (found.op.name, len(found.texts)) for first, found in next_gens(region).items()}


def expected(plan: Any, first: GenOp, document: str) -> list[Any]:
    """What the engine is told of behind the first generation."""
    backend: Any = object()
    interpreter, scope = Interpreter(plan, backend, {}), Scope()
    interpreter._next.update(next_gens(plan.body))
    scope.values.update({param.id: document for param in plan.inputs})
    return interpreter._expected(first, scope, ())


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

    found = following(two)
    assert {first: name for first, (name, _) in found.items()} == {"a": "b", "x": "y"}
    assert min(count for _, count in found.values()) >= 1


def test_what_may_choose_another_way_is_not_passed() -> None:
    @hl.program
    def chosen(s: hl.State) -> None:
        s.gen("a", max_tokens=3)
        s.select("way", ["left", "right"])
        s.gen("b", max_tokens=3)
        s.text(".")
        s.gen("c", max_tokens=3)

    assert set(following(chosen)) == {"b"}


def test_a_message_ends_the_chain() -> None:
    @hl.program
    def turns(s: hl.State) -> None:
        with s.assistant():
            s.gen("a", max_tokens=3)
        with s.user():
            s.text("more")
        with s.assistant():
            s.gen("b", max_tokens=3)
            s.gen("c", max_tokens=3)

    assert set(following(turns)) == {"b"}


def test_a_long_region_is_read_once() -> None:
    """Each operation is looked at a fixed number of times, however many generations there are."""

    @hl.program
    def long(s: hl.State) -> None:
        states = [hl.new_state() for _ in range(40)]
        draw = random.Random(1)
        for at in range(800):
            draw.choice(states).gen(f"g{at}", max_tokens=1)

    region = long.compile().body
    reads = [0]

    class Counted(list[Any]):
        def __iter__(self) -> Any:
            reads[0] += 1
            return super().__iter__()

        def __getitem__(self, at: Any) -> Any:
            reads[0] += 1
            return super().__getitem__(at)

    region.ops = Counted(region.ops)
    assert len(next_gens(region)) == 760
    assert reads[0] == 1


def test_long_texts_are_not_foreseen() -> None:
    @hl.program
    def reading(s: hl.State, document: str) -> None:
        s.gen("a", max_tokens=3)
        s.text(document)
        s.gen("b", max_tokens=3)

    plan = reading.compile()
    first = next(op for op in plan.body.ops if isinstance(op, GenOp))
    assert [one.text for one in expected(plan, first, "x" * 1990)] == ["x" * 1990]
    assert expected(plan, first, "x" * 2001) == []
