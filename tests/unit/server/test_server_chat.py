"""POST /v1/chat/completions over a fake engine."""

from __future__ import annotations

import asyncio
import json

import pytest
from server_fakes import CONTEXT, Served, events, fault, serve_fake

from headrace.errors import EngineDead, Overloaded
from headrace.types import Constraint

TOOL = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}


def chat(served: Served | None = None, **body):
    return asyncio.run((served or serve_fake()).chat(**body))


def rendered(**body):
    served = serve_fake()
    response = chat(served, **body)
    assert response.status_code == 200, response.text
    return served.tokenizer.rendered[-1]


def user(content):
    return {"role": "user", "content": content}


def test_complete_answer():
    served = serve_fake()
    reply = chat(served).json()
    assert reply["object"] == "chat.completion"
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": 7,
        }
    ]
    assert reply["usage"]["prompt_tokens"] == 3
    (request,) = served.engine.requests
    assert request.prompt == tuple(b"Hi>")
    assert request.params.max_tokens == CONTEXT - 3


def test_stream_shape():
    chunks = events(chat(stream=True, n=2, stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 10
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    for index in (0, 1):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == "Hello"
        assert all("role" not in c["delta"] for c in mine[1:])
        assert mine[-1]["delta"] == {}
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert mine[-1]["finish_reason"] == "stop"


def test_finish_reason_is_truthful():
    assert chat(max_tokens=2).json()["choices"][0]["finish_reason"] == "length"
    assert chat(max_completion_tokens=2).json()["choices"][0]["finish_reason"] == "length"


def test_empty_answer_still_has_role_and_finish():
    served = serve_fake(reply="")
    first, last = events(chat(served, stream=True))
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0]["finish_reason"] == "stop"
    assert chat(served).json()["choices"][0]["message"]["content"] == ""


def test_logprobs_streamed_and_complete():
    served = serve_fake(reply="é!")
    whole = chat(served, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in whole] == [[0xC3], [0xA9], [33]]
    assert whole[2] == {
        "token": "!",
        "logprob": -0.5,
        "bytes": [33],
        "top_logprobs": [
            {"token": "!", "logprob": -0.5, "bytes": [33]},
            {"token": "\ufffd", "logprob": -2.0, "bytes": [255]},
        ],
    }
    chunks = events(chat(served, logprobs=True, top_logprobs=2, stream=True))
    streamed = [e for chunk in chunks for c in chunk["choices"] for e in (c["logprobs"] or {"content": []})["content"]]
    assert streamed == whole
    plain = chat(served, logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in plain)
    assert chat(served, logprobs=False).json()["choices"][0]["logprobs"] is None


def test_logprobs_by_token_streamed_and_complete():
    served = serve_fake(reply="é!")
    named = {"logprobs": True, "top_logprobs": 5, "logprob_token_ids": [66, 65]}
    whole = chat(served, **named).json()["choices"][0]["logprobs"]["content"]
    wanted = [("B", -66.0), ("A", -65.0)]
    assert [[(top["token"], top["logprob"]) for top in entry["top_logprobs"]] for entry in whole] == [wanted] * 3
    chunks = events(chat(served, **named, stream=True))
    streamed = [e for chunk in chunks for c in chunk["choices"] for e in (c["logprobs"] or {"content": []})["content"]]
    assert streamed == whole
    assert fault(chat(served, logprob_token_ids=[65]), 400)["param"] == "logprob_token_ids"


def test_prompt_logprobs_and_token_ids():
    whole = chat(prompt_logprobs=0, return_token_ids=True, max_tokens=2).json()
    assert whole["choices"][0]["message"]["content"] == "He"
    assert whole["choices"][0]["token_ids"] == list(b"He")
    assert whole["prompt_token_ids"] == list(b"Hi>")
    assert whole["prompt_logprobs"][0] is None
    assert len(whole["prompt_logprobs"]) == 3
    first, *rest = events(chat(prompt_logprobs=0, return_token_ids=True, max_tokens=2, stream=True))
    assert first["prompt_logprobs"] == whole["prompt_logprobs"]
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [t for chunk in rest for t in chunk["choices"][0].get("token_ids", [])] == list(b"He")


def test_messages_as_the_template_sees_them():
    call = {"id": "c1", "type": "function", "index": 0, "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
    bare = {"id": "c2", "type": "function", "function": {"name": "now", "arguments": ""}}
    seen = rendered(
        messages=[
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
            {"role": "assistant", "content": None, "tool_calls": [call, bare], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "noon"}]},
            {"role": "assistant", "content": "ok", "tool_calls": [], "refusal": None, "annotations": []},
            {"role": "user", "content": []},
        ],
        tools=[TOOL],
    )
    function = {"name": "now", "arguments": {"zone": "UTC"}}
    assert seen["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a\nb", "name": "me"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "id": "c1", "function": function},
                {"type": "function", "id": "c2", "function": {"name": "now", "arguments": {}}},
            ],
            "reasoning_content": "hm",
            "thinking": "hm",
        },
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": ""},
    ]
    assert seen["tools"] == [TOOL]


def test_tools_and_calls_reach_the_template_in_the_order_of_their_keys():
    parameters = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
    tool = {"function": {"parameters": parameters, "name": "now", "description": None}, "type": "function"}
    call = {"type": "function", "function": {"arguments": {"b": 1, "a": "x"}, "name": "now"}, "id": "c"}
    seen = rendered(messages=[user("a"), {"tool_calls": [call], "role": "assistant"}], tools=[tool])
    assert json.dumps(seen["tools"]) == json.dumps([tool])
    assert json.dumps(seen["messages"][1]["tool_calls"]) == json.dumps([call])


def test_template_arguments():
    assert rendered()["generate"]
    assert not rendered(add_generation_prompt=False)["generate"]
    seen = rendered(
        messages=[user("a"), {"role": "assistant", "content": "Sure: "}],
        continue_final_message=True,
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="low",
    )
    assert seen["continue"]
    assert not seen["generate"]
    assert seen["messages"][-1]["content"] == "Sure: "
    assert seen["kwargs"] == {"enable_thinking": False, "thinking": True, "reasoning_effort": "low"}
    off = {"enable_thinking": False, "thinking": False, "reasoning_effort": "none"}
    assert rendered(reasoning_effort="none")["kwargs"] == off
    parts = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    assert rendered(messages=[{"role": "user", "content": parts, "id": "m"}])["messages"] == [user("a")]
    assert rendered(tools=[TOOL], tool_choice="none")["tools"] is None
    assert rendered(tools=[TOOL], tool_choice="auto")["tools"] == [TOOL]
    assert rendered(tools=[])["tools"] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [user(None)]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [user("a"), user([IMAGE])]}, "messages[1].content[0]"),
        (
            {"messages": [user([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}])]},
            "messages[0].content[0]",
        ),
        ({"messages": [user([{"type": "hologram"}])]}, "messages[0].content[0].type"),
        ({"messages": [user([{"type": "text"}])]}, "messages[0].content[0].text"),
        ({"messages": [{**user("a"), "tool_calls": [{"function": {"name": "f"}}]}]}, "messages[0].tool_calls"),
        ({"messages": [{**user("a"), "audio": {"id": "x"}}]}, "messages[0].audio"),
        ({"messages": [{**user("a"), "contnt": "x"}]}, "messages[0].contnt"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": 5}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": {}, "regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object", "triggers": ["<"]}}, "response_format.triggers"),
        ({"response_format": {"type": "structural_tag", "triggers": "<"}}, "response_format.triggers"),
        ({"response_format": {"type": "structural_tag", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
        ({"structured_outputs": {"whitespace": "some"}}, "structured_outputs.whitespace"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": CONTEXT}, "max_completion_tokens"),
        ({"messages": [user("x" * CONTEXT)]}, "messages"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
        ({"modalities": ["audio"]}, "modalities[0]"),
    ],
)
def test_refused_with_the_field_named(body, param):
    served = serve_fake()
    fault(chat(served, **body), 400, param)
    fault(chat(served, **body, stream=True), 400, param)
    assert not served.engine.requests
    assert chat(served).status_code == 200


@pytest.mark.parametrize("arguments", ["{", "[1]", "nonsense", '"text"', "NaN"])
def test_wrong_tool_arguments(arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [user("a"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    fault(chat(messages=messages), 400, "messages[1].tool_calls[0].function.arguments")


@pytest.mark.parametrize("field", ["response_format", "structured_outputs.structural_tag"])
@pytest.mark.parametrize("tag", [{"structures": [{"begin": "<"}], "triggers": ["<"]}, {"format": {"type": "any_text"}}])
def test_structural_tags_reach_the_engine(field, tag):
    served = serve_fake()
    asked = {"response_format": {"type": "structural_tag", **tag}, "structured_outputs.structural_tag": tag}[field]
    name, _, inner = field.partition(".")
    assert chat(served, **{name: {inner: asked} if inner else asked}).status_code == 200
    (request,) = served.engine.requests
    assert request.constraint == Constraint("structural_tag", json.dumps(tag), field=field)


@pytest.mark.parametrize("text", [r"\ud800", r"a\udc00b", r"\ud83d\ud83d\ude00"])
def test_half_of_a_surrogate_pair_is_told(text):
    body = f'{{"messages": [], "structured_outputs": {{"regex": "{text}"}}}}'
    answer = asyncio.run(serve_fake().http.post("/v1/chat/completions", content=body.encode()))
    assert "is half of a surrogate pair, which is no character" in fault(answer, 400)["message"]


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_an_empty_body_is_told(body):
    answer = asyncio.run(serve_fake().http.post("/v1/chat/completions", content=body))
    assert fault(answer, 400)["message"] == "the body is empty: send a JSON object"


def test_text_format_is_accepted():
    assert chat(response_format={"type": "text"}, modalities=["text"]).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_the_first_token_are_plain(stream):
    full = chat(serve_fake(refuse=Overloaded("4096 requests wait", 2.5)), stream=stream)
    assert fault(full, 503)["code"] == "overloaded"
    assert full.headers["retry-after"] == "3"
    dead = chat(serve_fake(refuse=EngineDead("gone")), stream=stream)
    assert fault(dead, 503)["code"] == "engine_unavailable"
    assert int(dead.headers["retry-after"]) >= 1
    early = chat(serve_fake(fail_after=0), stream=stream)
    assert fault(early, 503)["type"] == "server_error"
    served = serve_fake(refuse=Overloaded("full"))
    chat(served, stream=stream)
    page = asyncio.run(served.http.get("/metrics")).text
    assert "headrace_prompt_tokens_total 0.0" in page
    assert "headrace_request_duration_seconds_count 0.0" in page
    assert 'headrace_http_errors_total{status="503"} 1.0' in page
    bug = chat(serve_fake(refuse=RuntimeError("secret path /root")), stream=stream)
    assert "secret" not in fault(bug, 500)["message"]


def test_errors_after_the_first_token_are_events():
    *chunks, error = events(chat(serve_fake(fail_after=2), stream=True))
    assert error == {
        "error": {"message": "the engine died", "type": "server_error", "param": None, "code": "engine_unavailable"}
    }
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "He"
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks)
    *_, bug = events(chat(serve_fake(fail_after=2, failure=RuntimeError("secret")), stream=True))
    assert "secret" not in bug["error"]["message"]
    whole = chat(serve_fake(fail_after=2))
    assert fault(whole, 503)["message"] == "the engine died"
