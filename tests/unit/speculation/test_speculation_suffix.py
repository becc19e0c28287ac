"""Suffix decoding equals its definition, carries tokens only within a namespace, and keeps a bounded number of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_drafts import NAMESPACE, TOKENS, suffix

from headrace.speculation.drafter import NO_GUESS
from headrace.speculation.kept_answers import KeptAnswers
from headrace.speculation.suffix import SuffixDrafter


def answer(
    drafter: SuffixDrafter, tokens: list[int], namespace: tuple[str, str] = NAMESPACE, keep: bool = True
) -> None:
    """An earlier sequence with this output."""
    drafter.begin("earlier", namespace, [90, 91])
    drafter.extend("earlier", tokens)
    drafter.end("earlier", keep)


@given(st.lists(TOKENS, max_size=4), TOKENS, TOKENS, st.integers(1, 3), st.integers(0, 9))
def test_a_guess_is_the_definition_read_literally(
    answers: list[list[int]], prompt: list[int], output: list[int], shortest: int, most: int
) -> None:
    drafter = SuffixDrafter(shortest, 6, 5, 99)
    for earlier in answers:
        answer(drafter, earlier)
    drafter.begin("s", NAMESPACE, prompt)
    for at, token in enumerate(output):
        assert drafter.guess("s", most).tokens == suffix(prompt + output[:at], answers, shortest, 6, 5, most)
        drafter.extend("s", [token])


def test_the_most_frequent_continuation_is_followed() -> None:
    drafter = SuffixDrafter()
    drafter.begin("s", NAMESPACE, [1, 2, 5, 6, 1, 2, 5, 7, 1, 2, 3, 8, 1])
    assert drafter.guess("s", 4) == NO_GUESS
    drafter.extend("s", [2])
    assert drafter.guess("s", 2).tokens == [5, 7]
    assert drafter.guess("s", 2).survival[1] < drafter.guess("s", 2).survival[0]


def test_a_guess_ends_where_the_counts_promise_too_little() -> None:
    drafter = SuffixDrafter(places=12)
    drafter.begin("s", NAMESPACE, [token for at in range(12) for token in (1, 2, 10 + at)] + [1, 2])
    assert drafter.guess("s", 4) == NO_GUESS, "many places, all different"


def test_agreement_raises_survival() -> None:
    drafter = SuffixDrafter()
    drafter.begin("s", NAMESPACE, [1, 2, 3, 4, 8, 1, 2, 3, 9, 1, 2])
    drafter.begin("t", NAMESPACE, [1, 2, 3, 4, 8, 1, 2, 4, 9, 1, 2])
    agreed, split = drafter.guess("s", 1), drafter.guess("t", 1)
    assert agreed.tokens == [3]
    assert agreed.survival[0] > split.survival[0]


def test_answers_serve_later_sequences_of_their_namespace_alone() -> None:
    drafter = SuffixDrafter()
    answer(drafter, [5, 6, 7, 8, 9])
    answer(drafter, [5, 6, 1, 1, 1], ("other", ""))
    answer(drafter, [5, 6, 2, 2, 2], keep=False)
    for name, namespace in (("a", NAMESPACE), ("b", ("other", "")), ("c", ("", "salt"))):
        drafter.begin(name, namespace, [5, 6])
    assert drafter.guess("a", 9).tokens == [7, 8, 9], "an answer's end is no token"
    assert drafter.guess("b", 2).tokens == [1, 1]
    assert drafter.guess("c", 2) == NO_GUESS


def test_prompts_are_not_kept() -> None:
    drafter = SuffixDrafter()
    drafter.begin("earlier", NAMESPACE, [1, 2, 3, 4, 5])
    drafter.extend("earlier", [8, 9])
    drafter.end("earlier", keep=True)
    drafter.begin("s", NAMESPACE, [1, 2])
    assert drafter.guess("s", 2) == NO_GUESS


def test_the_oldest_answers_are_dropped_first() -> None:
    kept = KeptAnswers(80, 2)
    for at in range(30):
        kept.add(("", str(at % 2)), [at, at, at])
        assert len(kept) <= 80
    found = [token for index in kept.indices(("", "1")) for token in index.tokens if token >= 0]
    assert set(found) == set(range(11, 30, 2))
    assert found[0] > found[-1], "the newest first"
    assert not list(kept.indices(("x", "1")))


def test_the_end_of_a_very_long_answer_is_kept() -> None:
    kept = KeptAnswers(80, 2)
    kept.add(NAMESPACE, list(range(1000)))
    (index,) = kept.indices(NAMESPACE)
    assert index.tokens == [*range(981, 1000), -1]


@pytest.mark.parametrize("most", [0, 8])
def test_no_room_keeps_nothing(most: int) -> None:
    kept = KeptAnswers(most, 2)
    kept.add(NAMESPACE, [1, 2, 3])
    assert len(kept) == 0
