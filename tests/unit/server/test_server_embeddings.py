"""`/v1/embeddings` and Ollama's routes, with a fake engine."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import numpy as np
import pytest
from server_fakes import BOS, CONTEXT, MODEL, VOCAB, Served, pooled_bytes, serve_fake

from headrace.embedding_facts import EmbeddingFacts


def post(served: Served, path: str, **body: Any) -> httpx.Response:
    return asyncio.run(served.post(path, **body))


def unit(prompt: list[int], pooling: str = "last", size: int = 4) -> list[float]:
    vector = np.frombuffer(pooled_bytes(prompt, pooling), "<f4")[:size].astype(np.float64)
    return (vector / np.linalg.norm(vector)).astype(np.float32).tolist()


def ids_of(text: str) -> list[int]:
    return [BOS, *text.encode()]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("Hi", [ids_of("Hi")]),
        (["Hi", "there"], [ids_of("Hi"), ids_of("there")]),
        ([72, 105], [[72, 105]]),
        ([[72], [105, 3]], [[72], [105, 3]]),
    ],
    ids=str,
)
def test_the_forms_of_input(given: Any, prompts: list[list[int]]) -> None:
    served = serve_fake()
    reply = post(served, "/v1/embeddings", model=MODEL, input=given, user="someone")
    assert reply.status_code == 200
    body = reply.json()
    assert (body["object"], body["model"]) == ("list", MODEL)
    assert [(item["object"], item["index"]) for item in body["data"]] == [("embedding", i) for i in range(len(prompts))]
    assert [item["embedding"] for item in body["data"]] == [pytest.approx(unit(one)) for one in prompts]
    total = sum(map(len, prompts))
    assert (body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]) == (total, total)
    assert [request.pooling for request in served.engine.requests] == ["last"] * len(prompts)
    assert {request.params.max_tokens for request in served.engine.requests} == {0}


def test_options() -> None:
    served = serve_fake(embedding=EmbeddingFacts(4, "mean", normalize=False, prompts={"query": "Q:"}))
    plain = pooled_bytes(ids_of("Hi"), "mean")

    def first(**fields: Any) -> Any:
        reply = post(served, "/v1/embeddings", **{"input": "Hi", **fields})
        assert reply.status_code == 200, reply.text
        return reply.json()["data"][0]["embedding"]

    assert first() == np.frombuffer(plain, "<f4").tolist()
    encoded = first(encoding_format="base64")
    assert base64.b64decode(encoded) == plain
    assert first(dimensions=2) == np.frombuffer(plain, "<f4")[:2].tolist()
    assert first(dimensions=2, normalize=True) == pytest.approx(unit(ids_of("Hi"), "mean", 2))
    assert first(pooling="last", normalize=True) == pytest.approx(unit(ids_of("Hi")))
    assert first(prompt_name="query") == np.frombuffer(pooled_bytes(ids_of("Q:Hi"), "mean"), "<f4").tolist()
    assert first(add_special_tokens=False) == np.frombuffer(pooled_bytes([72, 105], "mean"), "<f4").tolist()
    cut = first(input="Hi there", truncate_prompt_tokens=3)
    assert cut == np.frombuffer(pooled_bytes(ids_of("Hi"), "mean"), "<f4").tolist()
    first(input="x" * (3 * CONTEXT), truncate_prompt_tokens=-1, priority=7, cache_salt="s")
    last = served.engine.requests[-1]
    assert (len(last.prompt), last.priority, last.salt) == (CONTEXT, 7, "s")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["a", ""]}, "input", "invalid_value"),
        ({"input": ["a", 3]}, "input", "invalid_value"),
        ({"input": [VOCAB]}, "input", "invalid_value"),
        ({"input": ["a"] * 2049}, "input", "array_above_max_length"),
        ({"input": "x" * CONTEXT}, "input", "context_length_exceeded"),
        ({"input": [1] * (CONTEXT + 1)}, "input", "context_length_exceeded"),
        ({"input": "a", "dimensions": 5}, "dimensions", "invalid_value"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"input": "a", "pooling": "max"}, "pooling", "invalid_value"),
        ({"input": "a", "prompt_name": "no"}, "prompt_name", None),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        ({"input": "a", "encoding_formt": "float"}, "encoding_formt", "unknown_parameter"),
        ({"input": "a", "prompt": "a"}, "prompt", "unknown_parameter"),
    ],
    ids=str,
)
def test_what_is_refused(fields: dict[str, Any], param: str, code: str | None) -> None:
    reply = post(serve_fake(), "/v1/embeddings", **fields)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_another_model_and_a_platform_without_values() -> None:
    reply = post(serve_fake(), "/v1/embeddings", model="other", input="a")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    reply = post(serve_fake(embedding=EmbeddingFacts(0)), "/v1/embeddings", input="a")
    assert reply.status_code == 400
    assert "platform fake computes no values" in reply.json()["error"]["message"]


def test_a_checkpoint_without_an_output_matrix_only_embeds() -> None:
    served = serve_fake(embedding=EmbeddingFacts(4, "last", generates=False))
    assert (post(served, "/v1/embeddings", input="a")).status_code == 200
    reply = asyncio.run(served.complete())
    assert reply.status_code == 400
    assert "/v1/embeddings" in reply.json()["error"]["message"]


def test_ollama() -> None:
    served = serve_fake()
    reply = post(served, "/api/embed", model=f"{MODEL}:latest", input=["Hi", "there"], dimensions=3, surprise=1)
    assert reply.status_code == 200
    assert reply.headers["x-headrace-ignored"] == "surprise"
    body = reply.json()
    assert body["embeddings"] == [pytest.approx(unit(ids_of(text), size=3)) for text in ("Hi", "there")]
    assert (body["model"], body["prompt_eval_count"], body["load_duration"]) == (f"{MODEL}:latest", 9, 0)
    assert body["total_duration"] > 0
    assert (post(served, "/api/embed", model=MODEL, input=[])).json()["embeddings"] == []
    long = "x" * (2 * CONTEXT)
    assert (post(served, "/api/embed", model=MODEL, input=long)).status_code == 200
    refused = post(served, "/api/embed", model=MODEL, input=long, truncate=False)
    assert refused.status_code == 400
    assert "maximum context length" in refused.json()["error"]
    old = post(served, "/api/embeddings", model=MODEL, prompt="Hi")
    assert old.json() == {"embedding": np.frombuffer(pooled_bytes(ids_of("Hi"), "last"), "<f4").tolist()}
    assert (post(served, "/api/embeddings", model=MODEL, prompt="")).json() == {"embedding": []}
