"""POST /v1/completions over a fake engine."""

from __future__ import annotations

import asyncio

import pytest
from server_fakes import BOS, CONTEXT, VOCAB, Served, events, fault, serve_fake


def run(coroutine):
    return asyncio.run(coroutine)


def complete(served: Served | None = None, **body):
    return run((served or serve_fake()).complete(**body))


def test_complete_answer():
    reply = complete(max_tokens=50).json()
    assert reply["object"] == "text_completion"
    assert reply["id"].startswith("cmpl-")
    assert reply["model"] == "fake/model"
    assert reply["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop", "stop_reason": 7}
    ]
    assert reply["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }


def test_a_complete_answer_says_when_its_first_token_came():
    assert 0 <= float(complete(max_tokens=50).headers["x-headrace-first-token-ms"]) < 60_000
    assert "x-headrace-first-token-ms" not in complete(max_tokens=50, stream=True).headers


def test_parameters_reach_the_engine():
    served = serve_fake()
    complete(
        served,
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=10**6,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias={"7": -100, "8": 1.5},
        allowed_token_ids=[1, 2],
        seed=-1,
        n=2,
        best_of=2,
        stop=["x", "y"],
        stop_token_ids=[5],
        include_stop_str_in_output=True,
        min_tokens=2,
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs=3,
        priority=-4,
        cache_salt="mine",
    )
    (request,) = served.engine.requests
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (9, 0.5, 0.9, 10**6)
    assert (params.min_p, params.repetition_penalty) == (0.1, 1.1)
    assert (params.presence_penalty, params.frequency_penalty) == (-1, 2)
    assert params.logit_bias == ((7, -100.0), (8, 1.5))
    assert params.allowed_token_ids == (1, 2)
    assert params.seed == 2**64 - 1
    assert (params.n, params.stop, params.stop_token_ids, params.min_tokens) == (2, ("x", "y"), (5,), 2)
    assert params.include_stop_str_in_output
    assert params.ignore_eos
    assert not params.skip_special_tokens
    assert (params.logprobs, params.prompt_logprobs) == (3, None)
    assert (request.priority, request.salt, request.echo) == (-4, "mine", False)
    assert request.prompt == (BOS, ord("H"), ord("i"))


def test_defaults_and_nulls_are_openais():
    served = serve_fake()
    complete(served)
    nulls = dict.fromkeys(
        ("max_tokens", "temperature", "top_p", "n", "stop", "seed", "logprobs", "echo", "stream", "top_k")
    )
    complete(served, **nulls)
    first, second = (request.params for request in served.engine.requests)
    assert first == second
    assert (first.max_tokens, first.temperature, first.top_p, first.top_k, first.n) == (16, 1.0, 1.0, 0, 1)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[BOS, 97, 98]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompt_shapes(prompt, expected):
    served = serve_fake()
    reply = complete(served, prompt=prompt).json()
    assert [list(request.prompt) for request in served.engine.requests] == expected
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(expected)))
    assert len({request.id for request in served.engine.requests}) == len(expected)


@pytest.mark.parametrize(
    "prompt", ["", [""], [], [[]], [[], [1]], ["a", ""], ["a", 1], [1, [2]], [-1], [VOCAB], [[VOCAB]], [2**70]]
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_prompts_name_the_field(prompt, stream):
    served = serve_fake()
    response = complete(served, prompt=prompt, stream=stream)
    assert fault(response, 400)["param"].startswith("prompt")
    assert not served.engine.requests


def test_prompt_is_required():
    fault(run(serve_fake().post("/v1/completions", model="fake/model")), 400, "prompt")


def test_batch_of_prompts_with_several_choices():
    reply = complete(prompt=["a", "bc"], n=2, max_tokens=50).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert all(choice["text"] == "Hello" and choice["finish_reason"] == "stop" for choice in reply["choices"])
    assert reply["usage"]["prompt_tokens"] == 2 + 3
    assert reply["usage"]["completion_tokens"] == 4 * 5


def test_a_stream_equals_the_complete_answer():
    whole = complete(prompt=["a", "b"], n=2, logprobs=1, max_tokens=50).json()
    stream = events(complete(prompt=["a", "b"], n=2, logprobs=1, max_tokens=50, stream=True))
    for choice in whole["choices"]:
        pieces = [c for chunk in stream for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == [choice["finish_reason"]]
        assert pieces[-1]["finish_reason"] == "stop"
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset", "bytes"):
            assert [item for piece in pieces for item in piece["logprobs"][key]] == choice["logprobs"][key]
    assert all("usage" not in chunk for chunk in stream)


def test_usage_comes_last():
    *chunks, last = events(complete(stream=True, stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 8
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)


def test_continuous_usage():
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(complete(stream=True, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5, 5]


def test_stream_options_need_stream():
    fault(complete(stream_options={"include_usage": True}), 400, "stream_options")


def test_echo_of_prompt_alone():
    served = serve_fake()
    reply = complete(served, echo=True, max_tokens=0).json()
    assert reply["choices"][0]["text"] == "Hi"
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0
    assert served.engine.requests[0].params.max_tokens == 0


def test_echo_with_logprobs_covers_prompt_and_output():
    for stream in (False, True):
        response = complete(echo=True, logprobs=2, max_tokens=3, stream=stream)
        choices = [c["choices"][0] for c in events(response)] if stream else response.json()["choices"]
        assert "".join(choice["text"] for choice in choices) == "HiHel"
        tokens = [t for choice in choices for t in choice["logprobs"]["tokens"]]
        values = [t for choice in choices for t in choice["logprobs"]["token_logprobs"]]
        assert tokens == ["<s>", "H", "i", "H", "e", "l"]
        assert values == [None, -0.5, -0.5, -0.5, -0.5, -0.5]
        assert choices[0]["logprobs"]["top_logprobs"][0] is None


def test_logprobs_by_token_take_the_place_of_the_most_likely():
    named = {"logprobs": 1, "logprob_token_ids": [65, 66, 65, 67], "max_tokens": 2}
    for stream in (False, True):
        response = complete(stream=stream, **named)
        choices = [c["choices"][0] for c in events(response)] if stream else response.json()["choices"]
        found = [top for choice in choices if choice["logprobs"] for top in choice["logprobs"]["top_logprobs"]]
        assert found == [
            {"H": -0.5, "A": -65.0, "B": -66.0, "C": -67.0},
            {"e": -0.5, "A": -65.0, "B": -66.0, "C": -67.0},
        ]
    echoed = complete(echo=True, **named).json()["choices"][0]["logprobs"]["top_logprobs"]
    assert echoed[1] == {"H": -0.5, "\ufffd": -2.0, "bytes:\\xfe": -3.0}
    assert echoed[-1] == found[-1]


def test_no_token_is_asked_for_with_echo_alone() -> None:
    for echo in ({}, {"echo": False}):
        error = fault(complete(max_tokens=0, **echo), 400)
        assert error["param"] == "max_tokens"
        assert "`echo`" in error["message"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"logprob_token_ids": [1]}, "needs `logprobs`"),
        ({"logprob_token_ids": [1], "logprobs": 0, "echo": True, "max_tokens": 0}, "`max_tokens` is 0"),
        ({"logprob_token_ids": [5000], "logprobs": 0}, "outside the vocabulary"),
        ({"logprob_token_ids": [1] * 129, "logprobs": 0}, "128"),
    ],
)
def test_logprobs_by_token_that_cannot_be_given(fields, why):
    error = fault(complete(**fields), 400)
    assert error["param"] == "logprob_token_ids"
    assert why in error["message"]
    assert complete(logprob_token_ids=[]).status_code == 200


def test_prompt_logprobs_without_echo_leave_the_text_alone():
    whole = complete(prompt_logprobs=1, max_tokens=3).json()["choices"][0]
    assert whole["text"] == "Hel"
    assert whole["logprobs"] is None
    assert whole["prompt_logprobs"] == [
        None,
        {str(ord("H")): {"logprob": -0.5, "rank": 1, "decoded_token": "H"}},
        {str(ord("i")): {"logprob": -0.5, "rank": 1, "decoded_token": "i"}},
    ]
    chunks = events(complete(prompt_logprobs=1, max_tokens=3, stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hel"
    assert chunks[0]["choices"][0]["prompt_logprobs"] == whole["prompt_logprobs"]
    assert all("prompt_logprobs" not in chunk["choices"][0] for chunk in chunks[1:])


def test_token_ids_on_request():
    whole = complete(return_token_ids=True, max_tokens=3).json()["choices"][0]
    assert whole["prompt_token_ids"] == [BOS, ord("H"), ord("i")]
    assert whole["token_ids"] == list(b"Hel")
    chunks = [chunk["choices"][0] for chunk in events(complete(return_token_ids=True, max_tokens=3, stream=True))]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [t for chunk in chunks for t in chunk["token_ids"]] == whole["token_ids"]


def test_logprobs_are_valid_json_and_text():
    served = serve_fake(reply="é", logprob=float("-inf"))
    logprobs = complete(served, logprobs=5).json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-9999.0, -9999.0]
    assert logprobs["tokens"] == ["\ufffd", "\ufffd"]
    assert logprobs["bytes"] == [[0xC3], [0xA9]]
    assert logprobs["text_offset"] == [0, 0]
    # Tokens that look the same don't hide each other.
    assert logprobs["top_logprobs"][0] == {"bytes:\\xff": -2.0, "bytes:\\xfe": -3.0, "\ufffd": -9999.0}
    nan = complete(serve_fake(logprob=float("nan")), logprobs=0).json()["choices"][0]["logprobs"]
    assert nan["token_logprobs"][0] == -9999.0
    assert list(nan["top_logprobs"][0]) == ["H"]


@pytest.mark.parametrize(
    ("length", "max_tokens", "given"),
    [
        (CONTEXT - 1, 1, 1),
        (CONTEXT - 1, None, 1),
        (CONTEXT - 20, None, 16),
        (CONTEXT, 1, None),
        (CONTEXT, None, None),
        (CONTEXT + 1, 1, None),
        (1, CONTEXT - 1, CONTEXT - 1),
        (1, CONTEXT, None),
        (1, 10**9, None),
    ],
)
def test_context(length, max_tokens, given):
    served = serve_fake()
    response = complete(served, prompt=[1] * length, max_tokens=max_tokens)
    if given is not None:
        assert response.status_code == 200
        assert served.engine.requests[0].params.max_tokens == given
        return
    error = fault(response, 400)
    assert error["code"] == "context_length_exceeded"
    assert str(CONTEXT) in error["message"]
    assert str(length + (max_tokens or 1)) in error["message"]
    assert not served.engine.requests


def test_a_prompt_of_the_whole_context_can_be_echoed():
    assert complete(prompt=[65] * CONTEXT, max_tokens=0, echo=True).json()["choices"][0]["text"] == "A" * CONTEXT
    fault(complete(prompt=[65] * (CONTEXT + 1), max_tokens=0, echo=True), 400, "prompt")


def test_fan_out_is_limited_before_it_happens():
    served = serve_fake()
    fault(complete(served, prompt=["a"] * 100, n=128), 400, "prompt")
    assert not served.engine.requests


def test_refusals():
    fault(complete(suffix="x"), 400, "suffix")
    fault(complete(best_of=2), 400, "best_of")
    fault(complete(max_tokens=0), 400, "max_tokens")
    fault(complete(min_tokens=5, max_tokens=4), 400, "min_tokens")
    assert fault(complete(model="gpt-4"), 404, "model")["code"] == "model_not_found"
