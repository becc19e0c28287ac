"""A field that is null is as one that is not there, whatever the API and the field."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import NODEFAULT
from msgspec.structs import fields
from server_fakes import MODEL, serve_fake

from headrace.client.api import GenerateRequest
from headrace.server.lenient_body import _EXTRAS
from headrace.server.messages_schemas import CountTokensRequest, MessagesRequest
from headrace.server.ollama_schemas import OllamaChatRequest, OllamaGenerateRequest
from headrace.server.responses_schemas import ResponsesRequest
from headrace.server.schemas import ChatRequest, CompletionRequest

HI = [{"role": "user", "content": "Hi"}]
APIS: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/completions": (CompletionRequest, {"prompt": "Hi"}),
    "/v1/chat/completions": (ChatRequest, {"messages": HI}),
    "/v1/responses": (ResponsesRequest, {"input": "Hi"}),
    "/v1/messages": (MessagesRequest, {"messages": HI, "max_tokens": 7}),
    "/v1/messages/count_tokens": (CountTokensRequest, {"messages": HI}),
    "/api/chat": (OllamaChatRequest, {"messages": HI, "stream": False}),
    "/api/generate": (OllamaGenerateRequest, {"prompt": "Hi", "stream": False}),
}
TRANSLATED = [path for path in APIS if "completions" not in path]
GIVEN = {"temperature": 0.5, "top_p": 0.25}


def cases() -> Iterator[tuple[str, str]]:
    for path, (kind, body) in APIS.items():
        yield from (
            (path, one.encode_name) for one in fields(kind) if one.default is not NODEFAULT and one.name not in body
        )


def asked(path: str, speculate: str | None = None, **body: Any) -> list[GenerateRequest]:
    """What the engine gets. `speculate`: the server's option."""
    served = serve_fake(speculate=speculate)
    reply = asyncio.run(served.post(path, **{**APIS[path][1], "model": MODEL, **body}))
    assert reply.status_code == 200, reply.text
    return [replace(one, id="") for one in served.engine.requests]


@pytest.fixture(scope="module")
def plain() -> dict[str, list[GenerateRequest]]:
    return {path: asked(path) for path in APIS}


@pytest.mark.parametrize(("path", "field"), list(cases()))
def test_every_field(path: str, field: str, plain: dict[str, list[GenerateRequest]]) -> None:
    assert asked(path, **{field: None}) == plain[path]


@pytest.mark.parametrize("path", TRANSLATED)
def test_every_field_of_ours_in_the_bodies_of_other_apis(path: str, plain: dict[str, list[GenerateRequest]]) -> None:
    assert asked(path, headrace=dict.fromkeys(sorted(_EXTRAS))) == plain[path]


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/responses", GIVEN), ("/v1/messages", GIVEN), ("/api/chat", {"options": GIVEN})]
)
def test_a_null_in_our_fields_takes_nothing_from_the_body(path: str, body: dict[str, Any]) -> None:
    given = asked(path, **body)
    assert (given[0].params.temperature, given[0].params.top_p) == (0.5, 0.25)
    assert asked(path, **body, headrace={"temperature": None, "top_p": None}) == given


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("choice", [None, {"method": "predicted"}, {"method": None, "max_tokens": None}])
def test_a_prediction_that_is_null(path: str, choice: dict[str, Any] | None) -> None:
    """On a server whose drafts come from predictions alone, it is none, whatever the request says about drafts."""
    told = {} if choice is None else {"speculation": choice}
    if path in TRANSLATED:
        without = asked(path, "predicted", headrace=told)
        found = asked(path, "predicted", prediction=None, headrace={"speculation": choice, "prediction": None})
    else:
        without = asked(path, "predicted", **told)
        found = asked(path, "predicted", prediction=None, speculation=choice)
    assert found == without
    assert all(request.predicted == () for request in found)
