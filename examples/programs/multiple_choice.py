"""A multiple-choice set, evaluated by `select`: one run a question, all of them as a batch.

python examples/programs/multiple_choice.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys
from typing import Any

from headrace import lang as hl

QUESTIONS: list[dict[str, Any]] = [
    {"question": "Which planet is nearest to the sun?", "options": ["Mars", "Mercury", "Venus", "Saturn"], "right": 1},
    {"question": "How many legs has a spider?", "options": ["six", "four", "ten", "eight"], "right": 3},
    {"question": "What do bees make?", "options": ["honey", "milk", "silk", "salt"], "right": 0},
    {"question": "Which of these is a prime number?", "options": ["9", "15", "7", "21"], "right": 2},
]
LETTERS = [" A", " B", " C", " D"]


@hl.program
def question(s: hl.State, question: str, options: list[str], right: int) -> Any:
    s.text("The following are multiple choice questions with answers.\n\n", question, "\n")
    for index, letter in enumerate("ABCD"):
        s.text(letter, ". ", options[index], "\n")
    s.text("Answer:")
    chosen = s.select("letter", LETTERS)
    return hl.out(correct=chosen == hl.list_of(*LETTERS)[right])


def accuracy(on: Any) -> float:
    found = question.run_batch(QUESTIONS, on=on)
    return sum(bool(result["correct"]) for result in found) / len(found)


if __name__ == "__main__":
    print(f"{accuracy(sys.argv[1]):.0%} right")
