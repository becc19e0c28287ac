"""No assert of the package has an effect: `python -O` leaves them all out."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headrace

SOURCE = Path(headrace.__file__).parent
PURE = {
    *(
        "all",
        "any",
        "callable",
        "getattr",
        "hasattr",
        "id",
        "isinstance",
        "issubclass",
        "len",
        "list",
        "max",
        "min",
        "range",
    ),
    *("set", "sorted", "str", "sum", "tuple", "type", "zip"),
}
"""Functions that look and change nothing."""
PURE_METHODS = {"any", "all", "endswith", "is_contiguous", "items", "keys", "startswith", "values"}
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if "conformance" not in path.parts]
"""The kit is tests, which pytest rewrites."""


def effects(source: str) -> list[str]:
    """What an assert of the source does beside looking, as `line: code`."""
    found = []
    for statement in ast.walk(ast.parse(source)):
        if not isinstance(statement, ast.Assert):
            continue
        for node in ast.walk(statement):
            acts = isinstance(node, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom))
            if isinstance(node, ast.Call):
                called = node.func
                acts = not (
                    (isinstance(called, ast.Name) and called.id in PURE)
                    or (isinstance(called, ast.Attribute) and called.attr in PURE_METHODS)
                )
            if acts:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("assert x.pop()", 1),
        ("assert (y := 1)", 1),
        ("async def f(): assert await g()", 2),
        ("assert len(x) == 1 and isinstance(x, list), f'{x}'", 0),
        ("assert x, f'{evict()}'", 1),
    ],
)
def test_the_rule_itself(source: str, count: int) -> None:
    assert len(effects(source)) == count


def test_no_assert_has_an_effect() -> None:
    found = {str(path.relative_to(SOURCE)): acts for path in FILES if (acts := effects(path.read_text()))}
    assert not found
