"""Tool calls and reasoning in chat answers, complete and streamed, over a fake engine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
from server_fakes import FakeClient, Served, events, fault, serve_fake

from headrace.config import Config, TransferConfig
from headrace.engine.wire import TransferInfo
from headrace.errors import ConfigError
from headrace.formats.json_reader import JsonCallsReader
from headrace.formats.states import State, ToolFormat
from headrace.formats.tool_formats import TOOL_FORMATS
from headrace.plugins import GROUP, discover, hookimpl
from headrace.server.prompted_tools import prompted_messages
from headrace.types import Constraint

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "g"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TWO = '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>'


def chat(served: Served, **body: Any) -> Any:
    return asyncio.run(served.chat(**body))


def configured(**server: Any) -> Config:
    base = Config()
    return base.model_copy(update={"server": base.server.model_copy(update=server)})


def message(served: Served, **body: Any) -> dict[str, Any]:
    return chat(served, **body).json()["choices"][0]


def deltas(served: Served, **body: Any) -> list[dict[str, Any]]:
    chunks = events(chat(served, stream=True, **body))
    return [chunk["choices"][0] for chunk in chunks if chunk["choices"]]


def test_a_complete_answer_with_a_call() -> None:
    choice = message(serve_fake(reply="Yes. " + CALL), tools=[TOOL])
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Yes."
    (call,) = choice["message"]["tool_calls"]
    assert re.fullmatch("call_[0-9a-f]{24}", call["id"])
    assert call["type"] == "function"
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert message(serve_fake(reply=CALL), tools=[TOOL])["message"]["content"] is None


def test_a_stream_gives_the_name_once_and_the_arguments_in_pieces() -> None:
    choices = deltas(serve_fake(reply="Yes. " + CALL), tools=[TOOL])
    content = "".join(choice["delta"].get("content", "") for choice in choices)
    assert content == "Yes."
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    first, *rest = calls
    assert first["function"] == {"name": "f", "arguments": ""}
    assert first["type"] == "function"
    assert {call["index"] for call in calls} == {0}
    assert all(call.keys() == {"index", "function"} and call["function"].keys() == {"arguments"} for call in rest)
    assert len(rest) > 2
    assert "".join(call["function"]["arguments"] for call in rest) == '{"a": 1}'
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


def test_a_truncated_call_is_truncated() -> None:
    choice = message(serve_fake(reply=CALL), tools=[TOOL], max_tokens=45)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"] == {
        "name": "f",
        "arguments": CALL[:45].partition(": {")[2].join(["{", ""]),
    }
    choice = message(serve_fake(reply=CALL), tools=[TOOL], max_tokens=15)
    assert choice["message"]["content"] == CALL[:15]
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_marker_that_may_go_on_elsewhere_is_not_shown(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another engine continues the answer, its text tells whether this is a call."""
    transfer = TransferInfo("tcp", "tcp:127.0.0.1:1", 1, bytes(16), 30.0)
    known = FakeClient().info
    monkeypatch.setattr(
        FakeClient, "info", property(lambda self: dataclasses.replace(known, transfer=transfer, block_size=4))
    )
    config = Config().model_copy(update={"transfer": TransferConfig(role="prefill")})
    for given, shown in (({}, "Yes. <tool"), ({"do_remote_decode": True}, "Yes.")):
        served = serve_fake(config, reply="Yes. " + CALL)
        asked = {"tools": [TOOL], "max_tokens": 10, "kv_transfer_params": given}
        if stream:
            found = "".join(one["delta"].get("content", "") for one in deltas(served, **asked))
        else:
            found = message(served, **asked)["message"]["content"]
        assert found.rstrip() == shown


def test_without_tools_everything_is_content() -> None:
    for body in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        choice = message(serve_fake(reply=CALL), **body)
        assert choice["message"] == {"role": "assistant", "content": CALL, "refusal": None}
        assert choice["finish_reason"] == "stop"


def test_parallel_calls() -> None:
    calls = message(serve_fake(reply=TWO), tools=[TOOL, OTHER])["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "f", "arguments": "{}"},
        {"name": "g", "arguments": "{}"},
    ]
    choice = message(serve_fake(reply=TWO), tools=[TOOL, OTHER], parallel_tool_calls=False)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["f"]
    served = serve_fake(reply=TWO)
    message(served, tools=[TOOL])
    counts = served.app.state.context.metrics.render().decode()
    assert 'headrace_tool_calls_total{known="yes"} 1.0' in counts
    assert 'headrace_tool_calls_total{known="no"} 1.0' in counts
    streamed = deltas(serve_fake(reply=TWO), tools=[TOOL, OTHER], parallel_tool_calls=False)
    assert '"g"' not in json.dumps([choice["delta"].get("tool_calls") for choice in streamed])


def test_reasoning_and_its_tokens() -> None:
    served = serve_fake(configured(reasoning_format="think"), reply="<think>abc</think>\n\nHi")
    reply = chat(served).json()
    shown = reply["choices"][0]["message"]
    assert shown["content"] == "Hi"
    assert shown["reasoning"] == shown["reasoning_content"] == "abc"
    # One token per byte: the text, the end marker, and the last byte of the marker before.
    assert reply["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
        "reasoning_tokens": len("abc</think>") + 1,
    }
    chunks = events(chat(served, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1]["usage"] == reply["usage"]
    streamed = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in streamed) == "abc"
    assert "".join(delta.get("content", "") for delta in streamed) == "Hi"


def held(**body: Any) -> Constraint | None:
    served = serve_fake()
    response = chat(served, **body)
    assert response.status_code == 200, response.text
    return served.engine.requests[-1].constraint


def grammar(found: Constraint | None) -> dict[str, Any]:
    assert found is not None
    assert found.kind == "tool_calls"
    return dict(json.loads(found.text))


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


def test_calls_that_are_held_by_a_grammar() -> None:
    named = {"type": "function", "function": {"name": "f"}}
    assert held(tools=[TOOL]) is None
    assert held(tools=[TOOL], tool_choice="auto") is None
    assert grammar(held(tools=[TOOL, OTHER], tool_choice="required"))["schemas"][0] == PARAMETERS
    only = grammar(held(tools=[TOOL, OTHER], tool_choice=named))
    assert only["schemas"] == [PARAMETERS]
    assert "other" not in only["lark"]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    assert grammar(held(tools=[TOOL, OTHER], tool_choice=allowed))["schemas"] == [{"type": "object"}]
    free = grammar(held(tools=[strict(TOOL), OTHER]))
    assert free["strict"][0]
    assert "TEXT" in free["lark"]


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_every_format_can_be_forced(name: str) -> None:
    served = serve_fake(configured(tool_format=name))
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        response = chat(served, tools=[TOOL], tool_choice=choice)
        assert response.status_code == 200, response.text
        assert grammar(served.engine.requests[-1].constraint)["lark"]


def test_limits_of_raw_strings_go_with_the_grammar() -> None:
    parameters = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    served = serve_fake(configured(tool_format="qwen3_coder"))
    response = chat(served, tools=[tool], tool_choice="required")
    assert response.status_code == 200, response.text
    found = grammar(served.engine.requests[-1].constraint)
    assert "PATTERN_0" in found["lark"]
    (text,) = found["texts"]
    assert (text["format"], text["where"]) == ("date", "f: 'day'")


def test_forced_arguments_are_an_object() -> None:
    def forced(parameters: dict[str, Any], **more: Any) -> Any:
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}
        return grammar(held(tools=[tool], tool_choice="required"))["schemas"]

    either = {"anyOf": [{"type": "string"}, PARAMETERS]}
    assert forced({}) == [{"type": "object"}]
    assert forced(either) == [{**either, "type": "object"}]
    assert forced({"type": ["object", "null"]}) == [{"type": "object"}]
    assert forced({"$ref": "#/$defs/x"}, strict=True) == [{"$ref": "#/$defs/x"}]


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([TOOL, OTHER, TOOL], "`tools` has two functions with the name 'f'"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}], "are of type 'array'"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"type": ["null"]}}}], "are an object"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(tools: list[Any], message: str) -> None:
    assert message in fault(chat(serve_fake(), tools=tools), 400, "tools")["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}, "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "h"}}, "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": "always", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}, "tools": [TOOL]}, "tool_choice.allowed_tools"),
        (
            {"tool_choice": "required", "tools": [TOOL], "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
    ],
)
def test_refused_with_the_field(body: dict[str, Any], param: str) -> None:
    fault(chat(serve_fake(), **body), 400, param)


def test_tools_without_a_known_format_name_the_option() -> None:
    served = serve_fake(configured(tool_format="none"))
    assert "--tool-format" in fault(chat(served, tools=[TOOL]), 400, "tools")["message"]


def test_channels_go_with_calls_in_channels() -> None:
    with pytest.raises(ConfigError, match="reasoning_format harmony goes with tool_format harmony or none, not hermes"):
        serve_fake(configured(tool_format="hermes", reasoning_format="harmony"))
    for tools in ("harmony", "none"):
        serve_fake(configured(tool_format=tools, reasoning_format="harmony"))


def test_tools_for_a_template_without_any() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {
            "role": "assistant",
            "content": "x",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "42"},
    ]
    system, call, result = prompted_messages(messages, [TOOL])
    assert system["content"].startswith("Be kind.\n\n")
    assert json.dumps(TOOL["function"]) in system["content"]
    assert call == {"role": "assistant", "content": 'x\n\n<tool_call>[{"name": "f", "arguments": {}}]</tool_call>'}
    assert result == {"role": "user", "content": "<tool_response>42</tool_response>"}
    assert prompted_messages([{"role": "user", "content": "Hi"}], [TOOL])[0]["role"] == "system"


def test_an_answer_as_clients_send_it_back() -> None:
    served = serve_fake(reply="Hi")
    function = {"name": "f", "arguments": "{}", "parsed_arguments": {"a": 1}}
    call = {"id": "1", "type": "function", "index": 0, "function": function}
    sent = {"role": "assistant", "content": None, "tool_calls": [call], "parsed": {"a": 1}, "refusal": None}
    thought = {"role": "assistant", "content": None, "reasoning": "so", "reasoning_content": "so"}
    response = chat(served, messages=[{"role": "user", "content": "x"}, sent, thought])
    assert response.status_code == 200, response.text
    shown = served.tokenizer.rendered[-1]["messages"]
    assert set(shown[1]["tool_calls"][0]["function"]) == {"name", "arguments"}
    assert "parsed" not in shown[1]
    assert shown[2]["reasoning_content"] == "so"


def plugins(monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
    """One plugin with these members and with the formats that it names."""
    module = ModuleType("fake_formats")
    for key, value in members.items():
        setattr(module, key, value)
    module.headrace_formats = hookimpl(lambda: {"mill": "fake_formats:MILL"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = discover([EntryPoint("mill", module.__name__, GROUP)])
    monkeypatch.setattr("headrace.plugins.discover", lambda: found)


def test_a_format_of_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    body = State("reader", reader=lambda schemas: JsonCallsReader(), then="after")
    states = {"body": body, "after": State("skip", {"</call>": "start"})}
    plugins(monkeypatch, MILL=ToolFormat("mill", {"<call>": "body"}, states))
    served = serve_fake(configured(tool_format="mill"), reply='<call>{"name": "f"}</call>')
    assert message(served, tools=[TOOL])["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert "cannot be forced" in fault(chat(served, tools=[TOOL], tool_choice="required"), 400, "tools")["message"]
    with pytest.raises(ConfigError, match="reasoning_format 'mill' is not known; there are think, "):
        serve_fake(configured(reasoning_format="mill"))
    with pytest.raises(ConfigError, match="tool_format 'other' is not known; there are hermes, "):
        serve_fake(configured(tool_format="other"))
