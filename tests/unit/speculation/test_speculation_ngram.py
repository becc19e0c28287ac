"""The index of occurrences and the n-gram drafter equal their definitions; rates are learnt from what follows."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_drafts import NAMESPACE, TOKENS, matches, ngram

from headrace.speculation.drafter import NO_GUESS
from headrace.speculation.hit_rates import HitRates
from headrace.speculation.match_lengths import LONGEST, MATCH_PRIORS, match_kinds
from headrace.speculation.ngram import NgramDrafter
from headrace.speculation.occurrences import GAP, Occurrences


def guess(drafter: NgramDrafter, most: int = 8) -> list[int]:
    return drafter.guess("s", most).tokens


@given(TOKENS, TOKENS, st.integers(1, 3), st.integers(3, 6), st.integers(1, 5), st.integers(1, 3))
def test_the_index_finds_what_a_full_search_finds(
    text: list[int], tail: list[int], width: int, longest: int, most: int, keep: int
) -> None:
    index = Occurrences(width)
    for at in range(0, len(text), 7):
        index.extend(text[at : at + 7])
    assert index.after(tail, longest, most, keep) == matches(text, tail, width, longest, most, keep)
    assert index.earlier(longest, most, keep) == matches(text[:-1], text, width, longest, most, keep)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=64, max_size=100), TOKENS, st.integers(1, 3))
def test_many_tokens_at_once_are_indexed_as_one_by_one(text: list[int], more: list[int], width: int) -> None:
    whole, single = Occurrences(width), Occurrences(width)
    whole.extend(text)
    whole.extend(more)
    for token in text + more:
        single.extend([token])
    assert whole.tokens == single.tokens == text + more
    for tail in (text, more, text[5:20]):
        assert whole.after(tail, 9, 50, 50) == single.after(tail, 9, 50, 50)
    assert whole.earlier(9, 50, 50) == single.earlier(9, 50, 50)


def test_a_gap_matches_nothing() -> None:
    index = Occurrences(2)
    index.extend([1, 2, GAP, 2, 3])
    assert index.after([GAP, 2, 3], 8, 8, 8) == (3, [5])
    assert index.after([9, 2, 3], 8, 8, 8) == (2, [5])


@given(TOKENS, TOKENS, st.integers(1, 3), st.integers(0, 9))
def test_a_guess_is_the_definition_read_literally(
    prompt: list[int], output: list[int], shortest: int, most: int
) -> None:
    drafter = NgramDrafter(shortest, 6, 4)
    drafter.begin("s", NAMESPACE, prompt)
    for at, token in enumerate(output):
        found = drafter.guess("s", most)
        assert found.tokens == ngram(prompt + output[:at], shortest, 6, 4, most)
        assert len(found.survival) == len(found.tokens)
        assert all(0 < after <= before <= 1 for before, after in pairwise([1.0, *found.survival]))
        drafter.extend("s", [token])


def test_the_longest_match_wins_and_of_those_the_latest() -> None:
    drafter = NgramDrafter()
    drafter.begin("s", NAMESPACE, [7, 1, 2, 10, 8, 1, 2, 20, 8, 1, 2, 30, 9, 1, 2, 40, 8, 1])
    drafter.extend("s", [2])
    assert guess(drafter, 2) == [30, 9]


def test_a_text_with_a_period_goes_on() -> None:
    drafter = NgramDrafter()
    drafter.begin("s", NAMESPACE, [1, 2, 3, 1, 2, 3, 1, 2])
    assert guess(drafter, 7) == [3, 1, 2, 3, 1, 2, 3]


def test_nothing_is_guessed_without_a_match() -> None:
    drafter = NgramDrafter()
    drafter.begin("s", NAMESPACE, [])
    assert drafter.guess("s", 4) == NO_GUESS
    drafter.extend("s", [1, 2, 3, 4])
    assert drafter.guess("s", 4) == NO_GUESS
    drafter.extend("s", [1, 2])
    assert guess(drafter, 0) == []
    assert guess(drafter, 1) == [3]


def test_survival_follows_the_acceptance_of_the_sequence() -> None:
    drafter, rng = NgramDrafter(), random.Random(1)
    cycle = [1, 2, 3, 4, 5]
    for name, text in (("copy", cycle * 40), ("noise", [rng.randrange(6) for _ in range(200)])):
        drafter.begin(name, NAMESPACE, cycle * 2)
        for token in text:
            drafter.guess(name, 4)
            drafter.extend(name, [token])
    for name in ("copy", "noise"):
        drafter.extend(name, cycle * 3)
    copied, noisy = drafter.guess("copy", 4), drafter.guess("noise", 4)
    assert copied.tokens == noisy.tokens == cycle[:4]
    assert copied.survival[-1] > 0.9
    assert noisy.survival[0] < copied.survival[0]


def test_rates_start_from_the_prior_and_the_common_rate() -> None:
    shared = HitRates([0.25, 0.5])
    first, second = shared.of_sequence(), shared.of_sequence()
    assert first.survival([1, 0]) == pytest.approx([0.5, 0.125])
    for _ in range(100):
        first.expect([7], [0])
        first.judge([7])
    assert first.rate(0) > 0.95
    assert 0.7 < second.rate(0) < first.rate(0), "a new sequence expects what the others had"
    assert first.rate(1) == 0.5


def test_a_guess_is_judged_up_to_its_first_wrong_token_whatever_was_verified() -> None:
    shared = HitRates([0.5] * 4)
    rates = shared.of_sequence()
    rates.expect([5, 6, 7, 8], [0, 1, 2, 3])
    rates.judge([5])
    rates.judge([6, 9, 8])
    assert [rates.rate(kind) > 0.5 for kind in range(4)] == [True, True, False, False]
    assert rates.rate(3) == 0.5, "a token after a wrong one says nothing"


def test_rates_forget() -> None:
    rates = HitRates([0.5]).of_sequence()
    for hit in [True] * 2000 + [False] * 40:
        rates.expect([1], [0])
        rates.judge([1 if hit else 2])
    assert rates.rate(0) < 0.45


def test_a_longer_match_is_of_a_kind_with_a_better_prior() -> None:
    assert list(MATCH_PRIORS) == sorted(MATCH_PRIORS)
    assert match_kinds(2, 5) == [1, 2, 3, 3, 4]
    assert match_kinds(LONGEST, 2) == [8, 8]
