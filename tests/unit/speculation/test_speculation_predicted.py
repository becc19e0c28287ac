"""A predicted output is followed, left at a difference and found again."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from naive_drafts import NAMESPACE, aligned

from headrace.speculation.drafter import NO_GUESS
from headrace.speculation.predicted import PredictedDrafter


def started(prediction: list[int], output: list[int]) -> PredictedDrafter:
    drafter = PredictedDrafter()
    drafter.begin("s", NAMESPACE, [9, 9], prediction)
    drafter.extend("s", output)
    return drafter


@given(st.lists(st.integers(0, 3), min_size=1, max_size=14), st.lists(st.integers(0, 3), max_size=30))
def test_the_place_is_the_definition_read_literally(prediction: list[int], output: list[int]) -> None:
    drafter = started(prediction, [])
    for at in range(len(output) + 1):
        place = aligned(prediction, output[:at])
        assert drafter.guess("s", 99).tokens == ([] if place is None else prediction[place:])
        drafter.extend("s", output[at : at + 1])


def test_the_prediction_is_guessed_from_the_first_token_on() -> None:
    assert started([1, 2, 3, 4], []).guess("s", 3).tokens == [1, 2, 3]
    assert started([1, 2, 3, 4], [1, 2]).guess("s", 9).tokens == [3, 4]
    assert started([1, 2], [1, 2]).guess("s", 9) == NO_GUESS
    assert started([1, 2], []).guess("s", 0) == NO_GUESS


def test_one_replaced_token_loses_nothing() -> None:
    assert started([1, 2, 3, 4, 5], [1, 2, 8]).guess("s", 2).tokens == [4, 5]
    assert started([1, 2, 3, 4, 5], [1, 2, 8, 4]).guess("s", 2).tokens == [5]


def test_after_an_insertion_the_place_is_found_again() -> None:
    prediction = list(range(10, 30))
    drafter = started(prediction, [10, 11, 1, 2, 3])
    assert drafter.guess("s", 2) == NO_GUESS
    drafter.extend("s", [12, 13])
    assert drafter.guess("s", 2).tokens == [14, 15]


def test_after_a_deletion_the_place_is_found_again() -> None:
    assert started(list(range(10, 30)), [10, 11, 20, 21]).guess("s", 2).tokens == [22, 23]


def test_of_equal_places_the_next_one_counts() -> None:
    prediction = [1, 2, 50, 3, 4, 1, 2, 60, 5, 6, 1, 2, 70]
    assert started(prediction, [1, 2, 50, 3, 9, 9, 1, 2]).guess("s", 1).tokens == [60]
    assert started(prediction, [1, 2, 50, 3, 4, 1, 2, 60, 5, 6, 1, 2, 70, 9, 9, 1, 2]).guess("s", 1).tokens == [70]


def test_survival_falls_at_a_difference_and_rises_with_agreement() -> None:
    prediction = list(range(100))
    after_some, after_many = (started(prediction, prediction[:n]).guess("s", 1).survival[0] for n in (3, 40))
    replaced = started(prediction, [*prediction[:40], 999]).guess("s", 1).survival[0]
    assert replaced < after_some < after_many


def test_a_sequence_without_a_prediction_guesses_nothing() -> None:
    drafter = started([], [1, 2, 3])
    assert drafter.guess("s", 4) == NO_GUESS


def test_most_tokens_of_an_edit_are_guessed() -> None:
    rng = random.Random(2)
    prediction = [rng.randrange(300) for _ in range(2000)]
    output = list[int]()
    for token in prediction:
        change = rng.random()
        if change < 0.97:
            output.append(token)
        if change > 0.96:
            output += [rng.randrange(300) for _ in range(rng.randrange(1, 5))]
    drafter, right = started(prediction, []), 0
    for token in output:
        right += drafter.guess("s", 1).tokens == [token]
        drafter.extend("s", [token])
    assert right / len(output) > 0.85
