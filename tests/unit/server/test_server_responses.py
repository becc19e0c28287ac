"""OpenAI's Responses API over a fake engine: with the official client, and by the bytes on the wire."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from server_fakes import CONTEXT, MODEL, Served, fault, sdk_http, serve_fake

from headrace.config import Config
from headrace.errors import InvalidRequest, Overloaded

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
SHORT = '<tool_call>{"name": "f"}</tool_call>'
EVENTS_OF = {
    "message": ("response.output_text.delta", "response.output_text.done"),
    "reasoning": ("response.reasoning_text.delta", "response.reasoning_text.done"),
    "function_call": ("response.function_call_arguments.delta", "response.function_call_arguments.done"),
}


def configured(**server: Any) -> Config:
    base = Config()
    return base.model_copy(update={"server": base.server.model_copy(update=server)})


def thinking() -> Config:
    return configured(reasoning_format="think")


def ask(served: Served, **body: Any) -> httpx.Response:
    return asyncio.run(served.post("/v1/responses", **{"model": MODEL, "input": "Hi", **body}))


def client(served: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url="http://server/v1", api_key="none", http_client=sdk_http(openai, served))


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of the events, which stand under their types' names and are numbered without a gap."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def folded(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that ends a stream; checks that the events before it add up to its output, in the right order."""
    assert [event["type"] for event in stream[:2]] == ["response.created", "response.in_progress"]
    assert stream[0]["response"]["status"] == "in_progress"
    assert stream[0]["response"]["output"] == []
    output: list[dict[str, Any]] = []
    rest = stream[2:-1]
    while rest:
        added = rest.pop(0)
        assert added["type"] == "response.output_item.added"
        assert added["output_index"] == len(output)
        item = added["item"]
        assert item["status"] == "in_progress"
        delta, done = EVENTS_OF[item["type"]]
        if item["type"] != "function_call":
            assert item["content"] == []
            assert rest[0].pop("type") == "response.content_part.added"
            assert rest.pop(0)["part"]["text"] == ""
        text, scores = "", []
        while rest[0]["type"] == delta:
            piece = rest.pop(0)
            assert (piece["item_id"], piece["output_index"]) == (item["id"], len(output))
            text += piece["delta"]
            scores += piece.get("logprobs", [])
        ended = rest.pop(0)
        assert ended["type"] == done
        assert ended["arguments" if item["type"] == "function_call" else "text"] == text
        if item["type"] != "function_call":
            part = rest.pop(0)
            assert part["type"] == "response.content_part.done"
            assert part["part"]["text"] == text
            assert part["part"].get("logprobs", []) == scores
        last = rest.pop(0)
        assert last["type"] == "response.output_item.done"
        assert last["item"]["id"] == item["id"]
        output.append(last["item"])
    final: dict[str, Any] = stream[-1]["response"]
    assert stream[-1]["type"] == f"response.{final['status']}"
    assert final["output"] == output
    assert final["id"] == stream[0]["response"]["id"]
    return final


def alike(served: Served, **body: Any) -> dict[str, Any]:
    """The response, which must be the same complete and as a stream, up to ids and times."""
    whole = ask(served, **body).json()
    stream = folded(events(ask(served, stream=True, **body)))
    for response in (whole, stream):
        assert response.pop("id").startswith("resp_")
        assert response.pop("created_at")
        response.pop("completed_at")
        for item in response["output"]:
            prefix = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}[item["type"]]
            assert item.pop("id").startswith(prefix)
            if item["type"] == "function_call":
                assert item.pop("call_id").startswith("call_")
    assert whole == stream
    return whole


def test_a_text() -> None:
    response = alike(serve_fake(reply="Hello"))
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert response["output"] == [{"type": "message", "status": "completed", "role": "assistant", "content": [part]}]
    assert (response["status"], response["store"], response["model"]) == ("completed", False, MODEL)
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 8,
    }


def test_reasoning_text_and_calls_are_items() -> None:
    served = serve_fake(thinking(), reply=f"<think>Hm.</think>Yes.{SHORT}")
    response = alike(served, tools=[TOOL], include=["reasoning.encrypted_content"])
    thought, text, call = response["output"]
    assert thought == {
        "type": "reasoning",
        "status": "completed",
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "summary": [],
        "encrypted_content": "Hm.",
    }
    assert text["content"][0]["text"] == "Yes."
    assert call == {"type": "function_call", "status": "completed", "name": "f", "arguments": "{}"}
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    two = alike(serve_fake(reply=SHORT + SHORT), tools=[TOOL])["output"]
    assert [item["type"] for item in two] == ["function_call"] * 2
    assert "encrypted_content" not in alike(served)["output"][0]


def test_an_answer_that_was_cut_off() -> None:
    response = alike(serve_fake(), max_output_tokens=2)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"
    assert alike(serve_fake(reply="x" * CONTEXT), max_output_tokens=10**6)["status"] == "incomplete"


def test_logprobs_stand_in_the_text_alone() -> None:
    response = alike(serve_fake(reply="Hey"), top_logprobs=2)
    scores = response["output"][0]["content"][0]["logprobs"]
    assert [score["token"] for score in scores] == ["H", "e", "y"]
    assert len(scores[0]["top_logprobs"]) == 2
    served = serve_fake(thinking(), reply=f"<think>Hm.</think>Yes.{SHORT}")
    output = alike(served, tools=[TOOL], include=["message.output_text.logprobs"])["output"]
    assert "".join(score["token"] for score in output[1]["content"][0]["logprobs"]).endswith("Yes.")
    assert "logprobs" not in output[0]["content"][0]


def test_the_request_is_echoed() -> None:
    schema = {"type": "object", "properties": {}}
    asked = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "metadata": {"a": "b"},
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_output_tokens": 60,
        "reasoning": {"effort": "low", "summary": "auto"},
        "user": "u",
    }
    response = ask(serve_fake(), **asked).json()
    assert {key: response[key] for key in asked if key != "tools"} == {k: v for k, v in asked.items() if k != "tools"}
    assert response["tools"] == [{**TOOL, "description": None, "strict": False}]
    format = {"type": "json_schema", "name": "n", "schema": schema}
    text = ask(serve_fake(), text={"format": format, "verbosity": "low"}).json()["text"]
    assert text == {"format": {**format, "description": None, "strict": False}, "verbosity": "low"}


def test_the_official_client() -> None:
    async def talk() -> None:
        served = serve_fake(thinking(), reply=f"<think>Hm.</think>Yes.{SHORT}")
        api = client(served)
        whole = await api.responses.create(model=MODEL, input="Hi", tools=[TOOL])
        assert whole.output_text == "Yes."
        assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
        async with api.responses.stream(model=MODEL, input="Hi", tools=[TOOL]) as stream:
            texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert "".join(texts) == final.output_text == "Yes."
        assert final.usage == whole.usage
        # The turn after, without a store: what the client received goes back.
        call = final.output[2]
        turns = [{"role": "user", "content": "Hi"}, *[item.model_dump(exclude_none=True) for item in final.output]]
        turns.append({"type": "function_call_output", "call_id": call.call_id, "output": "7"})
        await api.responses.create(model=MODEL, input=turns, tools=[TOOL], instructions="Be brief.", store=False)
        told, _, spoken, result = served.tokenizer.rendered[-1]["messages"]
        assert told == {"role": "system", "content": "Be brief."}
        assert (spoken["reasoning_content"], spoken["content"]) == ("Hm.", "Yes.")
        assert [made["id"] for made in spoken["tool_calls"]] == [call.call_id] == [result["tool_call_id"]]
        with pytest.raises(openai.NotFoundError, match="--state-dir"):
            await api.responses.retrieve(whole.id)

    asyncio.run(talk())


def test_kept_responses(tmp_path: Path) -> None:
    async def talk() -> None:
        served = serve_fake(configured(state_dir=str(tmp_path / "state")), reply="Yes.")
        api = client(served)
        first = await api.responses.create(model=MODEL, input="Hi", instructions="Once.")
        assert first.store
        async with api.responses.stream(model=MODEL, input="And?", previous_response_id=first.id) as stream:
            second = await stream.get_final_response()
        messages = served.tokenizer.rendered[-1]["messages"]
        assert [(message["role"], message["content"]) for message in messages] == [
            ("user", "Hi"),
            ("assistant", "Yes."),
            ("user", "And?"),
        ]
        kept = await api.responses.retrieve(second.id)
        assert (kept.id, kept.output_text, kept.usage) == (second.id, "Yes.", second.usage)
        listed = await api.responses.input_items.list(second.id)
        assert [item.role for item in listed.data] == ["user", "assistant", "user"]
        kinds = [[part.type for part in item.content] for item in listed.data]
        assert kinds == [["input_text"], ["output_text"], ["input_text"]]
        await api.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError):
            await api.responses.delete(first.id)
        with pytest.raises(openai.BadRequestError, match="no response") as told:
            await api.responses.create(model=MODEL, input="x", previous_response_id=first.id)
        assert told.value.code == "previous_response_not_found"
        # The later response holds the whole conversation.
        await api.responses.create(model=MODEL, input="x", previous_response_id=second.id)
        with pytest.raises(openai.BadRequestError, match="background"):
            await api.responses.cancel(second.id)
        loose = await api.responses.create(model=MODEL, input="Hi", store=False)
        assert not loose.store
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve(loose.id)
        # Another server with the same folder has them.
        again = client(serve_fake(configured(state_dir=str(tmp_path / "state"))))
        assert (await again.responses.retrieve(second.id)).output_text == "Yes."

    asyncio.run(talk())


def seen(items: Any, **body: Any) -> list[dict[str, Any]]:
    """The messages that the template was given."""
    served = serve_fake()
    response = ask(served, input=items, **body)
    assert response.status_code == 200, response.text
    messages: list[dict[str, Any]] = served.tokenizer.rendered[-1]["messages"]
    return messages


def test_items_become_messages() -> None:
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "Hm.", "content": None}
    spoken = {"role": "assistant", "content": [{"type": "output_text", "text": "So.", "annotations": []}]}
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"}
    shell = {"type": "local_shell_call", "call_id": "c3", "action": {"command": ["ls"]}}
    outputs = [
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "2"},
        {"type": "local_shell_call_output", "id": "c3", "output": "3"},
    ]
    later = {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "Then."}]}
    turns = [message, thought, spoken, call, custom, shell, *outputs, later, {**call, "call_id": "c4"}]
    user, first, *results, second = seen(turns)
    assert user == {"role": "user", "content": "Hi"}
    assert (first["reasoning_content"], first["content"]) == ("Hm.", "So.")
    assert [(made["id"], made["function"]["name"]) for made in first["tool_calls"]] == [
        ("c1", "f"),
        ("c2", "g"),
        ("c3", "local_shell"),
    ]
    assert [(result["tool_call_id"], result["content"]) for result in results] == [
        ("c1", "1"),
        ("c2", "2"),
        ("c3", "3"),
    ]
    assert (second["reasoning_content"], second["tool_calls"][0]["id"]) == ("Then.", "c4")
    two = seen([{"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}])
    assert [spoken["content"] for spoken in two] == ["A", "B"]


def test_fields_reach_the_engine() -> None:
    served = serve_fake(reply=CALL)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    ask(served, text={"format": {"type": "json_schema", "name": "n", "schema": schema}})
    ask(served, text={"format": {"type": "json_object"}})
    ask(served, text={"format": {"type": "text"}, "verbosity": "low"})
    ask(served, tools=[TOOL], tool_choice={"type": "function", "name": "f"})
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    ask(served, tools=[TOOL], tool_choice=allowed)
    kinds = [request.constraint and request.constraint.kind for request in served.engine.requests]
    assert kinds == ["json_schema", "json_object", None, "tool_calls", "tool_calls"]
    ask(served, headrace={"priority": 3, "seed": 4}, reasoning={"effort": "high"})
    assert (served.engine.requests[-1].priority, served.engine.requests[-1].params.seed) == (3, 4)
    assert served.tokenizer.rendered[-1]["kwargs"]["reasoning_effort"] == "high"


def test_what_an_agent_sends() -> None:
    """The fields of a request of Codex."""
    tools = [TOOL, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}, {"type": "web_search"}]
    response = ask(
        serve_fake(),
        instructions="Be an agent.",
        tools=tools,
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        text={"verbosity": "low"},
        truncation="auto",
        client_metadata={"a": 1},
        input=[{"type": "message", "role": "developer", "content": "D"}, {"role": "user", "content": "Hi"}],
    )
    assert folded(events(response))["status"] == "completed"
    reported = response.headers["x-headrace-ignored"].split(", ")
    assert sorted(reported) == ["client_metadata", "tools[1]", "tools[2]", "truncation"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "message", "role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_response_id": "x"}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_token": 5}, "max_output_token"),
        ({"temperature": 9}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"headrace": {"max_tokens": 1}}, "headrace.max_tokens"),
        ({"headrace": {"speculation": {"method": 5}}}, "headrace.speculation.method"),
    ],
)
def test_faults_name_the_field_as_it_was_written(body: dict[str, Any], param: str) -> None:
    served = serve_fake()
    told = fault(ask(served, **body), 400, param)
    assert f"`{param.partition('[')[0]}" in told["message"]
    assert not served.engine.requests


def test_errors() -> None:
    fault(ask(serve_fake(), model="x"), 404, "model")
    fault(ask(serve_fake(), input="x" * 200), 400, "input")
    path = "response_format.json_schema.schema"
    fault(ask(serve_fake(refuse=InvalidRequest(f"`{path}`", path))), 400, "text.format.schema")
    assert fault(ask(serve_fake(refuse=Overloaded("full", 1.0)), stream=True), 503)["code"] == "overloaded"
    *_, told, last = events(ask(serve_fake(fail_after=2), stream=True))
    assert (told["type"], told["code"], told["message"]) == ("error", "engine_unavailable", "the engine died")
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "engine_unavailable", "message": "the engine died"}
