"""Grammars of forced calls, compiled and followed character by character: what they allow is what the parser reads."""

from __future__ import annotations

import json

import pytest
from format_grammars import IDS, accepts, matcher
from format_samples import Sample, parse

from headrace.errors import InvalidRequest
from headrace.formats.call_grammar import CallableTool, call_grammar
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.states import ToolFormat
from headrace.formats.tool_formats import TOOL_FORMATS

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [CallableTool("weather", SCHEMA), CallableTool("now", None)]
FORCED = [name for name, found in TOOL_FORMATS.items() if found.form is not None]
TEXTS = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>',
    "smollm2": '<tool_call>[{"name": "weather", "arguments": {"city": "Rome", "days": 2}}]</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "llama3_json": '{"name": "weather", "parameters": {"city": "Rome", "days": 2}}',
    "pythonic": '[weather(city="Rome", days=2)]',
    "mistral_v3": '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome", "days": 2}, "id": "abc123XYZ"}]',
    "mistral_v11": '[TOOL_CALLS]weather[CALL_ID]abc123XYZ[ARGS]{"city": "Rome", "days": 2}',
    "mistral_v13": '[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 2}',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{"city": "Rome", "days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    '{"city": "Rome", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "glm47": "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
    "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "Rome", "days": 2}<|tool_call_end|><|tool_calls_section_end|>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>',
    "granite30": '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome", "days": 2}}]',
    "granite31": '<tool_call>[{"name": "weather", "arguments": {"city": "Rome", "days": 2}}]',
    "phi4_mini": '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome", "days": 2}}]<|/tool_call|>',
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>",
    "function_gemma": "<start_function_call>call:weather{city:<escape>Rome<escape>,days:2}<end_function_call>",
    "gemma4": '<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>',
    "cohere_json": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", '
    '"parameters": {"city": "Rome", "days": 2}}\n]<|END_ACTION|>',
    "cohere_xml": '<cofl:tool_calls><cofl:tool_call id="0" name="weather">'
    '<cofl:value name="city" type="raw">Rome</cofl:value><cofl:value name="days" type="json">2</cofl:value>'
    "</cofl:tool_call></cofl:tool_calls>",
    "harmony": '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome", "days": 2}',
}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", FORCED)
def test_forced_calls(name: str, special: bool) -> None:
    text = TEXTS[name]
    assert accepts(matcher(name, special, TOOLS), text, special)
    assert not accepts(matcher(name, special, TOOLS), text.replace("weather", "wether"), special)
    assert not accepts(matcher(name, special, TOOLS), "Hello", special)
    assert not accepts(matcher(name, special, TOOLS), text.replace("2", "x"), special)
    reasoning = "harmony" if name == "harmony" else None
    schemas = {"weather": SCHEMA}
    answer = parse(Sample("", name, reasoning, "", schemas=schemas), [text])
    (call,) = answer.calls
    assert call[0] == "weather"
    assert json.loads(call[1]) == {"city": "Rome", "days": 2}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", FORCED)
def test_free_text_before_calls(name: str, special: bool) -> None:
    answer = "<|channel|>final<|message|>Hello" if name == "harmony" else "Hello {you}"
    assert accepts(matcher(name, special, TOOLS, free_text=True), answer, special)
    assert accepts(matcher(name, special, TOOLS, free_text=True), TEXTS[name], special)
    wrong = TEXTS[name].replace("2", "x")
    assert not accepts(matcher(name, special, TOOLS, free_text=True), wrong, special)


@pytest.mark.parametrize("name", FORCED)
def test_several_calls_only_if_they_are_allowed(name: str) -> None:
    form = TOOL_FORMATS[name].form
    assert form is not None
    first = TEXTS[name].removesuffix(form.end)
    two = first + form.between + first.removeprefix(form.begin) + form.end
    assert accepts(matcher(name, False, TOOLS), two, False)
    assert not accepts(matcher(name, False, TOOLS, parallel=False), two, False)


@pytest.mark.parametrize("special", [False, True])
def test_envelopes_around_text_and_calls(special: bool) -> None:
    opened, closed = "<|open|>response<|sep|>", "<|close|>response<|sep|>"
    for before in (closed, opened + closed):
        assert accepts(matcher("kimi_k3", special, TOOLS), before + TEXTS["kimi_k3"], special)
    assert not accepts(matcher("kimi_k3", special, TOOLS), "Hi" + closed + TEXTS["kimi_k3"], special)
    for text in (f"Hi{closed}", f"{opened}Hi{closed}", f"Hi{closed}{TEXTS['kimi_k3']}<|close|>message<|sep|>"):
        assert accepts(matcher("kimi_k3", special, TOOLS, free_text=True), text, special)


def test_envelopes_are_tokens_and_calls_are_text() -> None:
    tokens_of = {marker: IDS[marker] for marker in ("<|START_TEXT|>", "<|END_TEXT|>")}
    for parallel in (False, True):
        found = matcher("cohere_xml", tokens_of, TOOLS, free_text=True, parallel=parallel)
        assert accepts(found, f"<|START_TEXT|>Hi<|END_TEXT|>{TEXTS['cohere_xml']}", tokens_of)
        wrong = TEXTS["cohere_xml"].replace("2", "x")
        found = matcher("cohere_xml", tokens_of, TOOLS, free_text=True, parallel=parallel)
        assert not accepts(found, f"<|START_TEXT|>Hi<|END_TEXT|>{wrong}", tokens_of)


def test_what_cannot_be_held_is_refused() -> None:
    tool = CallableTool("f", {"type": "object", "properties": {"a": {"type": "array", "contains": {}}}})
    with pytest.raises(ValueError, match="`contains` of 'a'"):
        call_grammar(TOOL_FORMATS["gemma4"], [tool], lambda _: None, (), free_text=False, parallel=True)
    mill = ToolFormat("mill", {}, {})
    with pytest.raises(ValueError, match="mill cannot be forced"):
        call_grammar(mill, TOOLS, lambda _: None, (), free_text=False, parallel=True)


def test_detected_names_exist() -> None:
    assert set(TEXTS) == set(FORCED)
    assert "harmony" in REASONING_FORMATS


def test_schemas_of_tools_have_the_same_limits_as_others() -> None:
    """Blanks between the parts of JSON are bounded, and what cannot be enforced is refused."""
    spaced = TEXTS["mistral_v13"].replace('{"city"', '{%s"city"')
    assert accepts(matcher("mistral_v13", False, TOOLS), spaced % (" " * 32), False)
    assert not accepts(matcher("mistral_v13", False, TOOLS), spaced % (" " * 33), False)
    large = CallableTool("f", {"type": "object", "properties": {"a": {"enum": [2**53 + 1]}}})
    with pytest.raises(InvalidRequest, match=r"beyond 2\^53"):
        matcher("hermes", False, [large])
    loose = CallableTool("f", {"type": "object", "properties": {"a": {}}}, strict=True)
    with pytest.raises(InvalidRequest, match="strict"):
        matcher("hermes", False, [loose])
