"""Self-consistency (arXiv:2203.11171): several chains of thought at once, and a vote on their answers.

    headrace program run examples/programs/self_consistency.py question="What is 17 + 25?" --seed 1 \
        --url http://127.0.0.1:8000
"""

from __future__ import annotations

from typing import Any

from headrace import lang as hl


@hl.program
def vote(s: hl.State, question: str, samples: hl.Static[int] = 8) -> Any:
    s.user(question, "\nThink step by step, then give the number.")
    with s.fork(samples) as branch, branch.assistant():
        branch.gen("thoughts", max_tokens=60, temperature=0.8)
        branch.text("\nSo the number is ")
        branch.gen("answer", type=int, max_tokens=12, temperature=0)
    return hl.out(answer=hl.mode(branch["answer"]), answers=branch["answer"])
