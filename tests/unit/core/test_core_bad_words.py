"""Token sequences that the output may not hold."""

from __future__ import annotations

import random

import pytest
from core_driver import SMALL, Driver, Record, request

from headrace.core.bad_words import BadWords, without_bad_words
from headrace.core.matcher import Matcher, allows
from headrace.types import Request


def banned(matcher: Matcher, vocab: int = 70) -> set[int]:
    return {token for token in range(vocab) if not allows(matcher, token)}


def test_only_the_last_token_of_a_word_is_banned_and_only_behind_its_others() -> None:
    matcher = BadWords([(5,), (7, 8), (7, 7, 69)], 70)
    assert banned(matcher) == {5}
    for token, after in ((7, {5, 8}), (7, {5, 8, 69}), (9, {5}), (7, {5, 8}), (8, {5})):
        assert matcher.advance(token) is None
        assert banned(matcher) == after
    assert matcher.accepting
    assert not matcher.stopped
    assert list(matcher.forced()) == []


def test_a_copy_is_independent() -> None:
    matcher = BadWords([(7, 8)], 70)
    ahead = matcher.copy()
    ahead.advance(7)
    assert (banned(ahead), banned(matcher)) == ({8}, set())


def test_within_a_grammar_both_count() -> None:
    class Third(BadWords):
        def __init__(self) -> None:
            super().__init__([(60, 61)], 70)
            self.seen: list[int] = []

        stopped = property(lambda self: len(self.seen) == 2)  # type: ignore[assignment]
        accepting = property(lambda self: bool(self.seen))  # type: ignore[assignment]

        def advance(self, token: int) -> str | None:
            self.seen.append(token)
            return super().advance(token)

    matcher = BadWords([(7, 8), (60, 9)], 70, Third())
    assert not matcher.accepting
    assert matcher.advance(60) is None
    assert banned(matcher) == {9, 61}
    assert matcher.accepting
    assert matcher.advance(7) is None
    assert matcher.stopped


def test_words_of_one_token_need_no_matcher() -> None:
    assert without_bad_words([(3,), (4,)], 70, None) is None
    assert without_bad_words([], 70, None) is None
    assert isinstance(without_bad_words([(3,), (4, 5)], 70, None), BadWords)


def spoken(one: Request) -> Record:
    driver = Driver(SMALL, depth=1)
    driver.add(one)
    return driver.run()[one.id]


def with_words(id: str, prompt: list[int], words: tuple[tuple[int, ...], ...]) -> Request:
    one = request(id, prompt, max_tokens=20, ignore_eos=True)
    return Request(one.id, one.prompt, one.params, one.eos_token_ids, bad_words=words)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_output_holds_none_in_any_company(depth: int) -> None:
    rng = random.Random(depth)
    wanted, words = {}, {}
    for at in range(6):
        prompt = [rng.randrange(2, 64) for _ in range(3 + at)]
        free = spoken(request(f"r{at}", prompt, max_tokens=20, ignore_eos=True)).tokens
        words[f"r{at}"] = ((free[0],), tuple(free[2:4]), tuple(free[5:8]))
        record = spoken(with_words(f"r{at}", prompt, words[f"r{at}"]))
        wanted[f"r{at}"] = (prompt, record.tokens)
    driver = Driver(SMALL, depth=depth)
    for name, (prompt, _) in wanted.items():
        driver.add(with_words(name, prompt, words[name]))
    found = driver.run()
    for name, (_, tokens) in wanted.items():
        assert found[name].tokens == tokens
        assert len(tokens) == 20
        for word in words[name]:
            assert all(tuple(tokens[at : at + len(word)]) != word for at in range(20))
