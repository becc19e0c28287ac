"""For any body, the answer is 200 or a 4xx that names the error; the engine never receives an invalid request."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_fakes import CONTEXT, MODEL, VOCAB, serve_fake

from headrace.server import schemas
from headrace.types import SamplingParams

SERVED = serve_fake()
DOCUMENT = SERVED.app.openapi()
QUIET = settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-3, 130),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-3, 3),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)


def fields(kind: type) -> list[str]:
    return [name for name in kind.__struct_fields__ if name not in ("messages", "prompt", "model")]  # type: ignore[attr-defined]


def send(path: str, body: dict[str, Any]) -> None:
    before = len(SERVED.engine.requests)
    response = asyncio.run(SERVED.http.post(path, content=json.dumps(body)))
    assert response.status_code in (200, 400, 404), (body, response.text)
    check_documented(path, response)
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["message"], body
        assert len(SERVED.engine.requests) == before
    for request in SERVED.engine.requests[before:]:
        check(request.prompt, request.params)


def check_documented(path: str, response: httpx.Response) -> None:
    """The OpenAPI document has the answer's status, with its media type."""
    documented = DOCUMENT["paths"][path]["post"]["responses"]
    media = response.headers["content-type"].partition(";")[0]
    assert media in documented[str(response.status_code)]["content"], (path, response.status_code, media)


def check(prompt: tuple[int, ...], params: SamplingParams) -> None:
    """Check the properties of requests that the engine relies on."""
    assert prompt
    assert all(0 <= token < VOCAB for token in prompt)
    assert 0 <= params.min_tokens <= params.max_tokens
    assert len(prompt) + params.max_tokens <= CONTEXT
    assert 1 <= params.n <= 128
    assert 0 <= params.top_k <= VOCAB
    assert 0 < params.top_p <= 1
    assert params.seed is None or 0 <= params.seed < 2**64
    floats = (
        params.temperature,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
    )
    assert all(type(number) in (int, float) and math.isfinite(number) for number in floats)
    assert params.repetition_penalty > 0
    ids = [*params.stop_token_ids, *(params.allowed_token_ids or ()), *(token for token, _ in params.logit_bias)]
    assert all(0 <= token < VOCAB for token in ids)
    assert all(stop for stop in params.stop)


@QUIET
@given(st.dictionaries(st.sampled_from(fields(schemas.CompletionRequest)), values, max_size=3))
def test_any_values_in_a_completion(body):
    send("/v1/completions", {"prompt": "Hi", **body})


@QUIET
@given(st.dictionaries(st.sampled_from(fields(schemas.ChatRequest)), values, max_size=3))
def test_any_values_in_a_chat(body):
    send("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **body})


@QUIET
@given(values)
def test_any_prompt(prompt):
    send("/v1/completions", {"model": MODEL, "prompt": prompt})


@QUIET
@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
            optional={
                "content": st.one_of(
                    scalars,
                    st.lists(
                        st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": scalars}),
                        max_size=2,
                    ),
                ),
                "tool_calls": st.lists(
                    st.fixed_dictionaries(
                        {"function": st.fixed_dictionaries({"name": st.text(max_size=4), "arguments": scalars})}
                    ),
                    max_size=2,
                ),
            },
        ),
        max_size=3,
    )
)
def test_any_messages(messages):
    send("/v1/chat/completions", {"model": MODEL, "messages": messages})


@QUIET
@given(st.text(max_size=12), values)
def test_any_field_name(name, value):
    send("/v1/completions", {"prompt": "Hi", name: value})


@QUIET
@given(st.binary(max_size=200))
def test_any_bytes(raw):
    for path in ("/v1/completions", "/tokenize"):
        assert asyncio.run(SERVED.http.post(path, content=raw)).status_code in (200, 400)


@pytest.mark.parametrize("kind", [schemas.ChatRequest, schemas.CompletionRequest])
def test_every_optional_field_may_be_null(kind):
    body = dict.fromkeys(fields(kind))
    required = {"prompt": "Hi"} if kind is schemas.CompletionRequest else {"messages": []}
    msgspec.json.decode(json.dumps({**required, **body}), type=kind)
