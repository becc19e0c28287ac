"""Answers of every family as they were recorded."""

from __future__ import annotations

from format_sample import Sample, properties

_DS = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
_ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
_CODER = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"
_GLM = {"f": properties(city="string", d="integer")}

RECORDED = [
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
        schemas={"write": properties(path="string", text="string", n="integer")},
    ),
    Sample(
        "7 a number as a string",
        "qwen3_coder",
        None,
        _CODER.format("f", "<parameter=n>\n3\n</parameter>\n"),
        calls=[("f", '{"n": "3"}')],
        schemas={"f": properties(n="string")},
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
]
