"""Faults of Anthropic's messages API: their form, and the names of fields in them; and its counting of tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from server_fakes import CONTEXT, serve_fake, with_key
from test_server_messages import BODY, TOOL, ask, events

from headrace.errors import EngineDead, InvalidRequest, Overloaded


def fault(response: httpx.Response, status: int, kind: str) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    message: str = body["error"]["message"]
    return message


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_tokens": None}, "`max_tokens`"),
        ({"max_tokens": 0}, "`max_tokens`"),
        ({"messages": []}, "`messages`"),
        ({"messages": [{"role": "user", "content": []}]}, "`messages[0].content`"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "`messages[0].content[0].type`"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "`messages[0].content[0].text`"),
        ({"temperature": 9}, "`temperature`"),
        ({"stop_sequence": ["x"]}, "did you mean `stop_sequences`"),
        ({"mcp_servers": [{}]}, "`mcp_servers`"),
        ({"tools": [{"name": "f"}]}, "`tools[0].input_schema`"),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "`tools[0]`"),
        ({"tool_choice": {"type": "any"}}, "`tool_choice`"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "`tool_choice.name`"),
        ({"headrace": {"n": 2}}, "`headrace.n`"),
        ({"headrace": {"speculation": {"max_tokens": -1}}}, "`headrace.speculation.max_tokens`"),
        ({"headrace": {"prediction": {"type": "content"}}}, "`headrace.prediction.content`"),
        ({"headrace": {"temperature": 9}}, "`headrace.temperature`"),
        ({"stop_sequences": ["x"] * 100}, "`stop_sequences`"),
        ({"stop_sequences": ["x"], "output_config": {"format": {"type": "json_schema", "schema": {}}}}, "`stop_sequ"),
    ],
)
def test_faults_name_the_field_as_it_was_written(body: dict[str, Any], named: str) -> None:
    served = serve_fake()
    message = fault(ask(served, **body), 400, "invalid_request_error")
    assert named in message
    assert not served.engine.requests


def test_a_fault_that_the_engine_finds_has_the_outer_name() -> None:
    path = "response_format.json_schema.schema"
    served = serve_fake(refuse=InvalidRequest(f"`{path}`: no schema; `stop[0]` neither", path))
    message = fault(ask(served), 400, "invalid_request_error")
    assert message == "`output_config.format.schema`: no schema; `stop_sequences[0]` neither"


def test_a_method_without_a_prediction_is_told_where_that_would_stand() -> None:
    served = serve_fake()
    message = fault(ask(served, headrace={"speculation": {"method": "predicted"}}), 400, "invalid_request_error")
    assert message.startswith("`headrace.speculation.method` 'predicted' needs a `headrace.prediction`")


def test_errors_have_anthropics_form() -> None:
    assert fault(ask(serve_fake(), model="x"), 404, "not_found_error")
    assert fault(ask(serve_fake(with_key("k"))), 401, "authentication_error")
    busy = ask(serve_fake(refuse=Overloaded("full", 2.0)))
    assert fault(busy, 529, "overloaded_error") == "full"
    assert (busy.headers["retry-after"], busy.headers["retry-after-ms"]) == ("2", "2000")
    broken = ask(serve_fake(refuse=RuntimeError("secret")))
    assert "secret" not in fault(broken, 500, "api_error")
    assert broken.headers["x-should-retry"] == "false"
    assert fault(asyncio.run(serve_fake().http.get("/v1/messages")), 405, "invalid_request_error")
    assert fault(ask(serve_fake(refuse=EngineDead("gone"))), 503, "api_error")


def test_a_prompt_that_is_too_long() -> None:
    long = [{"role": "user", "content": "x" * 200}]
    for body in ({"messages": long}, {"messages": [{"role": "user", "content": "x" * 10**5}]}):
        message = fault(ask(serve_fake(), **body), 400, "invalid_request_error")
        assert message.startswith("prompt is too long: ")
        assert message.endswith(f" tokens > {CONTEXT} maximum")


def test_a_stream_that_fails_ends_with_an_error_event() -> None:
    response = ask(serve_fake(fail_after=2), stream=True)
    assert response.status_code == 200
    last = events(response)[-1]
    assert last["error"] == {"type": "api_error", "message": "the engine died"}


def test_count_tokens() -> None:
    served = serve_fake()
    counted = asyncio.run(served.post("/v1/messages/count_tokens", messages=BODY["messages"], system="Be"))
    assert counted.json() == {"input_tokens": len("Be|Hi>")}
    assert not served.engine.requests
    refused = asyncio.run(served.post("/v1/messages/count_tokens", messages=[]))
    fault(refused, 400, "invalid_request_error")
