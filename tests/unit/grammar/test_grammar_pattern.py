"""Patterns mean what ECMA-262 says, or are refused."""

from __future__ import annotations

import json

import pytest

from headrace.conformance.grammar import VOCABULARY, read
from headrace.errors import InvalidRequest
from headrace.grammar.llguidance_backend import LlguidanceBackend
from headrace.grammar.pattern import translated
from headrace.types import Constraint


@pytest.fixture(scope="module")
def backend() -> LlguidanceBackend:
    return LlguidanceBackend(VOCABULARY)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (r"^\s$", ["\ufeff", "\u00a0", "\t", "\u2028", " "], ["\u0085", "\u180e", "a"]),
        (r"^\S$", ["\u0085", "a", "é"], ["\ufeff", "\u00a0", " ", "\n"]),
        (r"^[^\s,]$", ["a"], ["\ufeff", ",", " "]),
        (r"^[\s,]$", ["\ufeff", ","], ["a"]),
        (r"^.$", ["a", "é", "🐲"], ["\n", "\r", "ab", ""]),
        (r"^\d\D$", ["1a", "2٣"], ["٣a", "12"]),
        (r"^\w\W$", ["aé", "_-"], ["éa", "ab"]),
        (r"^[[a]$", ["[", "a"], ["[a", "]"]),
        (r"^[a&&~~b]$", ["a", "&", "~", "b"], ["c"]),
        (r"^[a\-z-]$", ["a", "-", "z"], ["b"]),
        (r"^\/\-\<\>$", ["/-<>"], ["/-"]),
        (r"^(?:a|b)(?<n>c)$", ["ac", "bc"], ["c"]),
        (r"^\x41\u0042\u{43}$", ["ABC"], ["abc"]),
        (r"^a|b$", ["ax", "xb"], ["xa"]),
        ("é+", ["café"], ["cafe"]),
        (r"^\p{Lu}$", ["É"], ["é"]),
        (r"^[^\"\\]*$", ["", "a/é"], ['"', "\\", 'a\\"']),
        (r"^[^\"]$", ["a", "\\"], ['"']),
        (r"^[^\"\n]$", ["a"], ['"', "\n"]),
        (r"^[^\\]$", ["a", '"'], ["\\"]),
        (r"^[^!-/]$", ["a", "\\"], ['"', "!"]),
        (r"^[^ -~]$", ["é"], ['"', "\\", "a"]),
        (r"^[^\x00-\x7f]$", ["é"], ['"', "\\", "\n"]),
        (r"^[^\p{P}]$", ["a"], ['"', "\\", "!"]),
        (r"^[ -!#-\[\]-~]$", ["a", "!"], ['"', "\\"]),
        (r"^([^\"]|\n|\t)$", ["a", "\n", "\t"], ['"']),
        (r"^[\t-\r]$", ["\t", "\n"], ['"', "\\", "a"]),
        (r"^[\\\"]$", ['"', "\\"], ["a"]),
    ],
)
def test_patterns_match_as_in_ecma_262(
    backend: LlguidanceBackend, pattern: str, matching: list[str], others: list[str]
) -> None:
    compiled = backend.compile(Constraint("json_schema", json.dumps({"type": "string", "pattern": pattern})))

    def allowed(text: str) -> bool:
        matcher = compiled.matcher()
        return read(matcher, json.dumps(text, ensure_ascii=False)) is None and matcher.accepting

    assert [text for text in matching if not allowed(text)] == []
    assert [text for text in others if allowed(text)] == []


@pytest.mark.parametrize(
    "pattern",
    [r"\A", r"\z", r"\b", r"\cA", r"\1", r"\0", r"\k<n>", "(?i)a", "(?i:a)", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)",
        "(?P<n>a)",
     "[]", "[^]", "[]a]", r"[\S]", "[a--b]", r"[\b]", "\\",
     r"\P{L}", r"[\x00-!]", r"\x08", r"\u0008", r"\u{8}", "\x08", "[\x00-!]"],
)  # fmt: skip
def test_what_would_mean_something_else_is_refused(backend: LlguidanceBackend, pattern: str) -> None:
    with pytest.raises(ValueError, match="not supported"):
        translated(pattern)
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: {}}}):
        with pytest.raises(InvalidRequest, match="not supported"):
            backend.compile(Constraint("json_schema", json.dumps(schema)))


def test_other_patterns_stay_as_they_are() -> None:
    for pattern in ("^[A-Za-z0-9_-]+@[a-z]+\\.[a-z]{2,}$", "^(a|b)*c?d+$", r"^\d{4}-\d{2}$", "^$", r"^[\w.-]+$"):
        assert translated(pattern) == pattern
