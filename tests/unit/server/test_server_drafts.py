"""Speculative decoding as clients see it: `prediction`, `speculation`, and the counts in the usage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_fakes import Served, events, fault, serve_fake

from headrace.client.speculation_choice import SpeculationChoice

TEXT = {"type": "content", "content": "Hello"}
PARTS = {"type": "content", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}
DETAILS = {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 2}


def both(served: Served, **body: Any) -> Iterator[httpx.Response]:
    yield asyncio.run(served.chat(**body))
    yield asyncio.run(served.complete(**body))


@pytest.mark.parametrize("prediction", [TEXT, PARTS])
def test_a_prediction_reaches_the_engine_without_special_tokens(prediction: dict[str, Any]) -> None:
    served = serve_fake()
    # What OpenAI refuses beside a prediction changes nothing here: a draft never changes the output.
    for response in both(served, prediction=prediction, n=2, logprobs=None, presence_penalty=1.0, max_tokens=20):
        assert response.status_code == 200
        assert served.engine.requests[-1].predicted == tuple(b"Hello")
    assert asyncio.run(served.complete(prompt=["a", "b"], prediction=prediction)).status_code == 200
    assert [request.predicted for request in served.engine.requests[-2:]] == [tuple(b"Hello")] * 2


def test_a_prediction_may_be_empty_or_null() -> None:
    served = serve_fake()
    for prediction in ({**TEXT, "content": ""}, {**TEXT, "content": []}, None):
        for response in both(served, prediction=prediction):
            assert response.status_code == 200
            assert served.engine.requests[-1].predicted == ()


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_drafts_from_an_empty_prediction_alone_are_none(content: Any) -> None:
    """As of an empty file: whether a request is served does not depend on the text that is expected."""
    served = serve_fake()
    for response in both(served, prediction={**TEXT, "content": content}, speculation={"method": "predicted"}):
        assert response.status_code == 200
        assert served.engine.requests[-1].speculation == SpeculationChoice(max_tokens=0)


def test_a_prediction_beyond_the_context_is_400_with_both_numbers() -> None:
    for length, said in ((101, "`prediction` has 101"), (10**5, "100000 characters of `prediction`")):
        for response in both(serve_fake(), prediction={**TEXT, "content": "a" * length}):
            error = fault(response, 400, "prediction")
            assert error["code"] == "context_length_exceeded"
            assert said in error["message"]
            assert "100 tokens" in error["message"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, SpeculationChoice()),
        (True, SpeculationChoice()),
        (False, SpeculationChoice(max_tokens=0)),
        ({"max_tokens": 3}, SpeculationChoice(max_tokens=3)),
        ({"max_tokens": 3.0}, SpeculationChoice(max_tokens=3)),
        ({"method": "ngram"}, SpeculationChoice("ngram")),
        ({"method": "predicted", "max_tokens": 0}, SpeculationChoice("predicted", 0)),
    ],
)
def test_a_request_limits_its_drafts(given: Any, meant: SpeculationChoice) -> None:
    served = serve_fake(speculate="ngram")
    for response in both(served, speculation=given, prediction=TEXT):
        assert response.status_code == 200
        assert served.engine.requests[-1].speculation == meant


@pytest.mark.parametrize("stream", [False, True])
def test_another_method_is_400_with_the_ones_that_are_there(stream: bool) -> None:
    for response in both(serve_fake(speculate="ngram"), speculation={"method": "eagle"}, stream=stream):
        error = fault(response, 400, "speculation.method")
        assert "'eagle' is not what this engine drafts with: ngram, predicted (for a" in error["message"]
    for response in both(serve_fake(), speculation={"method": "predicted"}, stream=stream):
        fault(response, 400, "speculation.method")
    for response in both(serve_fake(), speculation={"method": "predicted"}, prediction=TEXT, stream=stream):
        assert response.status_code == 200


def test_misspelt_fields_are_suggested() -> None:
    for response in both(serve_fake(), speculation={"methd": "ngram"}):
        assert "did you mean `method`?" in fault(response, 400, "speculation.methd")["message"]
    for response in both(serve_fake(), prediction={**TEXT, "contents": "a"}):
        assert "did you mean `content`?" in fault(response, 400, "prediction.contents")["message"]


def test_the_usage_counts_drafts() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    served = serve_fake(drafts=(3, 2))
    for response in both(served):
        assert response.json()["usage"]["completion_tokens_details"] == DETAILS
    for response in both(served, stream=True, stream_options=options):
        usages = [event["usage"] for event in events(response)]
        assert [usage["completion_tokens_details"] for usage in usages] == [DETAILS] * len(usages)
    several = asyncio.run(served.complete(prompt=["a", "b"])).json()["usage"]
    assert several["completion_tokens_details"] == {name: 2 * count for name, count in DETAILS.items()}
