"""Words that must not be written, as tokens."""

from __future__ import annotations

import pytest
from engine_fakes import ByteTokenizer

from headrace.client.bad_words import bad_word_ids
from headrace.errors import InvalidRequest


def ids(*words: str) -> tuple[tuple[int, ...], ...]:
    return bad_word_ids(words, ByteTokenizer(), 256)


def test_a_word_at_the_start_of_a_text_covers_the_one_behind_a_space() -> None:
    assert ids("ab") == ids("  ab") == ((97, 98),)


def test_white_space_alone_is_a_word() -> None:
    assert ids("\n", " ") == ((10,), (32,))


def test_what_has_no_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="has no tokens"):
        ids("")
