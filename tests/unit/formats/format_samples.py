"""Answers of every family, with what they must give."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.formats.events import Event
from headrace.formats.machine import Machine
from headrace.formats.parser import Parser
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.tool_formats import TOOL_FORMATS

Call = tuple[str, str]
FULL = os.environ.get("FORMATS_FULL") == "1"
"""Every split of the samples, 10^5 random texts per format and texts of 1 MB: two hours of processor time; by default a
part of each."""


@dataclass
class Sample:
    name: str
    tools: str | None
    reasoning: str | None
    text: str
    content: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    """(name, arguments as text)"""
    ids: list[str | None] | None = None
    complete: bool = True
    opened: bool = False
    """The prompt has begun the reasoning."""
    schemas: dict[str, Any] = field(default_factory=dict)


def _properties(**types: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in types.items()}}


_DS = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
_ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
_CODER = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"
_GLM = {"f": _properties(city="string", d="integer")}

SAMPLES = [
    Sample("1 hermes", "hermes", None, _ADD, calls=[("add", '{"a": 1, "b": 2}')]),
    Sample(
        "2 hermes two",
        "hermes",
        None,
        'Let me see.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"s": "</tool_call>"}}\n</tool_call>',
        "Let me see.",
        calls=[("f", "{}"), ("g", '{"s": "</tool_call>"}')],
    ),
    Sample("3 no arguments", "hermes", None, '<tool_call>\n{"name": "now"}\n</tool_call>', calls=[("now", "{}")]),
    Sample(
        "4 truncated",
        "hermes",
        None,
        '<tool_call>\n{"name": "f", "arguments": {"q": "ab',
        calls=[("f", '{"q": "ab')],
        complete=False,
    ),
    Sample(
        "5 qwen3",
        "hermes",
        "think",
        'I need the tool.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"x": null}}\n</tool_call>',
        thought="I need the tool.",
        calls=[("f", '{"x": null}')],
        opened=True,
    ),
    Sample(
        "6 qwen3 coder",
        "qwen3_coder",
        None,
        _CODER.format(
            "write",
            "<parameter=path>\na.py\n</parameter>\n"
            '<parameter=text>\nif a < b:\n    print("x")\n\n</parameter>\n<parameter=n>\n3\n</parameter>\n',
        ),
        calls=[("write", '{"path": "a.py", "text": "if a < b:\\n    print(\\"x\\")\\n", "n": 3}')],
        schemas={"write": _properties(path="string", text="string", n="integer")},
    ),
    Sample(
        "7 a number as a string",
        "qwen3_coder",
        None,
        _CODER.format("f", "<parameter=n>\n3\n</parameter>\n"),
        calls=[("f", '{"n": "3"}')],
        schemas={"f": _properties(n="string")},
    ),
    Sample(
        "8 llama",
        "llama3_json",
        None,
        '{"name": "get", "parameters": {"city": "Rome"}}',
        calls=[("get", '{"city": "Rome"}')],
    ),
    Sample(
        "9 llama two",
        "llama3_json",
        None,
        '<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"k": [1]}}',
        calls=[("a", "{}"), ("b", '{"k": [1]}')],
    ),
    Sample("10 llama content", "llama3_json", None, '{"name": "Ada", "age": 36}', content='{"name": "Ada", "age": 36}'),
    Sample(
        "11 pythonic",
        "pythonic",
        None,
        '[w(city="Rome", days=2, flags=[True, None]), t()]',
        calls=[("w", '{"city": "Rome", "days": 2, "flags": [true, null]}'), ("t", "{}")],
    ),
    Sample(
        "12 mistral v7",
        "mistral_v3",
        None,
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}, "id": "abc123XYZ"}]',
        calls=[("f", '{"a": "]"}')],
        ids=["abc123XYZ"],
    ),
    Sample(
        "13 mistral v11",
        "mistral_v11",
        None,
        '[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{"a": 1}',
        calls=[("f", '{"a": 1}')],
        ids=["abc123XYZ"],
    ),
    Sample(
        "14 mistral v13",
        "mistral_v13",
        "mistral",
        '[THINK]plan[/THINK]Sure.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}',
        "Sure.",
        "plan",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    Sample(
        "15 deepseek v3",
        "deepseek_v3",
        None,
        _DS.format('function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```'),
        calls=[("f", '{"a": 1}')],
    ),
    Sample("16 deepseek v3.1", "deepseek_v31", None, _DS.format('f<｜tool▁sep｜>{"a": 1}'), calls=[("f", '{"a": 1}')]),
    Sample(
        "17 deepseek v3.2",
        "deepseek_v32",
        None,
        '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="s" string="true">1 < 2</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">[1, 2]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        calls=[("f", '{"s": "1 < 2", "n": [1, 2]}')],
    ),
    Sample(
        "deepseek v4",
        "deepseek_v4",
        "think",
        "hm</think>Yes.\n\n<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">a</b></｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        "Yes.",
        "hm",
        [("f", '{"s": "a</b>"}'), ("g", "{}")],
        opened=True,
    ),
    Sample(
        "18 glm 4.6",
        "glm45",
        "think",
        "<think>x</think>\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>d</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        thought="x",
        calls=[("f", '{"city": "Rome", "d": 2}')],
        schemas=_GLM,
    ),
    Sample(
        "19 glm 4.7",
        "glm47",
        "think",
        "<think>x</think><tool_call>f<arg_key>city</arg_key><arg_value>Rome</arg_value>"
        "<arg_key>d</arg_key><arg_value>2</arg_value></tool_call>",
        thought="x",
        calls=[("f", '{"city": "Rome", "d": 2}')],
        schemas=_GLM,
    ),
    Sample(
        "20 kimi",
        "kimi_k2",
        None,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
        calls=[("f", '{"a": 1}')],
        ids=["functions.f:3"],
    ),
    Sample(
        "21 minimax",
        "minimax_m2",
        None,
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="q">a & b</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</minimax:tool_call>',
        calls=[("f", '{"q": "a & b"}'), ("g", "{}")],
    ),
    Sample(
        "22 granite 3.1",
        "granite31",
        None,
        '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        calls=[("f", '{"a": 1}'), ("g", "{}")],
    ),
    Sample(
        "23 granite reasoning",
        "granite31",
        "granite",
        "Here is my thought process: hm. Here is my response: Yes.",
        "Yes.",
        "hm.",
    ),
    Sample(
        "24 phi",
        "phi4_mini",
        None,
        '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>',
        calls=[("f", '{"a": 1}')],
    ),
    Sample(
        "25 harmony",
        "harmony",
        "harmony",
        "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a":1}<|call|>',
        thought="Need it.",
        calls=[("f", '{"a":1}')],
    ),
    Sample(
        "26 harmony preamble",
        "harmony",
        "harmony",
        "<|channel|>commentary<|message|>I'll look.<|end|><|start|>assistant to=functions.f<|channel|>commentary"
        "<|constrain|>json<|message|>{}<|call|>",
        "I'll look.",
        calls=[("f", "{}")],
    ),
    Sample(
        "27 harmony answer",
        "harmony",
        "harmony",
        "<|channel|>analysis<|message|>2+2<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>",
        "4",
        "2+2",
    ),
    Sample(
        "harmony blanks before the answer",
        "harmony",
        "harmony",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>  4\n 5<|return|>",
        "4\n 5",
        "a",
    ),
    Sample(
        "28 function gemma",
        "function_gemma",
        None,
        "<start_function_call>call:f{city:<escape>San, {x}<escape>,n:5}<end_function_call>",
        calls=[("f", '{"city": "San, {x}", "n": 5}')],
    ),
    Sample(
        "29 gemma 4",
        "gemma4",
        "gemma4",
        '<|channel>thought\nhm<channel|><|tool_call>call:f{k:<|"|>a:b,c<|"|>,o:{t:true},a:[1,<|"|>z<|"|>]}<tool_call|>',
        thought="hm",
        calls=[("f", '{"k": "a:b,c", "o": {"t": true}, "a": [1, "z"]}')],
    ),
    Sample(
        "30 smollm2",
        "smollm2",
        None,
        '<tool_call>[{"name": "f", "arguments": {"a": 1}}]</tool_call>',
        calls=[("f", '{"a": 1}')],
    ),
    Sample("31 smollm3", "hermes", "think", "<think>\n\n</think>\nHi", "Hi"),
    Sample("32 tools off", None, None, _ADD, _ADD),
    # Further forms.
    Sample(
        "phi text", "phi4_mini", None, 'functools[{"name": "f", "parameters": {"a": 1}}]', calls=[("f", '{"a": 1}')]
    ),
    Sample(
        "arguments as a string",
        "hermes",
        None,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        calls=[("f", '{"a": 1}')],
    ),
    Sample(
        "arguments before the name",
        "hermes",
        None,
        '<tool_call>{"arguments": {"a": 1.0}, "name": "f"}</tool_call>Done.',
        "Done.",
        calls=[("f", '{"a": 1.0}')],
    ),
    Sample(
        "built-in of llama",
        "llama3_json",
        None,
        '<|python_tag|>brave_search.call(query="x, y")',
        calls=[("brave_search", '{"query": "x, y"}')],
    ),
    Sample(
        "olmo lines",
        "pythonic",
        None,
        "Yes.<function_calls>\nf(a='(1')\ng()\n</function_calls>",
        "Yes.",
        calls=[("f", '{"a": "(1"}'), ("g", "{}")],
    ),
    Sample(
        "a parameter that holds tags",
        "qwen3_coder",
        None,
        _CODER.format("f", "<parameter=t>\n</parameter> a </parameter>\n</parameter>\n"),
        calls=[("f", '{"t": "</parameter> a </parameter>"}')],
        schemas={"f": _properties(t="string")},
    ),
    Sample(
        "no outer tag",
        "qwen3_coder",
        None,
        "So:\n<function=f>\n<parameter=x>\nNone\n</parameter>\n</function>",
        "So:",
        calls=[("f", '{"x": null}')],
        schemas={"f": _properties(x=["integer", "null"])},
    ),
    Sample("not a call", "hermes", None, "<tool_call> hello </tool_call>!", "<tool_call> hello </tool_call>!"),
    Sample("an opener alone", "hermes", None, "Well <tool_call>\n", "Well <tool_call>\n", complete=False),
    Sample("a list of prose", "pythonic", None, "[1] see (a=b)", "[1] see (a=b)"),
    Sample("an end tag alone", "hermes", "think", "a</think>b", "ab"),
    Sample(
        "a call ends the reasoning",
        "kimi_k2",
        "think",
        "<think>so<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_end|>",
        thought="so",
        calls=[("f", "{}")],
        ids=["functions.f:0"],
    ),
    # Kimi K3 and Cohere.
    Sample(
        "kimi k3",
        "kimi_k3",
        "kimi_k3",
        "I need it.<|close|>think<|sep|><|open|>response<|sep|>Let me look.\n<|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|> "San" <x><|close|>argument<|sep|>'
        '<|open|>argument key="n" type="number"<|sep|>2.50<|close|>argument<|sep|>'
        '<|open|>argument key="o" type="object"<|sep|>{"a": [1, null]}<|close|>argument<|sep|>'
        '<|open|>argument key="on" type="boolean"<|sep|>true<|close|>argument<|sep|>'
        '<|open|>argument key="s &amp; &quot;t&quot;" type="string"<|sep|>7<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|close|>message<|sep|>",
        "Let me look.\n",
        "I need it.",
        [
            ("f", '{"city": " \\"San\\" <x>", "n": 2.50, "o": {"a": [1, null]}, "on": true, "s & \\"t\\"": "7"}'),
            ("g", "{}"),
        ],
        opened=True,
    ),
    Sample(
        "kimi k3 answer",
        "kimi_k3",
        "kimi_k3",
        "2+2<|close|>think<|sep|><|open|>response<|sep|> 4\n<|close|>response<|sep|><|close|>message<|sep|>",
        "4\n",
        "2+2",
        opened=True,
    ),
    Sample(
        "kimi k3 without reasoning",
        "kimi_k3",
        None,
        "Hi.<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
        "Hi.",
    ),
    Sample(
        "kimi k3 without tools",
        None,
        "kimi_k3",
        "<|open|>think<|sep|>so<|open|>response<|sep|>def f():\n    pass\n<|close|>response<|sep|>",
        "def f():\n    pass\n",
        "so",
    ),
    Sample(
        "kimi k3 truncated",
        "kimi_k3",
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="q" type="string"<|sep|>ab',
        calls=[("f", '{"q": "ab')],
        complete=False,
    ),
    Sample(
        "kimi k3 without the call's end",
        "kimi_k3",
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="n" type="number"<|sep|>1'
        "<|close|>argument<|sep|><|close|>tools<|sep|>",
        calls=[("f", '{"n": 1}')],
    ),
    Sample(
        "kimi k3, a value that holds an end",
        "kimi_k3",
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="q" type="string"<|sep|>'
        "a<|close|>argument<|sep|>b<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        calls=[("f", '{"q": "a<|close|>argument<|sep|>b"}')],
    ),
    Sample(
        "cohere xml",
        "cohere_xml",
        "cohere",
        "<|START_THINKING|>plan<|END_THINKING|><|START_TEXT|>Let me see.<|END_TEXT|><cofl:tool_calls>"
        '<cofl:tool_call id="0" name="search"><cofl:value name="query" type="raw">echo "Hi" >> a && b</cofl:value>'
        '<cofl:value name="limit" type="json">3</cofl:value><cofl:value name="filters" type="dict">'
        '<cofl:value name="fresh" type="json">true</cofl:value><cofl:value name="tags" type="list">'
        '<cofl:value type="raw">music</cofl:value><cofl:value type="raw">7</cofl:value></cofl:value></cofl:value>'
        '<cofl:value name="none" type="json">null</cofl:value><cofl:value name="a &amp; b" type="dict"></cofl:value>'
        '<cofl:value name="empty" type="list"></cofl:value></cofl:tool_call>'
        '<cofl:tool_call id="1" name="now"></cofl:tool_call></cofl:tool_calls>',
        "Let me see.",
        "plan",
        [
            (
                "search",
                '{"query": "echo \\"Hi\\" >> a && b", "limit": 3, "filters": {"fresh": true, "tags": ["music", "7"]}, '
                '"none": null, "a & b": {}, "empty": []}',
            ),
            ("now", "{}"),
        ],
        ids=["0", "1"],
    ),
    Sample(
        "cohere xml, flat parameters",
        "cohere_xml",
        "cohere",
        '<cofl:tool_calls>\n<cofl:tool_call id="call_0" name="f">\n'
        '  <cofl:tool_param name="q" string="true">1 < 2</cofl:tool_param>\n'
        '  <cofl:tool_param name="n" string="false">[1, 2]</cofl:tool_param>\n</cofl:tool_call>\n</cofl:tool_calls>',
        calls=[("f", '{"q": "1 < 2", "n": [1, 2]}')],
        ids=["call_0"],
    ),
    Sample(
        "cohere xml truncated",
        "cohere_xml",
        "cohere",
        '<cofl:tool_calls><cofl:tool_call id="0" name="f"><cofl:value name="l" type="list"><cofl:value type="raw">a b',
        calls=[("f", '{"l": ["a b')],
        ids=["0"],
        complete=False,
    ),
    Sample(
        "cohere json",
        "cohere_json",
        "cohere",
        '<|START_THINKING|>plan<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", '
        '"parameters": {"a": 1}},\n    {"tool_call_id": "1", "tool_name": "g", "parameters": {}}\n]<|END_ACTION|>',
        thought="plan",
        calls=[("f", '{"a": 1}'), ("g", "{}")],
        ids=["0", "1"],
    ),
    Sample(
        "cohere answer",
        "cohere_json",
        "cohere",
        "<|START_THINKING|>plan<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
        "Yes.",
        "plan",
    ),
    Sample(
        "gemma without the call's end",
        "gemma4",
        "gemma4",
        '<|tool_call>call:f{k:<|"|>v<|"|>,n:5',
        calls=[("f", '{"k": "v", "n": 5}')],
    ),
]


@dataclass
class Answer:
    content: str
    thought: str
    calls: list[Call]
    ids: list[str | None]
    raw: str


def collected(events: Iterable[Event]) -> Answer:
    """An answer from its events. Fails for events in an order that cannot be."""
    answer = Answer("", "", [], [], "")
    is_open = False
    for event in events:
        answer.raw += event.raw
        if event.kind == "content":
            assert event.text == event.raw
            answer.content += event.text
        elif event.kind == "reasoning":
            answer.thought += event.text
        elif event.kind == "call":
            assert not is_open
            answer.calls.append((event.text, ""))
            answer.ids.append(event.call_id)
            is_open = True
        elif event.kind == "arguments":
            assert is_open
            name, arguments = answer.calls[-1]
            answer.calls[-1] = name, arguments + event.text
        elif event.kind == "end":
            assert is_open
            is_open = False
    assert not is_open
    return answer


def tokens_of(of: Machine) -> list[str]:
    """The markers, and parts of markers, that a vocabulary has as special tokens."""
    found = [marker for marker in of.markers | of.inline if re.fullmatch(r"[<\[｜][^=\n]{2,}[>\]｜]", marker)]
    # A marker that holds a token is several.
    return sorted(one for one in found if not any(token in one and token != one for token in of.inline))


def machine(sample: Sample, special: Sequence[str] = ()) -> Machine:
    tools = None if sample.tools is None else TOOL_FORMATS[sample.tools]
    return Machine(tools, None if sample.reasoning is None else REASONING_FORMATS[sample.reasoning], special)


def parse(sample: Sample, pieces: Iterable[str], of: Machine | None = None, markers: Sequence[str] = ()) -> Answer:
    """Read the pieces; those in `markers` as special tokens."""
    parser = Parser(of or machine(sample), sample.schemas, sample.opened)
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed_marker(piece) if piece in markers else parser.feed(piece)
    return collected([*events, *parser.finish(sample.complete)])


def check(sample: Sample, answer: Answer) -> None:
    assert answer.raw == sample.text
    assert answer.content == sample.content
    assert answer.thought == sample.thought
    assert answer.calls == sample.calls
    if sample.ids is not None:
        assert answer.ids == sample.ids
    if sample.complete:
        for _, arguments in answer.calls:
            assert isinstance(json.loads(arguments), dict)
