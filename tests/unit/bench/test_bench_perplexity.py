"""Which tokens of a text count towards its perplexity, and how."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from headrace.bench.verb_perplexity import perplexity, windows


class Letters:
    """A token a character; one in front of all where `bos` is given."""

    def __init__(self, bos: int | None = None) -> None:
        self.bos_token_id = 0
        self._opens = [] if bos is None else [bos]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*self._opens, *map(ord, text)]


def cut(text: str, size: int, bos: int | None = None) -> list[list[int]]:
    return list(windows(Letters(bos), text, size))  # type: ignore[arg-type]


def test_windows_follow_one_another_and_the_rest_is_left_out() -> None:
    assert cut("abcdefghij", 4) == [[97, 98, 99, 100], [101, 102, 103, 104]]
    assert cut("abc", 4) == []


def test_every_window_opens_with_the_bos_token_where_the_tokenizer_adds_one() -> None:
    assert cut("abcdefghij", 4, bos=0) == [[0, 97, 98, 99], [0, 101, 102, 103]]


@pytest.mark.parametrize("size", [4, 7, 512])
def test_what_the_second_half_predicts_is_scored(size: int) -> None:
    """Token i counts where logits i - 1 stand in the second half: size - size // 2 - 1 tokens a window."""
    seen: list[Sequence[int]] = []

    def score(window: Sequence[int]) -> list[float | None]:
        seen.append(window)
        first_half = size // 2 + 1
        return [None, *[-100.0] * (first_half - 1), *[-float(len(seen))] * (size - first_half)]

    value = perplexity([[1] * size, [2] * size, [3] * size], score)
    assert value == pytest.approx(math.exp(2.0))
    assert seen == [[1] * size, [2] * size, [3] * size]
