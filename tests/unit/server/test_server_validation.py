"""What both generation routes refuse: by name, with a reason, and without harm to the next request."""

from __future__ import annotations

import asyncio
import json

import pytest
from server_fakes import MODEL, VOCAB, fault, serve_fake

from headrace.server.decode import MAX_BODY

SERVED = serve_fake()

WRONG = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", 2**40),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("n", 0),
    ("n", -1),
    ("n", 129),
    ("n", 10**6),
    ("n", 1.5),
    ("max_tokens", -1),
    ("max_tokens", 0),
    ("max_tokens", 10**9),
    ("max_tokens", 10**30),
    ("max_tokens", "5"),
    ("min_tokens", -1),
    ("min_tokens", 10**9),
    ("seed", 2**64),
    ("seed", "a"),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", 1e308),
    ("stop", ""),
    ("stop", [""]),
    ("stop", [1]),
    ("stop", ["a"] * 65),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [VOCAB]),
    ("stop_token_ids", [1] * 50_000),
    ("stop_token_ids", [10**308]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [VOCAB]),
    ("allowed_token_ids", [-5]),
    ("allowed_token_ids", [1] * 50_000),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"1.5": 1}),
    ("logit_bias", {"": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"²": 1}),
    ("logit_bias", {"9" * 30: 1}),
    ("logit_bias", {str(VOCAB): 1}),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"1": "a"}),
    ("logit_bias", {str(i): 1 for i in range(50_000)}),
    ("logit_bias", [1]),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", -1),
    ("priority", 2**40),
    ("cache_salt", ""),
    ("cache_salt", "x" * 300),
    ("stream", "yes"),
    ("stream_options", {"include_usge": True}),
    ("user", 7),
    ("metadata", []),
]


def post(path: str, body: dict):
    return asyncio.run(SERVED.post(path, **body))


def both(**body):
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **body}
    yield post("/v1/chat/completions", chat)
    yield post("/v1/completions", {"model": MODEL, "prompt": "Hi", **body})


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{field}-{str(value)[:20]}" for field, value in WRONG])
def test_wrong_values_name_the_field(field, value):
    before = len(SERVED.engine.requests)
    for response in both(**{field: value}):
        assert fault(response, 400)["param"].split(".")[0].split("[")[0] == field
    assert len(SERVED.engine.requests) == before
    assert all(response.status_code == 200 for response in both())


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e400", "1e999999"])
def test_numbers_that_are_not_finite(literal):
    for field in ("temperature", "logit_bias"):
        value = literal if field == "temperature" else f'{{"1": {literal}}}'
        raw = f'{{"model": "{MODEL}", "prompt": "Hi", "{field}": {value}}}'
        fault(asyncio.run(SERVED.http.post("/v1/completions", content=raw)), 400)


def test_misspelt_fields_are_reported():
    for response in both(response_fromat={"type": "json_object"}):
        error = fault(response, 400, "response_fromat")
        assert error["code"] == "unknown_parameter"
    chat, _ = both(response_fromat={"type": "json_object"})
    assert "did you mean `response_format`?" in chat.json()["error"]["message"]
    for response in both(max_token=1):
        assert "did you mean `max_tokens`?" in fault(response, 400, "max_token")["message"]
    for response in both(stream=True, stream_options={"include_usge": True}):
        message = fault(response, 400, "stream_options.include_usge")["message"]
        assert "did you mean `include_usage`?" in message


@pytest.mark.parametrize(
    "field", ["guided_json", "guided_regex", "structured_outputs", "functions", "logits_processors", "é`\n"]
)
def test_unknown_fields_are_refused(field):
    for response in both(**{field: {}}):
        assert fault(response, 400, field)["code"] == "unknown_parameter"


def test_harmless_fields_are_accepted():
    inert = {
        "user": "me",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "safety_identifier": "x",
        "prompt_cache_key": "k",
    }
    assert all(response.status_code == 200 for response in both(**inert))


BROKEN = [
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"null",
    b"\xff\xfe",
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a"} x',
    b'{"prompt": "a",}',
    b'{"metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"messages": ' + b"[" * 100_000,
]


@pytest.mark.parametrize("raw", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_bodies_that_are_no_json_object(raw, path):
    fault(asyncio.run(SERVED.http.post(path, content=raw)), 400)


def test_bodies_over_the_limit():
    async def chunks():
        for _ in range(MAX_BODY // 2**20 + 1):
            yield b" " * 2**20

    declared = asyncio.run(SERVED.http.post("/v1/completions", content=b" " * (MAX_BODY + 1)))
    assert fault(declared, 413)["code"] == "request_too_large"
    assert declared.headers["connection"] == "close"
    fault(asyncio.run(SERVED.http.post("/v1/completions", content=chunks())), 413)


def test_deep_tools_are_parsed_or_refused():
    deep = json.loads("[" * 400 + "]" * 400)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": deep}}}
    response = post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [tool]})
    assert response.status_code in (200, 400)
