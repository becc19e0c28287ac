"""A tree of thoughts (arXiv:2305.10601): propose several next steps, judge each, keep the best, and go on.

    headrace program run examples/programs/tree_of_thought.py problem="Plan a day in Paris." --seed 1 \
        --url http://127.0.0.1:8000
"""

from __future__ import annotations

from typing import Any

from headrace import lang as hl

GRADES = [" sure", " likely", " impossible"]


def best_of(steps: list[str], grades: list[str]) -> str:
    """Python on values: a call-out, which the plan names and its graph shows."""
    order = [GRADES.index(f" {grade.strip()}") for grade in grades]
    return steps[order.index(min(order))]


@hl.program
def solve(s: hl.State, problem: str, depth: hl.Static[int] = 2, width: hl.Static[int] = 3) -> Any:
    s["plan"] = ""
    with hl.for_(depth):
        s.text("Problem: ", problem, "\nSteps so far:", s["plan"], "\nNext step:")
        with s.fork(width) as branch:
            branch.gen("step", max_tokens=40, stop="\n", temperature=0.9)
            branch.text("\nWill this step lead to a solution (sure, likely, impossible)?")
            branch.select("grade", GRADES)
        step = hl.call(best_of, branch["step"], branch["grade"])
        s["plan"] = s["plan"] + "\n-" + step
        s.text(step, "\n\n")
    return hl.out(plan=s["plan"].strip())
