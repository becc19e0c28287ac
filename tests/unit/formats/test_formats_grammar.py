"""Grammars of forced calls, compiled and followed character by character: what they allow is what the parser reads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from format_samples import Sample, machine, parse

from headrace.core.matcher import Matcher
from headrace.errors import InvalidRequest
from headrace.formats.call_grammar import CallableTool, call_grammar
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.states import ToolFormat
from headrace.formats.tool_formats import TOOL_FORMATS
from headrace.grammar.backend import GrammarVocabulary
from headrace.grammar.llguidance_backend import LlguidanceBackend
from headrace.types import Constraint

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
SPECIAL = (
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|start|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "｜DSML｜",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "<cofl:tool_calls>",
    "</cofl:tool_calls>",
    "</cofl:value>",
)
END = 256 + len(SPECIAL)
WORDS = [*(bytes([i]) for i in range(256)), *(marker.encode() for marker in SPECIAL), b"<end>"]
IDS = {marker: 256 + at for at, marker in enumerate(SPECIAL)}


@pytest.fixture(scope="module")
def backend() -> LlguidanceBackend:
    ids = frozenset(range(256, END + 1))
    return LlguidanceBackend(GrammarVocabulary(WORDS, ids, (END,), END + 1, lambda text: list(text.encode())))


def matcher(backend: LlguidanceBackend, name: str, special: bool, **options: Any) -> Matcher:
    of = machine(Sample("", name, "harmony" if name == "harmony" else None, ""))
    tools = options.pop("tools", TOOLS)
    found = call_grammar(
        TOOL_FORMATS[name], tools, IDS.get if special else lambda _: None, of.markers | of.inline,
        **{"free_text": False, "parallel": True, **options},
    )  # fmt: skip
    text = json.dumps({"lark": found.lark, "schemas": found.schemas, "strict": found.strict})
    return backend.compile(Constraint("tool_calls", text)).matcher()


def tokens(text: str, special: bool) -> list[int]:
    found = []
    while text:
        marker = next((m for m in SPECIAL if special and text.startswith(m)), None)
        found += [IDS[marker]] if marker else list(text[0].encode())
        text = text[len(marker or " ") :]
    return found


def allowed(found: Matcher, token: int) -> bool:
    return bool(found.mask[token // 32] >> np.uint32(token % 32) & 1)


def accepts(found: Matcher, text: str, special: bool) -> bool:
    for token in tokens(text, special):
        if found.stopped or not allowed(found, token):
            return False
        assert found.advance(token) is None
    return found.accepting


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
def test_forced_calls(backend: LlguidanceBackend, name: str, special: bool) -> None:
    text = TEXTS[name]
    assert accepts(matcher(backend, name, special), text, special)
    assert not accepts(matcher(backend, name, special), text.replace("weather", "wether"), special)
    assert not accepts(matcher(backend, name, special), "Hello", special)
    assert not accepts(matcher(backend, name, special), text.replace("2", "x"), special)
    reasoning = "harmony" if name == "harmony" else None
    schemas = {"weather": SCHEMA}
    answer = parse(Sample("", name, reasoning, "", schemas=schemas), [text])
    (call,) = answer.calls
    assert call[0] == "weather"
    assert json.loads(call[1]) == {"city": "Rome", "days": 2}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", FORCED)
def test_free_text_before_calls(backend: LlguidanceBackend, name: str, special: bool) -> None:
    answer = "<|channel|>final<|message|>Hello" if name == "harmony" else "Hello {you}"
    assert accepts(matcher(backend, name, special, free_text=True), answer, special)
    assert accepts(matcher(backend, name, special, free_text=True), TEXTS[name], special)
    wrong = TEXTS[name].replace("2", "x")
    assert not accepts(matcher(backend, name, special, free_text=True), wrong, special)


@pytest.mark.parametrize("name", FORCED)
def test_several_calls_only_if_they_are_allowed(backend: LlguidanceBackend, name: str) -> None:
    form = TOOL_FORMATS[name].form
    assert form is not None
    first = TEXTS[name].removesuffix(form.end)
    two = first + form.between + first.removeprefix(form.begin) + form.end
    assert accepts(matcher(backend, name, False), two, False)
    assert not accepts(matcher(backend, name, False, parallel=False), two, False)


def test_what_cannot_be_held_is_refused() -> None:
    tool = CallableTool("f", {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}, strict=True)
    with pytest.raises(ValueError, match="`pattern` of 'a'"):
        call_grammar(TOOL_FORMATS["qwen3_coder"], [tool], lambda _: None, (), free_text=False, parallel=True)
    mill = ToolFormat("mill", {}, {})
    with pytest.raises(ValueError, match="mill cannot be forced"):
        call_grammar(mill, TOOLS, lambda _: None, (), free_text=False, parallel=True)


def test_detected_names_exist() -> None:
    assert set(TEXTS) == set(FORCED)
    assert "harmony" in REASONING_FORMATS


def test_schemas_of_tools_have_the_same_limits_as_others(backend: LlguidanceBackend) -> None:
    """Blanks between the parts of JSON are bounded, and what cannot be enforced is refused."""
    spaced = TEXTS["mistral_v13"].replace('{"city"', '{%s"city"')
    assert accepts(matcher(backend, "mistral_v13", False), spaced % (" " * 32), False)
    assert not accepts(matcher(backend, "mistral_v13", False), spaced % (" " * 33), False)
    large = CallableTool("f", {"type": "object", "properties": {"a": {"enum": [2**53 + 1]}}})
    with pytest.raises(InvalidRequest, match=r"beyond 2\^53"):
        matcher(backend, "hermes", False, tools=[large])
    loose = CallableTool("f", {"type": "object", "properties": {"a": {}}}, strict=True)
    with pytest.raises(InvalidRequest, match="strict"):
        matcher(backend, "hermes", False, tools=[loose])
