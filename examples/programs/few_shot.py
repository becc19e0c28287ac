"""Few-shot classification: examples in a text without roles, and `select` for the label.

headrace program run examples/programs/few_shot.py review="I would watch it again." --url http://127.0.0.1:8000
"""

from __future__ import annotations

from typing import Any

from headrace import lang as hl

EXAMPLES = [
    ("The plot is thin and the acting is worse.", "negative"),
    ("A warm, funny film for the whole family.", "positive"),
    ("I left after twenty minutes.", "negative"),
    ("The music alone is worth the ticket.", "positive"),
]


@hl.program
def classify(s: hl.State, review: str) -> Any:
    for text, label in EXAMPLES:  # Constants: Python's own loop, while the program is traced.
        s.text("Review: ", text, "\nSentiment: ", label, "\n\n")
    s.text("Review: ", review, "\nSentiment:")
    label = s.select("choice", [" positive", " negative"])
    return hl.out(label=label.strip())
