"""Values in the grammars of calls: nested, typed, referenced, and without a schema."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from format_grammars import accepts, matcher
from format_samples import Sample, parse

from headrace.formats.call_grammar import CallableTool, call_grammar
from headrace.formats.tool_formats import TOOL_FORMATS

PLACE = {"type": "object", "properties": {"x": {"type": "integer"}, "n": {"type": "string"}}, "required": ["x"]}
TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
    "required": ["v"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "o": {"$ref": "#/$defs/Place", "description": "Where."},
        "l": {"type": "array", "items": {"type": ["string", "null"]}, "minItems": 1, "maxItems": 2},
        "u": {"enum": ["C", "F", 3]},
        "a": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "boolean"}}]},
        "t": {"$ref": "#/$defs/Tree"},
        "e": {},
    },
    "required": ["o", "l"],
    "$defs": {"Place": PLACE, "Tree": TREE},
}
FREE = CallableTool("f", {"type": "object"})
PLACES = [CallableTool("f", SCHEMA)]
OPENED = {
    "gemma4": "<|tool_call>call:f{%s}<tool_call|>",
    "function_gemma": "<start_function_call>call:f{%s}<end_function_call>",
    "cohere_xml": '<cofl:tool_calls><cofl:tool_call id="0" name="f">%s</cofl:tool_call></cofl:tool_calls>',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>%s<|close|>call<|sep|><|close|>tools<|sep|>',
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n%s'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "qwen3_coder": "<tool_call>\n<function=f>\n%s</function>\n</tool_call>",
    "pythonic": "[f(%s)]",
}


def value(name: str, given: Any) -> str:
    """A value as the format writes it within another."""
    quote = QUOTES.get(name)
    if name == "pythonic":
        return re.sub("true|false|null", lambda found: PYTHON[found.group()], json.dumps(given, ensure_ascii=False))
    if isinstance(given, str):
        return f"{quote}{given}{quote}" if quote else given
    if name == "cohere_xml" and isinstance(given, list):
        return "".join(f'<cofl:value type="{word(name, one)}">{value(name, one)}</cofl:value>' for one in given)
    if isinstance(given, dict) and (quote or name == "cohere_xml"):
        members = [parameter(name, key, one) for key, one in given.items()]
        return "{" + ",".join(members) + "}" if quote else "".join(members)
    if quote and isinstance(given, list):
        return f"[{','.join(value(name, one) for one in given)}]"
    return json.dumps(given)


def word(name: str, given: Any) -> str:
    found = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}
    kind = found.get(type(given), "null")
    form = TOOL_FORMATS[name].form
    assert form is not None
    return form.types[kind]


def parameter(name: str, key: str, given: Any) -> str:
    if name == "cohere_xml":
        return f'<cofl:value name="{key}" type="{word(name, given)}">{value(name, given)}</cofl:value>'
    if name == "kimi_k3":
        opened = f'<|open|>argument key="{key}" type="{word(name, given)}"<|sep|>'
        return f"{opened}{value(name, given)}<|close|>argument<|sep|>"
    if name == "deepseek_v32":
        opened = f'<｜DSML｜parameter name="{key}" string="{word(name, given)}">'
        return f"{opened}{value(name, given)}</｜DSML｜parameter>\n"
    if name == "qwen3_coder":
        return f"<parameter={key}>\n{value(name, given)}\n</parameter>\n"
    return f"{key}{'=' if name == 'pythonic' else ':'}{value(name, given)}"


def written(name: str, arguments: dict[str, Any]) -> str:
    separator = "," if "gemma" in name else ", " if name == "pythonic" else ""
    return OPENED[name] % separator.join(parameter(name, key, one) for key, one in arguments.items())


QUOTES = {"gemma4": '<|"|>', "function_gemma": "<escape>"}
PYTHON = {"true": "True", "false": "False", "null": "None"}
PLAIN = {"o": {"x": 1}, "l": ["a"]}
RIGHT: list[dict[str, Any]] = [
    PLAIN,
    {"o": {"x": -1, "n": "a: b"}, "l": ["x", None]},
    {**PLAIN, "u": "F"},
    {**PLAIN, "u": 3},
    {**PLAIN, "a": 1.5},
    {**PLAIN, "a": [True, False]},
    {**PLAIN, "t": {"v": 1, "kids": [{"v": 2}, {"v": 3, "kids": []}]}},
    {**PLAIN, "e": {"any": [1, "b", {"c": None}]}},
    {**PLAIN, "e": "text"},
]
WRONG: list[dict[str, Any]] = [
    {"l": ["a"]},
    {"o": {"n": "a"}, "l": ["a"]},
    {"o": {"x": "1"}, "l": ["a"]},
    {"o": {"x": 1, "z": 2}, "l": ["a"]},
    {"o": {"x": 1}, "l": []},
    {"o": {"x": 1}, "l": ["a", "b", "c"]},
    {"o": {"x": 1}, "l": [1]},
    {**PLAIN, "u": "K"},
    {**PLAIN, "u": 4},
    {**PLAIN, "a": True},
    {**PLAIN, "a": [1]},
    {**PLAIN, "t": {"v": 1, "kids": [{"kids": []}]}},
]
TYPED = [name for name in OPENED if name != "qwen3_coder"]
both = pytest.mark.parametrize("special", [False, True])


@both
@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("arguments", RIGHT, ids=str)
def test_fitting_arguments(name: str, arguments: dict[str, Any], special: bool) -> None:
    text = written(name, arguments)
    assert accepts(matcher(name, special, PLACES), text, special)
    (call,) = parse(Sample("", name, None, "", schemas={"f": SCHEMA}), [text]).calls
    assert json.loads(call[1]) == arguments


@both
@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("arguments", WRONG, ids=str)
def test_arguments_that_do_not_fit(name: str, arguments: dict[str, Any], special: bool) -> None:
    loose = name in ("kimi_k3", "deepseek_v32") and arguments["o"].get("z") if "o" in arguments else False
    assert accepts(matcher(name, special, PLACES), written(name, arguments), special) == bool(loose)


@both
@pytest.mark.parametrize("name", OPENED)
def test_any_object(name: str, special: bool) -> None:
    """A tool whose arguments are not held takes any, and one without parameters takes none."""
    for arguments in ({}, {"a": "b c"}, {"a": 1, "b_c": "x"}):
        assert accepts(matcher(name, special, [FREE]), written(name, arguments), special)
    for nested in ({"a": {"b": [1, {"c": "d"}]}}, {"l": []}, {"o": {}}):
        assert accepts(matcher(name, special, [FREE]), written(name, nested), special)
    none = [CallableTool("f", None)]
    assert accepts(matcher(name, special, none), written(name, {}), special)
    assert not accepts(matcher(name, special, none), written(name, {"a": 1}), special)


@both
@pytest.mark.parametrize("name", OPENED)
def test_lengths_of_strings(name: str, special: bool) -> None:
    limited = {"type": "string", "minLength": 2, "maxLength": 4}
    tool = CallableTool("f", {"type": "object", "properties": {"a": limited}})
    for text in ("é<", "a\nb", "abcd"):
        given = text.replace("\n", " ") if name == "pythonic" else text
        assert accepts(matcher(name, special, [tool]), written(name, {"a": given}), special)
    for text in ("", "a", "abcde"):
        assert not accepts(matcher(name, special, [tool]), written(name, {"a": text}), special)


@pytest.mark.parametrize("name", OPENED)
def test_strict_tools(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "o": {**PLACE, "required": ["x", "n"], "additionalProperties": False}},
        "required": ["n", "o"],
        "additionalProperties": False,
    }
    text = written(name, {"n": 1, "o": {"x": 2, "n": "a"}})
    assert accepts(matcher(name, False, [CallableTool("f", schema, strict=True)]), text, False)
    loose = {**schema, "required": ["n"]}
    with pytest.raises(Exception, match="every property in `required`"):
        matcher(name, False, [CallableTool("f", loose, strict=True)])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"a:b": {"type": "string"}}}, "f: the name of 'a:b' cannot be held in the format gemma4"),
        ({"properties": {"a": {"$ref": "#/$defs/B"}}}, r"the \$ref '#/\$defs/B' of 'a'"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "which leads to itself of 'a'"),
        ({"properties": {"a": {"$ref": "http://x/y"}}}, "the .ref 'http://x/y' of 'a'"),
        ({"properties": {"a": {"allOf": [{"type": "string"}]}}}, "`allOf` of 'a'"),
        ({"properties": {"a": {"type": "object", "minProperties": 2}}}, "`minProperties` of 'a'"),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "`uniqueItems` of 'a'"),
        ({"properties": {"a": {"type": "array", "minItems": 3, "maxItems": 2}}}, "at least 3 and at most 2"),
        ({"properties": {"a": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}}, "`oneOf` whose"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}], "minLength": 1}}}, "`minLength` beside `anyOf` of 'a'"),
        ({"properties": {"a": {"enum": []}}}, "no value of 'a'"),
        ({"anyOf": [{"required": ["a"]}]}, "f: `anyOf` cannot be held"),
    ],
)
def test_refused(schema: dict[str, Any], why: str) -> None:
    tool = CallableTool("f", {"type": "object", **schema})
    with pytest.raises(ValueError, match=why):
        call_grammar(TOOL_FORMATS["gemma4"], [tool], lambda _: None, (), free_text=False, parallel=True)


def test_a_schema_of_many_levels() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(ValueError, match="more than 64 levels"):
        call_grammar(
            TOOL_FORMATS["gemma4"], [CallableTool("f", deep)], lambda _: None, (), free_text=False, parallel=True
        )
