"""`/v1/score` and `/v1/rerank`, with a fake engine."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx
import numpy as np
import pytest
from server_fakes import BOS, CONTEXT, MODEL, Served, pooled_bytes, serve_fake

from headrace.embedding_facts import EmbeddingFacts

HEAD = np.array([0.0, 0.5, 0.0, 0.0], "<f4").tobytes()


def post(served: Served, path: str, **body: Any) -> httpx.Response:
    return asyncio.run(served.post(path, **body))


def angle(one: str, other: str) -> float:
    a, b = (np.frombuffer(pooled_bytes([BOS, *t.encode()], "last"), "<f4").astype(np.float64) for t in (one, other))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize(
    ("fields", "pairs"),
    [
        ({"text_1": "a", "text_2": "bcd"}, [("a", "bcd")]),
        ({"text_1": "a", "text_2": ["b", "cd"]}, [("a", "b"), ("a", "cd")]),
        ({"text_1": ["a", "x"], "text_2": ["b", "cd"]}, [("a", "b"), ("x", "cd")]),
        ({"queries": ["a"], "documents": ["b", "cd"]}, [("Q:a", "b"), ("Q:a", "cd")]),
        ({"queries": "a", "items": ["b"]}, [("Q:a", "b")]),
    ],
    ids=str,
)
def test_pairs(path: str, fields: dict[str, Any], pairs: list[tuple[str, str]]) -> None:
    served = serve_fake()
    reply = post(served, path, model=MODEL, **fields)
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert [item["index"] for item in body["data"]] == list(range(len(pairs)))
    assert [item["score"] for item in body["data"]] == [pytest.approx(angle(*pair)) for pair in pairs]
    assert {item["object"] for item in body["data"]} == {"score"}
    texts = {text for pair in pairs for text in pair}
    assert len(served.engine.requests) == len(texts), "each text is computed once"
    assert body["usage"]["total_tokens"] == sum(1 + len(text) for text in texts)


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_rerank(path: str) -> None:
    served = serve_fake()
    documents = ["bcd", {"text": "a", "title": "A"}, "zzzzz"]
    reply = post(served, path, model=MODEL, query="a", documents=documents, return_documents=True)
    assert reply.status_code == 200, reply.text
    results = reply.json()["results"]
    wanted = {at: angle("Q:a", text) for at, text in enumerate(("bcd", "a", "zzzzz"))}
    assert [one["index"] for one in results] == sorted(wanted, key=lambda at: -wanted[at])
    assert [one["relevance_score"] for one in results] == [pytest.approx(wanted[one["index"]]) for one in results]
    shown = {one["index"]: one["document"] for one in results}
    assert shown == {0: {"text": "bcd"}, 1: {"text": "a", "title": "A"}, 2: {"text": "zzzzz"}}
    few = (post(served, path, query="a", documents=documents, top_n=1)).json()["results"]
    assert few == [{"index": results[0]["index"], "relevance_score": results[0]["relevance_score"]}]


def test_the_form_of_text_embeddings_inference() -> None:
    reply = post(serve_fake(), "/rerank", query="a", texts=["bcd", "a"], return_text=True, truncate=True)
    assert [set(one) for one in reply.json()] == [{"index", "score", "text"}] * 2
    assert {one["index"]: one["text"] for one in reply.json()} == {0: "bcd", 1: "a"}
    assert [one["score"] for one in reply.json()] == sorted((one["score"] for one in reply.json()), reverse=True)


def test_a_head_gives_its_sigmoid() -> None:
    served = serve_fake(embedding=EmbeddingFacts(4, labels=("LABEL_0",), head=HEAD))
    reply = post(served, "/v1/score", text_1="ab", text_2=["c", "defg"])
    # The second value of the fake states is the number of tokens.
    wanted = [1 / (1 + math.exp(-0.5 * count)) for count in (4, 7)]
    assert [item["score"] for item in reply.json()["data"]] == [pytest.approx(one) for one in wanted]
    assert [list(request.prompt) for request in served.engine.requests] == [[BOS, *b"abc"], [BOS, *b"abdefg"]]


def test_a_head_that_joins_the_texts_takes_no_instruction() -> None:
    served = serve_fake(embedding=EmbeddingFacts(4, labels=("LABEL_0",), head=HEAD))
    reply = post(served, "/v1/score", text_1="ab", text_2="c", instruction="Find.")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "instruction")
    assert not served.engine.requests


def test_a_head_of_several_classes_is_no_score() -> None:
    served = serve_fake(embedding=EmbeddingFacts(4, labels=("a", "b"), head=HEAD + HEAD))
    reply = post(served, "/v1/score", text_1="a", text_2="b")
    assert reply.status_code == 400
    assert "classes a, b" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"queries": ["a"]}, "documents"),
        ("/v1/score", {"text_1": "a", "queries": "b"}, "text_1"),
        ("/v1/score", {"queries": "a", "documents": ["b"], "items": ["c"]}, "items"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": ""}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "method": "head"}, "method"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "method": "yes_no"}, "method"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "instruction": "Find."}, "instruction"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "instruction": "Find."}, "instruction"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "x"}]}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["x"]}, "rank_fields"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": True}, "raw_scores"),
        ("/v1/rerank", {"query": "a", "documents": ["b" * CONTEXT]}, "documents"),
    ],
    ids=str,
)
def test_what_is_refused(path: str, fields: dict[str, Any], param: str) -> None:
    reply = post(serve_fake(), path, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_long_documents_are_cut() -> None:
    served = serve_fake()
    fields = {"query": "a", "documents": ["b" * (2 * CONTEXT)]}
    assert (post(served, "/v1/rerank", **fields, truncate_prompt_tokens=-1)).status_code == 200
    assert (post(served, "/v1/rerank", **fields, max_tokens_per_doc=9)).status_code == 200
    assert [len(request.prompt) for request in served.engine.requests] == [4, CONTEXT, 4, 9]
