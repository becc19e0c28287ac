"""Texts of a limited form that stand without JSON's quotation marks: what is allowed, and where they end."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest

from headrace.conformance.grammar import VOCABULARY, allows, read
from headrace.errors import InvalidRequest
from headrace.grammar.llguidance_backend import LlguidanceBackend
from headrace.grammar.pattern_anchors import whole
from headrace.grammar.string_formats import RAW_FORMATS
from headrace.types import Constraint

END = "\n</p>\n"


@pytest.fixture(scope="module")
def backend() -> LlguidanceBackend:
    return LlguidanceBackend(VOCABULARY)


def constraint(*texts: dict[str, Any]) -> Constraint:
    """The texts, one after the other."""
    lark = "start: " + " ".join(f"PATTERN_{at}" for at in range(len(texts)))
    listed = [{"where": f"text {at}", "end": END, "marker": "</p>", **text} for at, text in enumerate(texts)]
    return Constraint("tool_calls", json.dumps({"lark": lark, "schemas": [], "strict": [], "texts": listed}))


def allowed(backend: LlguidanceBackend, written: str, *texts: dict[str, Any]) -> bool:
    matcher = backend.compile(constraint(*texts)).matcher()
    return read(matcher, written) is None and matcher.accepting


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (r"^\s$", ["\ufeff", "\u00a0", "\t", "\u2028", " ", "\n"], ["\u0085", "\u180e", "a"]),
        (r"^.$", ["a", "é", "🐲", '"', "\\"], ["\n", "\r", "ab", ""]),
        (r"^\d\D$", ["1a", "2٣", "1\n"], ["٣a", "12"]),
        (r"^\w\W$", ["aé", "_-"], ["éa", "ab"]),
        (r"^[^\d\"]$", ["a", "\n", "\\", "\x01"], ["1", '"']),
        (r"^[^a]$", ["\n", "\x00", "b"], ["a", ""]),
        (r"^[\x01-!]\x02$", ["\x01\x02", "!\x02"], ["a\x02", '"\x02']),
        (r"^/\/\"$", ['//"'], ["/"]),
        ("^a\nb$", ["a\nb"], ["ab"]),
        ("é+", ["café", "\né\n"], ["cafe", ""]),
        ("", ["", "a\nb"], []),
        ("^$", [""], ["a"]),
        ("^a|b$", ["a\n", "\nb"], ["xa", "bx"]),
    ],
)
def test_patterns_of_raw_texts(
    backend: LlguidanceBackend, pattern: str, matching: list[str], others: list[str]
) -> None:
    assert [text for text in matching if not allowed(backend, text + END, {"pattern": pattern})] == []
    assert [text for text in others if allowed(backend, text + END, {"pattern": pattern})] == []


_TEXTS = ["".join(text) for length in range(5) for text in itertools.product("ab", repeat=length)]


def _expression(draw: random.Random, depth: int) -> str:
    kind = draw.randrange(9) if depth else draw.randrange(4)
    if kind < 4:
        return "ab^$"[kind]
    one, two = _expression(draw, depth - 1), _expression(draw, depth - 1)
    return [f"{one}{two}", f"{one}{two}", f"({one})", f"({one}|{two})", f"(?:{one})*"][kind - 4]


def test_whole_texts_match_where_a_search_finds_something() -> None:
    draw, checked = random.Random(7), 0
    for _ in range(2000):
        parts = [_expression(draw, 3) for _ in range(draw.randint(1, 3))]
        pattern = "|".join(parts)
        try:
            found = whole(pattern)
        except ValueError:
            continue
        checked += "^" in pattern or "$" in pattern
        for text in _TEXTS:
            assert bool(re.fullmatch(found, text)) == bool(re.search(pattern, text)), (pattern, found, text)
    assert checked > 300


@pytest.mark.parametrize(
    ("pattern", "full"),
    [("(^a)|(b$)", ["a", "ab", "b", "ab"]), (r"^\^[$^]\$$", ["^$$", "^^$"]), ("(^a|b)c$", ["ac", "xbc"])],
)
def test_anchors_at_the_edges_of_groups(pattern: str, full: list[str]) -> None:
    assert all(re.fullmatch(whole(pattern), text) for text in full)


@pytest.mark.parametrize("pattern", ["a^b", "(a$)*", "(?:^a)+", "^*a", "a(", "a)", "*a", "x(^a)"])
def test_other_anchors_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"edges|repeats|has a"):
        whole(pattern)


def test_a_text_ends_at_its_marker(backend: LlguidanceBackend) -> None:
    """Whatever the pattern, the first place where the marker stands ends the text."""
    wide = {"pattern": r"^[a-z<>/\s]*$"}
    assert allowed(backend, f"a</b>\n<\n{END}b{END}", wide, wide)
    assert not allowed(backend, f"a</p>b{END}", wide)
    assert not allowed(backend, f"a{END}{END}", wide)
    assert allowed(backend, f"a{END}{END}", wide, wide)
    # The end itself begins like the text: its first place counts.
    doubled = {"pattern": "^x*$", "end": "xx", "marker": "xx"}
    assert allowed(backend, "xx", doubled)
    assert not allowed(backend, "xxx", doubled)


@pytest.mark.parametrize("marker", ["<", "<>", "</p>", "<aab", "aa", "aba", "<a<b"])
def test_the_marker_in_texts_of_all_forms(backend: LlguidanceBackend, marker: str) -> None:
    """Against a plain search, for markers whose beginning stands in them again, too."""
    compiled = backend.compile(constraint({"pattern": "", "end": marker, "marker": marker}))
    for length in range(6):
        for chars in itertools.product("".join(dict.fromkeys(marker + "z")), repeat=length):
            text = "".join(chars) + marker
            matcher = compiled.matcher()
            held = read(matcher, text) is None and matcher.accepting
            assert held == (text.find(marker) == len(text) - len(marker)), text


def test_long_texts_may_quote_a_part_of_the_marker(backend: LlguidanceBackend) -> None:
    """The library looks whether a text can still end, within a limit of its own."""
    text = f"a foo </ \n</ {'x' * 500}"
    assert allowed(backend, text + END, {"pattern": "foo", "maxLength": 4000})
    assert not allowed(backend, text + END, {"pattern": "foo", "maxLength": 500})


def test_tokens_that_hold_text_and_end() -> None:
    words = [b"b\n</p", b"</p>\n", b">\n", b"1\n</"]
    vocabulary = replace(VOCABULARY, token_bytes=[*VOCABULARY.token_bytes, *words])
    first = len(VOCABULARY.token_bytes)
    matcher = LlguidanceBackend(vocabulary).compile(constraint({"pattern": r"^[a-z<>/\s]*b$"})).matcher()
    assert read(matcher, "a") is None
    assert [allows(matcher, first + at) for at in range(4)] == [True, False, True, False]
    assert matcher.advance(first) is None
    assert allows(matcher, first + 2)
    assert matcher.advance(first + 2) is None
    assert matcher.accepting


def test_limits_hold_together(backend: LlguidanceBackend) -> None:
    limits = {"pattern": "^é*$", "minLength": 1, "maxLength": 2.0}
    assert [text for text in ("", "é", "éé", "ééé") if allowed(backend, text + END, limits)] == ["é", "éé"]
    dated = {"format": "date", "pattern": "^20", "enum": ["2024-01-31", "2024-01-32", "1999-01-01"]}
    assert [text for text in dated["enum"] if allowed(backend, text + END, dated)] == ["2024-01-31"]


FORMATS = {
    "duration": (["P3D", "P1Y2M3DT4H5M6S", "PT36H", "P4W", "P1M", "PT1M1S"], ["P", "PT", "P1Y3D", "3D", "P1W2D"]),
    "uri": (
        ["http://x.y:80/a%20b?c=d#e", "mailto:a@b", "urn:a:b", "http://[::1]/", "a:", "file:///a", "x:/?#"],
        ["/a", "http://a b", "a", "http://x/%2", "1:x", "http://[::1", "a:b#c#d", "é:a"],
    ),
    "date": (["2000-02-29"], ["1900-02-29", "2000-2-29"]),
    "time": (["23:59:59Z"], ["24:00:00Z", "23:59:59"]),
    "date-time": (["2000-01-01T00:00:00+01:00"], ["2000-01-01 00:00:00Z"]),
    "email": (["a.b@c.d", '"a b"@c'], ["a@", "a b@c"]),
    "ipv4": (["255.0.0.1"], ["256.0.0.1", "1.1.1"]),
    "ipv6": (["::", "1::2"], ["1::2::3", ":"]),
    "hostname": (["a-b.c"], ["-a", "a..b"]),
    "uuid": (["00000000-0000-0000-0000-00000000000F"], ["0"]),
}  # fmt: skip


def test_every_format_has_cases() -> None:
    assert set(FORMATS) == set(RAW_FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_raw_texts(backend: LlguidanceBackend, name: str) -> None:
    right, wrong = FORMATS[name]
    assert [text for text in right if not allowed(backend, text + END, {"format": name})] == []
    assert [text for text in wrong if allowed(backend, text + END, {"format": name})] == []


@pytest.mark.parametrize("name", ["duration", "uri"])
def test_json_refuses_the_same(backend: LlguidanceBackend, name: str) -> None:
    """The library's own forms, which JSON has."""
    compiled = backend.compile(Constraint("json_schema", json.dumps({"type": "string", "format": name})))
    for text in FORMATS[name][1]:
        matcher = compiled.matcher()
        assert read(matcher, json.dumps(text)) is not None or not matcher.accepting, text


def test_the_text_that_cannot_be_held_is_named(backend: LlguidanceBackend) -> None:
    right: dict[str, Any] = {"pattern": "a"}
    for wrong, why in [
        ({"pattern": "(?!a)"}, "`pattern`: look-around and flags are not supported"),
        ({"pattern": "^</p>$"}, "no text fits that does not hold </p>"),
        ({"pattern": "^a$", "minLength": 2, "marker": ""}, "no text fits"),
        ({"format": "color"}, "`format`: 'color' is not supported; there are date, time"),
        ({"format": ["date"]}, "`format`: "),
        ({"pattern": "a", "maxLength": "3"}, "`maxLength`: '3' is no count"),
        ({"pattern": "a{2,1}"}, "text 1: "),
    ]:
        with pytest.raises(InvalidRequest, match=f"text 1: .*{re.escape(why)}" if "text" not in why[:5] else why):
            backend.compile(constraint(right, wrong))
