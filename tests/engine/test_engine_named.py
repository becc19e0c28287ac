"""The logprobs of tokens that a request names: those that the same tokens have among the most likely, to the bit."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Answer, alone, answer, engine, request, together
from seeded_drafts import EnginePlaced, use
from test_engine_bits import VOCAB, same
from tiny_models import prompt as random_prompt

from headrace.client.api import GenerateRequest
from headrace.errors import InvalidRequest
from headrace.types import Constraint

NAMES = (7, 200, 31, 7, 64)


def listed(found: Answer, at: int) -> dict[int, float]:
    return {token: value for token, _, _, value in found.logprobs[at].top}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.0, "seed": 3},
        {"logit_bias": ((7, 60.0), (200, -100.0))},
        {"repetition_penalty": 1.5, "allowed_token_ids": (200, 31, 65)},
    ],
    ids=str,
)
def test_they_are_those_of_the_most_likely_tokens(tiny_llama: Path, params: dict[str, Any]) -> None:
    prompt = random_prompt(30, VOCAB)
    whole, named = alone(
        tiny_llama, [request(prompt, logprobs=128, **params), request(prompt, logprob_token_ids=NAMES, **params)]
    )
    assert named.ids == whole.ids
    found = 0
    for at, entry in enumerate(named.logprobs):
        assert [token for token, *_ in entry.top] == [7, 200, 31, 64], "in their order, without repetitions"
        assert (entry.logprob, entry.rank) == (whole.logprobs[at].logprob, whole.logprobs[at].rank)
        likely = listed(whole, at)
        for token, value in listed(named, at).items():
            assert math.isfinite(value)
            assert value < 0
            if token in likely:
                found += 1
                assert value == likely[token]
    assert found


def test_more_names_than_a_narrow_step_holds(tiny_llama: Path) -> None:
    prompt = random_prompt(12, VOCAB)
    few, many = alone(
        tiny_llama,
        [request(prompt, logprob_token_ids=(5, 250)), request(prompt, logprob_token_ids=tuple(range(130, 258)))],
    )
    for at, entry in enumerate(many.logprobs):
        assert len(entry.top) == 128
        assert listed(many, at)[250] == listed(few, at)[250]


def company() -> list[GenerateRequest]:
    """Names of many numbers beside none, an echoed and scored prompt, a constraint, and choices."""
    found = [
        request(random_prompt(9 + 5 * at, VOCAB), f"n{at}", logprob_token_ids=tuple(range(3, 3 + at * 11)), seed=at)
        for at in range(5)
    ]
    found.append(request(random_prompt(40, VOCAB), "echoed", True, prompt_logprobs=2, logprob_token_ids=NAMES))
    formed = request(random_prompt(8, VOCAB), "formed", logprob_token_ids=NAMES, max_tokens=12, ignore_eos=False)
    found.append(GenerateRequest("formed", formed.prompt, formed.params, constraint=Constraint("regex", "[ab]{3}xyz1")))
    return found


@pytest.mark.parametrize("sizes", [{}, {"chunk": 7, "seqs": 3}, {"blocks": 20}, {"speculate": "ngram"}], ids=str)
def test_in_any_company(tiny_llama: Path, sizes: dict[str, Any]) -> None:
    wanted = alone(tiny_llama, company())
    echoed, formed = wanted[-2:]
    assert [len(entry.top) for entry in echoed.logprobs] == [0] + [2] * 39 + [4] * 8
    assert all(len(entry.top) == 4 for entry in formed.logprobs), "forced tokens, too"

    async def main() -> None:
        async with engine(tiny_llama, **sizes) as client:
            same(await together(client, company()), wanted)
            same(await together(client, company()[::-1]), wanted[::-1])

    asyncio.run(main())


def test_with_drafts_that_the_device_places(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of a step has its names: those of drafts, too."""
    requests = [
        request(random_prompt(9, VOCAB) * 4, f"m{at}", max_tokens=40, logprob_token_ids=NAMES[at % 2 :] if at else ())
        for at in range(5)
    ]
    wanted = alone(tiny_llama, requests)
    made = use(monkeypatch, lambda: EnginePlaced(1.0, 3))

    async def main() -> None:
        async with engine(tiny_llama, speculate="ngram") as client:
            same(await together(client, requests), wanted)

    asyncio.run(main())
    assert made[0].ahead > 0


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"logprobs": None, "logprob_token_ids": (1,)}, "needs `logprobs`"),
        ({"max_tokens": 0, "prompt_logprobs": 0, "logprob_token_ids": (1,)}, "`max_tokens` is 0"),
        ({"logprob_token_ids": (1, VOCAB + 999)}, "outside the vocabulary"),
    ],
)
def test_what_cannot_be_reported_is_refused(tiny_llama: Path, params: dict[str, Any], what: str) -> None:
    async def main() -> None:
        async with engine(tiny_llama) as client:
            with pytest.raises(InvalidRequest, match=what) as caught:
                await answer(client, request([1, 2], **params))
            assert caught.value.param == "logprob_token_ids"

    asyncio.run(main())
