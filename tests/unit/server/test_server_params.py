"""Checks of a request against the model: the room for its output, its token ids, and both sides of each bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_fakes import CONTEXT, MODEL, VOCAB, fault, serve_fake

from headrace.client.api import ModelInfo
from headrace.client.validate import check_ids
from headrace.errors import ContextOverflow, InvalidRequest, NeverFits
from headrace.server.request_params import check_length, output_room
from headrace.types import SamplingParams


def room(model: ModelInfo, wanted: int | None, default: int | None, length: int, least: int = 1) -> int:
    return output_room(("max_tokens", wanted), default, ("prompt", length), model, least)


def test_room_in_the_context() -> None:
    model = ModelInfo("m", "m", 10, 300, "p", "d")
    assert room(model, None, None, 4) == 6
    assert room(model, None, 3, 4) == 3
    assert room(model, None, 16, 4) == 6
    assert room(model, 6, None, 4) == 6
    assert room(model, 0, None, 10, least=0) == 0
    for wanted, default, length, least, param in (
        (7, None, 4, 1, "max_tokens"),
        (None, 16, 10, 1, "prompt"),
        (1, None, 10, 1, "prompt"),
        (0, None, 11, 0, "prompt"),
    ):
        with pytest.raises(ContextOverflow) as caught:
            room(model, wanted, default, length, least)
        assert caught.value.param == param
        assert "10 tokens" in str(caught.value)
    with pytest.raises(InvalidRequest) as few:
        room(model, 0, None, 4)
    assert few.value.param == "max_tokens"


def test_ids_are_checked() -> None:
    assert check_ids([0, 9], 10, "p") == (0, 9)
    assert check_ids([], 10, "p") == ()


@pytest.mark.parametrize("ids", [[1, 10, -1], [0, 10], [9, 10, 11], [10]])
def test_the_first_wrong_id_is_named(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=r"`p`: token id 10 is outside the vocabulary \(0 to 9\)") as caught:
        check_ids(ids, 10, "p")
    assert caught.value.param == "p"
    with pytest.raises(InvalidRequest, match="token id -1 "):
        check_ids([0, -1, 10], 10, "p")


CACHE = ModelInfo("m", "m", 100, 300, "p", "d", kv_tokens=10)
"""A cache far smaller than the context. The last token of an output needs no place in it."""


@pytest.mark.parametrize(
    ("wanted", "default", "length", "least", "given"),
    [
        (7, None, 4, 1, 7),
        (None, None, 4, 1, 7),
        (None, 16, 4, 1, 7),
        (None, 7, 4, 1, 7),
        (None, 6, 4, 1, 6),
        (1, None, 10, 1, 1),
        (None, None, 10, 1, 1),
        (None, 16, 10, 1, 1),
        (10, None, 1, 1, 10),
        (0, None, 11, 0, 0),
        (0, None, 100, 0, 0),
    ],
)
def test_a_request_may_fill_the_cache_to_its_last_place(
    wanted: int | None, default: int | None, length: int, least: int, given: int
) -> None:
    assert room(CACHE, wanted, default, length, least) == given


@pytest.mark.parametrize(
    ("wanted", "default", "length", "least", "needs", "param"),
    [
        (8, None, 4, 1, 11, "max_tokens"),
        (2, None, 10, 1, 11, "max_tokens"),
        (1, None, 11, 1, 11, "prompt"),
        (None, None, 11, 1, 11, "prompt"),
        (None, 16, 11, 0, 11, "prompt"),
        (5, None, 20, 1, 24, "prompt"),
    ],
)
def test_one_place_more_is_refused_with_both_numbers(
    wanted: int | None, default: int | None, length: int, least: int, needs: int, param: str
) -> None:
    with pytest.raises(
        NeverFits, match=f"holds 10 tokens, but the request needs {needs}: {length} in the prompt"
    ) as no:
        room(CACHE, wanted, default, length, least)
    assert no.value.param == param


def test_a_text_is_refused_by_its_length_only_if_it_cannot_fit_in_any_vocabulary() -> None:
    check_length("x" * (11 * 256 - 1), "prompt", 10)
    with pytest.raises(ContextOverflow, match=r"2816 characters of `prompt` make at least 11") as caught:
        check_length("x" * (11 * 256), "prompt", 10)
    assert caught.value.param == "prompt"


async def both(served: Any, length: int, **body: Any) -> list[Any]:
    """Answers of both routes to a prompt of so many tokens."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x" * (length - 1)}], **body}
    return [
        await served.post("/v1/chat/completions", **chat),
        await served.post("/v1/completions", **{"model": MODEL, "prompt": [65] * length, **body}),
    ]


def test_both_routes_check_the_size_of_the_cache() -> None:
    served = serve_fake(kv_tokens=50)
    for response in asyncio.run(both(served, 20, max_tokens=31)):
        assert response.status_code == 200, response.text
    for response in asyncio.run(both(served, 20, max_tokens=32)):
        error = fault(response, 400, "max_tokens")
        assert error["code"] == "kv_capacity_exceeded"
        assert "holds 50 tokens, but the request needs 51" in error["message"]
    for response, param in zip(asyncio.run(both(served, 51)), ("messages", "prompt"), strict=True):
        assert fault(response, 400, param)["code"] == "kv_capacity_exceeded"
    given = [request.params.max_tokens for request in served.engine.requests]
    assert given == [31, 31]
    assert all(response.status_code == 200 for response in asyncio.run(both(served, 50)))
    assert [request.params.max_tokens for request in served.engine.requests[2:]] == [1, 1]


def sampled(**body: Any) -> SamplingParams:
    served = serve_fake()
    response = asyncio.run(served.complete(**body))
    assert response.status_code == 200, response.text
    params: SamplingParams = served.engine.requests[0].params
    return params


def test_values_at_a_bound_are_accepted_unchanged() -> None:
    assert sampled(min_tokens=5, max_tokens=5).min_tokens == 5
    assert sampled(max_tokens=CONTEXT - 3).max_tokens == CONTEXT - 3
    assert [sampled(top_k=k).top_k for k in (-1, 0, 1, VOCAB, VOCAB + 1)] == [0, 0, 1, VOCAB, VOCAB + 1]
    assert [sampled(seed=seed).seed for seed in (0, 2**63 - 1, -1, -(2**63))] == [0, 2**63 - 1, 2**64 - 1, 2**63]
    ends = [0, VOCAB - 1]
    assert sampled(stop_token_ids=ends).stop_token_ids == tuple(ends)
    assert sampled(allowed_token_ids=ends).allowed_token_ids == tuple(ends)
    assert sampled(logit_bias={str(i): 1.5 for i in ends}).logit_bias == tuple((i, 1.5) for i in ends)
    assert sampled(temperature=0).temperature == 0
    assert sampled(temperature=2, top_p=1, min_p=1, repetition_penalty=0.01).repetition_penalty == 0.01


def test_missing_fields_have_the_default_of_the_protocol() -> None:
    given = sampled(**dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "n", "stop", "seed", "logit_bias")))
    assert given == sampled() == SamplingParams(max_tokens=16)


@pytest.mark.parametrize("key", ["0" * 21, "1" * 21, "--1", "1-", "+1"])
def test_a_bias_whose_key_is_no_id_names_the_key(key: str) -> None:
    error = fault(asyncio.run(serve_fake().complete(logit_bias={key: 1})), 400, "logit_bias")
    assert f"key {key!r} is not a token id" in error["message"]


def test_a_prompt_that_is_cut_keeps_its_end():
    served = serve_fake()
    long = "".join(chr(97 + at % 26) for at in range(500))

    def prompt(**body: Any) -> bytes:
        answer = asyncio.run(served.post("/v1/completions", model=MODEL, add_special_tokens=False, **body))
        assert answer.status_code == 200, answer.text
        return bytes(served.engine.requests[-1].prompt)

    assert prompt(prompt=long, truncate_prompt_tokens=10, max_tokens=5) == long[-10:].encode()
    assert prompt(prompt=list(long.encode()), truncate_prompt_tokens=10, max_tokens=5) == long[-10:].encode()
    assert prompt(prompt="abc", truncate_prompt_tokens=10) == b"abc"
    assert prompt(prompt=long, truncate_prompt_tokens=-1, max_tokens=1) == long[1 - CONTEXT :].encode()
    messages = [{"role": "user", "content": long}]
    assert asyncio.run(served.chat(messages=messages, truncate_prompt_tokens=-1)).status_code == 200
    assert bytes(served.engine.requests[-1].prompt) == (long + ">")[1 - CONTEXT :].encode()
    fault(asyncio.run(served.complete(prompt=long, truncate_prompt_tokens=0)), 400, "truncate_prompt_tokens")
    fault(asyncio.run(served.complete(truncate_prompt_tokens=-2)), 400, "truncate_prompt_tokens")


def test_sampling_that_the_checkpoint_recommends() -> None:
    served = serve_fake()
    served.engine.sampling_defaults = {"temperature": 0.5, "top_k": 7}
    for path, prompt in (
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ):
        for stated, expected in (({}, (0.5, 7, 1.0)), ({"temperature": 0, "top_p": 0.5}, (0.0, 7, 0.5))):
            response = asyncio.run(served.http.post(path, json={"model": MODEL, **prompt, **stated}))
            assert response.status_code == 200
            params = served.engine.requests[-1].params
            assert (params.temperature, params.top_k, params.top_p) == expected
