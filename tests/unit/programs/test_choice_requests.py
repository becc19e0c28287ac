"""The requests of a `select`."""

from __future__ import annotations

import random

import pytest

from headrace.client.api import PromptScores
from headrace.programs.choice_requests import ChoiceRequest, choice_requests, choice_rows

Ids = tuple[int, ...]


def logprob(before: Ids, token: int) -> float:
    return -float(hash((before, token)) % 1000)


def scored(request: ChoiceRequest) -> PromptScores:
    own = [logprob(request.ids[:at], request.ids[at]) for at in range(request.start, len(request.ids))]
    return PromptScores(own, [logprob((), one) for one in request.rivals])


def test_choices_of_one_token_are_one_request() -> None:
    assert choice_requests([(1,), (2,), (3,), (2,)], 8) == [ChoiceRequest((1,), 0, (2, 3))]


def test_a_longer_choice_hosts_the_first_tokens_and_others_need_only_the_rest() -> None:
    found = choice_requests([(1,), (2, 5), (3, 6, 7), (2, 6)], 8)
    assert found == [ChoiceRequest((2, 5), 0, (1, 3)), ChoiceRequest((3, 6, 7), 1), ChoiceRequest((2, 6), 1)]


def test_where_rivals_are_not_to_be_had_each_choice_is_a_request() -> None:
    assert choice_requests([(1,), (2, 5), (1,)], 0) == [ChoiceRequest((1,), 0), ChoiceRequest((2, 5), 0)]


@pytest.mark.parametrize("seed", range(40))
def test_the_rows_are_those_of_each_choice_alone(seed: int) -> None:
    rng = random.Random(seed)
    choices = [tuple(rng.randrange(6) for _ in range(rng.choice((1, 1, 2, 3)))) for _ in range(rng.randrange(1, 14))]
    requests = choice_requests(choices, rng.choice((0, 1, 2, 64)))
    rows = choice_rows(choices, requests, [scored(one) for one in requests])
    assert rows == [[logprob(one[:at], token) for at, token in enumerate(one)] for one in choices]
    assert all(len(one.rivals) <= 64 and one.start < len(one.ids) for one in requests)
