"""Random grammars over HTTP: 200 with a constrained text, or 400 with one line; the server lives on."""

from __future__ import annotations

import json
import random
import re
from typing import Any

PIECES = ["a", "b", "[0-9]", "(", ")", "|", "*", "+", "{2,3}", "\\", "é", '"', "."]


def constraint(rng: random.Random) -> tuple[dict[str, Any], Any]:
    """The field of a request, and what a complete text must satisfy."""
    kind = rng.choice(["regex", "choice", "json"])
    if kind == "regex":
        pattern = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 8)))
        return {"regex": pattern}, lambda text: re.fullmatch(pattern, text) is not None
    if kind == "choice":
        choices = ["".join(rng.choice('abé"\\') for _ in range(rng.randrange(4))) for _ in range(rng.randrange(4))]
        return {"choice": choices}, choices.__contains__
    values = rng.sample([1, "a", None, True, "é", [], {"a": 1}], rng.randrange(4))
    return {"json": {"enum": values}}, lambda text: json.loads(text) in values


def test_random_grammars_are_enforced_or_refused(narrow):
    rng = random.Random(3)
    statuses = []
    for _ in range(60):
        field, holds = constraint(rng)
        response = narrow.complete(structured_outputs=field, max_tokens=12, temperature=1.5)
        statuses.append(response.status_code)
        if response.status_code == 200:
            (choice,) = response.json()["choices"]
            assert choice["finish_reason"] == "length" or holds(choice["text"]), (field, choice)
        else:
            error = response.json()["error"]
            assert response.status_code == 400, error
            assert error["param"].startswith("structured_outputs"), error
            assert "\n" not in error["message"]
    assert statuses.count(200) > 10
    assert statuses.count(400) > 10
