"""Further forms, and answers that are damaged or truncated."""

from __future__ import annotations

from format_sample import Sample, properties

_CODER = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"

FURTHER = [
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
        "repeated keys",
        "hermes",
        None,
        '<tool_call>{"name": "f", "arguments": {"a": 1}, "arguments": {"b": 2}, "parameters": "{}", "name": "g"}'
        "</tool_call>",
        calls=[("f", '{"a": 1}')],
    ),
    Sample(
        "repeated arguments before the name",
        "hermes",
        None,
        '<tool_call>{"arguments": null, "arguments": {"a": 1}, "arguments": {"b": 2}, "name": "f"}</tool_call>',
        calls=[("f", '{"a": 1}')],
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
        schemas={"f": properties(t="string")},
    ),
    Sample(
        "no outer tag",
        "qwen3_coder",
        None,
        "So:\n<function=f>\n<parameter=x>\nNone\n</parameter>\n</function>",
        "So:",
        calls=[("f", '{"x": null}')],
        schemas={"f": properties(x=["integer", "null"])},
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
        "kimi k3, all arguments as json",
        "kimi_k3",
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>json type="object"<|sep|>{"a": [1.0]}'
        "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        calls=[("f", '{"a": [1.0]}')],
    ),
    Sample(
        "kimi k3, json without an end",
        "kimi_k3",
        None,
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>json<|sep|>{"a": 1}',
        calls=[("f", '{"a": 1}')],
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
