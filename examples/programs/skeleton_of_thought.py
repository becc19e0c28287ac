"""A skeleton of thought (arXiv:2307.15337): the points of an answer first, then all of them at the same time.

    headrace program run examples/programs/skeleton_of_thought.py question="Why should one sleep well?" \
        --url http://127.0.0.1:8000
"""

from __future__ import annotations

from typing import Any

from headrace import lang as hl

POINTS = {"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 60}, "minItems": 3, "maxItems": 3}


@hl.program
def answer(s: hl.State, question: str) -> Any:
    s.user(question, "\nGive the three points of an answer, a few words each, as a JSON list of texts.")
    s.assistant(hl.gen("points", json=POINTS, max_tokens=120, temperature=0))
    with s.fork(s["points"], max=3) as branch:
        branch.user("Write one or two sentences about this point: ", branch.item)
        branch.assistant(hl.gen("text", max_tokens=70, temperature=0))
    return hl.out(answer=branch.join("text", "\n\n"))
