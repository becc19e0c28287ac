"""Schemas that people use: refused where it is said, else valid instances are allowed, invalid and random ones are
not."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from schema_walk import Walker, accepts, compiled

from headrace.conformance.grammar import VOCABULARY
from headrace.grammar.llguidance_backend import LlguidanceBackend

DATA = Path(__file__).parents[2] / "data" / "schemas"
FILES = sorted(DATA.glob("*.json"))
WALKER = Walker.over(VOCABULARY)


@pytest.fixture(scope="module")
def backend() -> LlguidanceBackend:
    return LlguidanceBackend(VOCABULARY)


def entries(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_there_are_two_hundred() -> None:
    names = [(path.stem, entry["name"]) for path in FILES for entry in entries(path)]
    assert len(names) == len(set(names)) >= 200


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_valid_instances_are_allowed_and_invalid_ones_are_not(backend: LlguidanceBackend, path: Path) -> None:
    wrong: list[str] = []
    for entry in entries(path):
        grammar = compiled(backend, entry["schema"])
        if isinstance(grammar, str) or entry.get("refused"):
            if isinstance(grammar, str) != bool(entry.get("refused")):
                wrong.append(f"{entry['name']}: {grammar}")
            continue
        for instances, right in ((entry["valid"], True), (entry["invalid"], False)):
            for value in instances:
                text = json.dumps(value, ensure_ascii=False)
                if accepts(grammar.matcher(), VOCABULARY.encode(text)) != right:
                    wrong.append(f"{entry['name']}: {text} is {'not ' if right else ''}allowed")
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_random_texts_are_json(backend: LlguidanceBackend, path: Path) -> None:
    """`ci/json_schema.py` judges them, too."""
    complete = 0
    for entry in entries(path):
        grammar = compiled(backend, entry["schema"])
        if not isinstance(grammar, str):
            text = WALKER.walk(grammar.matcher(), random.Random(entry["name"]))
            if text is not None:
                json.loads(text)
                complete += 1
    assert complete > len(entries(path)) / 3
