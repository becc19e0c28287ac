"""A summary of many documents: each is summarised at the same time (map), and the summaries together (reduce).

headrace program run examples/programs/map_reduce.py 'documents=["…", "…"]' --url http://127.0.0.1:8000
"""

from __future__ import annotations

from headrace import lang as hl


@hl.program
def summarise(s: hl.State, documents: list[str], about: str = "the main facts") -> None:
    s.system("You summarise documents in one or two sentences.")
    with s.fork(documents, max=100) as branch:
        branch.user("Summarise ", about, ":\n\n", branch.item)
        branch.assistant(hl.gen("summary", max_tokens=60, temperature=0))
    s["summaries"] = branch["summary"]
    s.user("Summarise ", about, " of these notes:\n\n- ", branch.join("summary", "\n- "))
    s.assistant(hl.gen("overall", max_tokens=100, temperature=0))
