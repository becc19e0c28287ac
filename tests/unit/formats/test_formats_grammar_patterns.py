"""Patterns and formats of strings in the grammars of calls, in every format that forces calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from format_grammars import accepts, matcher
from format_samples import Sample, parse
from test_formats_grammar import FORCED, TEXTS

from headrace.errors import InvalidRequest
from headrace.formats.call_grammar import CallableTool
from headrace.formats.tool_formats import TOOL_FORMATS

both = pytest.mark.parametrize("special", [False, True])
RAW = {
    "qwen3_coder": "</parameter>",
    "glm45": "</arg_value>",
    "glm47": "</arg_value>",
    "minimax_m2": "</parameter>",
    "deepseek_v32": "</｜DSML｜parameter>",
    "deepseek_v4": "</｜DSML｜parameter>",
    "kimi_k3": "<|close|>argument<|sep|>",
    "function_gemma": "<escape>",
    "gemma4": '<|"|>',
    "cohere_xml": "</cofl:value>",
}
"""The marker that ends a string which stands as it is."""


def tools(given: Any) -> list[CallableTool]:
    return [CallableTool("weather", schema(given))]


def schema(given: Any) -> dict[str, Any]:
    properties = {"city": given, "days": {"type": "integer"}}
    return {"type": "object", "properties": properties, "required": ["city", "days"], "additionalProperties": False}


def string(**limits: Any) -> dict[str, Any]:
    return {"type": "string", **limits}


def holds(name: str, given: Any, value: str, special: bool) -> bool:
    """Whether a call with this text is allowed. What is allowed is read with the very text."""
    text = TEXTS[name].replace("Rome", value if name in RAW else json.dumps(value, ensure_ascii=False)[1:-1])
    found = accepts(matcher(name, special, tools(given)), text, special)
    if found:
        (call,) = parse(
            Sample("", name, "harmony" if name == "harmony" else None, "", schemas={"weather": schema(given)}), [text]
        ).calls
        assert json.loads(call[1]) == {"city": value, "days": 2}
    return found


CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"pattern": "^[A-Z][a-z]+$"}, ["Rome", "Oslo"], ["rome", "Rome1", ""]),
    ({"pattern": "a|^b"}, ["xay", "b", "bc"], ["xb", "c"]),
    ({"pattern": r"^\d{2}-\w$"}, ["12-a"], ["1-a", "१२-a", "12-é"]),
    ({"pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd", "AB"]),
    ({"format": "date"}, ["2024-02-29"], ["2023-02-29", "today", "2024-02-29 "]),
    ({"format": "uuid"}, ["00000000-0000-4000-8000-00000000000a"], ["x"]),
]


@both
@pytest.mark.parametrize("name", FORCED)
@pytest.mark.parametrize(("limits", "right", "wrong"), CASES, ids=str)
def test_limited_texts(name: str, limits: dict[str, Any], right: list[str], wrong: list[str], special: bool) -> None:
    for value in right:
        assert holds(name, string(**limits), value, special), value
    for value in wrong:
        assert not holds(name, string(**limits), value, special), value


@both
@pytest.mark.parametrize("name", RAW)
def test_a_text_ends_where_its_marker_stands(name: str, special: bool) -> None:
    """A pattern that fits the marker does not let the text run over it."""
    marker = RAW[name]
    wide = string(pattern=r"^a[^~]*z?$")
    assert holds(name, wide, "a</b>\n\tz", special)
    assert holds(name, wide, "a", special)
    for value in (f"a{marker}", f"a{marker}z", f"a\n{marker}\nz{marker}"):
        assert not accepts(matcher(name, special, tools(wide)), TEXTS[name].replace("Rome", value), special)


@both
@pytest.mark.parametrize("name", RAW)
def test_an_alternative_that_holds_the_marker_is_never_begun(name: str, special: bool) -> None:
    written = RAW[name].replace("|", r"\|")
    either = string(pattern=f"^(q{written}|qz)$")
    assert holds(name, either, "qz", special)
    assert not accepts(matcher(name, special, tools(either)), TEXTS[name].replace("Rome", f"q{RAW[name]}"), special)
    if not special:
        with pytest.raises(InvalidRequest, match="weather: 'city': no text fits that does not hold"):
            matcher(name, special, tools(string(pattern=f"^q{written}$")))


def test_a_token_tells_the_end_from_text_that_quotes_it() -> None:
    quoted = string(pattern="^q<escape>$")
    found = matcher("function_gemma", True, tools(quoted))
    opened = "<start_function_call>call:weather{city:<escape>"
    assert not accepts(found, opened, True)
    for byte in b"q<escape>":
        assert found.advance(byte) is None
    assert accepts(found, "<escape>,days:2}<end_function_call>", True)


@both
@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("form", ["types", "anyOf"])
def test_texts_beside_other_values(name: str, form: str, special: bool) -> None:
    date = string(format="date")
    given = {"anyOf": [date, {"type": "null"}]} if form == "anyOf" else {"type": ["string", "null"], "format": "date"}
    assert holds(name, given, "2024-02-29", special)
    assert not holds(name, given, "today", special)
    form = TOOL_FORMATS[name].form
    assert form is not None
    text = TEXTS[name].replace('<|"|>Rome<|"|>', "null").replace("<escape>Rome<escape>", "null").replace("Rome", "null")
    if form.types:
        text = text.replace(f'"{form.types["string"]}">null', f'"{form.types["null"]}">null').replace(
            f'"{form.types["string"]}"<|sep|>null', f'"{form.types["null"]}"<|sep|>null'
        )
    assert accepts(matcher(name, special, tools(given)), text, special)
    (call,) = parse(Sample("", name, None, "", schemas={"weather": schema(given)}), [text]).calls
    assert json.loads(call[1]) == {"city": None, "days": 2}


@pytest.mark.parametrize("name", RAW)
def test_a_referenced_text_that_looks_like_a_number_is_a_text(name: str) -> None:
    tool = schema({"$ref": "#/$defs/Code"})
    tool["$defs"] = {"Code": {"$ref": "#/$defs/Digits"}, "Digits": string(pattern="^[0-9]{5}$")}
    text = TEXTS[name].replace("Rome", "12345")
    assert accepts(matcher(name, False, [CallableTool("weather", tool)]), text, False)
    (call,) = parse(Sample("", name, None, "", schemas={"weather": tool}), [text]).calls
    assert json.loads(call[1]) == {"city": "12345", "days": 2}


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "minimax_m2"])
def test_alternatives_without_words_for_their_types(name: str) -> None:
    letters = {"anyOf": [{"enum": ["a", "b"]}, string(pattern="^x+$"), {"type": "null"}]}
    assert all(holds(name, letters, value, False) for value in ("a", "b", "xx"))
    assert not any(holds(name, letters, value, False) for value in ("c", "ax"))
    free = {"anyOf": [string(pattern="^x+$"), string()]}
    assert holds(name, free, "anything", False)
    limited = {"anyOf": [string(pattern="^[0-9]+$"), {"type": "integer", "maximum": 5}]}
    with pytest.raises(ValueError, match="weather: `maximum` beside a text with `pattern` or `format` of 'city'"):
        matcher(name, False, tools(limited))


@both
@pytest.mark.parametrize("name", RAW)
def test_patterns_beside_constants(name: str, special: bool) -> None:
    given = string(enum=["ab", "b1", "c1"], pattern="1$")
    assert all(holds(name, given, value, special) for value in ("b1", "c1"))
    assert not any(holds(name, given, value, special) for value in ("ab", "1"))


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"pattern": "(?=a)b"}, "weather: 'city': `pattern`: look-around and flags are not supported"),
        ({"pattern": "a^b"}, r"weather: 'city': `pattern`: \^ and \$ are supported at the edges alone"),
        ({"pattern": "(a"}, r"weather: 'city': `pattern`: has a \( without its \)"),
        ({"pattern": "a{"}, "weather: 'city': invalid regex .*repetition"),
        ({"pattern": 3}, "weather: 'city': `pattern`: 3 is no text"),
        ({"format": "colour"}, "weather: 'city': `format`: 'colour' is not supported; there are date, "),
        ({"pattern": "^a$", "minLength": 2}, "weather: 'city': no text fits"),
        ({"pattern": "^a$", "minLength": -1}, "weather: 'city': `minLength`: -1 is no count"),
    ],
)
def test_refused_limits(limits: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        matcher("qwen3_coder", False, tools(string(**limits)))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (string(enum=[]), "weather: no value of 'city'"),
        (string(enum=[1], pattern="1"), "weather: no value of 'city'"),
        (string(minLength=-1), "`minLength` -1, which is no count, of 'city'"),
        (string(maxLength="2"), "`maxLength` '2', which is no count, of 'city'"),
    ],
)
def test_limits_that_no_text_can_meet(given: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        matcher("qwen3_coder", False, tools(given))


def test_a_length_may_be_written_as_a_decimal() -> None:
    assert holds("qwen3_coder", string(minLength=2.0), "ab", False)
    assert not holds("qwen3_coder", string(minLength=2.0), "a", False)


def test_the_place_of_a_nested_text() -> None:
    inner = {"type": "object", "properties": {"n": string(pattern="(?=a)")}}
    with pytest.raises(InvalidRequest, match="weather: 'n' of 'city': `pattern`: look-around"):
        matcher("gemma4", False, tools(inner))
