"""Fields that other servers have: honoured, or refused by name with what to use instead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_fakes import MODEL, serve_fake

from headrace.config import Config, ServerConfig
from headrace.server.foreign_fields import FOREIGN_FIELDS

DECLARED = ("audio", "function_call", "functions", "moderation", "web_search_options")


@pytest.mark.parametrize("name", sorted(FOREIGN_FIELDS))
def test_are_refused_with_a_remedy(name: str) -> None:
    reply = asyncio.run(serve_fake().chat(**{name: {"a": 1}}))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == name
    assert FOREIGN_FIELDS[name] in error["message"]


@pytest.mark.parametrize("name", DECLARED)
def test_null_is_no_wish(name: str) -> None:
    assert asyncio.run(serve_fake().chat(**{name: None})).status_code == 200


def test_documents_go_to_templates_that_show_them() -> None:
    served = serve_fake()
    documents = [{"title": "T", "text": "one"}]
    reply = asyncio.run(served.chat(documents=documents))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "documents"
    served.tokenizer.template_source = "{{ documents }}"  # type: ignore[misc]
    assert asyncio.run(served.chat(documents=documents)).status_code == 200
    assert served.tokenizer.rendered[-1]["documents"] == documents


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_may_be_left_out(stream: bool) -> None:
    config = Config(server=ServerConfig(reasoning_format="think"))

    async def text(**fields: Any) -> str:
        served = serve_fake(config, reply="<think>why</think>so")
        return (await served.chat(model=MODEL, stream=stream, max_tokens=50, **fields)).text

    assert "reasoning_content" in asyncio.run(text())
    assert "reasoning_content" in asyncio.run(text(include_reasoning=True))
    hidden = asyncio.run(text(include_reasoning=False))
    assert "reasoning" not in hidden.replace("reasoning_tokens", "")
    assert '"s' in hidden


def test_bad_words_reach_the_engine() -> None:
    served = serve_fake()
    assert asyncio.run(served.chat(bad_words=["one", "two"])).status_code == 200
    assert served.engine.requests[-1].params.bad_words == ("one", "two")
    assert asyncio.run(served.complete(bad_words="one")).status_code == 200
    assert served.engine.requests[-1].params.bad_words == ("one",)
