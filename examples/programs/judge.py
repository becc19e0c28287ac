"""A judge over branches (branch, solve, merge: arXiv:2310.15123): one verdict an aspect, then a grade for all.

headrace program run examples/programs/judge.py essay=@essay.txt --url http://127.0.0.1:8000
"""

from __future__ import annotations

from typing import Any

from headrace import lang as hl

ASPECTS = ["clarity", "evidence", "structure", "style"]


@hl.program
def grade(s: hl.State, essay: str, aspects: list[str] = ASPECTS) -> Any:
    s.system("You judge essays. You are brief.")
    s.user("Essay:\n", essay)
    with s.fork(aspects, max=8) as branch:
        branch.user("Judge only the ", branch.item, ", in one sentence.")
        branch.assistant(hl.gen("note", max_tokens=50, temperature=0))
    s.user("Notes of the judges:\n- ", branch.join("note", "\n- "), "\nGive a grade from A (best) to D.")
    with s.assistant():
        s.text("Grade:")
        letter = s.select("choice", [" A", " B", " C", " D"])
    with hl.if_(letter == " D"):
        s.user("What is the worst sentence?")
        s.assistant(hl.gen("worst", max_tokens=40, temperature=0))
    return hl.out(grade=letter.strip(), notes=branch["note"], worst=s.get("worst", ""))
