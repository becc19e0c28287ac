"""Anthropic's messages API over a fake engine: with the official client, and by the bytes on the wire."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from server_fakes import CONTEXT, MODEL, Served, sdk_http, serve_fake

from headrace.config import Config

TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
SHORT = '<tool_call>{"name": "f"}</tool_call>'
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 70, "messages": [{"role": "user", "content": "Hi"}]}


def thinking() -> Config:
    base = Config()
    return base.model_copy(update={"server": base.server.model_copy(update={"reasoning_format": "think"})})


def client(served: Served, **options: Any) -> Any:
    """The official client, which takes a second of each process to import."""
    import anthropic

    return anthropic.AsyncAnthropic(
        base_url="http://server", api_key="none", http_client=sdk_http(anthropic, served), **options
    )


def ask(served: Served, **body: Any) -> httpx.Response:
    return asyncio.run(served.post("/v1/messages", **{**BODY, **body}))


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of the events; each stands under its type's name."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def arguments(text: str) -> dict[str, Any]:
    """As the complete answer shows them, which may have been cut off."""
    try:
        return dict(json.loads(text or "{}"))
    except (ValueError, TypeError):
        return {"unparsed": text}


def folded(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream; checks the order of the events."""
    assert [event["type"] for event in stream[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in stream[-2:]] == ["message_delta", "message_stop"]
    message: dict[str, Any] = stream[0]["message"]
    assert message["content"] == []
    partial, open_block = "", None
    for event in stream[2:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block, partial = event["content_block"], ""
            assert event["index"] == len(message["content"])
            message["content"].append(open_block)
            continue
        assert event["index"] == len(message["content"]) - 1
        if event["type"] == "content_block_stop":
            if open_block["type"] == "tool_use":
                open_block["input"] = arguments(partial)
            open_block = None
            continue
        delta = dict(event["delta"])
        kind = delta.pop("type")
        ((key, value),) = delta.items()
        if kind == "input_json_delta":
            partial += value
        else:
            assert open_block is not None
            open_block[key] += value
    assert open_block is None
    message |= stream[-2]["delta"]
    message["usage"] = stream[-2]["usage"]
    return message


def alike(served: Served, **body: Any) -> dict[str, Any]:
    """The message, which must be the same complete and as a stream, up to the ids."""
    whole = ask(served, **body).json()
    stream = folded(events(ask(served, stream=True, **body)))
    for message in (whole, stream):
        assert message.pop("id").startswith("msg_")
        for block in message["content"]:
            if block["type"] == "tool_use":
                assert block.pop("id")
    assert whole == stream
    return whole


def test_a_text() -> None:
    served = serve_fake(reply="Hello")
    assert alike(served) == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 5,
        },
    }
    assert ask(served).headers["request-id"].startswith("req-")


def test_the_events_of_a_stream_in_order() -> None:
    stream = events(ask(serve_fake(reply="Hey"), stream=True))
    assert [event["type"] for event in stream] == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert stream[0]["message"]["usage"]["cache_read_input_tokens"] == 3
    assert stream[2] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert stream[3] == {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "H"}}
    assert stream[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def test_thinking_text_and_calls_are_blocks() -> None:
    served = serve_fake(thinking(), reply=f"<think>Hm.</think>Yes. {CALL}")
    message = alike(served, tools=[TOOL], max_tokens=90, messages=[{"role": "user", "content": "?"}])
    thought, text, *calls = message["content"]
    assert thought["thinking"] == "Hm."
    assert len(thought["signature"]) == 32
    assert text["text"].strip() == "Yes."
    assert calls[0] == {"type": "tool_use", "name": "f", "input": {"a": 1}}
    assert message["stop_reason"] == "tool_use"
    two = alike(serve_fake(reply=SHORT + SHORT), tools=[TOOL], max_tokens=90)["content"]
    assert [block["input"] for block in two] == [{}, {}]


def test_stop_reasons() -> None:
    assert alike(serve_fake(), max_tokens=2)["stop_reason"] == "max_tokens"
    cut = alike(serve_fake(reply="x" * CONTEXT), max_tokens=10**6)
    assert cut["stop_reason"] == "model_context_window_exceeded"
    assert alike(serve_fake(reply=CALL), tools=[TOOL])["stop_reason"] == "tool_use"
    # The fake engine's stop reason is the token 7.
    sequence = alike(serve_fake(), stop_sequences=["\x07"])
    assert (sequence["stop_reason"], sequence["stop_sequence"]) == ("stop_sequence", "\x07")


def test_arguments_that_were_cut_off() -> None:
    (block,) = ask(serve_fake(reply=CALL), tools=[TOOL], max_tokens=45).json()["content"]
    assert list(block["input"]) == ["unparsed"]


def test_the_official_client() -> None:
    async def talk() -> None:
        served = serve_fake(thinking(), reply=f"<think>Hm.</think>Yes.{CALL}")
        claude = client(served)
        whole = await claude.messages.create(**{**BODY, "tools": [TOOL], "max_tokens": 90})
        kinds = [block.type for block in whole.content]
        assert kinds == ["thinking", "text", "tool_use"]
        assert whole.stop_reason == "tool_use"
        async with claude.messages.stream(**{**BODY, "tools": [TOOL], "max_tokens": 90}) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert "".join(texts) == "Yes."
        assert [block.type for block in final.content] == kinds
        assert final.content[2].input == {"a": 1}
        assert final.usage == whole.usage
        counted = await claude.messages.count_tokens(model=MODEL, messages=BODY["messages"])
        assert counted.input_tokens == 3
        # The turn after: what the client received goes back.
        result = {"type": "tool_result", "tool_use_id": final.content[2].id, "content": [{"type": "text", "text": "7"}]}
        answer = {"role": "assistant", "content": [block.model_dump() for block in final.content]}
        said = {"role": "user", "content": [result, {"type": "text", "text": "And?"}]}
        await claude.messages.create(**{**BODY, "tools": [TOOL], "messages": [*BODY["messages"], answer, said]})
        _, spoken, found, last = served.tokenizer.rendered[-1]["messages"]
        assert spoken["reasoning_content"] == "Hm."
        assert spoken["tool_calls"][0]["function"]["name"] == "f"
        assert (found["role"], found["tool_call_id"], last["content"]) == ("tool", final.content[2].id, "And?")

    asyncio.run(talk())


def test_models_for_the_official_client() -> None:
    import anthropic

    async def talk() -> None:
        claude = client(serve_fake())
        (model,) = [model async for model in claude.models.list()]
        assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
        assert model.created_at.timestamp() == 123
        with pytest.raises(anthropic.NotFoundError) as told:
            await claude.models.retrieve("other")
        assert told.value.body["error"]["type"] == "not_found_error"

    asyncio.run(talk())


def seen(**body: Any) -> dict[str, Any]:
    """What the template was given."""
    served = serve_fake()
    response = ask(served, **body)
    assert response.status_code == 200, response.text
    return served.tokenizer.rendered[-1]


def test_the_system_text() -> None:
    assert seen(system="Be brief.")["messages"][0] == {"role": "system", "content": "Be brief."}
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: 7"},
        {"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}},
    ]
    assert seen(system=blocks)["messages"][0]["content"] == "A"
    messages = [{"role": "user", "content": "Hi"}, {"role": "system", "content": "B"}]
    assert seen(system="A", messages=messages)["messages"][0]["content"] == "A\nB"
    assert seen(system=[])["messages"][0]["role"] == "user"


def test_an_image_in_the_system_text_is_refused_as_any_other() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    reply = ask(serve_fake(), system=[{"type": "text", "text": "Be short."}, image])
    assert reply.status_code == 400
    assert "image" in reply.json()["error"]["message"]


def test_a_final_assistant_message_is_continued() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [{"type": "text", "text": "{"}]}]
    rendered = seen(messages=messages)
    assert (rendered["continue"], rendered["generate"]) == (True, False)


def test_turns_of_one_role_are_joined() -> None:
    rendered = seen(messages=[{"role": "user", "content": "A"}, {"role": "user", "content": "B"}])
    assert [message["content"] for message in rendered["messages"]] == ["A\nB"]


def test_documents_and_search_results_are_text() -> None:
    document = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    result = {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "R"}]}
    (message,) = seen(messages=[{"role": "user", "content": [document, result]}])["messages"]
    assert message["content"] == "T\n\nD\nR"


def test_thinking_and_effort_reach_the_template() -> None:
    on = seen(thinking={"type": "enabled", "budget_tokens": 1024}, output_config={"effort": "low"})
    assert on["kwargs"] == {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}
    assert seen(thinking={"type": "disabled"})["kwargs"] == {"enable_thinking": False, "thinking": False}


def test_parameters_reach_the_engine() -> None:
    served = serve_fake()
    extras = {"priority": 3, "min_p": 0.25, "seed": 5}
    assert ask(served, temperature=0.5, top_k=4, top_p=0.9, stop_sequences=["x"], headrace=extras).status_code == 200
    (request,) = served.engine.requests
    params = request.params
    assert (params.temperature, params.top_k, params.top_p, params.stop) == (0.5, 4, 0.9, ("x",))
    assert (params.min_p, params.seed, request.priority) == (0.25, 5, 3)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    ask(served, output_config={"format": {"type": "json_schema", "schema": schema}})
    constraint = served.engine.requests[-1].constraint
    assert constraint is not None
    assert json.loads(constraint.text) == schema


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ({"type": "any"}, True),
        ({"type": "tool", "name": "f"}, True),
        ({"type": "auto"}, False),
        ({"type": "none"}, False),
    ],
)
def test_tool_choice(choice: dict[str, Any], forced: bool) -> None:
    served = serve_fake(reply=CALL)
    assert ask(served, tools=[TOOL], tool_choice=choice).status_code == 200
    assert (served.engine.requests[0].constraint is not None) == forced
    single = {**choice, "disable_parallel_tool_use": True}
    answer = ask(serve_fake(reply=SHORT + SHORT), tools=[TOOL], tool_choice=single, max_tokens=95).json()
    assert sum(block["type"] == "tool_use" for block in answer["content"]) == (choice["type"] != "none")


def test_ignored_fields_are_reported() -> None:
    server_tool = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    response = ask(
        serve_fake(),
        tools=[TOOL, server_tool],
        thinking={"type": "enabled", "budget_tokens": 9},
        inference_geo="eu",
        brand_new_field=1,
        mcp_servers=None,
    )
    assert response.status_code == 200
    reported = response.headers["x-headrace-ignored"].split(", ")
    assert sorted(reported) == ["brand_new_field", "inference_geo", "thinking.budget_tokens", "tools[1]"]
    assert "x-headrace-ignored" not in ask(serve_fake(), metadata={"user_id": "u"}, service_tier="auto").headers
