"""For any body of the other APIs the answer is no 5xx, and for any answer of the model a stream equals the whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import test_server_messages as anthropic_api
import test_server_ollama as ollama_api
import test_server_responses as responses_api
from hypothesis import given, settings
from hypothesis import strategies as st
from server_fakes import MODEL, serve_fake
from test_server_fuzz import QUIET, check, check_documented, values

from headrace.config import Config
from headrace.server.messages_schemas import ContentBlock, MessagesRequest
from headrace.server.ollama_schemas import OllamaChatRequest, OllamaGenerateRequest
from headrace.server.responses_schemas import InputItem, InputPart, ResponsesRequest

SERVED = serve_fake(Config.model_validate({"server": {"reasoning_format": "think"}}))
TOOL_NAMES = ("f", "g")
SHORT = settings(QUIET, max_examples=50)


def send(path: str, body: Any) -> None:
    before = len(SERVED.engine.requests)
    response = asyncio.run(SERVED.http.post(path, content=json.dumps(body)))
    assert response.status_code in (200, 400, 404), (body, response.text)
    check_documented(path, response)
    if response.status_code != 200:
        assert len(SERVED.engine.requests) == before, (body, response.text)
    for request in SERVED.engine.requests[before:]:
        check(request.prompt, request.params)


def anything(kind: type, *required: str) -> st.SearchStrategy[dict[str, Any]]:
    """A few fields of a body with any values."""
    names = [name for name in kind.__struct_fields__ if name not in required]  # type: ignore[attr-defined]
    return st.dictionaries(st.sampled_from(names), values, max_size=3)


def parts(kind: type, *types: str) -> st.SearchStrategy[Any]:
    """Lists of parts with any values in their fields."""
    made = anything(kind, "type").flatmap(
        lambda fields: st.sampled_from(types).map(lambda name: {"type": name, **fields})
    )
    return st.lists(made, max_size=3)


BLOCKS = ("text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking", "search_result")
ITEMS = ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "local_shell_call")


@SHORT
@given(anything(MessagesRequest, "messages", "max_tokens", "model"))
def test_any_values_in_messages(body: dict[str, Any]) -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, **body}
    send("/v1/messages", asked)
    send("/v1/messages/count_tokens", asked)


@SHORT
@given(st.sampled_from(["user", "assistant", "system"]), parts(ContentBlock, *BLOCKS))
def test_any_blocks(role: str, blocks: list[Any]) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": role, "content": blocks}]
    send("/v1/messages", {"messages": messages, "max_tokens": 5})


@SHORT
@given(anything(ResponsesRequest, "input", "model"))
def test_any_values_in_a_response(body: dict[str, Any]) -> None:
    send("/v1/responses", {"input": "Hi", **body})


@SHORT
@given(parts(InputItem, *ITEMS), parts(InputPart, "input_text", "input_image", "refusal"))
def test_any_items(items: list[Any], content: list[Any]) -> None:
    send("/v1/responses", {"input": [*items, {"role": "user", "content": content}]})


@SHORT
@given(anything(OllamaChatRequest, "messages", "model"), anything(OllamaGenerateRequest, "prompt", "model"), values)
def test_any_values_in_ollamas_form(chat: dict[str, Any], generate: dict[str, Any], option: Any) -> None:
    send("/api/chat", {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **chat})
    send("/api/generate", {"model": MODEL, "prompt": "Hi", **generate})
    for name in (
        "num_predict",
        "num_ctx",
        "seed",
        "stop",
        "temperature",
        "repeat_penalty",
        "repeat_last_n",
        "mirostat",
    ):
        send("/api/generate", {"model": MODEL, "prompt": "Hi", "options": {name: option}})


@SHORT
@given(values)
def test_any_small_bodies(body: Any) -> None:
    for path in ("/api/show", "/api/pull", "/v1/messages", "/v1/responses", "/api/chat", "/v1/chat/completions/render"):
        send(path, body)


PIECES = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<", "\n", " ", "é", "Yes", '{"name": "f"}', "{"),
    *('<tool_call>{"name": "g", "arguments": {"a": "é"}}</tool_call>', '<tool_call>{"name": "f"}</tool_call>'),
)


@SHORT
@given(st.lists(st.sampled_from(PIECES), max_size=5).map("".join), st.integers(1, 80))
def test_a_stream_equals_the_whole_answer(reply: str, most: int) -> None:
    served, SERVED.engine.reply = SERVED, reply
    schema = {"type": "object"}
    flat = [{"type": "function", "name": name, "parameters": schema} for name in TOOL_NAMES]
    nested = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in TOOL_NAMES]
    claude = [{"name": name, "input_schema": schema} for name in TOOL_NAMES]
    responses = responses_api.alike(served, tools=flat, max_output_tokens=most, top_logprobs=1)
    messages = anthropic_api.alike(served, tools=claude, max_tokens=most)
    lines = ollama_api.alike(ollama_api.chat, served, tools=nested, options={"num_predict": most})
    # The three say the same.
    text = "".join(
        part["text"] for item in responses["output"] if item["type"] == "message" for part in item["content"]
    )
    assert text == "".join(block["text"] for block in messages["content"] if block["type"] == "text")
    assert text == lines["message"]["content"]
    called = [item["name"] for item in responses["output"] if item["type"] == "function_call"]
    assert called == [block["name"] for block in messages["content"] if block["type"] == "tool_use"]
    assert called == [call["function"]["name"] for call in lines["message"].get("tool_calls", ())]
