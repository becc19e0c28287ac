"""Requests that cannot be served, and the field that each error names."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from engine_fakes import INFO, VOCAB, make_request

from headrace.client.validate import validated
from headrace.errors import ContextOverflow, InvalidRequest
from headrace.types import Constraint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 1e308),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -2),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -math.inf),
        ("n", 0),
        ("n", -1),
        ("n", 129),
        ("n", 10**6),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", -1),
        ("logprobs", 129),
        ("prompt_logprobs", 10**6),
        ("prompt_logprobs_start", -1),
        ("seed", -(2**63) - 1),
        ("seed", 2**64),
        ("stop", ("",)),
        ("stop", ("x",) * 65),
        ("stop", ("x" * 5000,)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", (5, VOCAB)),
        ("allowed_token_ids", ()),
        ("allowed_token_ids", (VOCAB,)),
        ("allowed_token_ids", (2**40,)),
        ("logit_bias", ((VOCAB, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((1, math.nan),)),
        ("logit_bias", ((1, 1e308),)),
        ("logit_bias", ((1, -100.5),)),
        ("logit_bias", tuple((i % VOCAB, 1.0) for i in range(50_000))),
    ],
)
def test_the_field_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"`{field}`") as caught:
        validated(make_request(**{field: value}), INFO)
    assert caught.value.param == field
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("prompt", [(), (-1,), (VOCAB,), (0, 2**33)])
def test_prompts(prompt: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="`prompt`") as caught:
        validated(make_request(prompt), INFO)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("length", "tokens", "fits"),
    [(127, 1, True), (128, 0, True), (128, 1, False), (129, 0, False), (1, 10**9, False), (1, 127, True)],
)
def test_context(length: int, tokens: int, fits: bool) -> None:
    request = make_request((1,) * length, max_tokens=tokens)
    if fits:
        validated(request, INFO)
        return
    with pytest.raises(ContextOverflow, match=rf"128 .* {length + tokens} ") as caught:
        validated(request, INFO)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"prompt_logprobs_start": 2}, "needs `prompt_logprobs`"),
        ({"prompt_logprobs_start": 5, "prompt_logprobs": 0}, "must be below the number of prompt tokens, which is 5"),
    ],
)
def test_a_start_of_logprobs_that_reports_nothing_is_refused(params: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        validated(make_request((1,) * 5, **params), INFO)
    assert caught.value.param == "prompt_logprobs_start"
    validated(make_request((1,) * 5, prompt_logprobs=0, prompt_logprobs_start=4), INFO)


def test_everything_at_its_limits_is_accepted() -> None:
    validated(
        make_request(
            n=128,
            temperature=0.0,
            top_p=1e-9,
            logprobs=0,
            prompt_logprobs=128,
            seed=2**64 - 1,
            logit_bias=((0, -100.0), (VOCAB - 1, 100.0)),
            allowed_token_ids=(0,),
            min_tokens=16,
        ),
        INFO,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_tokens", 1),
        ("stop", ("a",)),
        ("stop_token_ids", (5,)),
        ("ignore_eos", True),
        ("allowed_token_ids", (5,)),
    ],
)
def test_what_contradicts_a_constraint(field: str, value: object) -> None:
    constrained = replace(make_request(), constraint=Constraint("regex", "a+"))
    validated(constrained, INFO)
    params = replace(constrained.params, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"`{field}` cannot be combined with a constraint") as caught:
        validated(replace(constrained, params=params), INFO)
    assert caught.value.param == field
