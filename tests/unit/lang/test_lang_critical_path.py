"""How much of a plan lies behind each of its operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace import lang as hl
from headrace.lang.critical_path import CriticalPath
from headrace.lang.data_flow import DataFlow
from headrace.lang.plan import GenOp, PlanOp, Region, SelectOp, regions


def operations(region: Region) -> Iterator[PlanOp]:
    for op in region.ops:
        yield op
        for inner in regions(op).values():
            yield from operations(inner)


def left(program: Any, *path: int, **static: Any) -> dict[str, int]:
    """What is left at each `gen` and `select`, in the first branches and passes or in those of `path`."""
    plan = program.compile(**static)
    found = CriticalPath(plan, DataFlow(plan))
    named = [op for op in operations(plan.body) if isinstance(op, (GenOp, SelectOp))]
    return {op.name: found.left(op, path) for op in named}


def test_a_chain_adds_up() -> None:
    @hl.program
    def chain(s: hl.State) -> None:
        s.text("x" * 640)
        s.gen("a", max_tokens=20)
        s.text("y" * 128)
        s.select("b", ["yes", "no"])
        s.gen("c", max_tokens=5)

    assert left(chain) == {"a": 20 + 2 + 1 + 5, "b": 1 + 5, "c": 5}


def test_states_that_do_not_depend_on_one_another_do_not_add_up() -> None:
    @hl.program
    def beside(s: hl.State) -> None:
        note = hl.new_state()
        note.gen("note", max_tokens=30)
        s.gen("a", max_tokens=8)
        s.gen("b", max_tokens=8)
        s.text(note["note"])
        s.gen("end", max_tokens=4)

    assert left(beside) == {"note": 34, "a": 20, "b": 12, "end": 4}


def test_the_longer_block_of_a_condition_counts_and_what_follows_both() -> None:
    @hl.program
    def choice(s: hl.State, word: str) -> None:
        with hl.if_(word == "long"):
            s.gen("long", max_tokens=50)
        with hl.else_():
            s.gen("short", max_tokens=5)
        s.gen("end", max_tokens=3)

    assert left(choice) == {"long": 53, "short": 8, "end": 3}


def test_branches_run_at_the_same_time() -> None:
    @hl.program
    def tree(s: hl.State) -> None:
        with s.fork(10) as branch:
            branch.gen("way", max_tokens=6)
            with branch.fork(3) as leaf:
                leaf.gen("leaf", max_tokens=7)
        s.text(branch.join("way"))
        s.gen("end", max_tokens=2)

    assert left(tree) == {"way": 15, "leaf": 9, "end": 2}
    assert left(tree, 9, 2) == left(tree)


def test_passes_that_are_done_are_not_left() -> None:
    @hl.program
    def loop(s: hl.State, rows: list[str]) -> None:
        s["n"] = 0
        with hl.for_(rows, max=4) as row:
            s.text(row)
            s.gen("row", max_tokens=10)
            with hl.while_(lambda: s["n"] < 3, max=5):
                s.gen("try", max_tokens=1)
        s.gen("end", max_tokens=2)

    assert left(loop) == {"row": 4 * 15 + 2, "try": 5 + 3 * 15 + 2, "end": 2}
    assert left(loop, 3, 2) == {"row": 17, "try": 5, "end": 2}


def test_a_loop_over_a_constant_has_its_length() -> None:
    @hl.program
    def loop(s: hl.State) -> None:
        with hl.for_(3, max=100):
            s.gen("row", max_tokens=10)

    assert left(loop) == {"row": 30}


def test_the_largest_plan_has_a_number_that_the_engine_can_read() -> None:
    @hl.program
    def deep(s: hl.State) -> None:
        def nest(levels: int) -> None:
            if not levels:
                s.gen("a", max_tokens=1000)
                return
            with hl.for_(10_000, max=10_000):
                nest(levels - 1)

        nest(20)

    assert left(deep) == {"a": 2**53}
