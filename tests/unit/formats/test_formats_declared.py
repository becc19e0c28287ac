"""Formats that a `response_template` declares."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.call_grammar import CallableTool, call_grammar
from headrace.formats.machine import Machine
from headrace.formats.parser import Parser
from headrace.formats.response_template import DeclaredFormats, read_response_template

PLAIN = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
THINK = {"open": "<think>", "close": "</think>", "content": "text"}


def keyed(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"{{{name}}}", "arguments": f"{{{arguments}}}"}}


def declared(**fields: Any) -> DeclaredFormats:
    return read_response_template({"start_anchor": "<|im_start|>assistant\n", "fields": fields})


def names(found: DeclaredFormats) -> tuple[str | None, str | None]:
    return found.tools and found.tools.name, found.reasoning and found.reasoning.name


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("hermes", {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "transform": PLAIN}),
    (
        "hermes",
        {
            "open_pattern": r"<tool_call>\s*",
            "close": "</tool_call>",
            "content": "json",
            "transform": keyed("content.name", "content.arguments"),
        },
    ),
    (
        "granite31",
        {"open": "<tool_call>", "content": "json", "transform_each": True, "transform": keyed("name", "arguments")},
    ),
    (
        "smollm2",
        {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "transform_each": True,
            "transform": keyed("name", "arguments"),
        },
    ),
    (
        "qwen3_coder",
        {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[\w.-]+)>",
            "close": "</tool_call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>\w+)>\n?(?P<value>.*?)\n?</parameter>"},
            "transform": NAMED,
        },
    ),
    (
        "glm45",
        {
            "open_pattern": r"<tool_call>(?P<name>[^\n<]+)\n",
            "close": "</tool_call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\n<arg_value>(?P<value>.*?)</arg_value>"},
            "transform": NAMED,
        },
    ),
    (
        "glm47",
        {
            "open_pattern": r"<tool_call>(?P<name>[^<]+)",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"},
        },
    ),
    (
        "harmony",
        {
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
            "close": ["<|call|>", "<|end|>"],
            "content": "json",
            "transform": NAMED,
        },
    ),
    (
        "gemma4",
        {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "close": "<tool_call|>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": NAMED,
        },
    ),
    (
        "cohere_json",
        {
            "open": "<|START_ACTION|>",
            "close": "<|END_ACTION|>",
            "content": "json",
            "transform_each": True,
            "transform": keyed("tool_name", "parameters"),
        },
    ),
    ("mistral_v3", {"open": "[TOOL_CALLS]", "content": "json", "transform_each": True}),
    ("mistral_v13", {"open_pattern": r"\[TOOL_CALLS\](?P<name>\w+)\[ARGS\]", "content": "json", "transform": NAMED}),
    ("phi4_mini", {"open": "<|tool_call|>", "close": "<|/tool_call|>", "content": "json"}),
    ("granite30", {"open": "<|tool_call|>", "content": "json"}),
    ("pythonic", {"open_pattern": r"(?=\[)", "content": "python-call-list"}),
    (
        "kimi_k3",
        {
            "open_pattern": r'<\|open\|>call tool="(?P<name>[^"]*)" index="\d+"<\|sep\|>',
            "close": "<|close|>call<|sep|>",
            "content": "xml-inline",
        },
    ),
]


@pytest.mark.parametrize(("name", "field"), CALLS, ids=str)
def test_calls_of_known_formats(name: str, field: dict[str, Any]) -> None:
    found = declared(tool_calls={**field, "repeats": True}, content={"close": "<|im_end|>"})
    assert names(found) == (name, None)
    assert not found.ignored


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("think", THINK),
        ("think", {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"}),
        ("think", {"close_pattern": r"\s*</think>\s*"}),
        ("mistral", {"open": "[THINK]", "close": "[/THINK]"}),
        ("harmony", {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"}),
        ("gemma4", {"open": "<|channel>thought\n", "close": "<channel|>"}),
        ("cohere", {"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"}),
        ("kimi_k3", {"open": "<|open|>think<|sep|>", "close": "<|close|>think<|sep|>"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("key", ["thinking", "reasoning_content"])
def test_reasoning_of_known_formats(name: str, field: dict[str, Any], key: str) -> None:
    found = declared(**{key: field})
    assert names(found) == (None, name)
    assert not found.ignored


def read(found: DeclaredFormats, text: str) -> tuple[str, str, list[tuple[str, str]]]:
    """(content, reasoning, calls)"""
    parser = Parser(Machine(found.tools, found.reasoning))
    content = thought = ""
    calls: list[tuple[str, str]] = []
    for event in [*parser.feed(text), *parser.finish()]:
        if event.kind == "content":
            content += event.text
        elif event.kind == "reasoning":
            thought += event.text
        elif event.kind == "call":
            calls.append((event.text, ""))
        elif event.kind == "arguments":
            calls[-1] = calls[-1][0], calls[-1][1] + event.text
    return content, thought, calls


def test_markers_of_no_known_format() -> None:
    found = declared(
        thinking={"open": ["<ponder>", "<muse>"], "close": "</ponder>"},
        content={"open": "<say>\n", "close_pattern": r"\n?</say>"},
        tool_calls={
            "open": "<do>",
            "close": "</do>",
            "content": "json",
            "repeats": True,
            "transform": keyed("content.tool", "content.args"),
        },
    )
    assert not found.ignored
    text = '<ponder>hm</ponder><say>Yes.</say><do>{"tool": "f", "args": {"a": 1}}</do><do>{"tool": "g"}</do>'
    assert read(found, text) == ("Yes.", "hm", [("f", '{"a": 1}'), ("g", "{}")])
    assert found.tools is not None
    lark = call_grammar(found.tools, [CallableTool("f", None)], lambda _: None, (), free_text=False, parallel=True).lark
    assert '"<do>"' in lark
    assert '"{\\"tool\\": \\"f\\", \\"args\\": "' in lark


def test_a_name_between_two_literals() -> None:
    field = {"open_pattern": r"<call:(?P<name>[\w-]+)>\s*", "close": "</call>", "content": "json", "transform": NAMED}
    found = declared(tool_calls=field)
    assert not found.ignored
    assert read(found, 'A <call:f>{"a": 1}</call> <call:g>{}</call>') == ("A", "", [("f", '{"a": 1}'), ("g", "{}")])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tool_calls": {"open": "<do>", "content": "kv-lines"}}, "`tool_calls` (content 'kv-lines' between markers"),
        ({"tool_calls": {"open": "<do>", "content": "json"}}, "gives no name and arguments"),
        ({"tool_calls": {"content": "json", "transform": PLAIN}}, "no marker that opens it"),
        (
            {"tool_calls": {"open": "<do>", "content": "json", "content_args": {"unquoted_keys": True}}},
            "a dialect of JSON",
        ),
        ({"tool_calls": {"open": "<do>", "content": "json", "content_args": 5}}, "a dialect of JSON"),
        (
            {"tool_calls": {"open_pattern": r"<do>(?P<name>\w+)", "content": "json", "transform": NAMED}},
            "more than two literals",
        ),
        ({"tool_calls": []}, "`tool_calls` (no object)"),
        ({"thinking": {"open": "<hm>"}}, "`thinking` (no markers on both sides of it)"),
        ({"thinking": {**THINK, "content": "json"}}, "content that is no text"),
        ({"citations": THINK}, "`citations` (no part of an answer that is reported)"),
    ],
)
def test_what_is_not_used_has_a_reason(fields: dict[str, Any], why: str) -> None:
    found = declared(**fields)
    assert names(found) == (None, None)
    (reason,) = found.ignored
    assert why in reason


def test_no_template() -> None:
    assert read_response_template(None) == DeclaredFormats()
    for wrong in ([], {"fields": 1}, {"version": 2, "fields": {}}, {"fields": {"x": "y" * 10_000}}):
        assert len(read_response_template(wrong).ignored) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["open", "open_pattern", "close", "close_pattern", "content", "content_args", "transform", "transform_each"]
TEXT = st.sampled_from(["<tool_call>", "json", "text", "(?P<name>x)", "<do>", "\\", "[", "{content}", "(?P<", "</do>"])
FIELD = st.dictionaries(st.sampled_from(KEYS), JSON | TEXT | st.lists(TEXT, max_size=2), max_size=6)
FIELDS = st.dictionaries(st.sampled_from(["tool_calls", "thinking", "content", "other"]), FIELD | JSON, max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({"fields": FIELDS}) | JSON)
def test_any_json_is_read_or_ignored(template: Any) -> None:
    found = read_response_template(json.loads(json.dumps(template)))
    Machine(found.tools, found.reasoning)
